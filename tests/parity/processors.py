"""Whole folders of Hugging Face's, model and processor: the same pixels go in, and the same answers come out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from support.peers import transformers
from torch import Tensor, nn

from parity.compare import relative_error
from parity.head_cases import depth, detect, segment
from parity.heads import HeadCase
from vitrail.models.checkpoint.headed import load_headed
from vitrail.runs.pictures import padded_batch
from vitrail.runs.trained import TrainedModel

_OTHER = Path(__file__).parents[3] / "shared" / "data" / "bccd" / "JPEGImages"  # more photographs, where there are


@dataclass(frozen=True)
class ProcessorCase:
    """A model with a processor, at small sizes; `usual` are the options for the sizes of published models."""

    name: str
    make: Callable[[], nn.Module]
    processor: str
    options: Mapping[str, Any]
    theirs: Callable[[Any, nn.Module, Image.Image, float], Mapping[str, Tensor]]
    square: bool = False  # whether Hugging Face's model takes square inputs alone
    usual: Mapping[str, Any] | None = field(default_factory=dict)  # None: there is nothing usual about it
    usual_make: Callable[[], nn.Module] | None = None  # where the model is built for one size


@cache
def photographs() -> dict[str, Image.Image]:
    """Photographs that scikit-learn ships, upright ones too, and one of the shared data where it is there."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        return {}
    china, flower = (Image.fromarray(image) for image in load_sample_images().images)
    found = {
        "china": china,
        "flower": flower,
        "upright": china.crop((180, 0, 420, 427)),
        "square": flower.crop((100, 0, 527, 427)),
    }
    more = sorted(_OTHER.glob("*.jpg"))[:1] if _OTHER.is_dir() else []
    return found | {path.stem: Image.open(path).convert("RGB") for path in more}


def as_tensor(photo: Image.Image) -> Tensor:
    """C H W uint8."""
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1)


def of_boxes(processor: Any, model: nn.Module, photo: Image.Image, threshold: float) -> dict[str, Tensor]:
    """Boxes by their scores, cut off at the edges of the picture, as ours are."""
    found = model(**processor(photo, return_tensors="pt"))
    size = (photo.height, photo.width)
    (one,) = processor.post_process_object_detection(found, threshold=threshold, target_sizes=[size])
    order = one["scores"].argsort(descending=True)
    limits = torch.tensor([photo.width, photo.height, photo.width, photo.height])
    boxes = torch.minimum(one["boxes"][order].clamp(min=0), limits)
    return {"boxes": boxes, "scores": one["scores"][order], "labels": one["labels"][order]}


def of_mask(processor: Any, model: nn.Module, photo: Image.Image, threshold: float) -> dict[str, Tensor]:
    found = model(**processor(photo, return_tensors="pt"))
    (classes,) = processor.post_process_semantic_segmentation(found, target_sizes=[(photo.height, photo.width)])
    return {"classes": classes}


def of_padded_mask(processor: Any, model: nn.Module, photo: Image.Image, threshold: float) -> dict[str, Tensor]:
    """Their semantic post-processing forgets the padding, that of panoptic masks does not: as theirs without it."""
    found = model(**processor(photo, return_tensors="pt"))
    side = processor.size["shortest_edge"]
    masks = F.interpolate(found.masks_queries_logits, size=(side, side), mode="bilinear").sigmoid()
    claims = torch.einsum("bqc,bqhw->bchw", found.class_queries_logits.softmax(dim=-1)[..., :-1], masks)
    (whole,) = processor.unpad_image(claims, [(photo.height, photo.width)], processor.size)
    return {"classes": whole.argmax(dim=0)}


def of_depth(processor: Any, model: nn.Module, photo: Image.Image, threshold: float) -> dict[str, Tensor]:
    found = model(**processor(photo, return_tensors="pt"))
    (one,) = processor.post_process_depth_estimation(found, target_sizes=[(photo.height, photo.width)])
    return {"depth": one["predicted_depth"].clamp(min=0)}


def _case(cases: Any, name: str) -> Callable[[], nn.Module]:
    found: Callable[[], nn.Module] = next(case.make for case in cases.CASES if case.name == name)
    return found


def _lively(make: Callable[[], nn.Module], *enlarged: str) -> Callable[[], nn.Module]:
    """With biases around 0 and some larger weights: otherwise all queries, and so all answers, are alike."""

    @torch.no_grad()
    def made() -> nn.Module:
        model = make()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.sub_(1)
            elif any(part in name for part in enlarged):
                parameter.mul_(10)
        return model

    return made


_DETR = _lively(_case(detect, "DetrForObjectDetection, ResNet"), "query_position", "embedder.convolution")
_EDGES = {"size": {"shortest_edge": 160, "longest_edge": 230}}
_SQUARE = {"size": {"shortest_edge": 64, "longest_edge": 64}}
_RT = _case(detect, "RTDetrForObjectDetection, basic blocks")
_LIVELY = ("query.weight", "patch_embeddings", "fc3")
_EOMT = _lively(_case(segment, "EomtForUniversalSegmentation, two blocks with queries"), *_LIVELY)
_LARGE_EOMT = _lively(segment.eomt("640 pixels", image_size=640).make, *_LIVELY)
_SEGFORMER = _case(segment, "SegformerForSemanticSegmentation, b0 in small")
_DPT = _case(depth, "DPTForDepthEstimation, small")
_SIZE = {"height": 128, "width": 160}
CASES = [
    ProcessorCase("DETR", _DETR, "Detr", _EDGES, of_boxes),
    ProcessorCase(
        "Deformable DETR",
        _case(detect, "DeformableDetrForObjectDetection, two stages"),
        "DeformableDetr",
        {"size": {"shortest_edge": 150, "longest_edge": 700}},
        of_boxes,
    ),
    ProcessorCase(
        "DETR, largest within",
        _DETR,
        "Detr",
        {"size": {"max_height": 200, "max_width": 180}},
        of_boxes,
        usual=None,
    ),
    ProcessorCase("RT-DETR", _RT, "RTDetr", {"size": _SIZE}, of_boxes),
    ProcessorCase(
        "RT-DETR, normalised",
        _RT,
        "RTDetr",
        {"size": _SIZE, "do_normalize": True},
        of_boxes,
        usual={"do_normalize": True},
    ),
    ProcessorCase("SegFormer", _SEGFORMER, "Segformer", {"size": _SIZE, "do_reduce_labels": True}, of_mask),
    ProcessorCase(
        "EoMT, windows",
        _EOMT,
        "Eomt",
        {"size": {"shortest_edge": 64, "longest_edge": None}, "do_split_image": True},
        of_mask,
        usual={"size": {"shortest_edge": 640, "longest_edge": None}, "do_split_image": True},
        usual_make=_LARGE_EOMT,
    ),
    ProcessorCase(
        "EoMT, padded",
        _EOMT,
        "Eomt",
        {**_SQUARE, "do_pad": True},
        of_padded_mask,
        usual={"do_pad": True},
        usual_make=_LARGE_EOMT,
    ),
    ProcessorCase("DPT", _DPT, "DPT", {"size": {"height": 64, "width": 64}}, of_depth),
    ProcessorCase(
        "DPT, larger, rounded",
        _DPT,
        "DPT",
        {"size": {"height": 90, "width": 90}, "ensure_multiple_of": 32},
        of_depth,
        usual=None,
    ),
    ProcessorCase(
        "DPT, ratio kept",
        _DPT,
        "DPT",
        {"size": {"height": 96, "width": 96}, "ensure_multiple_of": 32, "keep_aspect_ratio": True},
        of_depth,
        square=True,
        usual={"ensure_multiple_of": 32, "keep_aspect_ratio": True},
    ),
]


def at_usual_sizes() -> list[ProcessorCase]:
    """The cases with the sizes of published models."""
    return [
        replace(case, make=case.usual_make or case.make, options=case.usual) for case in CASES if case.usual is not None
    ]


def write(case: ProcessorCase, folder: Path) -> tuple[Any, nn.Module]:
    """The folder of a case as Hugging Face writes it; its processor and model."""
    model = case.make().eval()
    model.save_pretrained(folder)
    processor = getattr(transformers, f"{case.processor}ImageProcessor")(**case.options)
    processor.save_pretrained(folder)
    return processor, model


def grey_levels(processor: Any, opened: TrainedModel, photo: Image.Image) -> float:
    """The largest difference of a pixel that goes into the model, in grey levels; infinite where sizes differ."""
    theirs = processor(photo, return_tensors="pt")["pixel_values"]
    theirs = theirs if isinstance(theirs, Tensor) else torch.stack(theirs)
    assert opened.pictures is not None
    ours = opened.pictures.fitted(as_tensor(photo))
    if opened.pictures.processing.windows:
        ours = opened.pictures.cut(ours)
    if ours.shape != theirs.shape:
        return float("inf")
    std = torch.tensor(opened.preprocess.statistics[1])[:, None, None]
    return float(((theirs - ours) * std * 255).abs().max())


@torch.no_grad()
def answer_errors(case: ProcessorCase, processor: Any, model: nn.Module, opened: TrainedModel) -> dict[str, float]:
    """How far answers to all photographs are apart: boxes in pixels, shares of pixels, relative depth."""
    worst: dict[str, float] = {}
    for photo in photographs().values():
        if case.square and photo.width != photo.height:
            continue
        threshold = _threshold(opened, photo)
        theirs, ours = case.theirs(processor, model, photo, threshold), _answer(opened, photo, threshold)
        for name, error in _errors(theirs, ours).items():
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def _threshold(opened: TrainedModel, photo: Image.Image) -> float:
    """Within the widest gap between two scores, where there are scores."""
    assert opened.pictures is not None
    (outputs,) = opened.pictures.outputs([as_tensor(photo)])
    if "scores" not in outputs:
        return 0.0
    scores = outputs["scores"][0].unique()
    widest = int(scores.diff().argmax())
    return float(scores[widest : widest + 2].mean())


def _answer(opened: TrainedModel, photo: Image.Image, threshold: float) -> dict[str, Tensor]:
    """What `predict` answers, as tensors."""
    opened.task.load_state({"threshold": threshold})
    (found,) = opened.predict(photo)
    answer: Any = found.answer
    if answer.kind == "boxes":
        boxes = torch.tensor([box.corners for box in answer.boxes])
        scores, labels = torch.tensor([[box.score, box.number] for box in answer.boxes]).T
        return {"boxes": boxes, "scores": scores, "labels": labels}
    return {"classes": answer.classes} if answer.kind == "mask" else {"depth": answer.depth}


def _errors(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, float]:
    if any(theirs[name].shape != ours[name].shape for name in theirs):
        return dict.fromkeys(theirs, float("inf"))
    if "classes" in theirs:
        return {"pixels": float((theirs["classes"] != ours["classes"].long()).float().mean())}
    if "depth" in theirs:
        return {"depth": float((theirs["depth"] - ours["depth"]).abs().max() / theirs["depth"].max())}
    wrong = float("inf") if bool((theirs["labels"] != ours["labels"].long()).any()) else 0.0
    return {"boxes": max(float((theirs["boxes"] - ours["boxes"]).abs().max()), wrong)}


@torch.no_grad()
def padded_errors(case: HeadCase, folder: Path) -> dict[str, float]:
    """The largest relative errors, in float64, of two images of different sizes in one padded batch with its mask."""
    peer = case.make().eval()
    peer.save_pretrained(folder)
    found = load_headed(folder, image_size=(96, 128), dtype=torch.float64)
    noise = torch.Generator().manual_seed(1)
    images, valid = padded_batch([torch.randn(1, 3, *size, generator=noise).double() for size in ((75, 128), (96, 87))])
    theirs = peer.double()(images, pixel_mask=valid.long())
    boxes = found.head(found.backbone.features(images), valid=valid).found
    pairs = {"logits": (theirs.logits, boxes.logits[-1]), "boxes": (theirs.pred_boxes, boxes.boxes[-1])}
    return {name: relative_error(*pair) for name, pair in pairs.items()}


def padded_cases() -> list[HeadCase]:
    """Detectors that tell padding from the picture."""
    return [case for case in detect.CASES if not case.name.startswith("RT")]

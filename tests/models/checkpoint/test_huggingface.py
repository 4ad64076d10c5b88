import json
from pathlib import Path

import pytest
import torch
from parity.cases import hf as cases
from parity.compare import Case, compare, differences, ours, relative_error
from safetensors.torch import load_file, save_file
from support.peers import transformers

import vitrail
from vitrail.errors import CheckpointError, Notice, Unsupported
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint.huggingface import HuggingFace

HF = {case.name: case for case in cases.CASES if case.peer == "hf"}
BY_NAME = pytest.mark.parametrize("name", HF)
# What a model is written as, where it is not the class that it was read from.
WRITTEN_AS = {
    "ViT, masked image modelling": "ViTModel",
    "ViT-MSN, classifier": "ViTForImageClassification",
    "MAE, encoder": "ViTModel",
    "MAE, with its decoder": "ViTModel",
    "CLIP, both towers": "CLIPVisionModelWithProjection",
    "SigLIP, both towers": "SiglipVisionModel",
    "SigLIP, classifier": "IJepaForImageClassification",
}
RUNS = {
    "Dinov2Model": cases.encoder,
    "Dinov2WithRegistersModel": cases.encoder,
    "DINOv3ViTModel": cases.encoder,
    "ViTModel": cases.encoder,
    "DeiTModel": HF["DeiT, encoder"].run,
    "CLIPVisionModel": cases.clip,
    "CLIPVisionModelWithProjection": cases.clip,
    "SiglipVisionModel": cases.siglip,
    "BeitModel": cases.siglip,
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()


def saved(name: str, folder: Path) -> torch.nn.Module:
    peer = HF[name].make()
    HF[name].save(peer, folder)
    return peer.double()


def edit(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def edit_tensors(folder: Path, remove: str = "", **new: torch.Tensor) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(remove, None)
    save_file(tensors | {name.replace("__", "."): tensor for name, tensor in new.items()}, folder / "model.safetensors")


def images_for(case: Case) -> torch.Tensor:
    return torch.randn(2, case.channels, *case.image_size, dtype=torch.float64)


def agree(case: Case, peer: torch.nn.Module, model: Backbone) -> None:
    images = images_for(case)
    with torch.no_grad():
        assert differences(case.run(peer, images), ours(model.double(), images)).worst < 1e-6


@BY_NAME
def test_every_block_and_the_logits_agree(name: str, tmp_path: Path) -> None:
    assert compare(HF[name], tmp_path).worst < 1e-7


@BY_NAME
def test_the_names_that_transformers_5_has_in_memory(name: str, tmp_path: Path) -> None:
    case, peer = HF[name], HF[name].make()
    peer.config.architectures = [type(peer).__name__]
    peer.config.save_pretrained(tmp_path)
    torch.save(peer.state_dict(), tmp_path / "pytorch_model.bin")
    agree(case, peer.double(), vitrail.load(tmp_path, **case.load_options))


@BY_NAME
def test_written_and_read_by_transformers(name: str, tmp_path: Path) -> None:
    case, theirs, back = HF[name], tmp_path / "theirs", tmp_path / "back"
    peer = saved(name, theirs)
    if name == "CLIP, classifier":
        with pytest.raises(Unsupported, match="post_layernorm"):
            vitrail.convert(theirs, back, to="hf")
        return
    vitrail.convert(theirs, back, to="hf")
    architecture = json.loads((back / "config.json").read_text())["architectures"][0]
    assert architecture == WRITTEN_AS.get(name, type(peer).__name__)
    options = {"add_pooling_layer": False} if architecture in ("ViTModel", "DeiTModel") else {}
    loader = getattr(transformers, architecture)
    again, info = loader.from_pretrained(back, output_loading_info=True, **options)
    assert not any(info.values()), info
    images = images_for(case)
    with torch.no_grad():
        expected, got = case.run(peer, images), RUNS.get(architecture, cases.classifier)(again.double().eval(), images)
    assert relative_error(expected.logits, got.logits) < 1e-6
    agree(case, peer, vitrail.load(back, **case.load_options))


def test_attention_weights(tmp_path: Path) -> None:
    peer = cases.build("ViTForImageClassification", {}, attention="eager").double()
    cases.save(peer, tmp_path)
    model = vitrail.load(tmp_path, dtype=torch.float64)
    images = images_for(HF["ViT, classifier"])
    with torch.no_grad():
        theirs = peer(pixel_values=images, output_attentions=True).attentions
        tokens, grid = model.embed(images)
        for block, expected in zip(model.blocks, theirs, strict=True):
            weights = block.attention.weights(block.norm1(tokens), grid)
            assert relative_error(expected, weights) < 1e-5  # their softmax is in float32
            tokens = block(tokens, grid)


@pytest.mark.parametrize("name", ["ViT, classifier", "CLIP, both towers", "DINOv2, SwiGLU"])
def test_shards(name: str, tmp_path: Path) -> None:
    peer = HF[name].make()
    peer.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    agree(HF[name], peer.double(), vitrail.load(tmp_path))
    agree(HF[name], peer, vitrail.load(tmp_path / "model.safetensors.index.json"))


# rectangles, activations and norms that are not a model type's usual ones need the config
@pytest.mark.parametrize(
    "name",
    [
        "ViT, classifier", "ViT, encoder with a pooler", "ViT, masked image modelling", "I-JEPA, classifier",
        "DeiT, two heads", "DeiT, one head", "DeiT, encoder", "MAE, encoder", "MAE, with its decoder",
        "DINOv2, classifier", "DINOv2, SwiGLU", "DINOv2 with registers", "DINOv3", "CLIP, image tower",
        "CLIP, classifier", "SigLIP, image tower", "SigLIP, classifier", "BEiT, classifier",
    ],
)  # fmt: skip
def test_without_a_config(name: str, tmp_path: Path) -> None:
    peer = saved(name, tmp_path)
    told = vitrail.load(tmp_path).config  # what the caller knows: three heads, and DINOv3's image size
    (tmp_path / "config.json").unlink()
    model = vitrail.load(tmp_path, model=told)
    agree(HF[name], peer, model)


def test_without_a_config_or_a_name_the_width_must_be_a_usual_one(tmp_path: Path) -> None:
    saved("ViT, classifier", tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"heads"):
        vitrail.load(tmp_path)
    usual = {"hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 1}
    peer = cases.build("ViTForImageClassification", usual)
    cases.save(peer, tmp_path)
    (tmp_path / "config.json").unlink()
    agree(HF["ViT, classifier"], peer.double(), vitrail.load(tmp_path))


def test_labels_survive_both_ways(tmp_path: Path) -> None:
    saved("ViT, classifier", tmp_path / "theirs")
    model = vitrail.load(tmp_path / "theirs")
    assert model.labels == ("cat", "dog", "owl")
    vitrail.convert(tmp_path / "theirs", tmp_path / "back", to="hf")
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "back")
    assert again.config.id2label == {0: "cat", 1: "dog", 2: "owl"}
    assert again.config.label2id == {"cat": 0, "dog": 1, "owl": 2}
    assert vitrail.load(tmp_path / "back").labels == ("cat", "dog", "owl")


def test_made_up_labels_are_no_labels(tmp_path: Path) -> None:
    case = HF["DeiT, one head"]
    case.save(case.make(), tmp_path)
    assert vitrail.load(tmp_path).labels is None
    edit(tmp_path, id2label={"0": "LABEL_0", "1": "LABEL_1"})
    assert vitrail.load(tmp_path).labels is None


def test_no_registers_at_all(tmp_path: Path) -> None:
    model = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**cases.TINY))
    model.save_pretrained(tmp_path)
    loaded = vitrail.load(tmp_path)
    assert loaded.config.registers == 0
    vitrail.convert(tmp_path, tmp_path / "back", to="hf")
    _, info = transformers.DINOv3ViTModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info.values())


def test_a_margin_that_no_patch_covers_is_cut(tmp_path: Path) -> None:
    """As so400m-patch14-384 has it: 27 patches of 14 cover 378 of 384 pixels."""
    peer = cases.build("SiglipVisionModel", {"image_size": 38}).double()
    cases.save(peer, tmp_path)
    model = vitrail.load(tmp_path, dtype=torch.float64)
    assert model.config.image_size == (32, 32)
    images = torch.randn(2, 3, 38, 38, dtype=torch.float64)
    with torch.no_grad():
        assert relative_error(cases.siglip(peer, images).logits, model(images[:, :, :32, :32])) < 1e-12


def test_old_checkpoints_carry_indices(tmp_path: Path) -> None:
    peer = saved("CLIP, both towers", tmp_path)
    edit_tensors(tmp_path, vision_model__embeddings__position_ids=torch.arange(17)[None])
    agree(HF["CLIP, both towers"], peer, vitrail.load(tmp_path))


def test_a_config_that_says_only_what_is_not_the_default(tmp_path: Path) -> None:
    """As google's SigLIP has it: the defaults of the class fill in the rest."""
    vision = {"hidden_size": 48, "num_hidden_layers": 1, "intermediate_size": 80, "image_size": 32, "patch_size": 8}
    config = transformers.SiglipConfig(vision_config=vision, text_config=cases.TEXT)
    peer = transformers.SiglipModel(config).eval()
    peer.save_pretrained(tmp_path)
    edit(tmp_path, vision_config={"model_type": "siglip_vision_model"})
    model = vitrail.load(tmp_path)
    assert (model.config.num_heads, model.config.norm.eps, model.config.mlp.activation) == (12, 1e-6, "gelu_tanh")
    images = images_for(HF["ViT, classifier"])
    with torch.no_grad():
        assert relative_error(cases.siglip(peer.double(), images).logits, model.double()(images)) < 1e-12


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hidden_act": "relu"}, Unsupported, "hidden_act"),
        ({"hidden_act": "gelu_neww"}, Unsupported, "did you mean 'gelu_new'"),
        ({"model_type": "vitdet"}, Unsupported, "vitdet"),
        ({"num_hidden_layers": 3}, CheckpointError, r"missing.*encoder\.layer\.2"),
        ({"num_hidden_layers": 1}, CheckpointError, r"surplus.*encoder\.layer\.1"),
        ({"hidden_size": 60}, CheckpointError, "misshaped"),
        ({"hidden_size": "wide"}, CheckpointError, "hidden_size = 'wide'"),
        ({"image_size": 64}, CheckpointError, "misshaped.*position_embeddings"),
        ({"image_size": [32, 32, 3]}, CheckpointError, r"image_size = \[32, 32, 3\]"),
        ({"image_size": "large"}, CheckpointError, "image_size = 'large'"),
        ({"image_size": 32.0}, CheckpointError, r"image_size = 32\.0"),
        ({"model_type": ["vit"]}, Unsupported, "model_type"),
        ({"qkv_bias": False}, CheckpointError, "qkv_bias"),
        ({"id2label": {"0": "cat"}}, CheckpointError, "names 1 classes; the head has 3"),
        ({"id2label": {"a": "cat", "b": "dog", "c": "owl"}}, CheckpointError, "names 3 classes"),
        ({"vision_config": 3}, CheckpointError, "vision_config"),
    ],
)
def test_a_config_that_cannot_be_read(
    changes: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    saved("ViT, classifier", tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(error, match=message):
        vitrail.load(tmp_path)


@pytest.mark.parametrize("option", ["proj_bias", "mlp_bias"])
def test_dinov3_without_biases_that_ours_has(option: str, tmp_path: Path) -> None:
    transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**cases.TINY, **{option: False})).save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=option):
        vitrail.load(tmp_path)


@pytest.mark.parametrize(
    "remove", ["vit.embeddings.cls_token", "vit.embeddings.patch_embeddings.projection.bias", "vit.layernorm.bias",
               "vit.encoder.layer.0.output.dense.weight", "vit.encoder.layer.1.attention.attention.key.bias",
               "classifier.bias", "vit.embeddings.position_embeddings"]
)  # fmt: skip
def test_a_tensor_that_is_missing(remove: str, tmp_path: Path) -> None:
    saved("ViT, classifier", tmp_path)
    edit_tensors(tmp_path, remove=remove)
    with pytest.raises(CheckpointError, match=r"missing|surplus|misshaped"):
        vitrail.load(tmp_path)


def test_a_tensor_too_many(tmp_path: Path) -> None:
    saved("ViT, classifier", tmp_path)
    edit_tensors(tmp_path, vit__extra=torch.zeros(3))
    with pytest.raises(CheckpointError, match=r"surplus \(1\): extra"):
        vitrail.load(tmp_path)


def test_a_tensor_under_both_of_its_names(tmp_path: Path) -> None:
    saved("ViT, classifier", tmp_path)
    edit_tensors(tmp_path, layernorm__weight=torch.zeros(48))
    with pytest.raises(CheckpointError, match=r"layernorm\.weight twice"):
        vitrail.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vit_tiny_patch16", {"attention": {"qk_norm": True}}, "q_norm"),
        ("vit_tiny_patch16", {"attention": {"temperature": 2.0}}, "differs in attention"),
        ("vit_tiny_patch16", {"attention": {"head_dim": 32}}, "differs in attention"),
        ("vit_tiny_patch16", {"pool": "mean"}, r"differs in pool \(ClassPoolConfig\(\), not MeanPoolConfig"),
        ("vit_tiny_patch16", {"norm": "rms"}, "layernorm_after"),
        ("vit_tiny_patch16", {"norm_placement": "post"}, "differs in norm_placement"),
        ("vit_tiny_patch16", {"final_norm": "pooled"}, "no rule names these tensors: pool_norm"),
        ("vit_tiny_patch16", {"position": "sincos2d"}, "position_embeddings"),
        ("vit_tiny_patch16", {"position": "factored"}, "no rule names these tensors: position.0.rows"),
        ("vit_tiny_patch16", {"patch": {"stride": 8}}, "patch"),
        ("vit_tiny_patch16", {"attention": {"bias": "qv"}}, "qv_bias"),
        ("vit_tiny_patch16", {"mlp": "swiglu"}, "mlp|scale"),
        ("vit_tiny_patch16", {"registers": 2}, "no rule names these tensors: prefix.registers"),
        ("vit_tiny_patch16", {"layer_scale": 1e-5}, "differs in pool"),
        ("deit3_small_patch16", {}, "differs in pool"),
        ("vit_base_patch32_clip", {"num_classes": 5}, "no rule names these tensors: head.bias"),
        ("vit_base_patch32_clip", {"image_size": (64, 32)}, "images and patches, which must be square"),
        ("vit_base_patch16_siglip", {"num_classes": 5}, "SiglipForImageClassification.*differs in pool"),
        ("vit_small_patch16_dinov3", {"num_classes": 5}, "no rule names these tensors: head"),
        ("vit_small_patch14_dinov2", {"mlp": {"hidden": 100}}, "whole ratios"),
        ("eva02_tiny_patch14", {}, "position"),
        ("beit_base_patch16", {"attention": {"bias": "none"}}, r"query\.bias"),
    ],
)
def test_what_transformers_has_no_class_for(name: str, changes: dict[str, object], message: str) -> None:
    model = vitrail.create(name, **({"depth": 1, "image_size": 14 * 16} | changes))
    with pytest.raises(Unsupported, match=message):
        HuggingFace().write(model)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("vit_tiny_patch16", "ViTForImageClassification"),
        ("deit_tiny_distilled_patch16", "DeiTForImageClassificationWithTeacher"),
        ("vit_small_patch14_dinov2", "Dinov2Model"),
        ("vit_giant_patch14_dinov2", "Dinov2Model"),
        ("vit_small_patch14_reg4_dinov2", "Dinov2WithRegistersModel"),
        ("vit_small_patch16_dinov3_qkvb", "DINOv3ViTModel"),
        ("vit_small_plus_patch16_dinov3", "DINOv3ViTModel"),
        ("vit_base_patch32_clip_quickgelu", "CLIPVisionModel"),
        ("vit_base_patch16_siglip", "SiglipVisionModel"),
        ("beit_base_patch16", "BeitForImageClassification"),
    ],
)
def test_the_named_models_have_a_class(name: str, architecture: str) -> None:
    with torch.device("meta"):
        model = vitrail.create(name, depth=1, **({"pool": "class"} if "dinov3" in name else {}))
    foreign = HuggingFace().write(model)
    assert foreign.config["architectures"] == [architecture]
    config_class = getattr(transformers, architecture).config_class
    with torch.device("meta"):
        theirs = getattr(transformers, architecture)(config_class(**foreign.config))
    assert sum(t.numel() for t in foreign.tensors.values()) == sum(
        p.numel() for n, p in theirs.named_parameters() if not n.startswith("pooler.dense")
    )


def test_an_encoder_of_theirs_does_not_say_how_it_is_pooled(tmp_path: Path) -> None:
    model = vitrail.create("vit_tiny_patch16", depth=1, num_classes=0, pool="mean", image_size=32)
    vitrail.save(model, tmp_path / "ours")
    with pytest.warns(Notice, match="pooling"):
        vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to="hf")
    theirs = transformers.ViTModel.from_pretrained(tmp_path / "theirs", add_pooling_layer=False)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model.eval()(images)
        assert relative_error(expected, theirs(images).last_hidden_state[:, 1:].mean(1)) < 1e-5

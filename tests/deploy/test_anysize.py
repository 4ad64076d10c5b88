"""The model at the size of its pictures: one graph for all sizes, or the reason why a family has none."""

import numpy as np
import pytest
import torch
from registered import one_of_each_design, tiny
from shipped import opened, photos

from vitrail.deploy.anysize import Elsewhere, at_any_size, for_graph, steps, why_tied
from vitrail.deploy.card import Card
from vitrail.deploy.certificate import CertifyConfig
from vitrail.deploy.engine import TorchEngine, open_engine, servable
from vitrail.deploy.export import to_any_size, write_onnx, write_openvino, write_torch
from vitrail.deploy.servable import Pixels, Servable
from vitrail.deploy.ship import ShipConfig, ship
from vitrail.errors import Unsupported

TIED = {
    "mixer_s32": "MLPs over tokens have one weight for each patch",
    "swin_tiny_patch4_window7": "windows are padded",
    "swinv2_tiny_window8": "windows are padded",
    "dat_tiny": "windows are padded",
    "levit_128s": "a bias for every pair",
    "efficientformer_l1": "a bias for every pair",
}
FREE = [name for name in one_of_each_design() if name not in TIED]
SIZES = {"mobilevit_xxs": {"image_size": (192, 128)}}  # it folds its last level in patches of two: steps of 64


def module_of(name: str) -> Servable:
    model = opened(name, **SIZES.get(name, {}))
    return servable(model, Card.of(model))


def noise(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


@pytest.mark.parametrize("name", FREE)
@torch.inference_mode()
def test_what_a_graph_is_made_of_is_the_model_resized(name):
    """At its own size it is the model as it was; at another, the model that takes any size."""
    module = module_of(name)
    free = at_any_size(module, next(steps(module.model.config)))
    graph, (height, width) = for_graph(free), module.pixels.image_size
    own, other = noise(2, height, width, 3), noise(1, height + 2 * free.pixels.step, width - 3, 3)
    near = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(graph(own)[0], module(own)[0], **near)
    torch.testing.assert_close(graph(other)[0], free(other)[0], **near)
    assert not torch.allclose(free(other)[0], module(other)[0], **near), "it saw the same picture at another size"


def test_pictures_keep_their_size_in_whole_steps():
    pixels = Pixels(image_size=(32, 32), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    pixels.step = 8
    sizes = {(40, 64): (40, 64), (43, 60): (40, 64), (44, 59): (48, 56), (3, 500): (16, 504)}
    for came, wanted in sizes.items():
        images = noise(1, *came, 3)
        found = pixels(images)
        assert found.shape == (1, 3, *wanted)
        maps = images.permute(0, 3, 1, 2).float()
        expected = torch.nn.functional.interpolate(maps, size=wanted, mode="bicubic", antialias=True).clamp(0, 255)
        torch.testing.assert_close(found, expected / 255, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("vit_tiny_patch16", {"image_size": (48, 32)}, [8, 16]),
        ("vit_tiny_patch16", {"image_size": (24, 40), "patch": {"size": 4}}, [4, 8]),
        ("resnet18", {"image_size": (192, 128)}, [32, 64]),
        ("resnet18", {"image_size": (48, 33)}, []),
    ],
)
def test_steps_are_those_of_the_last_level(name, changes, expected):
    assert list(steps(tiny(name, **changes).config)) == expected


def test_elsewhere_equals_nothing_and_counts_as_it_did():
    place = Elsewhere((3, 2))
    assert place != (3, 2)
    assert (3, 2) != place  # noqa: SIM300  (a layer's own may stand on either side)
    assert not place == (3, 2)  # noqa: SIM201  (both signs are asked by layers)
    assert (place[0], place[1]) == (3, 2)


@pytest.mark.parametrize("name", [name for name in TIED if name != "mixer_s32"])
def test_a_tied_family_says_why_in_words(name):
    assert TIED[name] in why_tied(tiny(name))
    assert why_tied(tiny()) is None


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "mixer_s32" else pytest.mark.slow) for name in TIED]
)
def test_a_tied_family_is_refused(name, capfd):
    with pytest.raises(Unsupported, match=TIED[name]):
        to_any_size(module_of(name))
    assert capfd.readouterr() == ("", ""), "torch prints graphs that failed"


def test_no_steps_no_size():
    with pytest.raises(Unsupported, match="only for its own 48 x 33: no steps divide it"):
        to_any_size(servable(model := opened("resnet18", image_size=(48, 33)), Card.of(model)))


# A graph takes seconds, to write it as ONNX more of them: of the quick suite, one family goes all the way.
@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_family_exports_for_any_size(name, tmp_path):
    model = opened(name, **SIZES.get(name, {}))
    eager, card = TorchEngine("eager", model), Card.of(model)
    eager.module, program = to_any_size(eager.module)
    plain = write_onnx(program, card, tmp_path / "m.onnx")
    made = (write_torch(program, card, tmp_path / "m.pt2"), plain, write_openvino(plain, card, tmp_path / "m.xml"))
    (height, width), step = card.image_size, eager.module.pixels.step
    for images in (noise(2, height, width, 3), noise(1, height + step, 2 * width - 3, 3), noise(3, 9, 5, 4)):
        expected = eager.run(images.numpy())
        for path in made:
            found = open_engine(path, threads=1).run(images.numpy())
            np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max(), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vitrail.errors.ResampledNotice")
def test_a_vit_is_shipped_for_any_size_with_proof_at_each(tmp_path):
    certify = CertifyConfig(batches=(1, 3), scales=(1.0, 1.7), images=6, rounds=1)
    model = opened("vit_tiny_patch8", depth=1)
    told = ship(model, photos(6), tmp_path, ShipConfig(any_size=True, targets=("onnx",), certify=certify))
    assert [file.name for file in told.files] == ["model.onnx"]
    rows = told.report["Artefacts beside the eager model"].rows
    assert {(row["image"], row["verdict"]) for row in rows} == {("24x16", "passed"), ("41x27", "passed")}
    assert "whole steps of 8 pixels" in told.report["Sizes of images"].text
    engine, images = open_engine(told.files[0], threads=1), noise(1, 80, 56, 3).numpy()
    assert engine.card.step == 8
    model.task.backbone.resize((80, 56))  # the other way to that size
    expected = TorchEngine("resized", model).run(images)
    np.testing.assert_allclose(engine.run(images), expected, atol=1e-4 * np.abs(expected).max(), rtol=1e-3)

"""The model at the size of its images: one graph for all sizes, or the reason why a family has none."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.registered import one_of_each_design, tiny
from support.shipped import first, photos, trained

from vitrail.data.preprocess import Preprocess
from vitrail.deploy.artefact.any_size import UnequalSize, at_any_size, for_graph, steps, why_fixed
from vitrail.deploy.artefact.card import Card
from vitrail.deploy.artefact.certificate import CertifyConfig
from vitrail.deploy.artefact.engine import TorchEngine, servable
from vitrail.deploy.artefact.export import to_any_size, write_onnx, write_openvino, write_torch
from vitrail.deploy.artefact.opening import open_engine
from vitrail.deploy.artefact.pixels import Pixels
from vitrail.deploy.artefact.servable import Servable
from vitrail.deploy.artefact.ship import ShipConfig, ship
from vitrail.errors import Unsupported

FIXED = {
    "mixer_s32": "MLPs over tokens have one weight for each patch",
    "swin_tiny_patch4_window7": "windows are padded",
    "swinv2_tiny_window8": "windows are padded",
    "dat_tiny": "windows are padded",
    "levit_128s": "a bias for every pair",
    "efficientformer_l1": "a bias for every pair",
}
FREE = [name for name in one_of_each_design() if name not in FIXED]
CELLS = ("efficientnet_lite0", {"pool_levels": True, "pool_cells": 3})
SIZES = {"mobilevit_xxs": {"image_size": (192, 128)}}  # it folds its last level in patches of two: steps of 64


def module_of(name: str) -> Servable:
    return servable(trained(name, **SIZES.get(name, {})))


def noise(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


@pytest.mark.parametrize("name", FREE)
@torch.inference_mode()
def test_what_a_graph_is_made_of_is_the_model_resized(name):
    """At its own size it is the model as it was; at another, the model that takes any size."""
    module = module_of(name)
    free = at_any_size(module, next(steps(module.task.backbone.config)))
    graph, (height, width) = for_graph(free), module.pixels.image_size
    own, other = noise(2, height, width, 3), noise(1, height + 2 * free.pixels.step, width - 3, 3)
    near = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(first(graph(own)), first(module(own)), **near)
    torch.testing.assert_close(first(graph(other)), first(free(other)), **near)
    assert not torch.allclose(first(free(other)), first(module(other)), **near), (
        "it saw the same picture at another size"
    )


def test_images_keep_their_size_in_multiples_of_the_step():
    pixels = Pixels(Preprocess(image_size=(32, 32), mean=(0.0,), std=(1.0,)), step=8)
    sizes = {(40, 64): (40, 64), (43, 60): (40, 64), (44, 59): (48, 56), (3, 500): (16, 504)}
    for came, wanted in sizes.items():
        images = noise(1, *came, 3)
        found = pixels(images)
        assert found.shape == (1, 3, *wanted)
        expected = images.permute(0, 3, 1, 2).float()
        for size in ((came[0], wanted[1]), wanted):
            expected = torch.nn.functional.interpolate(expected, size=size, mode="bicubic", antialias=True)
            expected = expected.clamp(0, 255)
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


def test_an_unequal_size_equals_nothing_and_counts_as_it_did():
    place = UnequalSize((3, 2))
    assert place != (3, 2)
    assert (3, 2) != place  # noqa: SIM300  (a layer's own may stand on either side)
    assert not place == (3, 2)  # noqa: SIM201  (both signs are asked by layers)
    assert (place[0], place[1]) == (3, 2)


@pytest.mark.parametrize("name", [name for name in FIXED if name != "mixer_s32"])
def test_a_fixed_family_says_why_in_words(name):
    assert FIXED[name] in why_fixed(tiny(name))
    assert why_fixed(tiny()) is None


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "mixer_s32" else pytest.mark.slow) for name in FIXED]
)
def test_a_fixed_family_is_refused(name, capfd):
    with pytest.raises(Unsupported, match=FIXED[name]):
        to_any_size(module_of(name))
    assert capfd.readouterr() == ("", ""), "torch prints graphs that failed"


def test_no_steps_no_size():
    with pytest.raises(Unsupported, match="48 x 33"):
        to_any_size(servable(trained("resnet18", image_size=(48, 33))))


# A graph takes seconds, to write it as ONNX more of them: of the quick suite, one family goes all the way.
@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes"), [*((name, SIZES.get(name, {})) for name in FREE), CELLS])
def test_family_exports_for_any_size(name, changes, tmp_path):
    model = trained(name, **changes)
    eager, card = TorchEngine(model), Card.of(model)
    eager.module, program = to_any_size(eager.module)
    plain = write_onnx(program, card, tmp_path / "m.onnx")
    made = (write_torch(program, card, tmp_path / "m.pt2"), plain, write_openvino(plain, card, tmp_path / "m.xml"))
    (height, width), step = card.preprocess.image_size, eager.module.pixels.step
    for images in (noise(2, height, width, 3), noise(1, height + step, 2 * width - 3, 3), noise(3, 9, 5, 4)):
        expected = first(eager.run(images.numpy()))
        for path in made:
            found = first(open_engine(path, threads=1).run(images.numpy()))
            np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max(), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vitrail.errors.ResampledNotice")
def test_a_vit_is_shipped_for_any_size_with_proof_at_each(tmp_path):
    certify = CertifyConfig(batches=(1, 3), scales=(1.0, 1.7), images=6, rounds=1)
    model = trained("vit_tiny_patch8", depth=1)
    shipped = ship(model, photos(6), tmp_path, ShipConfig(any_size=True, targets=("onnx",), certify=certify))
    assert [file.name for file in shipped.files] == ["model.onnx"]
    rows = shipped.report["Artefacts beside the eager model"].rows
    assert {(row["image"], row["verdict"]) for row in rows} == {("24x16", "passed"), ("41x27", "passed")}
    assert "multiples of 8 pixels" in shipped.report["Image sizes"].text
    engine, images = open_engine(shipped.files[0], threads=1), noise(1, 80, 56, 3).numpy()
    assert engine.card.step == 8
    model.backbone.resize((80, 56))  # the other way to that size
    expected = first(TorchEngine(replace(model, preprocess=replace(model.preprocess, image_size=(80, 56)))).run(images))
    np.testing.assert_allclose(first(engine.run(images)), expected, atol=1e-4 * np.abs(expected).max(), rtol=1e-3)

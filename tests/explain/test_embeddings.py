"""Positions and filters as pictures: the numbers by hand, every kind of position, every family."""

import base64
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.decomposition import PCA
from support.registered import one_of_each_family, tiny

from vitrail.errors import ConfigError, InputError, Unsupported
from vitrail.explain import filters, position_similarity
from vitrail.explain.embeddings import cosines, principal
from vitrail.layers.position import AddedPosition
from vitrail.report import Report

POSITIONED = {"vit_tiny_patch8", "deit_tiny_distilled_patch16", "pvt_tiny", "xcit_nano_12_p16", "pit_ti"}
KINDS = ["learned", "sincos1d", "sincos2d", "factored", "fourier"]


def pixels(svg: str) -> np.ndarray:
    """The picture inside a drawing: H W 4."""
    (image,) = [part for part in ElementTree.fromstring(svg).iter() if part.tag == "image"]
    return np.array(Image.open(BytesIO(base64.b64decode(image.attrib["href"].partition(",")[2]))))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_position_is_held_against_all_others(kind):
    model = tiny(position=kind, registers=2)
    (part,) = [part for part in model.modules() if isinstance(part, AddedPosition)]
    maps = cosines(part).detach()
    rows, columns = part.grid
    table = part.at(part.grid).detach()[-rows * columns :]
    assert maps.shape == (rows * columns, rows, columns)
    for index in (0, rows * columns - 1):
        for other in range(rows * columns):
            truth = F.cosine_similarity(table[index], table[other], dim=0)
            assert float(maps[index].flatten()[other]) == pytest.approx(float(truth), abs=1e-5)
    report = position_similarity(model)
    assert report["Positions"].values["grid"] == f"{rows} x {columns}"
    assert Report.from_json(report.to_json()) == report


def test_the_mean_cosine_by_distance_is_right():
    model = tiny(position="learned")
    (part,) = model.position
    maps = cosines(part).detach().unflatten(0, part.grid)  # h w h w
    row = position_similarity(model)["Positions: mean cosine"].rows[0]
    (rows, columns) = part.grid
    across = [float(maps[r, c, r, c + 1]) for r in range(rows) for c in range(columns - 1)]
    down = [float(maps[r, c, r + 1, c]) for r in range(rows - 1) for c in range(columns)]
    assert row == {
        "steps apart": 1,
        "in a row": pytest.approx(np.mean(across), abs=1e-6),
        "in a column": pytest.approx(np.mean(down), abs=1e-6),
    }


def test_the_picture_shows_each_position_in_its_place():
    model = tiny(position="learned")
    (part,) = model.position
    with torch.no_grad():  # all alike but one, which is as far from them as can be
        part.table[:] = 1.0
        part.table[-1] = -1.0
    picture = pixels(position_similarity(model)["Positions: maps"].source)
    rows, columns = part.grid
    height, width = (picture.shape[0] + 1) / rows, (picture.shape[1] + 1) / columns
    first, last = picture[: int(height) - 2, : int(width) - 2], picture[int(-height) + 3 :, int(-width) + 3 :]
    assert first[0, 0, :3].sum() > 500  # bright: like itself
    assert first[-1, -1, :3].sum() < 200  # dark: unlike the last one
    assert last[0, 0, :3].sum() < 200
    assert last[-1, -1, :3].sum() > 500
    assert (picture[..., 3] == 0).any()  # gaps show the page


def test_of_a_large_grid_some_positions_are_shown():
    model = tiny(position="sincos2d", image_size=(8 * 40, 8 * 3))
    report = position_similarity(model)
    assert report["Positions"].values["shown"] == "one position of each 3 x 3"
    offsets = report["Positions: mean cosine"].rows
    assert offsets[-1]["steps apart"] == 32
    assert offsets[-1]["in a row"] is None


def test_models_without_such_positions_say_so():
    with pytest.raises(Unsupported, match="rope"):
        position_similarity(tiny(position="rope"))
    with pytest.raises(Unsupported, match=r"ConvNeXt adds no positions to its tokens$"):
        position_similarity(tiny("convnext_atto"))


@pytest.mark.parametrize("name", one_of_each_family())
def test_every_family_has_filters_and_positions_or_says_why_not(name):
    model = tiny(name)
    report = filters(model)
    (layer,) = [part for where, part in model.named_modules() if where == report["Filters"].values["layer"]]
    assert layer.in_channels == 3
    ElementTree.fromstring(report["Components"].source)
    if name in POSITIONED:
        drawn = [part.source for part in position_similarity(model).sections if part.title.endswith(": maps")]
        assert drawn
        assert all(pixels(svg)[..., 3].any() for svg in drawn)
        return
    with pytest.raises(Unsupported, match="adds no positions"):
        position_similarity(model)


def test_components_are_those_of_scikit_learn():
    weight = torch.randn(20, 3, 4, 5, dtype=torch.float64) @ torch.diag(torch.tensor([5.0, 4, 3, 2, 1]).double())
    shapes, shares = principal(weight, 6)
    peer = PCA(6, svd_solver="full").fit(weight.flatten(1).numpy())
    assert shares.numpy() == pytest.approx(peer.explained_variance_ratio_, rel=1e-8)
    cosine = (shapes.flatten(1).numpy() * peer.components_).sum(axis=1)
    assert np.abs(cosine) == pytest.approx(np.ones(6), abs=1e-8)
    flat = shapes.flatten(1)
    assert (flat.gather(1, flat.abs().argmax(dim=1, keepdim=True)) > 0).all()


def test_a_filter_becomes_a_tile_of_its_colours():
    model = tiny(patch={"size": (8, 8)})
    conv = model.patch.projection
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[0, 0] = 1.0  # red: all of the variance lies in one direction
    report = filters(model, components=1)
    assert report["Filters"].values["explained variance"] == pytest.approx(1.0)
    red, green, blue, _ = pixels(report["Components"].source)[24, 24]
    assert (red, green, blue) == (255, 128, 128)  # grey is zero


def test_grey_images_and_bad_input():
    assert filters(tiny(channels=1))["Filters"].values["channels"] == 1
    with pytest.raises(Unsupported, match="5 channels"):
        filters(tiny(channels=5))
    with pytest.raises(ConfigError, match="components is 0"):
        filters(tiny(), components=0)
    with pytest.raises(InputError, match="backbone"):
        filters(torch.nn.Linear(2, 2))

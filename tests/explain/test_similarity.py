"""CKA: against the formula with its loops, under rotations and sizes, in batches; and as a report."""

import math
from xml.etree import ElementTree

import pytest
import torch
from support.registered import one_of_each_family, pictures, tiny

from vitrail.errors import ConfigError, InputError
from vitrail.explain import cka
from vitrail.explain.similarity import Similarity, centred_gram
from vitrail.report import Report


def hsic(x: torch.Tensor, y: torch.Tensor) -> float:
    """Song et al. 2012, equation 5, term by term in float64: the estimate without bias."""
    k, m = x.double() @ x.double().T, y.double() @ y.double().T
    count = len(x)
    both = rows = 0.0
    total_k = sum(float(k[i, j]) for i in range(count) for j in range(count) if i != j)
    total_m = sum(float(m[i, j]) for i in range(count) for j in range(count) if i != j)
    for i in range(count):
        both += sum(float(k[i, j] * m[i, j]) for j in range(count) if i != j)
        row_k = sum(float(k[i, j]) for j in range(count) if i != j)
        row_m = sum(float(m[i, j]) for j in range(count) if i != j)
        rows += row_k * row_m
    sums = total_k * total_m / ((count - 1) * (count - 2))
    return (both + sums - 2 * rows / (count - 2)) / (count * (count - 3))


def one(x: torch.Tensor, y: torch.Tensor) -> float:
    similarity = Similarity()
    similarity.update([x], [y])
    return float(similarity.matrix())


def test_a_batch_is_what_the_formula_says():
    x, y = torch.randn(9, 5).double() + 3, torch.randn(9, 7).double()
    y[:, :3] += x[:, :3]
    estimate = float((centred_gram(x) * centred_gram(y)).sum()) / (9 * 6)
    assert estimate == pytest.approx(hsic(x, y), rel=1e-12)
    assert one(x, y) == pytest.approx(hsic(x, y) / math.sqrt(hsic(x, x) * hsic(y, y)), rel=1e-12)


def test_batches_are_summed_before_they_are_divided():
    parts = [(torch.randn(size, 4).double(), torch.randn(size, 6).double()) for size in (8, 8, 6)]
    similarity = Similarity()
    for x, y in parts:
        y[:, :2] += x[:, :2]
        similarity.update([x, y], [y])
    found = similarity.matrix()
    sizes = [len(x) for x, _ in parts]
    xy, xx, yy = (
        sum(size * hsic(*pair) for size, pair in zip(sizes, pairs, strict=True))
        for pairs in (parts, [(x, x) for x, _ in parts], [(y, y) for _, y in parts])
    )
    assert found.shape == (2, 1)
    assert float(found[0]) == pytest.approx(xy / math.sqrt(xx * yy), rel=1e-10)
    assert float(found[1]) == pytest.approx(1.0)
    assert (similarity.images, similarity.batches) == (22, 3)


def test_rotations_sizes_and_shifts_change_nothing():
    x, y = torch.randn(12, 6).double(), torch.randn(12, 6).double()
    turn = torch.linalg.qr(torch.randn(6, 6).double()).Q
    assert one(x, x @ turn) == pytest.approx(1.0, abs=1e-12)
    assert one(x, 1e-3 * x + 7) == pytest.approx(1.0, abs=1e-12)
    assert one(x @ turn * 5 - 2, y) == pytest.approx(one(x, y), abs=1e-12)
    stretched = x @ torch.diag(torch.tensor([9.0, 1, 1, 1, 1, 1]).double())
    assert one(x, stretched) < 0.9  # no invariance to every linear map: that would be another measure


def test_what_is_unrelated_is_near_zero_even_in_wide_layers():
    similarity = Similarity()
    for _ in range(40):
        similarity.update([torch.randn(16, 200)], [torch.randn(16, 200)])
    assert abs(float(similarity.matrix())) < 0.05  # the estimate with bias would say about 0.9


def test_small_batches_tend_to_the_value_of_large_ones():
    x = torch.randn(1200, 8) @ torch.diag(torch.arange(1, 9).float())
    y = x @ torch.randn(8, 8) + 2 * torch.randn(1200, 8)
    small = Similarity()
    for some, other in zip(x.split(8), y.split(8), strict=True):
        small.update([some], [other])
    assert float(small.matrix()) == pytest.approx(one(x, y), abs=0.03)


def numbers(report: Report) -> torch.Tensor:
    table = report["CKA"]
    names = list(table.columns)[1:]
    return torch.tensor([[row[name] for name in names] for row in table.rows])


@pytest.mark.parametrize("name", one_of_each_family())
def test_every_family_is_compared_with_itself(name):
    model = tiny(name).train()
    report = cka(model, [pictures(model, 6), (pictures(model, 5), torch.zeros(5)), pictures(model, 2)])
    found = numbers(report)
    depth = len(model.blocks)
    assert found.shape == (depth, depth)
    assert torch.allclose(found.diagonal(), torch.ones(depth), atol=1e-5)
    assert torch.allclose(found, found.T, atol=1e-6)
    assert found.isfinite().all()
    assert model.training
    assert report["Data"].values["images"] == 11
    assert report["Data"].values["images in batches that were too small"] == 2
    assert Report.from_json(report.to_json()) == report


def test_two_models_of_different_sizes_are_compared():
    first, second = tiny("vit_tiny_patch16"), tiny("convnext_atto", image_size=64)
    report = cka(first, [pictures(first, 8)], second, layers=[0, -1], layers_b=[-1])
    assert numbers(report).shape == (2, 1)
    assert report["Data"].values["images resized for the second model"] == "64 x 64"
    drawing = ElementTree.fromstring(report["Similarity"].source)
    assert len(drawing.findall(".//rect[@class='cell']")) == 2
    assert "layer of the second model 4" in report["Similarity"].source


def test_bf16_and_task_models_are_taken():
    model = tiny()
    images = pictures(model, 8)
    exact = numbers(cka(model, [images]))
    assert torch.allclose(numbers(cka(model.to(torch.bfloat16), [images])), exact, atol=0.05)


def test_bad_input_is_refused():
    model = tiny()
    with pytest.raises(InputError, match="no images"):
        cka(model, [pictures(model, 3)])
    with pytest.raises(InputError, match="3 images"):
        Similarity().update([torch.randn(3, 2)])
    with pytest.raises(ConfigError, match="layer 7 does not exist; the model has 2 blocks"):
        cka(model, [pictures(model, 4)], layers=[7])
    with pytest.raises(ConfigError, match="layers_b"):
        cka(model, [pictures(model, 4)], layers_b=[0])


def test_only_so_many_batches_are_read():
    model = tiny()

    def endless():
        while True:
            yield pictures(model, 4)

    assert cka(model, endless(), max_batches=3)["Data"].values["batches"] == 3


def test_a_layer_with_equal_features_for_all_images_is_similar_to_none():
    model = tiny()
    report = cka(model, [pictures(model, 1).expand(6, -1, -1, -1)])
    assert all(row[name] is None or abs(row[name]) <= 1 + 1e-6 for row in report["CKA"].rows for name in ("0", "1"))
    similarity = Similarity()
    similarity.update([torch.ones(5, 3), torch.randn(5, 3)])
    assert similarity.matrix().isnan().tolist() == [[True, True], [True, False]]

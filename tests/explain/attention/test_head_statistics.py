"""Statistics of attention: worked out by hand and by brute force, the same however images come in batches."""

import math

import pytest
import torch
from support.registered import one_of_each_family, pictures, tiny

import vitrail
from vitrail.errors import DataError, InputError, Unsupported
from vitrail.explain import attention_layers, capture, statistics
from vitrail.explain.attention.head_statistics import MAX_TOKENS, Running, distances, effective_rank, head_similarity
from vitrail.report import Report

MEASURED = [
    name
    for name in (*one_of_each_family(), "caformer_s18", "fastvit_ma36")
    if not name.startswith(("resnet", "convnext", "fastvit_t", "efficientnet", "poolformer", "mixer"))
]


def flat(**changes):
    """A model whose attention is the same to all tokens."""
    model = tiny(**changes)
    with torch.no_grad():
        for layer in attention_layers(model):
            layer.module.qkv.weight[:64] = 0
            layer.module.qkv.bias[:64] = 0
    return model


def row(report: Report, title: str, **where) -> dict:
    (found,) = [row for row in report[title].rows if all(row[name] == value for name, value in where.items())]
    return found


@pytest.mark.parametrize(("grid", "size"), [((3, 2), (24, 16)), ((2, 5), (64, 80)), ((1, 1), (8, 8))])
def test_distances_against_brute_force(grid, size):
    h, w = grid
    rows = torch.arange(h * w).flip(0)
    found = distances(rows, grid, size)
    for line, i in enumerate(rows.tolist()):
        for j in range(h * w):
            dy = (i // w - j // w) * size[0] / h
            dx = (i % w - j % w) * size[1] / w
            assert found[line, j].item() == pytest.approx(math.sqrt(dy * dy + dx * dx), rel=1e-6)


def test_attention_distance_against_brute_force():
    model = tiny(num_classes=2)  # 3 x 2 patches of 8 pixels, and a class token
    images = pictures(model, 3)
    with capture(model) as seen:
        model(images)
    report = statistics(model, [images])
    for layer in (0, 1):
        for head in (0, 1):
            total = 0.0
            for attention in seen.attention[layer][:, head].tolist():
                for i in range(6):
                    weights = attention[1 + i][1:]
                    apart = [8 * math.dist((i // 2, i % 2), (j // 2, j % 2)) for j in range(6)]
                    total += sum(a * b for a, b in zip(weights, apart, strict=True)) / sum(weights)
            found = row(report, "By layer and head", layer=layer, head=head)
            assert found["distance"] == pytest.approx(total / 18, rel=1e-5)


def test_attention_between_stages_is_measured_from_the_patches_that_ask():
    """Every other row and column, each once, though all patches have a row."""
    model = tiny("levit_128s", image_size=(48, 80))
    images = pictures(model, 2)
    between = next(layer.index for layer in attention_layers(model) if not layer.residual)
    with capture(model, layers=[between]) as seen:
        model(images)
    assert seen.grid[between] == (3, 5)  # cells at the edges are smaller
    asking = [(y, x) for y in (0, 2) for x in (0, 2, 4)]
    matrix = seen.attention[between][:, 0, [5 * y + x for y, x in asking]]  # B Q N
    apart = torch.tensor([[16 * math.dist(one, divmod(n, 5)) for n in range(15)] for one in asking])
    found = row(statistics(model, [images], layers=[between]), "By layer and head", layer=between, head=0)
    assert found["distance"] == pytest.approx((matrix * apart).sum(dim=2).mean().item(), rel=1e-5)
    assert found["entropy"] == pytest.approx(torch.special.entr(matrix).sum(dim=2).mean().item(), rel=1e-5)
    assert found["rank"] == pytest.approx(effective_rank(torch.linalg.svdvals(matrix)).mean().item(), rel=1e-4)


def test_even_attention_by_hand():
    report = statistics(flat(), [torch.randn(2, 3, 24, 16)])
    found = row(report, "By layer and head", layer=1, head=0)
    assert found["entropy"] == pytest.approx(math.log(7), rel=1e-5)
    assert found["rank"] == pytest.approx(1, abs=1e-3)
    assert found["similarity"] == pytest.approx(1, rel=1e-5)
    assert found["class"] == pytest.approx(6 / 7, rel=1e-5)
    assert found["prefix"] == pytest.approx(1 / 7, rel=1e-5)
    singular = row(report, "Singular values by rank", layer=0)
    assert singular["1"] == pytest.approx(1, rel=1e-5)
    assert singular["4"] == pytest.approx(0, abs=1e-5)


def test_measures_by_hand():
    assert effective_rank(torch.tensor([1.0, 1.0, 1.0, 0.0])) == pytest.approx(3)
    assert head_similarity(torch.tensor([[[4.0, 0.0], [0.0, 9.0]]])).tolist() == [[0.0, 0.0]]
    assert head_similarity(torch.tensor([[[4.0, 6.0], [6.0, 9.0]]])).tolist() == [[1.0, 1.0]]
    assert head_similarity(torch.ones(1, 1, 1)) is None


def test_running_means_are_those_of_all_at_once():
    values, running = torch.randn(10, 3).double() + 100, Running()
    for part in values.split([1, 4, 5]):
        running.add(part)
    torch.testing.assert_close(running.mean, values.mean(dim=0))
    torch.testing.assert_close(running.deviation, values.std(dim=0))
    running = Running()
    running.add(values[:1])
    assert running.deviation is None


def test_batches_do_not_matter():
    model = tiny().train()
    images = pictures(model, 5)
    once = statistics(model, [images], spectra=3)
    assert model.training
    parts = statistics(model, ((part, torch.zeros(len(part))) for part in images.split(2)), spectra=3)
    assert once["Measured"].values == parts["Measured"].values | {"images": 5}
    for title in ("By layer", "By layer and head", "Standard deviation over images", "Singular values by rank"):
        for one, other in zip(once[title].rows, parts[title].rows, strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", MEASURED)
def test_every_family(name):
    model = tiny(name)
    report = statistics(model, [pictures(model)], spectra=1)
    count = len(attention_layers(model))
    left = (
        report["Not measured"].text.count("layer") if "Not measured" in [part.title for part in report.sections] else 0
    )
    assert report["Measured"].values["layers"] + left >= count
    for each in report["By layer and head"].rows:
        tokens = math.log(MAX_TOKENS)
        assert 0 <= each["distance"] < math.hypot(*model.config.image_size)
        assert -1e-6 <= each["entropy"] < tokens
        assert each.get("similarity") is None or -1e-6 <= each["similarity"] <= 1 + 1e-6


def test_it_prints_and_draws(tmp_path):
    report = statistics(tiny(), [torch.randn(2, 3, 24, 16)], layers=[-1])
    assert "Attention distance" in str(report)
    assert [each["layer"] for each in report["By layer"].rows] == [1]
    page = report.to_html(tmp_path / "page.html")
    assert page.count("<svg") == 7
    assert Report.from_json(report.to_json()).title == report.title


def test_layers_without_a_matrix_are_reported():
    report = statistics(tiny("xcit_nano_12_p16"), [torch.randn(1, 3, 48, 32)])
    assert "layer 0: XCAttention mixes channels" in report["Not measured"].text
    assert [each["layer"] for each in report["By layer"].rows] == [2, 3]
    assert "Standard deviation over images" not in [section.title for section in report.sections]  # one image has none


def test_large_maps_have_no_spectrum(monkeypatch):
    monkeypatch.setattr("vitrail.explain.attention.head_statistics.MAX_TOKENS", 6)
    titles = [part.title for part in statistics(tiny(), [torch.randn(1, 3, 24, 16)]).sections]
    assert "Effective rank" not in titles
    assert "Entropy" in titles


def test_bad_input():
    with pytest.raises(DataError, match="no images"):
        statistics(tiny(), [])
    with pytest.raises(InputError, match="str"):
        statistics(tiny(), [["cat.jpg"]])
    with pytest.raises(InputError, match="floating point"):
        statistics(tiny(), [torch.zeros(1, 3, 24, 16, dtype=torch.uint8)])
    with pytest.raises(Unsupported, match="ResNet has no attention"):
        statistics(tiny("resnet18"), [torch.randn(1, 3, 64, 64)])
    with pytest.raises(Unsupported, match="LinformerAttention"):
        statistics(tiny(attention="linformer"), [torch.randn(1, 3, 24, 16)])


def test_public_name():
    assert vitrail.explain.statistics is statistics

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.shipped import Skewed, first, photos, trained

from vitrail.data.preprocess import Preprocess
from vitrail.deploy.artefact import certificate
from vitrail.deploy.artefact.certificate import CertifyConfig, Tolerance, at_size, certify, fewest
from vitrail.deploy.artefact.engine import TorchEngine, in_batches
from vitrail.errors import DataError
from vitrail.report import Report
from vitrail.tasks.task import Agreement

QUICK = CertifyConfig(batches=(1, 4), images=10, rounds=1)


@pytest.mark.parametrize("kind", ["class", "labels", "numbers"])
def test_a_true_copy_passes_everywhere(kind):
    eager = TorchEngine(trained(kind=kind))
    proof = certify(eager, {"copy": Skewed(eager, 0.0)}, photos(10), QUICK)
    assert len(proof.rows) == 4, "two batches, two sizes"
    assert proof.problems("copy") == []
    assert {row.size for row in proof.rows} == {(24, 16), (36, 24)}
    assert all(row.agreement == 1 and row.error < 1e-5 for row in proof.rows)


@pytest.mark.parametrize(
    ("kind", "add", "word"),
    [
        ("class", [1000.0, 0, 0, 0, 0], "error"),
        ("class", [np.nan] * 5, "finite"),
        ("class", [0.5] * 5, "error"),
        ("labels", [1000.0, 0, 0, 0, 0], "error"),
        ("numbers", [1.0, 0.0], "error"),
        ("numbers", [0.0, np.nan], "finite"),
    ],
)
def test_a_skewed_copy_fails(kind, add, word):
    eager = TorchEngine(trained(kind=kind))
    proof = certify(eager, {"copy": Skewed(eager, add)}, photos(10), QUICK)
    assert len(proof.problems("copy")) == 4
    assert word in proof.problems("copy")[0]


@pytest.mark.parametrize(("kind", "small", "large"), [("class", 0.01, [0, 0, 0, 0, 1e4]), ("numbers", 0.01, [0, 30.0])])
def test_int8_is_compared_by_its_answers(kind, small, large):
    eager = TorchEngine(trained(kind=kind))
    copy = Skewed(eager, small)
    copy.card = replace(copy.card, precision="int8")
    assert certify(eager, {"copy": copy}, photos(10), QUICK).problems("copy") == []
    copy.add = np.array(large, np.float32)
    assert "cosine" in certify(eager, {"copy": copy}, photos(10), QUICK).problems("copy")[0]


def test_numbers_near_zero_may_differ_in_sign():
    task = trained(kind="numbers").task
    near = {"numbers": np.array([[40.0, -0.2 - 1e-6], [1e-6, -0.2]])}
    error, cosine, agreement = task.agreement(near, {"numbers": np.array([[40.0, -0.2 + 1e-6], [-1e-6, -0.2]])})
    assert (error < 1e-5, cosine > 0.99999, agreement) == (True, True, 1.0)


def test_answers_that_changed_are_counted(model, monkeypatch):
    eager = TorchEngine(model)
    monkeypatch.setattr(type(model.task), "agreement", lambda *_: Agreement(0.0, 1.0, 0.9))
    (problem, *_) = certify(eager, {"copy": Skewed(eager, 0.0)}, photos(10), QUICK).problems("copy")
    assert "1 of 10 images" in problem
    assert "--count 1000" in problem
    monkeypatch.setitem(certificate.TOLERANCES, "float32", Tolerance(1.0, 0.9, 0.95))  # of 20 one may differ
    (problem, *_) = certify(eager, {"copy": Skewed(eager, 0.0)}, photos(20), replace(QUICK, images=20)).problems("copy")
    assert "2 of 20 images" in problem
    assert "--count" not in problem


@pytest.mark.parametrize(("precision", "enough"), [("int8", 200), ("float32", 1000)])
def test_one_other_answer_is_within_tolerance_of_enough_images(precision, enough):
    allowed = certificate.TOLERANCES[precision].agreement
    assert fewest(allowed) == enough
    same = np.arange(enough) > 0
    assert same.mean() >= allowed > same[:-1].mean()


def test_the_certificate_is_a_page_and_json(model, tmp_path):
    eager = TorchEngine(model)
    report = certify(eager, {"copy.onnx": Skewed(eager, 0.0)}, photos(4), QUICK).write(tmp_path)
    again = Report.from_json((tmp_path / "certificate.json").read_text())
    assert again.title == report.title
    rows = json.loads((tmp_path / "certificate.json").read_text())["sections"][1]["rows"]
    assert [row["verdict"] for row in rows] == ["passed"] * 4
    assert {row["same answer"] for row in rows} == {1.0}
    assert "copy.onnx" in (tmp_path / "certificate.html").read_text()


def test_batches_do_not_change_answers(model):
    eager = TorchEngine(model)
    pixels = at_size(photos(5), (24, 16), eager.preprocess)
    assert pixels.shape == (5, 24, 16, 3)
    np.testing.assert_allclose(first(in_batches(eager, pixels, 2)), first(eager.run(pixels)), atol=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (12, 9)])
def test_grey_and_colour_go_into_one_array(size):
    images = [torch.zeros(1, 20, 20, dtype=torch.uint8), torch.zeros(3, 9, 30, dtype=torch.uint8)]
    for channels in (1, 3):
        made = at_size(images, size, Preprocess(image_size=(8, 8), channels=channels))
        assert made.shape[:3] == (2, *size)


def test_a_certificate_needs_images(model):
    with pytest.raises(DataError, match="images"):
        certify(TorchEngine(model), {}, [], QUICK)

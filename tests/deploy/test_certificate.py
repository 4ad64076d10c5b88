import json
from dataclasses import replace

import numpy as np
import pytest
from shipped import Skewed, photos

from vitrail.deploy import certificate
from vitrail.deploy.card import Card
from vitrail.deploy.certificate import CertifyConfig, Tolerance, at_size, certify, differences, fewest, in_batches
from vitrail.deploy.engine import TorchEngine
from vitrail.errors import DataError
from vitrail.report import Report

QUICK = CertifyConfig(batches=(1, 4), images=10, rounds=1)


def test_differences_by_hand():
    expected = np.array([[4.0, 0.0], [0.0, 2.0]])
    found = np.array([[4.0, 0.0], [2.0, 0.0]])
    assert differences(expected, found) == (0.5, 0.0, 0.5)
    assert differences(expected, expected) == (0.0, 1.0, 1.0)


def test_a_true_copy_passes_everywhere(model):
    eager = TorchEngine("eager", model)
    proof = certify(eager, {"copy": Skewed(eager, 0.0)}, photos(10), QUICK)
    assert len(proof.rows) == 4, "two batches, two sizes"
    assert proof.faults("copy") == []
    assert {row.size for row in proof.rows} == {(24, 16), (36, 24)}
    assert all(row.agreement == 1 and row.error < 1e-5 for row in proof.rows)


@pytest.mark.parametrize(
    ("add", "message"),
    [([1000.0, 0, 0, 0, 0], "error"), ([np.nan] * 5, "no numbers"), ([0.5] * 5, "error")],
)
def test_a_skewed_copy_fails(add, message, model):
    eager = TorchEngine("eager", model)
    proof = certify(eager, {"copy": Skewed(eager, add)}, photos(10), QUICK)
    assert len(proof.faults("copy")) == 4
    assert message in proof.faults("copy")[0]


def test_int8_is_judged_by_its_answers(model):
    eager = TorchEngine("eager", model)
    copy = Skewed(eager, 0.01)
    copy.card = Card.of(model).__class__(**{**vars(copy.card), "precision": "int8"})
    assert certify(eager, {"copy": copy}, photos(10), QUICK).faults("copy") == []
    copy.add = np.array([0, 0, 0, 0, 1e4], np.float32)
    assert "cosine" in certify(eager, {"copy": copy}, photos(10), QUICK).faults("copy")[0]


def test_answers_that_changed_are_counted(model, monkeypatch):
    eager = TorchEngine("eager", model)
    monkeypatch.setattr(certificate, "differences", lambda *_: (0.0, 1.0, 0.9))
    faults = certify(eager, {"copy": Skewed(eager, 0.0)}, photos(10), QUICK).faults("copy")
    told = "agreement 90.0 % (1 of 10 pictures differ), at least 99.9 %; with 10 pictures one other answer is 10.0 %"
    assert faults[0] == f"{told} already: judge on 1,000 or more, by --images and --count 1000"
    monkeypatch.setitem(certificate.TOLERANCES, "float32", Tolerance(1.0, 0.9, 0.95))  # of 20 one may differ
    faults = certify(eager, {"copy": Skewed(eager, 0.0)}, photos(20), replace(QUICK, images=20)).faults("copy")
    assert faults[0] == "agreement 90.0 % (2 of 20 pictures differ), at least 95.0 %"


@pytest.mark.parametrize(("precision", "enough"), [("int8", 200), ("float32", 1000)])
def test_one_other_answer_is_within_tolerance_of_pictures_enough(precision, enough):
    allowed = certificate.TOLERANCES[precision].agreement
    assert fewest(allowed) == enough
    same = np.arange(enough) > 0
    assert same.mean() >= allowed > same[:-1].mean()


def test_the_certificate_is_a_page_and_json(model, tmp_path):
    eager = TorchEngine("eager", model)
    report = certify(eager, {"copy.onnx": Skewed(eager, 0.0)}, photos(4), QUICK).write(tmp_path)
    again = Report.from_json((tmp_path / "certificate.json").read_text())
    assert again.title == report.title
    rows = json.loads((tmp_path / "certificate.json").read_text())["sections"][1]["rows"]
    assert [row["verdict"] for row in rows] == ["passed"] * 4
    assert "copy.onnx" in (tmp_path / "certificate.html").read_text()


def test_batches_do_not_change_answers(model):
    eager = TorchEngine("eager", model)
    pixels = at_size(photos(5), (24, 16), eager)
    assert pixels.shape == (5, 24, 16, 3)
    np.testing.assert_allclose(in_batches(eager, pixels, 2), eager.run(pixels), atol=1e-5)


def test_no_pictures_no_proof(model):
    with pytest.raises(DataError, match="needs pictures"):
        certify(TorchEngine("eager", model), {}, [], QUICK)

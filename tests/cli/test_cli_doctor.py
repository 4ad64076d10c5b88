"""`vitrail doctor` on boxes and masks: the page of pictures, and an exit code for what cannot be used."""

import pytest
from support.annotated import masks, voc, voc_file, voc_object

from vitrail.cli import main
from vitrail.data.sources.opening import find


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.training.cost.training_speed", lambda *_, **__: 1.0)


@pytest.mark.parametrize("make", [voc, masks])
def test_a_page_of_pictures(tmp_path, make, capsys):
    page = tmp_path / "new" / "preview.html"
    assert main(["doctor", str(make(tmp_path / "data")), "--preview", str(page)]) == 0
    assert page.read_text().count("<img") >= 4
    shown = " ".join(capsys.readouterr().out.split())
    assert "classes" in shown


def test_faults_that_stop_training_are_an_error(tmp_path, capsys):
    data = voc(tmp_path / "data", 6)
    voc_file(data / "Annotations" / "1.xml", "1.png", voc_object("cell", (50, 3, 60, 9)))
    assert main(["doctor", str(data)]) != 0
    told = capsys.readouterr()
    assert "1.xml, line 4" in " ".join(told.err.split())
    assert "outside" in told.out  # the report comes first


def test_one_fault_of_hundreds_is_an_error_too_though_training_goes_on(tmp_path, capsys):
    data = voc(tmp_path / "data", 6)
    boxes = "".join(voc_object("cell", (x, y, x + 1, y + 1)) for x in range(1, 30) for y in range(1, 20))
    voc_file(data / "Annotations" / "1.xml", "1.png", boxes + voc_object("cell", (3, 3, 2, 9)))
    assert main(["doctor", str(data)]) != 0
    assert "no area" in " ".join(capsys.readouterr().err.split())
    assert find(data).findings.refusal() is None


def test_training_refuses_the_same(tmp_path, capsys):
    data = voc(tmp_path / "data", 6)
    voc_file(data / "Annotations" / "1.xml", "1.png", voc_object("cell", (50, 3, 60, 9)))
    assert main(["train", str(data), "--out", str(tmp_path / "run")]) != 0
    assert "1.xml, line 4" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("make", [voc, masks])
def test_the_data_are_opened_once(tmp_path, make, monkeypatch):
    opened = []
    monkeypatch.setattr("vitrail.data.sources.opening.find", lambda *of, **how: opened.append(of) or find(*of, **how))
    monkeypatch.setattr("vitrail.training.first_dense.SMALL", 16)  # so that what training does is timed, too
    assert main(["doctor", str(make(tmp_path / "data")), "--preview", str(tmp_path / "page.html")]) == 0
    assert len(opened) == 1

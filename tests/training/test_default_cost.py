"""What the doctor says that training costs is the cost of what `vitrail train` does there with nothing named."""

from pathlib import Path

import pytest
import torch
from support.annotated import depth, masks, voc, voc_file, voc_object
from support.compared_runs import labelled

from vitrail.cli import main
from vitrail.data.sources.opening import survey
from vitrail.errors import DataError
from vitrail.profiling import describe
from vitrail.report import Facts
from vitrail.training import default_cost as module
from vitrail.training import first_try
from vitrail.training.default_cost import default_cost
from vitrail.training.plan import make_plan

CPU = torch.device("cpu")
TABLE = first_try.measured()


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("vitrail.training.first_dense.SMALL", 16)
    return voc(tmp_path / "boxes", 10)


def test_boxes_cost_what_the_packaged_network_with_its_head_costs(boxes: Path) -> None:
    data = boxes
    found = default_cost(survey(data), device=CPU)
    assert found is not None
    plan = make_plan(data)
    task = plan.build_task(blank=True)
    weights = 4 * sum(one.numel() for one in task.parameters())
    assert found.image_size == plan.preprocess.image_size
    assert "packaged-photos with a rt_detr head" in found.numbers.model
    assert (found.numbers.epochs, found.numbers.batch_size) == (plan.config.epochs, plan.config.batch_size)
    assert found.numbers.fixed == 5 * weights  # with gradients, two moments, and the moving average
    assert (found.numbers.images_per_second or 0) > 0


def test_the_memory_of_an_image_is_that_of_the_backbone_and_a_small_head(
    boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = describe(make_plan(boxes).build_task(blank=True).backbone)["Totals"]
    assert isinstance(totals, Facts)
    backbone, found = float(totals.values["activations"] or 0), []
    for images in (1, 4):
        monkeypatch.setattr(module, "_KEPT", images)
        cost = default_cost(survey(boxes), device=CPU)
        assert cost is not None
        found.append(cost.numbers.per_image or 0)
    assert all(backbone < one < 2.3 * backbone for one in found)
    assert found[0] == pytest.approx(found[1], rel=0.05)  # weights do not count


def cut_short(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.fixture
def damaged(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data of a kind with one file that cannot be read, in every sample of the training images."""
    data = tmp_path / "data"
    if request.param == "classes":
        monkeypatch.setattr(first_try, "measured", lambda: TABLE)
        cut_short(next((labelled(data) / "train").rglob("0.png")))
        return data
    monkeypatch.setattr("vitrail.training.first_dense.SMALL", 16)
    monkeypatch.setattr(module, "_LOOKED_AT", 100)
    part = (masks if request.param == "masks" else depth)(data, count=10)
    train = make_plan(data).data.train
    broken = Path(train.where(0))
    cut_short(part / "depth" / broken.name if request.param == "depth" else broken)
    return data


@pytest.mark.parametrize("damaged", ["classes", "masks", "depth"], indirect=True)
def test_the_doctor_leaves_out_a_file_that_cannot_be_read(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", str(damaged)])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Audit of" in shown
    assert "packaged-photos" in shown
    assert "seconds" in shown.split("packaged-photos")[1]  # what could be read was timed


@pytest.mark.parametrize("error", [DataError("no image"), torch.OutOfMemoryError("too large")])
def test_what_cannot_be_measured_is_left_out(
    boxes: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> float:
        raise error

    monkeypatch.setattr(module, "seconds_per_image", fails)
    assert main(["doctor", str(boxes)]) == 0
    cost = " ".join(capsys.readouterr().out.split()).split("packaged-photos with a rt_detr head")[1]
    assert "batch size" in cost
    assert "largest batch size" not in cost
    assert "epochs with validation" not in cost


def test_a_linear_head_is_fitted_in_no_epochs_and_at_each_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_try, "measured", lambda: TABLE)  # other tests train without it
    monkeypatch.setattr(module, "seconds_per_image", lambda *_: 1.0)
    data = labelled(tmp_path / "photos")
    small = default_cost(survey(data), device=CPU)
    monkeypatch.setattr(first_try, "SMALL", 16)
    large = default_cost(survey(data), device=CPU)
    assert small is not None
    assert large is not None
    assert (small.numbers.epochs, small.numbers.images_per_second) == (0, 1.0)
    assert large.numbers.images_per_second == pytest.approx(1 / (1 + 256**2 / 160**2))
    assert "160 x 160 and 256 x 256" in large.numbers.model


def test_a_new_model_or_refused_data_have_no_such_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_cost(survey(labelled(tmp_path / "photos")), device=CPU) is None  # no sets were measured, in tests
    few = voc(tmp_path / "boxes", 6)
    monkeypatch.setattr("vitrail.training.first_dense.SMALL", 16)
    assert default_cost(survey(few), device=CPU) is not None
    voc_file(few / "Annotations" / "1.xml", "1.png", voc_object("cell", (50, 3, 60, 9)))
    assert default_cost(survey(few), device=CPU) is None  # training refuses them


def test_the_doctor_shows_it(boxes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(boxes)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "packaged-photos with a rt_detr head" in shown
    assert "epochs with validation" in shown
    assert "vit_tiny" not in shown

"""Pre-training without labels, by the trainer as it is: a run, its resume, its report, and fine-tuning from it."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.registered import tiny
from support.small_data import Made, photos
from torch import Tensor

import vitrail
from vitrail.config import to_dict
from vitrail.data.dataset import Splits
from vitrail.errors import ConfigError, TrainingError, Unsupported
from vitrail.runs.record import Record
from vitrail.runs.trained import open_model
from vitrail.tasks.classify import Classify
from vitrail.tasks.mae.masked import MAE, MAEConfig
from vitrail.training.config import OptimiserConfig, TrainConfig, change
from vitrail.training.optim.optimiser import groups
from vitrail.training.plan import make_plan
from vitrail.training.run import Run, train
from vitrail.training.verify import verify_resume

MASKED = {"kind": "mae", "dim": 32, "depth": 1, "num_heads": 2}
MODEL = {"model": "vit32_small", "image_size": 16, "options": {"dim": 32, "depth": 2, "num_heads": 2, "dropout": 0.0}}
SMALL = {**MODEL, "batch_size": 16, "epochs": 3, "device": "cpu", "augment": {"crop": "shift", "padding": 1}}
SMALL |= {"optimiser": {"lr": 5e-3}, "schedule": {"warmup_epochs": 0.5}, "ema": 0.9}
PRETRAIN = {**SMALL, "task": MASKED}


def ramps(count: int) -> Made:
    """Smooth images, whose hidden parts can be guessed: brightness rises in some direction."""
    draw = torch.Generator().manual_seed(count)
    ways = torch.randn(count, 2, generator=draw)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    rising = ways[:, 0, None, None] * y + ways[:, 1, None, None] * x  # B H W
    pixels = 128 + 40 * rising[:, None].expand(-1, 3, -1, -1)
    return Made(pixels.clamp(0, 255).to(torch.uint8), {"label": (ways[:, 0] > 0).long()})


def data() -> Splits:
    return Splits(ramps(64), ramps(20), ramps(12), notes=())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(data(), folder=tmp_path_factory.mktemp("runs") / "mae", silent=True, **PRETRAIN | {"epochs": 10})


def test_a_run_learns_to_rebuild(done: Run) -> None:
    assert isinstance(done.task, MAE)
    losses = [entry["train"]["loss"] for entry in done.history]
    assert losses[-1] < 0.8 * losses[0]
    best = max(done.history, key=lambda entry: entry["val"]["explained"])["val"]
    assert done.metrics["explained"] == best["explained"] > 0.1
    assert done.metrics["test_explained"] > 0.1
    assert done.metrics["test_images"] == 12


def test_the_folder_is_the_model_alone_and_the_decoder_lies_beside(done: Run) -> None:
    model = vitrail.load(done.folder)
    assert model.config.num_classes == 0
    assert model.labels is None
    assert not any("decoder" in name for name in load_file(done.folder / "model.safetensors"))
    beside = load_file(done.folder / "task.safetensors")
    assert beside
    assert all(name.startswith("decoder.") for name in beside)
    last = load_file(sorted((done.folder / "checkpoints").iterdir())[-1])
    assert torch.equal(beside["decoder.mask_token"], last["ema.decoder.mask_token"])  # the best epoch was the last
    assert torch.equal(done.task.decoder.mask_token, beside["decoder.mask_token"])


def test_a_finished_run_resumes_to_itself_and_to_no_other(done: Run) -> None:
    again = train(data(), folder=done.folder, resume=True, device="cpu", silent=True)
    assert (again.metrics, again.history) == (done.metrics, done.history)
    assert again.config.task == MAEConfig(dim=32, depth=1, num_heads=2)
    with pytest.raises(TrainingError, match=r"recipe\.task\.mask was 0\.75, is 0\.5"):
        train(data(), folder=done.folder, resume=True, device="cpu", silent=True, task={"mask": 0.5})


def test_fine_tuning_starts_from_it(done: Run, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fresh head gives a notice
        plan = make_plan(data(), start=done.folder)
        fresh = plan.build_task()
        run = train(
            data(), start=done.folder, folder=tmp_path / "tuned", silent=True, device="cpu", batch_size=16, epochs=1
        )
    assert isinstance(fresh, Classify)
    assert torch.equal(fresh.backbone.blocks[0].attention.qkv.weight, done.model.blocks[0].attention.qkv.weight)
    assert isinstance(run.task, Classify)
    assert "test_accuracy" in run.metrics
    assert vitrail.load(run.folder).labels == ("dark", "light")
    assert not (run.folder / "task.safetensors").exists()


def test_labels_are_never_read(tmp_path: Path) -> None:
    def trained(labels: Tensor, place: str) -> dict[str, Tensor]:
        splits = Splits(Made(photos(32, size=16).array, {"label": labels}), photos(8, size=16), None)
        return train(splits, folder=tmp_path / place, silent=True, **PRETRAIN | {"epochs": 1}).model.state_dict()

    first, second = trained(torch.zeros(32).long(), "a"), trained(torch.arange(32) % 2, "b")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("at", [2, 5])
def test_resuming_is_exact(at: int) -> None:
    report = verify_resume(data(), steps=7, at=at, **PRETRAIN)
    assert report["Resume"].values["equal"] is True, str(report)


def test_the_report_shows_curves_and_what_is_rebuilt(done: Run) -> None:
    page = done.report().read_text()
    assert "Reconstructions" in page
    assert len(re.findall(r'<img[^>]*src="data:image/png', page)) == 3 * 12
    assert "explained variance" in page
    assert "Per class" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_it_is_evaluated_and_answers_nothing(done: Run) -> None:
    opened = open_model(done.folder)
    assert torch.equal(opened.task.decoder.mask_token, done.task.decoder.mask_token)
    with pytest.raises(Unsupported, match="fine-tune"):
        opened.predict(torch.zeros(3, 16, 16, dtype=torch.uint8))
    assert opened.evaluate(data().test).metrics["explained"] == pytest.approx(done.metrics["test_explained"])


def test_what_needs_labels_is_refused() -> None:
    with pytest.raises(ConfigError, match="mix"):
        make_plan(data(), task="mae", changes={**MODEL, "mix": {"mixup": 0.2}})
    with pytest.raises(ConfigError, match="mix"):
        make_plan(data(), task="mae", changes={**MODEL, "mix.mixup": 0.2})
    with pytest.raises(ConfigError, match="label_smoothing"):
        make_plan(data(), task="mae", changes={**MODEL, "task": {"label_smoothing": 0.1}})
    with pytest.raises(ConfigError, match="teacher"):
        make_plan(data(), task="mae", teacher=tiny(), changes=MODEL)


def test_a_model_that_cannot_be_masked_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    changes = PRETRAIN | {"options": {**MODEL["options"], "position": "rope"}}
    with pytest.raises(Unsupported, match="positions that are added to tokens"):
        train(data(), folder=tmp_path / "run", silent=True, **changes)
    assert not (tmp_path / "run").exists()


def test_what_is_left_out_is_noted() -> None:
    notes = make_plan(data(), task=MASKED, changes=MODEL).notes
    assert any("labels are not read" in note for note in notes)


def test_folders_are_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(data(), silent=True, **PRETRAIN | {"epochs": 1})
    assert run.folder == Path("runs/made-vit32_small-mae")
    assert Record.read(run.folder).schema == {}


def test_recipes_choose_it_by_name_or_by_mapping() -> None:
    whole = MAEConfig(dim=32, depth=1, num_heads=2)
    for recipe in ({"pretrain": MASKED}, {"task": MASKED}, {"task": whole}):
        assert make_plan(data(), recipe={**MODEL, **recipe}).task == whole
    assert make_plan(data(), recipe={**MODEL, "pretrain": "mae"}).task == MAEConfig()
    config = make_plan(data(), recipe={**MODEL, "task": MASKED}).config
    assert change(TrainConfig(), to_dict(config)) == config
    with pytest.raises(ConfigError, match="mae"):
        make_plan(data(), recipe={**MODEL, "pretrain": "mea"})
    with pytest.raises(ConfigError, match="'mask'"):
        make_plan(data(), recipe={**MODEL, "task": {"kind": "mae", "msk": 0.5}})


def test_a_decoder_learns_as_fast_as_a_head_and_its_token_does_not_decay() -> None:
    task = MAEConfig(mask=0.5, dim=32, depth=3, num_heads=2).build(tiny(num_classes=0), {})
    found = groups(task, OptimiserConfig(lr=1.0, layer_decay=0.5))
    scale = {name: group["scale"] for group in found for name in group["names"]}
    assert {value for name, value in scale.items() if name.startswith("decoder.")} == {1.0}
    assert scale["backbone.blocks.1.norm1.weight"] == 0.5
    assert scale["backbone.patch.projection.weight"] == 0.125
    decay = {name: group["weight_decay"] for group in found for name in group["names"]}
    assert decay["decoder.mask_token"] == 0
    assert decay["decoder.pixels.weight"] > 0


@pytest.mark.parametrize("changes", [{"freeze_until": "blocks.1"}, {"precision": "bf16"}])
def test_other_options_of_the_trainer(tmp_path: Path, changes: dict) -> None:
    run = train(data(), folder=tmp_path / "run", silent=True, **PRETRAIN | {"epochs": 1, **changes})
    assert run.metrics["explained"] > -1


def test_pre_training_goes_on_by_low_rank_updates(done: Run, tmp_path: Path) -> None:
    options = {name: value for name, value in PRETRAIN.items() if name not in MODEL} | {"epochs": 1, "lora": 2}
    run = train(data(), folder=tmp_path / "run", start=done.folder, recipe={}, silent=True, **options)
    assert run.metrics["explained"] > -1


def test_pretrain_is_still_read_as_the_task(tmp_path: Path) -> None:
    for number in range(24):
        Image.new("RGB", (32, 32), (10 * number, 90, 30)).save(tmp_path / f"{number}.png")
    small = {"options": {"dim": 16, "depth": 1, "num_heads": 2}, "epochs": 1, "batch_size": 8, "image_size": 32}
    run = vitrail.train(tmp_path, model="vit32_small", pretrain="mae", folder=tmp_path / "run", silent=True, **small)
    assert run.plan.task.kind == "mae"
    assert run.plan.schema == {}

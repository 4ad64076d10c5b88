"""The loop: it learns, repeats itself, stops at bad numbers, and chooses the best honestly."""

import json
import math
import signal
from pathlib import Path

import pytest
import torch
from support.small_run import Toy, bits, packed, resumed, same_bits, small_loop

import vitrail.training.loop as loop_module
from vitrail.errors import TrainingError
from vitrail.models.checkpoint import load
from vitrail.training.loop import Loop
from vitrail.training.step import Step, step_seed


def test_it_learns(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, epochs=8, optimiser={"lr": 5e-3}, mix={"mixup": 0.0}, augment={"flip": False})
    history = loop.run().history
    assert history[-1]["train"]["loss"] < 0.75 * history[0]["train"]["loss"]
    assert history[-1]["val"]["accuracy"] > 0.45  # chance is a quarter; six seeds reach 0.54 to 0.77


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path: Path) -> None:
    runs = [small_loop(tmp_path / str(index), seed=seed) for index, seed in enumerate((0, 0, 1))]
    for index, loop in enumerate(runs):
        torch.manual_seed(100 + index)  # what the caller's generator holds does not matter
        loop.run()
    first, again, other = map(bits, runs)
    assert same_bits(first, again)
    assert not same_bits(first, other)


def test_the_callers_random_numbers_are_left_alone(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    before = torch.get_rng_state()
    loop.run(until=2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("stop", range(1, 8))
def test_a_stop_at_any_step_changes_nothing(tmp_path: Path, stop: int) -> None:
    through = small_loop(tmp_path / "through")
    through.run()
    small = small_loop(tmp_path / "stopped")
    small.run(until=stop)
    small.save()
    again = resumed(tmp_path / "stopped")
    again.run()
    assert same_bits(bits(through), bits(again))
    losses = [[entry["train"] | entry["val"] for entry in loop.progress.history] for loop in (through, again)]
    assert losses[0] == losses[1]


def test_accumulation_is_the_same_step_in_parts(tmp_path: Path) -> None:
    still = {"model": {"drop_path": 0.0, "dropout": 0.0}, "ema": None}
    whole, parts = (small_loop(tmp_path / str(n), accumulate=n, **still) for n in (1, 4))
    assert [one.run(until=3).step for one in (whole, parts)] == [3, 3]
    for name, tensor in bits(whole).items():
        assert torch.allclose(tensor, bits(parts)[name], atol=2e-5), name


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_precisions_train(tmp_path: Path, precision: str) -> None:
    loop = small_loop(tmp_path, precision=precision)
    loop.run(until=4)
    assert all(tensor.dtype == torch.float32 for name, tensor in bits(loop).items() if name.startswith("model."))
    assert math.isfinite(loop.progress.history[0]["train"]["loss"])


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, task=Toy(spoil=6))
    with pytest.raises(TrainingError, match=r"step 6 \(epoch 2\); the checkpoint of step 4"):
        loop.run()
    assert loop.store.steps() == [4]
    assert all(tensor.isfinite().all() for tensor in bits(resumed(tmp_path)).values())


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_a_gradient_that_is_not_finite_stops_the_run_unless_a_scaler_skips_it(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = small_loop(tmp_path, epochs=1)
    loop.step.precision = precision
    result = {"loss": torch.tensor(1.0)}, torch.tensor(math.inf)  # a loss that is fine, and a norm that is not
    monkeypatch.setattr(Step, "__call__", lambda *_, **__: result)
    if precision == "fp16":
        assert loop.run().step == 4
        return
    with pytest.raises(TrainingError, match=r"not finite at step 1 \(epoch 1\)"):
        loop.run()


def test_every_second_epoch_is_validated_and_the_last(tmp_path: Path) -> None:
    history = small_loop(tmp_path, epochs=3, eval_every=2).run().history
    assert ["val" in entry for entry in history] == [False, True, True]


def test_the_history_has_the_rate_of_each_epochs_last_step(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    rates = [loop.config.optimiser.lr * loop.schedule(step) for step in (3, 7)]
    assert [entry["lr"] for entry in loop.run().history] == rates
    assert rates[0] > rates[1] > 0


def test_a_bad_state_is_never_saved_even_where_the_device_is_looked_at_rarely(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, task=Toy(spoil=2), save_steps=3)
    loop.check_every = 1000
    with pytest.raises(TrainingError, match="step 2 "):
        loop.run()
    assert loop.store.steps() == []


def test_saves_within_an_epoch(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, save_steps=3, keep=9)
    loop.run()
    assert loop.store.steps() == [3, 4, 6, 8]


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, [4, 8, 12]), (1000.0, [4, 12])])
def test_short_epochs_are_not_all_saved(
    seconds: float, steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "SAVE_AFTER", seconds)
    loop = small_loop(tmp_path, epochs=3, save_every=None)
    loop.run()
    assert loop.store.steps() == steps


def test_a_run_that_was_killed_after_its_first_epoch_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "SAVE_AFTER", 1000.0)
    killed = small_loop(tmp_path, epochs=4, save_every=None)
    killed.run(until=10)
    assert killed.store.steps() == [4]
    resumed = small_loop(tmp_path, epochs=4, save_every=None)
    resumed.resume()
    assert resumed.progress.step == 4
    resumed.run()
    assert resumed.store.steps() == [4, 16]  # the next epochs are as short as the first


def test_steps_that_are_to_be_saved_are_at_the_end_of_a_short_epoch_too(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, save_every=None, save_steps=2, keep=9)
    loop.run()
    assert loop.store.steps() == [2, 4, 6, 8]


def test_the_best_is_chosen_by_validation_after_the_warm_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = iter([0.9, 0.5, 0.7, 0.6])
    loop = small_loop(tmp_path, epochs=4, schedule={"warmup_epochs": 2.0}, silent=False)
    loop.evaluate = lambda: {"accuracy": next(scores)}
    published = []
    loop.publish = lambda results: published.append(results["accuracy"])
    progress = loop.run()
    # The 0.9 of the first epoch was luck: the warm-up was not over.
    assert published == [0.5, 0.7]
    assert (progress.best, progress.best_epoch, progress.best_step) == (0.7, 3, 12)
    said = capsys.readouterr().err
    assert said.count("epoch 1 had a better accuracy, 0.9000") == said.count("warm-up") == 1


def test_between_equals_the_likelier_is_the_best(tmp_path: Path) -> None:
    scores = iter([(1.0, 0.9), (1.0, 0.4), (1.0, 0.6), (0.9, 0.1)])
    loop = small_loop(tmp_path, epochs=4)
    loop.evaluate = lambda: dict(zip(("accuracy", "nll"), next(scores), strict=True))
    assert loop.run().best_epoch == 2


def test_a_metric_that_is_nan_is_never_the_best(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    loop.evaluate = lambda: {"accuracy": math.nan}
    assert loop.run().best is None


def test_early_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = iter([0.5, 0.6, 0.6, 0.4, 0.9])
    loop = small_loop(tmp_path, epochs=5, early_stop=2, silent=False)
    loop.evaluate = lambda: {"accuracy": next(scores)}
    progress = loop.run()
    assert (progress.epoch, progress.stopped, progress.best_epoch) == (4, True, 2)
    assert "no improvement of accuracy for 2 epochs" in capsys.readouterr().err
    assert resumed(tmp_path, epochs=5, early_stop=2).over


def test_the_average_is_what_is_published(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, epochs=1)
    loop.run()
    saved = load(tmp_path).state_dict()
    average = loop.learner.ema.values
    assert all(torch.equal(saved[name], average[f"backbone.{name}"]) for name in saved)
    assert not torch.equal(saved["head.weight"], loop.learner.task.backbone.head.weight)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = small_loop(tmp_path, silent=False)
    treat = loop.step.treat

    def interrupted(batch, epoch):
        if loop.progress.step == 4:
            signal.raise_signal(number)
        return treat(batch, epoch)

    loop.step.treat = interrupted
    with pytest.raises((KeyboardInterrupt, SystemExit)) as left:
        loop.run()
    assert (left.type is KeyboardInterrupt) if number == signal.SIGINT else left.value.code == 143
    assert f"vitrail train --resume {tmp_path}" in capsys.readouterr().err
    again = resumed(tmp_path)
    assert (again.progress.step, again.progress.done) == (5, 1)
    again.run()
    through = small_loop(tmp_path / "through")
    through.run()
    assert same_bits(bits(through), bits(again))


def test_a_gpu_is_not_waited_for_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    loop = small_loop(tmp_path, epochs=5)
    loop.check_every = loop_module.CHECK_EVERY
    check = Loop._check
    monkeypatch.setattr(Loop, "_check", lambda self, signals: (looks.append(self.progress.step), check(self, signals)))
    loop.run()
    assert looks == [4, 8, 10, 12, 16, 20, 20]


def test_metrics_file_has_a_line_an_epoch_also_after_a_resume(tmp_path: Path) -> None:
    small_loop(tmp_path).run()
    (tmp_path / "checkpoints" / "step-000000008.safetensors").unlink()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')  # a kill in the middle of a line
    resumed(tmp_path).run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert {"train/loss", "val/accuracy", "lr", "images_per_second", "waiting"} <= lines[0].keys()


def test_seeds_of_steps_differ() -> None:
    places = [(seed, step, part, rank) for seed in (0, 1) for step in range(20) for part in (0, 1) for rank in (0, 1)]
    assert len({step_seed(*place) for place in places}) == len(places)


def test_the_toy_data_hold_every_class() -> None:
    assert packed().targets["label"].unique().tolist() == [0, 1, 2, 3]

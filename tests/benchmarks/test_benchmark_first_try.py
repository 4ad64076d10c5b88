"""The benchmark of the first try: a run that fails or takes too long is said and skipped; the table counts settings."""

import json
import signal
import sys
from pathlib import Path

import pytest
from support.benchmarks import benchmark as load_benchmark

benchmark = load_benchmark("first_try")


def write(out: Path, folder: str, **accuracies: float) -> None:
    for name, accuracy in accuracies.items():
        result = {"accuracy": accuracy, "val_accuracy": accuracy, "seconds": 20.0, "cpu_seconds": 20.0}
        (out / f"{folder}.{name.replace('_', '-')}.json").write_text(json.dumps(result))


def test_a_command_ends_at_the_limit_of_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "LIMIT", 1)
    assert benchmark.limited([sys.executable, "-c", "while True: pass"])[0] == -signal.SIGXCPU
    assert benchmark.limited([sys.executable, "-c", "import sys; sys.exit('no images')"]) == (1, "no images\n")


@pytest.mark.parametrize(
    ("status", "errors", "word"),
    [(-signal.SIGXCPU, "", "processor time"), (1, "", "status 1"), (1, "a\nno b\n", "no b")],
)
def test_a_run_without_a_result_is_said_and_what_it_left_is_removed(
    status: int,
    errors: str,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = tmp_path / "runs" / "roads.probe-photos" / "metrics.jsonl"
    left.parent.mkdir(parents=True)
    left.touch()
    monkeypatch.setattr(benchmark, "limited", lambda command: (status, errors))
    benchmark.run(tmp_path / "roads", tmp_path, "probe-photos", None)
    assert word in capsys.readouterr().out
    assert not left.exists()
    assert not (tmp_path / "roads.probe-photos.json").exists()


def test_the_table_counts_settings_and_names_sets_where_another_is_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "a", logistic=0.7, default=0.8, probe_photos=0.8, tune_late=0.81)
    write(tmp_path, "b", logistic=0.9, default=0.8, probe_photos=0.8, tune_late=0.7, tune_packaged=0.85)
    benchmark.table(tmp_path)
    said = capsys.readouterr().out
    rows = [line.split(" | ") for line in said.splitlines()]
    column = rows[0].index("settings")
    assert [row[column] for row in rows[2:4]] == ["2", "3"]
    assert "on 1 of 2 sets" in said
    assert "b (5.0 points, of 3)" in said

"""Runs experiments seed by seed; what the folder of results has from the same code is not measured again."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitrail.config import to_dict
from vitrail.errors import ConfigError, DataError, Notice
from vitrail.lab.experiment import Experiment, Settings, Verdict
from vitrail.lab.fingerprints import fingerprint
from vitrail.lab.machine import hardware, versions
from vitrail.lab.records import Record, Run, published, read_record, run_file, write_record
from vitrail.locks import locked

FOLDER = Path("runs") / "lab"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An experiment with its results and verdict, and those of the published full run where there is one."""

    experiment: Experiment
    quick: bool
    record: Record
    verdict: Verdict
    published: Record | None


def run_experiment(
    experiment: Experiment,
    *,
    quick: bool,
    seeds: int | None = None,
    device: torch.device | None = None,
    folder: Path = FOLDER,
    say: Callable[[str], None] = lambda text: None,
) -> Finding:
    """Measures the seeds that the folder does not have, and judges all of them."""
    count = experiment.seeds if seeds is None else seeds
    if count < 1:
        raise ConfigError(f"--seeds {count} is not allowed: must be 1 or more")
    where = torch.device("cpu") if device is None else device
    records = [
        measure_seed(experiment, seed, quick=quick, device=where, folder=folder, say=say) for seed in range(count)
    ]
    record = joined(experiment, records, quick=quick)
    return Finding(
        experiment=experiment,
        quick=quick,
        record=record,
        verdict=experiment.conclude(record.results),
        published=published(experiment),
    )


def joined(experiment: Experiment, records: Sequence[Record], *, quick: bool) -> Record:
    """The records of single seeds as one."""
    runs = tuple(run for record in records for run in record.runs)
    seeds = max(run.seed for run in runs) + 1
    words = command(experiment, quick=quick, seeds=seeds, device=torch.device(records[0].device))
    return replace(records[0], runs=runs, command=words)


def _judged(experiment: Experiment, record: Record, where: str) -> None:
    """DataError where results from a file have no verdict and no figures, as where somebody changed them."""
    try:
        experiment.conclude(record.results)
        experiment.figures(record.results)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DataError(f"{where} holds results that cannot be judged ({error!r:.200}); delete it") from error


def command(experiment: Experiment, *, quick: bool, seeds: int, device: torch.device) -> str:
    """The command line that gives these results."""
    words = ["vitrail lab", experiment.name, "--quick" if quick else "", f"--seeds {seeds}", f"--device {device.type}"]
    return " ".join(filter(None, words))


def measure_seed(
    experiment: Experiment, seed: int, *, quick: bool, device: torch.device, folder: Path, say: Callable[[str], None]
) -> Record:
    """The record of one seed, from its file or measured now; global random numbers are left as they were."""
    settings = experiment.quick if quick else experiment.full
    file = run_file(folder, experiment, settings, device=device.type, seed=seed)
    if (found := _stored(experiment, file, seed)) is not None:
        return found
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write results to {folder}: {error.strerror or error}") from error
    what = f"seed {seed} of {experiment.name} in {folder}"
    with locked(file.with_suffix(".lock"), what=what, wait=True):
        if (found := _stored(experiment, file, seed)) is not None:  # measured by whoever had the lock
            return found
        if file.exists():
            text = (
                f"{experiment.name}, seed {seed}: the stored results are of other code and are measured again ({file})"
            )
            warnings.warn(text, Notice, stacklevel=3)
        record = _measured(experiment, seed, settings, quick=quick, device=device, say=say)
        write_record(file, record)
        return record


def _stored(experiment: Experiment, file: Path, seed: int) -> Record | None:
    """The record of a file, if this code has measured it."""
    if not file.exists():
        return None
    found = read_record(file)
    if (found.experiment, [run.seed for run in found.runs]) != (experiment.name, [seed]):
        raise DataError(f"{file} holds results of another experiment or seed; delete it")
    if found.fingerprint == fingerprint(experiment):
        _judged(experiment, found, str(file))
        return found
    return None


def _measured(
    experiment: Experiment, seed: int, settings: Settings, *, quick: bool, device: torch.device,
    say: Callable[[str], None],
) -> Record:  # fmt: skip
    """The record of one seed, measured now."""
    say(f"{experiment.name}: seed {seed}")
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        results = experiment.measure(settings, seed=seed, device=device)
    run = Run(seed=seed, seconds=time.perf_counter() - start, results=results)
    return Record(
        experiment=experiment.name,
        fingerprint=fingerprint(experiment),
        settings=to_dict(settings),
        device=device.type,
        hardware=hardware(device),
        versions=versions(),
        command=command(experiment, quick=quick, seeds=seed + 1, device=device),
        runs=(run,),
    )

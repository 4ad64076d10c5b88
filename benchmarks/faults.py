"""Faults at the system calls of a save, a pack, a bulk write and a report; and resume after kills at random times.

    python benchmarks/faults.py --json faults.json

Every command runs in a process of its own, with the calls on its folder counted by `faults_shim.c` (LD_PRELOAD; needs
Linux and cc). One fault a run: kill -9 before or after a call or in the middle of a write, SIGSTOP and SIGCONT, a full
or read-only disk, EACCES, EIO, too many open files, no memory, a clock that jumps. Then the same command runs again,
or resumes. A point holds if nothing hung, no traceback was printed, no success was claimed with other files, and the
files are equal in the end, bit by bit, to those of a run that nothing disturbed.
"""

import argparse
import contextlib
import ctypes
import errno
import hashlib
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
SHIM = "VITRAIL_FAULTS_SHIM"
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

FAIL, FAIL_ON, SIGNAL, SIGNAL_AFTER, HALF, CLOCK = range(1, 7)  # as in faults_shim.c
YEAR = 366 * 86400
CREATES = ("open", "mkdir", "rename", "write", "writev", "pwrite", "ftruncate", "fsync")
CHANGES = (*CREATES, "unlink", "rmdir", "chmod", "truncate")
ANY: tuple[str, ...] = ()
IMPORTED = ("cli", "api", "profiling", "training.run", "training.report", "training.report.attention")
IMPORTED += ("deploy.bulk.prediction_table", "deploy.bulk.cluster", "deploy.artefact.opening")


class Fault(NamedTuple):
    """What happens at a call, and at which calls it can happen."""

    name: str
    action: int
    value: int
    calls: Sequence[str] = ANY


FAULTS = [
    Fault("kill before the call", SIGNAL, signal.SIGKILL),
    Fault("kill after the call", SIGNAL_AFTER, 0),
    Fault("kill within a write", HALF, 0, ("write",)),
    Fault("SIGSTOP, SIGCONT", SIGNAL, signal.SIGSTOP),
    Fault("ENOSPC from then on", FAIL_ON, errno.ENOSPC, CREATES),
    Fault("EROFS from then on", FAIL_ON, errno.EROFS, CHANGES),
    Fault("EACCES", FAIL, errno.EACCES, ("open", "opendir", "mkdir", "rename", "unlink", "chmod")),
    Fault("EIO", FAIL, errno.EIO, (*CHANGES, "read", "pread", "close", "fstat", "mmap", "opendir", "lseek")),
    Fault("EMFILE", FAIL, errno.EMFILE, ("open", "opendir")),
    Fault("ENOMEM", FAIL, errno.ENOMEM, ("open", "opendir", "mmap", "stat", "fstat", "read", "mkdir")),
    Fault("clock a year on", CLOCK, YEAR),
    Fault("clock a year back", CLOCK, -YEAR),
]


class Life(NamedTuple):
    """How a process ended: its exit code, or minus a signal; None if it hung. And what it said."""

    code: int | None
    said: str
    hit: str = ""  # the call at which the fault came

    @property
    def sentence(self) -> bool:
        """Whether it ended with an error in words."""
        return self.code == 2 and "error:" in self.said and "Traceback" not in self.said


class Scenario:
    """A command in a folder that is the same each time, and what it leaves there."""

    def __init__(self, name: str, root: Path, template: Path) -> None:
        self.name, self.root, self.template = name, root, template

    def prepare(self) -> None:
        """The folder as it is before the command."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.template, self.root)

    def start(self) -> int:
        """The command; its exit code."""
        raise NotImplementedError

    def again(self) -> int:
        """The command after a fault."""
        return self.start()

    def result(self) -> dict[str, str]:
        """Digests of all files, the hidden ones too: nothing may be left over but a lock that nobody holds."""
        files = [file for file in sorted(self.root.rglob("*")) if file.is_file() and not file.name.endswith(".lock")]
        return {str(file.relative_to(self.root)): self.digest(file) for file in files}

    def digest(self, file: Path) -> str:
        """Of a file's bytes."""
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]

    def equal(self, expected: Mapping[str, str]) -> bool:
        """Whether it left what it leaves when nothing disturbs it."""
        return self.result() == expected


def command(*words: str | Path) -> int:
    """The command line of vitrail in this process."""
    from vitrail.cli import main

    return main([str(word) for word in words])


class Save(Scenario):
    """Training that saves each step: checkpoints, the best model, metrics.jsonl, run.json, best.json."""

    def __init__(self, *where: Any, data: Path, epochs: int = 2) -> None:
        super().__init__(*where)
        self.words = ["train", data, "--out", self.root / "run", *SMALL, "--epochs", epochs]

    def start(self) -> int:
        """Without its report, which is a case of its own."""
        from vitrail.cli import learning

        learning.report_run = lambda *_: None
        return command(*self.words)

    def again(self) -> int:
        """Resumes, where there is a checkpoint."""
        from vitrail.cli import learning

        learning.report_run = lambda *_: None
        run = self.root / "run"
        return command("train", "--resume", run) if any(run.glob("checkpoints/step-*")) else command(*self.words)

    def digest(self, file: Path) -> str:
        """Without times: those of metrics.jsonl, and the history in the header of a checkpoint."""
        from safetensors.torch import load_file

        from vitrail.files import digest

        if file.name == "metrics.jsonl":
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            timed = ("seconds", "images_per_second", "waiting")
            return digest(json.dumps([{k: v for k, v in row.items() if k not in timed} for row in rows]), {})
        return digest("", load_file(file)) if "step-" in file.name else super().digest(file)


class Pack(Scenario):
    """A folder of images, decoded into one file."""

    def start(self) -> int:
        """Within the command line, which turns errors into sentences."""
        from vitrail.cli import learning
        from vitrail.data.feeds.packing import pack
        from vitrail.data.preprocess import Preprocess
        from vitrail.data.sources.opening import open_data

        def packs(_: argparse.Namespace) -> None:
            data = open_data(self.root / "images").train
            pack(data, Preprocess(image_size=(16, 16)), folder=self.root / "cache")

        learning.train = packs
        return command("train", self.root / "images")


class Bulk(Scenario):
    """A table of predictions."""

    def __init__(self, *where: Any, model: Path, suffix: str) -> None:
        super().__init__(*where)
        self.model, self.suffix = model, suffix

    def start(self) -> int:
        """One row for each image."""
        words = ["predict", self.model, self.root / "images", "--out", self.root / f"found{self.suffix}"]
        return command(*words, "--device", "cpu")


class Report(Save):
    """The report of a run that is over."""

    def start(self) -> int:
        """Written by the command that finds the run complete."""
        return command("train", "--resume", self.root / "run")

    again = start

    def digest(self, file: Path) -> str:
        """Without numbers: those of the ledger are others each time."""
        if file.name != "report.html":
            return super().digest(file)
        return hashlib.sha256(re.sub(r"[\d.,]+", "", file.read_text()).encode()).hexdigest()

    def equal(self, expected: Mapping[str, str]) -> bool:
        """Where the last checkpoint cannot be read, its step is trained again: times in the report are others then."""
        metrics, report = "run/metrics.jsonl", "run/report.html"
        if (
            not (self.root / metrics).is_file()
            or (self.root / metrics).read_bytes() == (self.template / metrics).read_bytes()
        ):
            return super().equal(expected)
        found = self.result()
        whole = (self.root / report).read_text().rstrip().endswith("</html>")
        return whole and found | {report: ""} == dict(expected) | {report: ""}


SMALL: list[str | Path] = ["--model", "vit32_small", "--image-size", "16", "--batch-size", "16", "--device", "cpu"]
for _option in ("options.dim=16", "options.depth=1", "options.num_heads=2", "save_steps=1", "schedule.warmup_epochs=0"):
    SMALL += ["--set", _option]


def scenarios(work: Path) -> Iterator[Scenario]:
    """The four cases, with what they start from."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    labels = np.arange(48) % 2
    images = (draw.integers(0, 120, (48, 16, 16, 3)) + 120 * labels[:, None, None, None]).astype(np.uint8)
    data, root = work / "data", work / "root"
    for name in ("empty", "images"):
        (work / name).mkdir()
    data.mkdir()
    np.save(data / "train_images.npy", images)
    np.save(data / "train_labels.npy", labels)
    for number in range(24):
        folder = work / "images" / "images" / ("dark", "light")[labels[number]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number]).save(folder / f"{number}.png")
    save = Save("save", root, work / "empty", data=data)
    yield save
    save.prepare()
    finished = life(save.start)
    assert finished.code == 0, finished.said
    shutil.copytree(root, work / "finished")
    yield Pack("pack", root, work / "images")
    for suffix in (".csv", ".jsonl", ".parquet"):
        if suffix != ".parquet" or _has_arrow():
            yield Bulk(f"bulk {suffix}", root, work / "images", model=work / "finished" / "run", suffix=suffix)
    yield Report("report", root, work / "finished", data=data)


def _has_arrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def life(
    job: Callable[[], int], *, root: Path | None = None, number: int = -1, fault: Fault | None = None,
    memory: int | None = None, stopped: Callable[[int], None] | None = None, kill_after: float | None = None,
    patience: float = 60.0,
) -> Life:  # fmt: skip
    """Runs a job in a process that may be killed; with a root, faults are armed or calls are listed."""
    with tempfile.NamedTemporaryFile("r") as said, tempfile.NamedTemporaryFile("r") as hit:
        if (child := os.fork()) == 0:
            arming = None if root is None else (root, number, fault)
            _child(job, (said.name, hit.name), arming, memory)
        code = _wait(child, stopped, kill_after, patience)
        return Life(code, Path(said.name).read_text(errors="replace"), Path(hit.name).read_text())


def _child(
    job: Callable[[], int], outputs: tuple[str, str], arming: tuple[Path, int, Fault | None] | None, memory: int | None
) -> None:
    code = 1
    try:
        output = os.open(outputs[0], os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if memory is not None:
            now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + memory, resource.RLIM_INFINITY))
        if arming is not None:
            root, number, fault = arming
            action, value = (0, 0) if fault is None else (fault.action, fault.value)
            arm = ctypes.CDLL(None).faults_arm
            arm(str(root).encode(), ctypes.c_long(number), action, value, os.open(outputs[1], os.O_WRONLY))
        code = job()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(child: int, stopped: Callable[[int], None] | None, kill_after: float | None, patience: float) -> int | None:
    began = time.monotonic()
    while True:
        found, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if found and os.WIFSTOPPED(status):
            if stopped is not None:
                stopped(child)
            os.kill(child, signal.SIGCONT)
        elif found:
            return os.waitstatus_to_exitcode(status)
        elif kill_after is not None and time.monotonic() - began > kill_after:
            os.kill(child, signal.SIGKILL)
            kill_after = None
        elif time.monotonic() - began > patience:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.002)


def chosen(calls: Sequence[str], count: int, draw: random.Random) -> list[tuple[int, Fault]]:
    """Points spread over all pairs of a fault and a kind of call."""
    groups: dict[tuple[str, str], list[tuple[int, Fault]]] = defaultdict(list)
    for line in calls:
        number, call, *path = line.split(" ", 2)
        kind = f"{call} {Path(path[0]).suffix if path else ''}"
        for fault in FAULTS:
            if not fault.calls or call in fault.calls:
                groups[fault.name, kind].append((int(number), fault))
    queues = list(groups.values())
    for queue in queues:
        draw.shuffle(queue)
    draw.shuffle(queues)
    found: list[tuple[int, Fault]] = []
    while len(found) < count and any(queues):
        found += [queue.pop() for queue in queues if queue]
    return found[:count]


def judge(scenario: Scenario, expected: Mapping[str, str], first: Life) -> dict[str, Any]:
    """What came of a fault: at once, and after the command ran again."""
    absorbed = first.code == 0 and scenario.equal(expected)
    then = Life(0, "") if absorbed else life(scenario.again)
    equal = absorbed or (then.code == 0 and scenario.equal(expected))
    clean = first.code is not None and "Traceback" not in first.said and (absorbed or first.code != 0)
    outcome = "absorbed" if absorbed else "equal after rerun" if equal else "sentence" if then.sentence else "WRONG"
    ended = {None: "hung", 0: "ended well"}.get(first.code, "sentence" if first.sentence else f"code {first.code}")
    row = {"ended": ended, "outcome": outcome if clean else "WRONG", "call": first.hit.strip()}
    if row["outcome"] == "WRONG":
        found = scenario.result()
        names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        row |= {"differs": names, "first": first.said[-3000:], "then": then.said[-3000:]}
    return row


def second_writer(scenario: Scenario, row: dict[str, Any]) -> Callable[[int], None]:
    """While a writer is stopped, another must be refused with its name, or have nothing in its way yet."""

    def tries(child: int) -> None:
        if isinstance(scenario, Pack):  # waits for the first, by design
            return
        other = life(scenario.start)
        row["second"] = "refused" if other.sentence and f"process {child} on" in other.said else f"code {other.code}"

    return tries


def points(work: Path, count: int, draw: random.Random) -> list[dict[str, Any]]:
    """Faults in all scenarios."""
    rows: list[dict[str, Any]] = []
    cases = list(scenarios(work))
    for scenario in cases:
        scenario.prepare()
        undisturbed = life(scenario.start, root=scenario.root)
        assert undisturbed.code == 0, undisturbed.said
        expected, calls = scenario.result(), undisturbed.hit.splitlines()
        share = count // 4 if not isinstance(scenario, Bulk) else count // 12
        limits = [1 << size for size in (20, 22, 24, 25, 26, 27)]
        for number, fault in chosen(calls, share, draw):
            scenario.prepare()
            row: dict[str, Any] = {"scenario": scenario.name, "fault": fault.name, "number": number}
            first = life(
                scenario.start, root=scenario.root, number=number, fault=fault, stopped=second_writer(scenario, row)
            )
            rows.append(row | judge(scenario, expected, first))
        for limit in limits:
            scenario.prepare()
            row = {"scenario": scenario.name, "fault": "memory limit", "number": limit >> 20}
            rows.append(row | judge(scenario, expected, life(scenario.start, memory=limit)))
        print(f"{scenario.name}: {len(calls)} calls, {share + len(limits)} points", flush=True)
    return rows


def random_kills(work: Path, kills: int, draw: random.Random) -> list[dict[str, Any]]:
    """Runs that are killed at random times, again and again, until they end."""
    scenario = Save("kills", work / "root", work / "empty", data=work / "data", epochs=8)
    scenario.prepare()
    began = time.monotonic()
    assert life(scenario.start).code == 0
    whole, expected, rows = time.monotonic() - began, scenario.result(), []
    run = 0
    while len(rows) < kills:
        scenario.prepare()
        run, first, mine = run + 1, True, []
        while True:
            after = draw.uniform(0.02, whole) if len(rows) + len(mine) < kills else None
            found = life(scenario.start if first else scenario.again, kill_after=after)
            if found.code != -signal.SIGKILL:
                break
            first = False
            steps = sorted(int(file.stem[5:]) for file in scenario.root.glob("run/checkpoints/step-*"))
            left = len([file for file in scenario.root.rglob(".*") if file.name != ".lock"])
            mine.append({"run": run, "kill_s": round(after or 0, 3), "step": steps[-1] if steps else 0, "left": left})
        equal = found.code == 0 and scenario.result() == expected
        extra = {} if equal else {"said": found.said[-3000:]}
        rows += [row | {"equal": equal} | extra for row in mine]
    return rows


def distributed(work: Path, kills: int, draw: random.Random) -> list[dict[str, Any]]:
    """One of two processes of a run under torchrun (gloo) is killed; the run is resumed, by hand or by torchrun."""
    words = [str(word) for word in (work / "data", *SMALL, "--epochs", 12)]
    expected = _tensors(_torchrun(["train", *words, "--out", str(work / "two")]), work / "two")
    rows = []
    for number in range(kills):
        out, rank, restarts = work / f"two-{number}", number % 2, int(number == kills - 1)
        process = _torchrun(["train", *words, "--out", str(out)], restarts=restarts)
        until = time.monotonic() + 120
        while not any(out.glob("checkpoints/step-*")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.5))
        victim = _workers(process.pid).get(rank)
        if victim is not None:
            os.kill(victim, signal.SIGKILL)
        said = process.communicate(timeout=180)[0]
        row = {"killed rank": rank if victim is not None else None, "restarts": restarts, "code": process.returncode}
        row["left running"] = len(_workers(process.pid))
        if process.returncode:
            resumed = _torchrun(["train", "--resume", str(out), "--device", "cpu"])
            said += resumed.communicate(timeout=180)[0]
            row["resumed"] = resumed.returncode
        equal = _digest(out) == expected if (out / "model.safetensors").is_file() else False
        rows.append(row | {"equal": equal} | ({} if equal else {"said": said[-3000:]}))
    return rows


def _torchrun(words: Sequence[str], restarts: int = 0) -> "subprocess.Popen[str]":
    plain = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", SHIM)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher += ["--max-restarts", str(restarts), "-m", "vitrail"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*launcher, *words], env=plain | {"OMP_NUM_THREADS": "1"}, **pipes)


def _tensors(process: "subprocess.Popen[str]", run: Path) -> str:
    said = process.communicate(timeout=180)[0]
    assert process.returncode == 0, said[-3000:]
    return _digest(run)


def _digest(run: Path) -> str:
    from safetensors.torch import load_file

    from vitrail.files import digest

    last = max(run.glob("checkpoints/step-*"))
    return digest("", load_file(last)) + digest("", load_file(run / "model.safetensors"))


def _workers(agent: int) -> dict[int, int]:
    """The processes that torchrun started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "environ").read_bytes().split(b"\0")
            ranks = [word for word in words if word.startswith(b"RANK=")]
            if parent == agent and ranks:
                found[int(ranks[0][5:])] = int(folder.name)
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Points by scenario and fault."""
    groups: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        groups[row["scenario"], row["fault"]][row["outcome"]] += 1
    return [{"scenario": one, "fault": other, **count} for (one, other), count in groups.items()]


def show(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """A table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    Console(width=110).print(table)


def with_shim() -> None:
    """Starts this program again with the shim loaded, which is compiled first."""
    if os.environ.get(SHIM):
        return
    if sys.platform != "linux" or shutil.which("cc") is None:
        sys.exit("faults are injected by a library that needs Linux and a C compiler (cc)")
    library = Path(tempfile.mkdtemp(prefix="faults-")) / "shim.so"
    source = HERE / "faults_shim.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    os.environ |= {SHIM: str(library), "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> None:
    """Runs all parts and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=480, help="system calls to inject faults at (default 480)")
    parser.add_argument("--kills", type=int, default=100, help="kills at random times (default 100)")
    parser.add_argument("--ranks", type=int, default=5, help="kills of one of two processes (default 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="all results")
    options = parser.parse_args()
    with_shim()
    import torch

    for module in IMPORTED:  # once: every process is a fork
        importlib.import_module(f"vitrail.{module}")

    torch.set_num_threads(1)
    draw, began, report = random.Random(options.seed), time.monotonic(), {"seed": options.seed}
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        work = Path(name)
        os.environ["VITRAIL_CACHE"] = str(work / "cache")
        report["points"] = points(work, options.points, draw)
        report["kills"] = random_kills(work, options.kills, draw) if options.kills else []
        report["distributed"] = distributed(work, options.ranks, draw) if options.ranks else []
    report |= {"torch": torch.__version__, "seconds": round(time.monotonic() - began)}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    outcomes = ("absorbed", "equal after rerun", "sentence", "WRONG")
    show("Faults at system calls", summary(report["points"]), ("scenario", "fault", *outcomes))
    for part in ("kills", "distributed"):
        rows = report[part]
        print(f"{part}: {len(rows)}, equal bit by bit {sum(row['equal'] for row in rows)}")
    total = Counter(row["outcome"] for row in report["points"])
    print(f"points: {sum(total.values())}, {dict(total)}; {report['seconds']} s")
    wrong = total["WRONG"] + sum(not row["equal"] for part in ("kills", "distributed") for row in report[part])
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

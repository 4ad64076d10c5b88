"""Everything that is measured on a GPU, in order of value, each part with a limit of time; results are one file.

    python benchmarks/gpu_round.py --out results --minutes 9                       # as many parts as fit
    python benchmarks/gpu_round.py --out results --parts kernels start --minutes 9
    python benchmarks/gpu_round.py --out results --tiny                            # every part in seconds, on a CPU

`--together` makes all parts at once: for accuracy, which does not depend on who else uses the GPU. Where it is there,
`nvidia-cuda-mps-control -d` beforehand lets their kernels run beside one another.
A part is a command; its output goes to NAME.log, its numbers to NAME.json, and what became of it to round.json, all of
them in OUT/FIRST-PART.tar.gz, which is written anew every ten seconds. A part is not begun where less than half of its
time is left; one that runs out of time is ended with all that it started, and what it has written stays. `--data` is
CIFAR-10, as `vitrail train` takes it; without it, its part is left out. `--keep` is a folder for models and runs.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
PYTHON = sys.executable
_LOOK = 10.0  # seconds between copies of what is there
_BUNDLING = threading.Lock()


class Part(NamedTuple):
    """A command, the same in small for a CPU, and the seconds that it may take."""

    seconds: float
    command: list[str]
    tiny: list[str] | None  # None: it needs a GPU


def script(name: str, *options: str) -> list[str]:
    return [PYTHON, str(HERE / f"{name}.py"), *options]


def depth(folder: Path, data: str, model: str, epochs: str, measured: list[str]) -> list[str]:
    """Depth of rendered scenes, for distances up to a scale, and then on photos where they are there."""
    size = data.rsplit(":", 1)[1]
    options = ("deep_stem=true", "average_shortcut=true")
    changes = [f"options.{one}" for one in options]
    changes += ["task.zooms=true", "task.focus=0.9", "augment.crop=jitter", "augment.zoom=[1,2]", "augment.colour=0.5"]
    sets = [word for change in [*changes, "compile=cudagraphs"] for word in ("--set", change)]
    words = ["train", data, "--task", "depth", "--model", model, "--image-size", size, "--batch-size", "32"]
    train = [PYTHON, "-m", "vitrail", *words, "--epochs", epochs, *sets, "--out", str(folder)]
    photos = script("zero_shot_depth", str(folder), *measured)
    return ["bash", "-c", f"{shlex.join(train)} && {shlex.join(photos)}"] if measured else train


def parts(
    out: Path, data: str | None, keep: Path, *, lab_data: Path | None = None, camvid: Path | None = None,
    photos: Path | None = None,
) -> dict[str, Part]:  # fmt: skip
    """All parts by name, the most valuable first."""
    names = ("checks", "micro", "kernels", "detect", "start", "growth", "largest", "latency", "fp8")
    to = {name: ["--json", str(out / f"{name}.json")] for name in names}
    small = ["--device", "cpu"]
    drawn = ["--draw", str(out / "drawn"), "--json", str(out / "zero_shot.json")]
    measured = [] if photos is None else ["--photos", str(photos.resolve()), *drawn]
    packed = [] if lab_data is None else ["--data", str(lab_data.resolve())]
    growth = script("growth", "--rounds", "5")
    gpu_tests = [
        str(TESTS / name)
        for name in (
            "layers/test_triton.py", "layers/test_kernels.py", "layers/test_prenorm.py", "layers/test_fp8.py",
            "training/test_gpu.py", "training/test_step.py", "training/test_background.py",
            "data/feeds/test_batches.py", "data/feeds/test_streamed.py", "layers/test_bilinear.py",
            "lab/test_small_training.py",
        )
    ]  # fmt: skip
    found = {
        "checks": Part(150, script("kernel_checks", "--only", "check", "tune", *to["checks"]), None),
        "kernels": Part(400, script("kernels", "--rounds", "5", *to["kernels"]), None),
        "gpu_tests": Part(
            90, [PYTHON, "-m", "pytest", "-q", "-rs", "-n", "6", *gpu_tests],
            [PYTHON, "-m", "pytest", "-q", "-n", "0", str(TESTS / "test_timing.py")],
        ),
        "detect": Part(
            110, script("detect_step", *to["detect"]),
            script("detect_step", *small, "--size", "64x96", "--batch", "2", "--small", "--rounds", "1",
                   "--steps", "1", "--only", "rt_detr", *to["detect"]),
        ),
        "start": Part(
            200, script("start", "--set", "compile=blocks", "--set", "compile=true", "--set", "compile=auto",
                        *to["start"]),
            script("start", *small, "--images", "64", "--model", "vit_tiny_patch16", "--batch-size", "16", "--epochs",
                   "1", "--image-size", "64", *to["start"]),
        ),
        "latency": Part(
            180, script("latency", "--rounds", "7", *to["latency"]),
            script("latency", *small, "--models", "vit_tiny_patch16", "--batches", "1", "--rounds", "2", "--times", "1",
                   "--ways", "eager", *to["latency"]),
        ),
        "fp8": Part(
            120, script("fp8", *to["fp8"]),
            script("fp8", *small, "--only", "products", "agreement", "--tokens", "16", "--count", "2", *to["fp8"]),
        ),
        "growth": Part(
            110, [*growth, *to["growth"]],
            script("growth", *small, "--points", "2", "--rounds", "1", "--axes", "batch", *to["growth"]),
        ),
        "packing": Part(
            50, script("packing", "--workers", "1,4,16", "--rounds", "2"),
            script("packing", "--images", "64", "--workers", "1", "--size", "64", "--rounds", "1"),
        ),
        "streaming": Part(
            60, script("streaming", "--workers", "4,16", "--rounds", "2"),
            script("streaming", "--images", "64", "--workers", "1", "--size", "64", "--rounds", "1"),
        ),
        "profile": Part(
            40, [PYTHON, "-m", "vitrail", "profile", "vit_base_patch16", "--batch", "256"],
            [PYTHON, "-m", "vitrail", "profile", "vit32_small", "--batch", "2", "--rounds", "1", "--device", "cpu"],
        ),
        "largest": Part(
            120, [*growth, "--axes", "--largest", "vit_base_patch16", "swin_tiny_patch4_window7", *to["largest"]], None
        ),
        "tests": Part(
            400, [PYTHON, "-m", "pytest", "-q", "-rs", "-n", "12", "--maxfail", "60", str(TESTS)],
            [PYTHON, "-m", "pytest", "-q", "-n", "0", str(TESTS / "test_timing.py")],
        ),
        "micro": Part(200, script("kernel_checks", "--only", "micro", *to["micro"]), None),
        "many": Part(
            400,
            script("many", "--device", "cuda", "--data", "scenes:1600:96x96", "--dim", "192", "--depth", "6", "--heads",
                   "3", "--epochs", "24", "--batch-size", "32", "--parallel", "5", "--json", str(out / "many.json")),
            script("many", "--data", "scenes:48:64x64", "--epochs", "1", "--rounds", "1", "--batches", "1", "--json",
                   str(out / "many.json")),
        ),
        "depth": Part(300, depth(keep / "depth", "scenes:6000:192x256", "resnet34", "14", measured),
                      depth(keep / "depth", "scenes:48:48x64", "resnet18", "1", measured)),
        "lab": Part(
            580, script("lab_round", "run", "--minutes", "9", *packed, "--out", str(out / "lab")),
            script("lab_round", "run", "--tiny", "--seeds", "1", "--out", str(out / "lab")),
        ),
    }  # fmt: skip
    if data is not None:
        recipes = script("recipes", "cifar10-small-mae", "cifar10-small", "--data", data, "--val", "0.02", "--seeds")
        found["accuracy"] = Part(
            560, [*recipes, "0", "--out", str(keep / "accuracy"), "--json", str(out / "accuracy.json")], None
        )
    if camvid is not None:
        recipe = script("recipes", "camvid-unet", "--data", str(camvid), "--tta", "--out", str(keep / "camvid"))
        found["camvid"] = Part(580, [*recipe, "--parallel", "3", "--json", str(out / "camvid.json")], None)
        both = ["--val", "0.03", "--epochs", "190", "--seeds", "0", "--json", str(out / "camvid_both.json")]
        found["camvid_both"] = Part(580, [*recipe, *both], None)
    return found


def run(name: str, command: list[str], seconds: float, out: Path, target: Path) -> dict[str, Any]:
    """Runs a part to its end or to its limit."""
    began, log = time.perf_counter(), out / f"{name}.log"
    print(f"--- {name}: {' '.join(command)}", flush=True)
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    folders = [HERE.parent / "src", *(Path(folder).resolve() for folder in given)]  # whatever the folder of a process
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(map(str, folders))}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True, cwd=HERE.parent
        )
        code: int | None = None
        while code is None and (left := seconds - (time.perf_counter() - began)) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(min(left, _LOOK))
            bundle(out, target)
        with contextlib.suppress(ProcessLookupError):  # also what a part that has ended left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    taken = time.perf_counter() - began
    end = f"stopped after {taken:.0f} s, its limit" if code is None else f"exit {code} after {taken:.0f} s"
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(lines[-12:]), f"\n--- {name}: {end}", flush=True)
    return {"part": name, "command": command, "seconds": taken, "exit": code}


def bundle(out: Path, target: Path) -> None:
    """Everything in one file: it is whole at any time."""
    new = target.with_suffix(".new")
    with _BUNDLING:
        with tarfile.open(new, "w:gz") as tar:
            tar.add(out, "results")
        new.replace(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", help="of all, in this order")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--data", help="CIFAR-10")
    parser.add_argument("--camvid", type=Path, help="the folder of CamVid")
    parser.add_argument("--photos", type=Path, help="photos with a known depth, as zero_shot_depth.py takes them")
    parser.add_argument("--together", action="store_true", help="all parts at once: for accuracy, not for times")
    parser.add_argument("--lab-data", type=Path, help="what `lab_round.py pack` wrote (default: the cache)")
    parser.add_argument("--keep", type=Path, help="a folder; by default a temporary one")
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    end, done = time.perf_counter() + 60 * chosen.minutes, []
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "results")
        out.mkdir()
        keep = (chosen.keep or Path(temporary)).resolve()
        more = {"lab_data": chosen.lab_data, "camvid": chosen.camvid, "photos": chosen.photos}
        known = parts(out, chosen.data, keep, **more)
        if wrong := set(chosen.parts or ()) - set(known):
            raise SystemExit(f"no part is called {', '.join(sorted(wrong))}; there are {', '.join(known)}")
        names = chosen.parts or list(known)
        target = chosen.out / f"{names[0]}.tar.gz"

        def make(name: str) -> None:
            part = known[name]
            command, left = part.tiny if chosen.tiny else part.command, end - time.perf_counter()
            if command is None:
                print(f"--- {name}: left out, it needs a GPU")
                return
            if left < part.seconds / 2 and not chosen.tiny:
                print(f"--- {name}: left out, {left:.0f} s are left, and it takes about {part.seconds:.0f}")
                return
            done.append(run(name, command, min(left, part.seconds) if not chosen.tiny else 1200, out, target))
            (out / "round.json").write_text(json.dumps(done, indent=1))
            bundle(out, target)

        with ThreadPoolExecutor(len(names) if chosen.together else 1) as pool:
            list(pool.map(make, names))
    if chosen.tiny and any(one["exit"] != 0 for one in done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

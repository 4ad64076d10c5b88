"""Everything that is measured on a GPU, in order of value, each part with a limit of time; results go to one folder.

    python benchmarks/gpu_round.py --out results --minutes 9                       # as many parts as fit
    python benchmarks/gpu_round.py --out results --parts kernels start --minutes 9
    python benchmarks/gpu_round.py --out results --tiny                            # every part in seconds, on a CPU

A part is a command; its output goes to OUT/NAME.log, its numbers to OUT/NAME.json, and what became of it to
OUT/round.json. A part is not begun where less than half of its time is left; one that runs out of time is ended with
all that it started, and its log stays. `--data` is CIFAR-10, as `vitrail train` takes it; without it, its part is left
out.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PYTHON = sys.executable


class Part(NamedTuple):
    """A command, the same in small for a CPU, and the seconds that it may take."""

    seconds: float
    command: list[str]
    tiny: list[str] | None  # None: it needs a GPU


def script(name: str, *options: str) -> list[str]:
    return [PYTHON, str(HERE / f"{name}.py"), *options]


def parts(out: Path, data: str | None) -> dict[str, Part]:
    """All parts by name, the most valuable first."""
    to = {name: ["--json", str(out / f"{name}.json")] for name in ("detect", "kernels", "start", "growth", "latency")}
    small = ["--device", "cpu"]
    kernels = script("kernels", "--only", "check", "micro", "steps", "--kernels", "bias_gelu", "window_attention")
    found = {
        "sampled": Part(
            150, script("kernels", "--only", "check", "micro", "tune", "--kernels", "sample_levels", "--json",
                        str(out / "sampled.json")), None,
        ),
        "detect": Part(
            200, script("detect_step", *to["detect"]),
            script("detect_step", *small, "--size", "64x96", "--batch", "2", "--small", "--rounds", "2",
                   "--only", "rt_detr", *to["detect"]),
        ),
        "kernels": Part(420, [*kernels, "--rounds", "5", *to["kernels"]], None),
        "start": Part(
            200, script("start", "--set", "compile=true", "--set", "compile=blocks", *to["start"]),
            script("start", *small, "--images", "64", "--model", "vit_tiny_patch16", "--batch-size", "16", "--epochs",
                   "1", "--image-size", "64", *to["start"]),
        ),
        "packing": Part(
            120, script("packing", "--workers", "1,4,16", "--rounds", "3"),
            script("packing", "--images", "64", "--workers", "1", "--size", "64", "--rounds", "1"),
        ),
        "streaming": Part(
            90, script("streaming", "--workers", "4,16"),
            script("streaming", "--images", "64", "--workers", "1", "--size", "64", "--rounds", "1"),
        ),
        "latency": Part(
            240, script("latency", *to["latency"]),
            script("latency", *small, "--models", "vit_tiny_patch16", "--batches", "1", "--rounds", "2", "--times", "1",
                   "--ways", "eager", *to["latency"]),
        ),
        "growth": Part(
            300, script("growth", "--largest", "vit_base_patch16", "swin_tiny_patch4_window7", *to["growth"]),
            script("growth", *small, "--points", "2", "--rounds", "1", "--axes", "batch", *to["growth"]),
        ),
        "profile": Part(
            60, [PYTHON, "-m", "vitrail", "profile", "vit_base_patch16", "--batch", "256"],
            [PYTHON, "-m", "vitrail", "profile", "vit32_small", "--batch", "2", "--rounds", "1", "--device", "cpu"],
        ),
        "tests": Part(
            500, [PYTHON, "-m", "pytest", "-q", "-rs", "-x", "--timeout", "120", str(HERE.parent / "tests")],
            [PYTHON, "-m", "pytest", "-q", "-n", "0", str(HERE.parent / "tests/test_timing.py")],
        ),
        "lab": Part(
            500, [PYTHON, "-m", "vitrail", "lab", "all", "--results", str(out / "lab")],
            [PYTHON, "-m", "vitrail", "lab", "temperature", "--quick", "--results", str(out / "lab")],
        ),
    }  # fmt: skip
    if data is not None:
        recipes = script(
            "recipes", "cifar10-small-mae", "cifar10-small", "--data", data, "--val", "0.02", "--seeds", "0"
        )
        found["accuracy"] = Part(560, [*recipes, "--json", str(out / "accuracy.json")], None)
    return found


def run(name: str, command: list[str], seconds: float, out: Path) -> dict[str, Any]:
    """Runs a part to its end or to its limit."""
    began, log = time.perf_counter(), out / f"{name}.log"
    print(f"--- {name}: {' '.join(command)}", flush=True)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True, cwd=HERE.parent
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    taken = time.perf_counter() - began
    end = f"stopped after {taken:.0f} s, its limit" if code is None else f"exit {code} after {taken:.0f} s"
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(lines[-12:]), f"\n--- {name}: {end}", flush=True)
    return {"part": name, "command": command, "seconds": taken, "exit": code}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", help="of all, in this order")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--data", help="CIFAR-10")
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    known = parts(chosen.out.resolve(), chosen.data)
    if wrong := set(chosen.parts or ()) - set(known):
        raise SystemExit(f"no part is called {', '.join(sorted(wrong))}; there are {', '.join(known)}")
    end, done = time.perf_counter() + 60 * chosen.minutes, []
    for name in chosen.parts or known:
        part = known[name]
        command, left = part.tiny if chosen.tiny else part.command, end - time.perf_counter()
        if command is None:
            print(f"--- {name}: left out, it needs a GPU")
            continue
        if left < part.seconds / 2 and not chosen.tiny:
            print(f"--- {name}: left out, {left:.0f} s are left, and it takes about {part.seconds:.0f}")
            continue
        done.append(run(name, command, min(left, part.seconds), chosen.out))
        (chosen.out / "round.json").write_text(json.dumps(done, indent=1))
    if chosen.tiny and any(one["exit"] != 0 for one in done):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

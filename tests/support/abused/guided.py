"""Coverage-guided exploration of the parsers that are vitrail's own, by atheris (libFuzzer) with our mutators.

Each parser runs in a process of its own, in which its modules are instrumented as they are imported:
`python -m support.abused.guided NAME SECONDS SEED FOLDER`.
"""

import importlib
import json
import os
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from support import processes
from support.mutate import requests
from support.mutate.pictures import jpeg, originals
from support.mutate.raw import Chance, damaged
from support.mutate.tables import comma_separated, idx, npy, tar
from support.mutate.trees import mutated_json, mutated_json_lines, mutated_yaml

TESTS = Path(__file__).parents[2]
MAX_INPUT = 20_000  # bytes
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Parser(NamedTuple):
    """A parser: modules whose branches count, the name of its input, what reads it, and a loader that gives seeds."""

    modules: tuple[str, ...]
    file: str
    mutate: Callable[[bytes, Chance], bytes]
    loader: str  # of support.abused.loaders: it calls the parser, and its valid files are the first inputs


def _form(data: bytes, chance: Chance) -> bytes:
    """Mostly the bytes themselves: the structure is the parser's to find."""
    if chance.random() < 0.1:
        _, body, content_type = requests.form(chance)
        return content_type.encode("latin-1") + b"\n" + body[:2_000]
    return damaged(data, chance)


def _url(data: bytes, chance: Chance) -> bytes:
    return requests.json_body(chance) if chance.random() < 0.1 else mutated_json(data, chance)


SOURCES, OPTIONS, TARGETS = "vitrail.data.sources", "vitrail.config", "vitrail.data.targets"
RECIPE = (OPTIONS, "vitrail.recipes", "vitrail.training.config")
CARD = (OPTIONS, TARGETS, "vitrail.deploy.artefact.card")
RUN = (OPTIONS, "vitrail.runs.record", "vitrail.runs.trained")
WEIGHTS = (OPTIONS, "vitrail.models.checkpoint")
PARSERS = {
    "form": Parser(("vitrail.serve.upload",), "form", _form, "form"),
    "url": Parser(("vitrail.serve.fetch", "vitrail.serve.hosts"), "body", _url, "url"),
    "csv": Parser((f"{SOURCES}.table", TARGETS), "table.csv", comma_separated, "csv"),
    "jsonl": Parser((f"{SOURCES}.table", TARGETS), "table.jsonl", mutated_json_lines, "jsonl"),
    "shards": Parser((f"{SOURCES}.shards",), "train.tar", tar, "shards"),
    "arrays": Parser((f"{SOURCES}.arrays",), "train_images.npy", npy, "arrays"),
    "idx": Parser((f"{SOURCES}.arrays",), "train-images-idx3-ubyte", idx, "idx"),
    "jpeg": Parser(("vitrail.data.decode",), "picture", jpeg, "jpeg"),
    "recipe": Parser(RECIPE, "recipe.yaml", mutated_yaml, "recipe"),
    "card": Parser(CARD, "card.json", mutated_json, "card"),
    "run": Parser(RUN, "run.json", mutated_json, "run"),
    "config": Parser(WEIGHTS, "config.json", mutated_json, "hugging face checkpoint"),
}


def explored(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """What exploring a parser for so long found: runs, branches before and after, inputs kept, and faults."""
    if importlib.util.find_spec("atheris") is None:
        raise SystemExit("this needs atheris: .venv/bin/pip install -c constraints.txt atheris")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "support.abused.guided", name, str(int(max(1, seconds))), str(seed), folder]
        done = processes.run(command, env=env, timeout=seconds + 300)
        faults = [json.loads(line) for line in (Path(folder) / "faults").read_text().splitlines()]
    marks = [
        (int(branches), int(kept)) for branches, kept in re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", done.stderr)
    ]
    runs = re.search(r"Done (\d+) runs", done.stderr)
    if not marks or runs is None:
        faults.append(f"the process ended with {done.returncode}: {done.stderr[-500:]}")
    return {
        "runs": int(runs[1]) if runs else 0,
        "first": marks[0][0] if marks else 0,
        "branches": marks[-1][0] if marks else 0,
        "kept": marks[-1][1] if marks else 0,
        "faults": faults,
    }


def explore(name: str, seconds: int, seed: int, folder: Path) -> None:
    """The process: libFuzzer ends it."""
    import atheris

    parser = PARSERS[name]
    with atheris.instrument_imports(include=list(parser.modules)):
        for module in parser.modules:
            importlib.import_module(module)
        from support.abused.confined import judge
        from support.abused.loaders import LOADERS
    loader, seen = LOADERS[parser.loader], set()
    loader.prepare()
    faults = (folder / "faults").open("a", buffering=1)
    corpus = folder / "corpus"
    corpus.mkdir()
    sources = [files for source in loader.sources if parser.file in (files := source())]
    for number, files in enumerate(sources):
        (corpus / str(number)).write_bytes(files[parser.file] or originals()["jpeg"][0])
    case = Path(tempfile.mkdtemp(dir=SCRATCH))
    for file, content in sources[0].items():
        (case / file).parent.mkdir(parents=True, exist_ok=True)
        (case / file).write_bytes(content)

    def once(data: bytes) -> None:
        (case / parser.file).write_bytes(data)
        try:
            loader.load(case)
            return
        except loader.refusals as error:
            result, text = judge(str(getattr(error, "detail", error)))
            found = None if result == "refused" else (result, re.sub(r"[0-9]+", "", text)[:60])
        except Exception as error:
            last = error.__traceback__
            while last.tb_next is not None:
                last = last.tb_next
            text = f"{type(error).__name__}: {str(error)[:160]}"
            found = (type(error).__name__, f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}")
        if found is not None and found not in seen:
            seen.add(found)
            print(json.dumps({"fault": found, "text": text, "input": repr(data[:200])}), file=faults)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        chance = random.Random(number)
        return (parser.mutate(data, chance) if chance.random() < 0.7 else atheris.Mutate(data, most))[:most]

    warnings.simplefilter("ignore")
    limits = [
        f"-max_total_time={seconds}",
        f"-seed={seed + 1}",
        f"-max_len={MAX_INPUT}",
        "-timeout=20",
        "-rss_limit_mb=4000",
        f"-artifact_prefix={folder}/",
    ]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], once, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    explore(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))

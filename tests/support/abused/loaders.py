"""The loaders and parsers of vitrail, each with valid files, the mutators of them, and how it is called."""

import functools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from starlette.exceptions import HTTPException

from support.abused import specimens as given
from support.mutate import requests
from support.mutate.graphs import onnx_model, xml
from support.mutate.pictures import FORMATS, picture
from support.mutate.raw import Chance, damaged
from support.mutate.tables import comma_separated, idx, lines, npy, parquet, tar, words
from support.mutate.trees import mutated_json, mutated_json_lines, mutated_yaml
from support.mutate.weights import archive, pickled, safetensors
from vitrail.errors import VitrailError
from vitrail.hardware import bf16_works

Mutator = Callable[[bytes, Chance], bytes]
Files = dict[str, bytes]


class Loader(NamedTuple):
    """`sources` give valid files; those whose names end as a key of `mutators` says are changed; `load` reads them."""

    name: str
    sources: Sequence[Callable[[], Files]]
    mutators: dict[str, Mutator]
    load: Callable[[Path], Any]
    refusals: tuple[type[Exception], ...] = (VitrailError,)

    def prepare(self) -> None:
        """Makes the valid files, and imports what reads them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for source in self.sources:
                source()
        bf16_works()  # once for all: it starts a process

    def write(self, folder: Path, chance: Chance) -> None:
        """Writes the files of a case; one or two of them are mutants."""
        files = dict(chance.choice(self.sources)())
        for _ in range(chance.choice((1, 1, 1, 2))):
            name, mutate = chance.choice(
                [(name, mutate) for name in files for ending, mutate in self.mutators.items() if name.endswith(ending)]
            )
            files[name] = mutate(files[name], chance)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


# --- weights, runs and artefacts -------------------------------------------------------------------------------------


def load_checkpoint(folder: Path) -> Any:
    import vitrail

    file = folder / "model.pth"
    return vitrail.load(file if file.exists() else folder)


def open_run(folder: Path) -> Any:
    import vitrail

    opened = vitrail.open(folder)
    return opened.about, repr(opened), opened.predict(torch.zeros(3, 32, 32, dtype=torch.uint8))


def open_headed(folder: Path) -> Any:
    import vitrail

    return vitrail.open(folder).predict(torch.zeros(3, 32, 32, dtype=torch.uint8))


def open_artefact(folder: Path) -> Any:
    from vitrail.deploy.artefact.opening import open_engine
    from vitrail.runs.predict import predict

    choice = folder / "fastest.json"
    engine = open_engine(folder if choice.exists() else next(folder.glob("model.[pox]*")), threads=1)
    return predict(engine, torch.zeros(3, 16, 16, dtype=torch.uint8))


def verify_all(folder: Path) -> Any:
    from vitrail.deploy.verify import verify

    table = next(folder.glob("table.*"), None)
    found = verify(table or folder)
    found.report().to_html()
    if found.problems:
        raise VitrailError("; ".join(found.problems))
    return found.to_json()


def read_card(folder: Path) -> Any:
    from vitrail.deploy.artefact.card import Card

    card = Card.from_json((folder / "card.json").read_text(encoding="utf-8", errors="replace"), name="card.json")
    return card.task(), card.to_json()


def read_recipe(folder: Path) -> Any:
    from vitrail.recipes import read_recipe as read
    from vitrail.training.config import TrainConfig, change
    from vitrail.training.task_choice import split_spec

    recipe, _, _ = split_spec(read(folder / "recipe.yaml"))
    return change(TrainConfig(), recipe)


def _recipes() -> list[Callable[[], Files]]:
    from vitrail.recipes import list_recipes, recipe_text

    return [lambda name=name: {"recipe.yaml": recipe_text(name).encode()} for name in list_recipes()]


# --- data ------------------------------------------------------------------------------------------------------------


def find_data(folder: Path) -> Any:
    from vitrail.data.sources.opening import find

    files = [item for item in folder.iterdir() if item.is_file()]
    tables = [item for item in files if item.suffix in (".csv", ".tsv", ".jsonl", ".npz")]
    found = find(tables[0] if tables else folder)
    for part in (found.train, found.val, found.test):
        for index in range(min(len(part or ()), 3)):
            try:
                part.read(index)
            except VitrailError:
                continue
        if part is not None:
            str(part.fingerprint)
    return found


def read_pack(folder: Path) -> Any:
    from vitrail.data.feeds.pack_file import read

    return read(folder / "pack", whole=True)


def append_predictions(folder: Path) -> Any:
    from vitrail.deploy.bulk.prediction_table import bulk

    table = next(folder.iterdir())
    out = table.with_suffix("") if table.suffix == ".partial" else table
    return bulk([], out, lambda _: iter(()), columns=("label",), model="m")


def read_depth_map(folder: Path) -> Any:
    from vitrail.data.targets.depth_target import read_depth

    return read_depth(next(folder.iterdir()), 1000.0)


def append_boxes(folder: Path) -> Any:
    from vitrail.deploy.bulk.coco_file import CocoFile
    from vitrail.deploy.bulk.prediction_table import bulk
    from vitrail.tasks.detect.detect_answer import COLUMNS

    return bulk([], folder / "boxes.json", lambda _: iter(()), columns=COLUMNS, model="m", form=CocoFile(["cat"]))


def append_masks(folder: Path) -> Any:
    from vitrail.deploy.bulk.pixel_folder import PixelFolder
    from vitrail.deploy.bulk.prediction_table import bulk

    form = PixelFolder(folder, ("classes",), "mask")
    return bulk([], form.rows, lambda _: iter(()), columns=form.columns, model="m", form=form)


def judge_lab_results(folder: Path) -> Any:
    from vitrail.lab.running import run_experiment
    from vitrail.lab.temperature import Temperature

    return run_experiment(Temperature(), quick=True, seeds=1, folder=folder)


def read_search(folder: Path) -> Any:
    from vitrail.training.tuning.journal import Journal

    journal = Journal.read(folder)
    journal.write()
    return journal.next_number(), [trial.folder for trial in journal.scored], journal.budget.text(journal.budget.left)


def resume_folds(folder: Path) -> Any:
    from vitrail.errors import DataError
    from vitrail.training.folds.cross_validation import train_folds

    try:
        train_folds(folder=folder, resume=True, silent=True)
    except (DataError, OSError) as error:  # what they were started with is not here
        if "photos" not in str(error):
            raise


def read_curves(folder: Path) -> Any:
    from vitrail.comparison.costs import step_seconds
    from vitrail.comparison.opened import read_history
    from vitrail.comparison.page import points

    history = read_history(folder)
    return step_seconds({"batch_size": 16}, history), [points(history, name) for row in history for name in row]


def decode_picture(folder: Path) -> Any:
    from vitrail.data.decode import decode

    return decode((folder / "picture").read_bytes(), name="picture", max_pixels=25_000_000)


# --- the service's own parsers ---------------------------------------------------------------------------------------


def parse_form(folder: Path) -> Any:
    from vitrail.serve.config import ServeConfig
    from vitrail.serve.upload import parse_files

    text, _, body = (folder / "form").read_bytes().partition(b"\n")
    return parse_files(body, text.decode("latin-1"), ServeConfig())


def parse_url(folder: Path) -> Any:
    from vitrail.serve.config import ServeConfig
    from vitrail.serve.fetch import allowed_url

    return allowed_url((folder / "body").read_bytes(), ServeConfig(url_hosts=("example.org", "*.images.example.org")))


def _form(data: bytes, chance: Chance) -> bytes:
    _, body, content_type = requests.form(chance)
    return content_type.encode("latin-1") + b"\n" + body


def _url(data: bytes, chance: Chance) -> bytes:
    return requests.json_body(chance)


SERVED = (VitrailError, HTTPException)
WEIGHTS: dict[str, Mutator] = {".safetensors": safetensors, ".json": mutated_json}
TABLES: dict[str, Mutator] = {".csv": comma_separated, ".tsv": comma_separated, ".jsonl": mutated_json_lines}
PREDICTIONS: dict[str, Mutator] = {**TABLES, ".partial": mutated_json_lines, ".parquet": parquet}
ARRAYS: dict[str, Mutator] = {".npy": npy, ".npz": archive, ".txt": lines}
ARTEFACTS: dict[str, Mutator] = {".pt2": archive, ".onnx": onnx_model, ".xml": xml, ".bin": damaged}


def _verified() -> list[Callable[[], Files]]:
    weights = [functools.partial(given.checkpoint, to) for to in ("vitrail", "timm", "hf")]
    tables = [functools.partial(given.predictions, suffix) for suffix in (".csv", ".partial", ".parquet")]
    return [*weights, *tables, given.run, given.run_without_sums, given.program, given.onnx_files, given.openvino_files]


def _choice() -> Files:
    fastest = {"artefact": "model.onnx", "threads": 1, "half": False}
    return given.onnx_files() | {"fastest.json": json.dumps(fastest).encode()}


def _shards() -> list[Callable[[], Files]]:
    return [lambda name=name: {"train.tar": given.shard_files()[name]} for name in given.SHARDS]


def _predictions() -> list[Callable[[], Files]]:
    return [functools.partial(given.predictions, suffix) for suffix in (".csv", ".jsonl", ".partial", ".parquet")]


def _pictures() -> Iterator[Loader]:
    for kind in FORMATS:
        yield Loader(kind, [lambda: {"picture": b""}], {"picture": functools.partial(_picture, kind)}, decode_picture)


def _picture(kind: str, data: bytes, chance: Chance) -> bytes:
    return picture(chance, kind)


ALL = (
    Loader("vitrail checkpoint", [lambda: given.checkpoint("vitrail")], WEIGHTS, load_checkpoint),
    Loader("timm checkpoint", [lambda: given.checkpoint("timm"), given.sharded], WEIGHTS, load_checkpoint),
    Loader("hugging face checkpoint", [lambda: given.checkpoint("hf")], WEIGHTS, load_checkpoint),
    Loader("convnext checkpoint", [lambda: given.checkpoint("hf", "convnext_tiny")], WEIGHTS, load_checkpoint),
    Loader("hugging face heads", [functools.partial(given.headed, name) for name in given.HEADS], WEIGHTS, open_headed),
    Loader("torch archive", [lambda: given.torch_checkpoint(legacy=False)], {".pth": archive}, load_checkpoint),
    Loader("torch pickle", [lambda: given.torch_checkpoint(legacy=True)], {".pth": pickled}, load_checkpoint),
    Loader("run", [given.run_without_sums, given.run], {**WEIGHTS, "SHA256SUMS": words}, open_run),
    Loader("verify", _verified(), {**WEIGHTS, **ARTEFACTS, **PREDICTIONS}, verify_all),
    Loader("pt2", [given.program], ARTEFACTS, open_artefact),
    Loader("onnx", [given.onnx_files], ARTEFACTS, open_artefact),
    Loader("openvino", [given.openvino_files], ARTEFACTS, open_artefact),
    Loader("choice", [_choice], {".json": mutated_json}, open_artefact),
    Loader("card", [lambda: {"card.json": given.card().encode()}], {".json": mutated_json}, read_card),
    Loader("recipe", _recipes(), {".yaml": mutated_yaml}, read_recipe),
    Loader("csv", [given.csv_files, given.numbers_files], TABLES, find_data),
    Loader("jsonl", [given.jsonl_files], TABLES, find_data),
    Loader("shards", _shards(), {".tar": tar}, find_data),
    Loader("arrays", [given.array_files, given.npz_files], ARRAYS, find_data),
    Loader("coco", [lambda: given.boxes("coco")], {".json": mutated_json}, find_data),
    Loader("voc", [lambda: given.boxes("voc")], {".xml": xml, ".txt": words}, find_data),
    Loader("yolo", [lambda: given.boxes("yolo")], {".yaml": mutated_yaml, ".txt": words}, find_data),
    Loader("idx", [given.idx_files], {"ubyte": idx}, find_data),
    Loader("cifar", [given.cifar_files], {"": pickled}, find_data),
    Loader("pack", [given.packed_files], {"pack": damaged}, read_pack),
    Loader("predictions", _predictions(), PREDICTIONS, append_predictions),
    Loader("boxes", [given.coco_predictions], {".json": mutated_json}, append_boxes),
    Loader("masks", [given.mask_folder], {".jsonl": mutated_json_lines}, append_masks),
    Loader("lab", [given.lab_results], {".json": mutated_json}, judge_lab_results),
    Loader("search", [given.search], {".json": mutated_json}, read_search),
    Loader("folds", [given.folds], {".json": mutated_json}, resume_folds, (VitrailError, OSError)),
    Loader("history", [given.history], {".jsonl": mutated_json_lines}, read_curves),
    Loader("depth maps", given.depth_maps(), dict.fromkeys((".exr", ".pfm", ".npy"), damaged), read_depth_map),
    *_pictures(),
    Loader("form", [lambda: {"form": b""}], {"form": _form}, parse_form, SERVED),
    Loader("url", [lambda: {"body": b""}], {"body": _url}, parse_url, SERVED),
)
LOADERS = {loader.name: loader for loader in ALL}

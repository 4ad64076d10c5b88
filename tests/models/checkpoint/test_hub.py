"""Hub addresses against a hub on loopback: the few requests that a download makes, and no network."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hub import NEW, OLD, Hub, contents, run_script, serving

import vitrail
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.huggingface import HuggingFace

TINY = {"dim": 32, "depth": 1, "num_heads": 2, "image_size": 32, "num_classes": 3}

# Runs in its own process, since the hub's settings are read on import. Answers with one line of JSON an address.
SCRIPT = """
import json, os, sys, urllib.request
import vitrail
for address in json.loads(sys.argv[1]):
    if os.environ.get("HF_HUB_OFFLINE") != "1":
        urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/mark").read()
    try:
        model = vitrail.load(address)
        print(json.dumps({"mean": model.head.weight.mean().item(), "labels": model.labels}))
    except vitrail.errors.VitrailError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
"""


def model_of(seed: int) -> vitrail.models.backbone.Backbone:
    torch.manual_seed(seed)
    model = vitrail.create("vit_tiny_patch16", **TINY)
    torch.nn.init.normal_(model.head.weight)
    model.labels = ("cat", "dog", "owl")
    return model


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    old, new = model_of(1), model_of(2)
    for name, model in (("old", old), ("new", new)):
        vitrail.save(model, folder / name)
        (folder / name / "README.md").write_text("a card")
        (folder / name / "training_args.bin").write_bytes(b"not for us")
    foreign = HuggingFace().write(new)
    pickled = folder / "pickled"
    (pickled / "onnx").mkdir(parents=True)
    torch.save(dict(foreign.tensors), pickled / "pytorch_model.bin")
    (pickled / "config.json").write_text(json.dumps(foreign.config))
    (pickled / "preprocessor_config.json").write_text("{}")
    for other in ("optimizer.pt", "onnx/model.safetensors", "tf_model.h5"):
        (pickled / other).write_bytes(b"not for us")
    server = Hub()
    server.repositories = {
        "lab/tiny": {OLD: contents(folder / "old"), NEW: contents(folder / "new")},
        "lab/pickled": {NEW: contents(pickled)},
        "lab/odd": {NEW: {"weights.safetensors": contents(folder / "new")["model.safetensors"], "optimizer.pt": b""}},
        "lab/empty": {NEW: {"README.md": b"no weights yet", "config.json": b"{}"}},
    }
    with serving(server):
        yield server


def load_all(addresses: list[str], home: Path, hub: Hub, **environment: str) -> list[dict[str, Any]]:
    return run_script(SCRIPT, json.dumps(addresses), home=home, endpoint=hub.address, **environment)


ONLINE = {
    "first": "hf-hub:lab/tiny",
    "again": "hf-hub:lab/tiny",
    "pinned": f"hf-hub:lab/tiny@{OLD}",
    "branch": "hf-hub:lab/tiny@before",
    "pickled": "hf-hub:lab/pickled",
    "odd": "hf-hub:lab/odd",
    "empty": "hf-hub:lab/empty",
    "no repository": "hf-hub:lab/nothing",
    "no revision": "hf-hub:lab/tiny@v9",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def online(hub: Hub, home: Path) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """What each address gave, and which files were downloaded for it."""
    answers = load_all(list(ONLINE.values()), home, hub)
    return dict(zip(ONLINE, zip(answers, hub.asked, strict=True), strict=True))


Online = dict[str, tuple[dict[str, Any], list[str]]]


def mean_of(seed: int) -> float:
    return model_of(seed).head.weight.mean().item()


def test_a_download_takes_the_weights_and_what_tells_of_them_and_nothing_else(online: Online) -> None:
    answer, files = online["first"]
    assert answer == {"mean": mean_of(2), "labels": ["cat", "dog", "owl"]}
    assert sorted(files) == ["config.json", "model.safetensors"]


def test_what_is_in_the_cache_is_not_downloaded_again(online: Online) -> None:
    answer, files = online["again"]
    assert answer["mean"] == mean_of(2)
    assert files == []


def test_a_revision_is_a_commit_or_a_branch(online: Online) -> None:
    answer, files = online["pinned"]
    assert answer["mean"] == mean_of(1) != mean_of(2)
    assert "model.safetensors" in files
    answer, files = online["branch"]
    assert answer["mean"] == mean_of(1)
    assert files == []  # the same commit


def test_a_repository_that_has_only_a_pickle(online: Online) -> None:
    answer, files = online["pickled"]
    assert answer["mean"] == mean_of(2)
    assert sorted(files) == ["config.json", "preprocessor_config.json", "pytorch_model.bin"]


def test_a_file_of_another_name(online: Online) -> None:
    answer, files = online["odd"]
    assert answer["mean"] == mean_of(2)
    assert files == ["weights.safetensors"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "no weight file"),
        ("no repository", "private"),
        ("no revision", "lab/tiny could not be downloaded: it has no revision 'v9'"),
    ],
)
def test_what_is_not_there(name: str, message: str, online: Online) -> None:
    answer, _ = online[name]
    assert answer["error"] == "CheckpointError"
    assert message in answer["message"]


def test_offline_after_a_download(online: Online, hub: Hub, home: Path) -> None:
    addresses = ["hf-hub:lab/tiny", "hf-hub:lab/pickled", f"hf-hub:lab/tiny@{OLD}", "hf-hub:lab/never"]
    *kept, never = load_all(addresses, home, hub, HF_HUB_OFFLINE="1")
    assert [answer["mean"] for answer in kept] == [mean_of(2), mean_of(2), mean_of(1)]
    assert never["error"] == "CheckpointError"
    assert "HF_HUB_OFFLINE" in never["message"]


@pytest.mark.parametrize(
    "address",
    ["hf-hub:tiny", "hf-hub:", "hf-hub:lab/tiny@", "hf-hub:lab/ti ny", "hf-hub:lab/tiny/more", "hf-hub:@main",
     "hf-hub:../etc"],
)  # fmt: skip
def test_a_malformed_address(address: str) -> None:
    with pytest.raises(CheckpointError, match="hub address"):
        vitrail.load(address)

"""`--from auto`: public weights from a hub on loopback with their licence, and those of the package without one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hub import NEW, Hub, contents, run_script, serving
from support.small_data import Made, photos, split

import vitrail
from vitrail.data.dataset import Batch, Splits
from vitrail.data.targets.boxes_target import Box, BoxesTarget
from vitrail.errors import CheckpointError, HeadNotice
from vitrail.models.checkpoint.hub import card_licence
from vitrail.packaged import NAME as PACKAGED
from vitrail.packaged import PHOTOS
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.mae import MAEConfig
from vitrail.training import first_try
from vitrail.training import public_start as public
from vitrail.training.first_model import Sampled
from vitrail.training.first_try import Cell, Measured
from vitrail.training.plan import make_plan
from vitrail.training.public_start import RECOMMENDED, public_start

CELLS = (Cell("roads", 30, 4, 32, grey=False, results={"probe-photos": Measured(0.9, 0.9, 10)}),)
CPU = torch.device("cpu")
LARGE = Sampled(200, 300, grey=False)
SCRIPT = """
import json, sys, warnings
import torch
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
from support.small_data import photos, split
from vitrail.training.plan import make_plan
plan = make_plan(split(photos(24, size=80)), start="auto")
about = plan.record(val=None, command="", environment={})
found = {"start": plan.start, "licence": about.licence, "notes": plan.notes, "probe": plan.config.probe}
print(json.dumps(found | {"size": plan.preprocess.image_size}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    vitrail.save(vitrail.create("vit_tiny_patch16", dim=32, depth=1, num_heads=2, num_classes=0), folder / "model")
    (folder / "model" / "README.md").write_text("---\nlicense: apache-2.0\ntags: [vision]\n---\n# A model\n")
    hub, words = Hub(), (str(Path(__file__).parents[1]),)
    hub.asked.append([])
    hub.repositories = {RECOMMENDED.partition(":")[2]: {NEW: contents(folder / "model")}}
    with serving(hub):
        where = {"endpoint": hub.address, "VITRAIL_CACHE": str(folder / "cache")}
        (online,) = run_script(SCRIPT, *words, home=folder / "home", **where, HF_HUB_OFFLINE="0")
        (offline,) = run_script(SCRIPT, *words, home=folder / "new", **where, HF_HUB_OFFLINE="1")
    return {"online": online, "offline": offline}


@pytest.mark.filterwarnings("ignore::vitrail.errors.Notice")
def test_with_a_network_it_is_the_recommended_model_and_its_licence_is_told(found: dict[str, dict[str, Any]]) -> None:
    online = found["online"]
    assert online["start"] == RECOMMENDED
    assert online["licence"] == "apache-2.0"
    assert any("licence of the weights: apache-2.0" in note for note in online["notes"])
    assert (online["size"], online["probe"]) == ([224, 224], "linear")


def test_without_one_it_is_the_packaged_model_and_why_is_told(found: dict[str, dict[str, Any]]) -> None:
    offline = found["offline"]
    assert (offline["start"], offline["licence"]) == (PHOTOS, "Apache-2.0")
    assert any("unreachable" in note for note in offline["notes"])


@pytest.mark.filterwarnings("ignore::vitrail.errors.HeadNotice")
def test_small_images_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "locate", lambda _: pytest.fail("the hub was asked"))
    plan = make_plan(split(photos(24)), start="auto")
    assert (plan.start, plan.config.probe) == (PACKAGED, "linear")
    named = make_plan(split(photos(24)), start=PACKAGED, changes={"probe": "linear"})
    assert plan.task == named.task  # nothing of the recipe of fine-tuning, such as label smoothing
    monkeypatch.setattr(first_try, "measured", lambda: CELLS)
    assert make_plan(split(photos(24)), start="auto").start == make_plan(split(photos(24))).start == PHOTOS
    assert any("licence of the weights: Apache-2.0" in note for note in plan.notes)


@pytest.mark.filterwarnings("ignore::vitrail.errors.HeadNotice")
def test_boxes_masks_and_depth_begin_as_without_it_where_there_are_no_public_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(public, "_missing", lambda: "the hub is unreachable")
    auto, plain = (make_plan("scenes:24:96x128", task="depth", start=start) for start in ("auto", None))
    assert (auto.start, auto.config, auto.task) == (plain.start, plain.config, plain.task)
    assert any("unreachable" in note for note in auto.notes)


@pytest.mark.filterwarnings("ignore::vitrail.errors.HeadNotice")
def test_a_recipe_is_not_replaced_by_a_linear_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "_missing", lambda: "the hub is unreachable")
    plan = make_plan(split(photos(24, size=80)), start="auto", recipe={"epochs": 3})
    assert (plan.config.probe, plan.config.epochs) == (None, 3)


def test_small_images_start_from_the_packaged_network_with_a_small_head(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(HeadNotice, match="left out"):
        plan = make_plan("scenes:24:48x48", task="depth", start="auto")
    assert (plan.start, plan.task.head.dim) == (PACKAGED, 128)  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::vitrail.errors.Notice")
@pytest.mark.parametrize(("pixels", "most", "expected"), [(24, 350, 36), (48, 350, 36), (24, 2, 32)])
def test_small_images_are_large_enough_for_the_queries(pixels: int, most: int, expected: int) -> None:
    every = [[Box((1, 1, 9 + number % 9, 9), "cell") for number in range(most)] for _ in range(8)]
    target, values = BoxesTarget.of(every, ("cell",))
    data = Made(photos(8, size=pixels).array, {"boxes": values}, {"boxes": target})
    plan = make_plan(Splits(data, data, None, ()), start="auto")
    assert (plan.start, plan.preprocess.image_size) == (PACKAGED, (expected, expected))
    task = plan.build_task().train()
    task.loss(Batch(torch.rand(2, 3, expected, expected), {"boxes": values[:2]}, torch.arange(2)))  # it has the tokens


def test_the_packaged_network_for_small_images_has_the_size_that_is_reckoned_with() -> None:
    assert vitrail.open(PACKAGED).preprocess.image_size == public._SIZE_OF_PACKAGED


def test_who_says_how_to_train_gets_no_linear_head(monkeypatch: pytest.MonkeyPatch) -> None:
    data = photos(24)
    monkeypatch.setattr(public, "locate", Path)
    assert public_start(data, LARGE, {}, ClassifyConfig(), device=CPU).changes == {"probe": "linear", "image_size": 224}
    assert public_start(data, LARGE, {"epochs": 3, "image_size": 96}, ClassifyConfig(), device=CPU).changes == {}
    assert public_start(data, LARGE, {"lora": 8}, ClassifyConfig(), device=CPU).changes == {"image_size": 224}
    assert public_start(data, LARGE, {}, MAEConfig(), device=CPU).changes == {"image_size": 224}


def test_a_card_that_cannot_be_read_names_no_licence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vitrail.models.checkpoint import hub as module

    assert card_licence("runs/mine") is None
    monkeypatch.setattr(module, "_fetch", lambda *_: tmp_path)
    for text, expected in (
        ("no front matter", None), ("---\n[\n---", None), ("---\nlicense: mit\n---", "mit"),
        ("---\nlicense: other\nlicense_name: fair-noncommercial\n---", "fair-noncommercial"),
    ):  # fmt: skip
        (tmp_path / "README.md").write_text(text)
        assert card_licence("hf-hub:a/b") == expected

    def unreachable(*_: Any) -> Path:
        raise CheckpointError(json.dumps("gone"))

    monkeypatch.setattr(module, "_fetch", unreachable)
    assert card_licence("hf-hub:a/b") is None

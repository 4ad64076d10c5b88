"""The page of explanations: whole, escaped, small, without network; and what happens when a person points at it."""

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from browser_pointer import grumbles, point, press, tap
from browser_session import Session, session
from made_views import gallery, view
from PIL import Image

from vitrail.errors import ConfigError, DataError
from vitrail.explain.page import LIMIT, Gallery, Score, gallery_page, mean_table, narrow_table, score_table, write_page
from vitrail.explain.page_encode import (
    LEVELS,
    Detail,
    coarse,
    encoded,
    group,
    is_kept,
    ladder,
    packed_map,
    packed_rows,
    unpacked_rows,
)

NASTY = "</script><script>alert(1)</script> & “co”"
READY = "document.querySelector('[data-ready]') !== null"
SCREENSHOTS = Path(__file__).parents[2] / "docs" / "images"


def stored(page: str) -> dict:
    """What the script of a page reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_rows_survive_being_packed() -> None:
    weights = torch.rand(3, 10, 17).softmax(dim=-1)
    read = unpacked_rows(packed_rows(weights), 10, 17)
    assert read.shape == weights.shape
    assert (read - weights).abs().sum(dim=-1).max() < 0.05  # of a sum of 1
    most = weights.amax(dim=-1)
    assert torch.allclose(read.amax(dim=-1), most, atol=1e-4)
    one = torch.zeros(1, 1, 4)
    one[0, 0, 2] = 1.0
    assert torch.equal(unpacked_rows(packed_rows(one), 1, 4), one)


def test_small_weights_are_kept_finer_than_large_ones() -> None:
    row = torch.tensor([[[0.9, 0.004, 0.096]]])
    read = unpacked_rows(packed_rows(row), 1, 3)
    assert read[0, 0, 1] > 0  # a uniform step of 1/31 would lose it
    assert (read - row).abs().max() < 1 / LEVELS


@pytest.mark.parametrize("side", [1, 2, 3])
def test_coarse_rows_are_means_over_squares(side: int) -> None:
    weights = torch.rand(2, 1 + 5 * 4, 7).double()
    means = coarse(weights, (5, 4), 1, side).double()
    places = group((5, 4), side)
    assert torch.equal(means[:, 0], weights[:, 0])
    for row in range(means.shape[1] - 1):
        chosen = (places == row).nonzero()[:, 0]
        assert torch.allclose(means[:, 1 + row], weights[:, 1 + chosen].mean(dim=1), atol=1e-6)


def test_groups_are_squares_with_a_rest_at_the_edges() -> None:
    assert group((3, 5), 2).view(3, 5).tolist() == [[0, 0, 1, 1, 2], [0, 0, 1, 1, 2], [3, 3, 4, 4, 5]]


def test_the_ladder_goes_down_and_ends() -> None:
    steps = list(ladder(12))
    assert steps[0] == Detail(1, 1, 1)
    assert steps[-1] == Detail(12, 0, 1)
    assert len(set(steps)) == len(steps)
    assert [index for index in range(12) if is_kept(index, 12, 3)] == [2, 5, 8, 11]
    assert list(ladder(1)) == [*(Detail(1, 1, side) for side in (1, 2, 3, 4)), Detail(1, 0, 1)]


def test_what_does_not_fit_is_left_out_and_told() -> None:
    views = [view(number, depth=4, heads=4, grid=(6, 6)).layers for number in range(2)]
    whole, told = encoded(views, 10**9)
    assert told == ""
    assert all("heads" in layer and "mean" not in layer for layers in whole for layer in layers)
    size = sum(len(layer["heads"]) for layers in whole for layer in layers)
    sizes = []
    for share in (0.6, 0.3, 0.12, 0.07):
        written, told = encoded(views, int(share * size))
        sizes.append(
            sum(len(layer.get(key, "")) for layers in written for layer in layers for key in ("mean", "heads"))
        )
        assert sizes[-1] <= share * size
        assert "All heads of all layers would take about" in told
        assert written[0][-1]["number"] == 3  # the last layer is always there
    assert "patches share one row" in encoded(views, int(0.6 * size))[1]
    assert "Of 4 layers, 3 are kept" in told
    assert sizes == sorted(sizes, reverse=True)
    assert len(encoded(views, 1)[0]) == 2  # not even the least fits: it is written all the same


def test_maps_keep_their_range_and_shrink() -> None:
    found = packed_map(torch.linspace(-1, 3, 300 * 150).view(300, 150))
    assert found["size"] == [96, 48]
    assert found["low"] == pytest.approx(-1, abs=0.03)
    assert found["high"] == pytest.approx(3, abs=0.03)
    assert packed_map(torch.full((5, 7), 0.3))["size"] == [5, 7]


# --- the file --------------------------------------------------------------------------------------------------------


def test_page_is_escaped_and_asks_for_nothing() -> None:
    nasty = view(0, model=NASTY, picture=NASTY, answers=[(NASTY, 0.7)], target=NASTY, why=NASTY)
    page = gallery_page(gallery(nasty, title=NASTY, about={NASTY: NASTY}, command=NASTY, notes=[NASTY]))
    assert NASTY not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert stored(page)["views"][0]["answers"] == [[NASTY, 0.7]]
    assert not re.search(r"https?:|url\(|@import|<link|src=\"(?!data:)", re.sub(r"base64,[^\"]+", "", page))


def test_eight_pictures_of_a_vit_base_stay_below_five_megabytes() -> None:
    """Two in a quarter of that: attention of noise, the worst for a compressor, grows with the pictures alone."""
    assert LIMIT == 5_000_000
    two = [view(number, depth=12, heads=12, grid=(14, 14), side=224) for number in range(2)]
    text = gallery_page(gallery(*two), limit=LIMIT // 4)
    assert len(text.encode()) < LIMIT // 4
    assert "The mean over heads is kept for every patch; heads one by one for" in text
    layers = stored(text)["views"][0]["layers"]
    assert len(layers) == 12
    assert sum("heads" in layer for layer in layers) >= 4
    assert "heads" in layers[-1]
    alone = gallery_page(gallery(two[0]))
    assert len(alone.encode()) < LIMIT
    assert all("heads" in layer for layer in stored(alone)["views"][0]["layers"])


def test_pictures_are_stored_once_and_views_cover_everything() -> None:
    first, second = view(0, model="one"), view(0, model="two")
    page = stored(gallery_page(gallery(first, second)))
    assert len(page["images"]) == 1
    assert [one["image"] for one in page["views"]] == [0, 0]
    with pytest.raises(ConfigError, match="each of 2 pictures through each of 2 models"):
        gallery(first, view(1, model="two"))
    with pytest.raises(ConfigError, match="at least one picture"):
        Gallery(title="none", views=())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be written to .*page.html: .*give it another place"):
        write_page(gallery(), tmp_path / "file" / "page.html")


def test_tables_show_what_was_measured_and_nothing_else() -> None:
    both = gallery(view(0), view(1, scores={"relevance": Score(0.5, 0.4, shuffled=0.3, pointing=False)}))
    assert [row["pointing"] for row in score_table(both).rows] == ["hit", "miss", "miss", "hit", "miss"]
    first = gallery(view(0), view(1))
    (relevance, *_) = mean_table(first).rows
    assert relevance == {
        "model": "one", "method": "relevance", "insertion": 0.7, "deletion": 0.2, "shuffled": 0.1, "pointing": 1.0,
    }  # fmt: skip
    assert "the values of every weight change places" in gallery_page(first)
    plain = gallery(view(0, scores={"relevance": Score(0.5, 0.4)}))
    assert list(mean_table(plain).columns) == ["method", "insertion", "deletion"]
    assert list(score_table(plain).rows[0]) == [
        "picture", "model", "prediction", "probability", "method", "insertion", "deletion",
    ]  # fmt: skip
    assert "Pointing" not in gallery_page(plain)


def test_a_narrow_table_says_of_each_picture_what_is_said_beside_its_methods() -> None:
    long = view(0, picture=f"{'folder/' * 9}cat.jpg")
    said = [row["picture"] for row in narrow_table(gallery(long)).rows]
    assert said == ["…folder/folder/cat.jpg", "cat 70.0 %", "", ""]
    assert len(said[0]) <= 22
    alone = view(0, model="two", picture=long.picture, scores={"relevance": Score(0.5, 0.25)})
    rows = narrow_table(gallery(long, alone)).rows[4:]
    assert [row["picture"] for row in rows] == ["…folder/folder/cat.jpg", "cat 70.0 %", "two"]
    assert [row["deletion"] for row in rows] == [0.25, None, None]


# --- the browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Session]:
    with session() as started:
        yield started


def opened(browser: Session, page: Path, **size: object) -> Session:
    """The page, fresh, in a window of a size."""
    browser.events.clear()
    browser.screen(**{"width": 1280, "height": 900, **size})
    browser.open(page.as_uri())
    browser.until(READY)
    return browser


def shown(browser: Session, panel: int = 0) -> tuple[list[int], str]:
    """The map of a panel, pixel by pixel, and what is said about it."""
    browser.run("showAll()")
    at = f"document.querySelectorAll('.panel')[{panel}]"
    canvas = f"{at}.querySelector('.stage canvas')"
    pixels = browser.run(f"(c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data])({canvas})")
    return pixels, browser.run(f"{at}.querySelector('.said').textContent")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return write_page(gallery(), tmp_path / "page.html")


def test_hovering_shows_what_a_patch_attends_to(browser: Session, page: Path) -> None:
    opened(browser, page)
    start, told = shown(browser)
    assert told.startswith("The class token looks most at row")
    point(browser, ".stage", 0.1, 0.1)
    corner, told = shown(browser)
    assert corner != start
    assert told.startswith("Row 1, column 1 looks most at")
    point(browser, ".stage", 0.6, 0.9)
    other, told = shown(browser)
    assert other != corner
    assert told.startswith("Row 4, column 3 ")
    point(browser, "h1", 0.5, 0.5)  # away from the picture: what was held is shown again
    assert shown(browser) == (start, shown(browser)[1])
    point(browser, ".stage", 0.1, 0.1, click=True)
    point(browser, "h1", 0.5, 0.5)
    assert shown(browser)[0] == corner
    assert grumbles(browser) == []
    assert {url.partition(":")[0] for url in browser.requested()} <= {"file", "data"}
    assert sum(url.startswith("file") for url in browser.requested()) == 1


def test_the_light_is_where_the_weights_are(browser: Session, page: Path) -> None:
    opened(browser, page)
    point(browser, ".stage", 0.4, 0.1, click=True)  # row 1, column 2 of 4 x 4
    pixels = np.array(shown(browser)[0]).reshape(16, 4)[:, :3].sum(axis=1)
    weights = view(0).layers[-1].weights.float().mean(dim=0)[1 + 1, 1:]
    assert pixels.argmax() == int(weights.argmax())
    assert np.corrcoef(pixels, weights.sqrt().numpy())[0, 1] > 0.95


def test_layer_head_and_method_change_the_map(browser: Session, page: Path) -> None:
    opened(browser, page)
    point(browser, ".stage", 0.4, 0.4, click=True)
    maps = [shown(browser)[0]]
    for button in ("layer 0, blocks.0.attention", "head 1", "head 2"):
        point(browser, f'button[aria-label="{button}"]', 0.5, 0.5, click=True)
        assert browser.run(f"document.querySelector('[aria-label=\"{button}\"]').ariaPressed") == "true"
        maps.append(shown(browser)[0])
    point(browser, 'button[aria-label="mean over heads"]', click=True)
    assert shown(browser)[0] == maps[1]
    for method in ("relevance", "rollout"):
        browser.run(
            f"(s => {{ s.value = '{method}'; s.dispatchEvent(new Event('change')) }})"
            "(document.querySelectorAll('.pick select')[1])"
        )
        maps.append(shown(browser)[0])
    assert len({tuple(pixels) for pixels in maps}) == len(maps)
    assert "rollout is brightest" in shown(browser)[1]
    rows = browser.run("[...document.querySelectorAll('.scores tr')].map((row) => row.textContent)")
    assert rows == [
        "methodinsertion ↑deletion ↓shuffled → 0pointing",
        "relevance0.7000.2000.100hit",
        "rollout0.6000.300-0.050miss",
        "random0.5000.5001.000miss",
        "centre0.5500.4001.000hit",
    ]
    best = "[...document.querySelectorAll('.scores .best')].map((cell) => cell.textContent)"
    assert browser.run(best) == ["0.700", "0.200"]
    point(browser, ".scores button", 0.5, 0.5, click=True)  # the table leads to the method
    assert "relevance for “cat” is brightest" in shown(browser)[1]
    assert grumbles(browser) == []


def test_two_pictures_side_by_side_share_the_place(browser: Session, page: Path) -> None:
    opened(browser, page)
    point(browser, "#compare", 0.5, 0.5, click=True)
    assert browser.run("document.querySelectorAll('.panel').length") == 2
    lefts = browser.run("[...document.querySelectorAll('.stage')].map((one) => one.getBoundingClientRect().left)")
    assert lefts[0] + 300 < lefts[1]
    first, second = shown(browser, 0), shown(browser, 1)
    assert first[0] != second[0]
    point(browser, ".stage", 0.9, 0.1)
    for panel, before in enumerate((first, second)):
        pixels, told = shown(browser, panel)
        assert pixels != before[0]
        assert told.startswith("Row 1, column 4 ")
    point(browser, "#compare", 0.5, 0.5, click=True)
    assert browser.run("document.querySelectorAll('.panel').length") == 1
    assert grumbles(browser) == []


def test_names_are_told_apart_by_what_they_do_not_share(browser: Session, tmp_path: Path) -> None:
    long = "a/long/way/to"
    views = [view(0, picture=f"{long}/{name}", model="runs/one") for name in ("day/1.png", "night/1.png")]
    opened(browser, write_page(gallery(*views), tmp_path / "page.html"))
    options = "[...document.querySelectorAll('option')].map((one) => one.textContent)"
    assert browser.run(options)[:2] == ["day/1.png", "night/1.png"]
    assert browser.run(f"apart(['x', '{long}/x'])") == [[0, "x"], [1, f"{long}/x"]]
    assert browser.run("apart(['runs/one', 'runs/two'])") == [[0, "one"], [1, "two"]]


def test_two_models_side_by_side(browser: Session, tmp_path: Path) -> None:
    other = view(0, model="two", grid=(3, 3), prefix=(), answers=[("dog", 0.9)])
    opened(browser, write_page(gallery(view(0), other), tmp_path / "page.html"))
    point(browser, "#compare", 0.5, 0.5, click=True)
    assert browser.run("[...document.querySelectorAll('.answers')].map((one) => one.textContent)") == [
        "cat70\u00a0%dog30\u00a0%",
        "dog90\u00a0%",
    ]
    assert shown(browser, 0)[1].startswith("The class token")
    assert shown(browser, 1)[1].startswith("Row 2, column 2")  # no class token: the middle
    assert grumbles(browser) == []


def test_keys_walk_over_the_patches(browser: Session, page: Path) -> None:
    opened(browser, page)
    browser.run("document.querySelector('.stage').focus()")
    told = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "Home"):
        press(browser, key)
        told.append(shown(browser)[1].split(" looks")[0])
    assert told == [
        "Row 3, column 3",
        "Row 3, column 4",
        "Row 4, column 4",
        "Row 4, column 3",
        "Row 3, column 3",
        "The class token",
    ]
    names = browser.run("[...document.querySelectorAll('select')].map((one) => one.labels[0].firstChild.textContent)")
    assert names == ["Picture", "Show"]
    assert browser.run("document.querySelector('.said').role") == "status"
    assert "arrow keys" in browser.run("document.querySelector('.stage').ariaLabel")


def test_a_finger_on_a_narrow_screen(browser: Session, page: Path) -> None:
    opened(browser, page, width=390, height=800, phone=True)
    start = shown(browser)[0]
    tap(browser, ".stage", 0.9, 0.9)
    browser.until("document.querySelector('.said').textContent.startsWith('Row 4, column 4 ')")
    assert shown(browser)[0] != start
    browser.run("document.getElementById('compare').click()")
    shown(browser, 1)
    width, needed = browser.run("[innerWidth, document.documentElement.scrollWidth]")
    assert needed <= width == 390
    tops = browser.run("[...document.querySelectorAll('.stage')].map((one) => one.getBoundingClientRect().top)")
    assert tops[1] > tops[0] + 300  # one below the other
    assert grumbles(browser) == []


def test_heads_with_coarse_rows_and_cells_of_several_patches(browser: Session, tmp_path: Path) -> None:
    fine = view(0, grid=(7, 5), step=2, prefix=())
    many = [dataclasses.replace(fine, picture=f"{number}") for number in range(2)]
    whole = gallery_page(gallery(*many))
    page = tmp_path / "page.html"
    for limit in (LIMIT, len(whole.encode()) + 1000):
        page.write_text(gallery_page(gallery(*many), limit=limit), encoding="utf-8")
        opened(browser, page)
        point(browser, ".stage", 0.99, 0.99, click=True)
        assert shown(browser)[1].startswith("Row 4, column 3 ")
        assert "of 12 cells" in shown(browser)[1]
        point(browser, 'button[aria-label="head 1"]', 0.5, 0.5, click=True)
        shown(browser)
        box = browser.run(
            "(({right, bottom}) => [right, bottom])(document.querySelector('.here').getBoundingClientRect())"
        )
        edge = browser.run(
            "(({right, bottom}) => [right, bottom])(document.querySelector('.stage').getBoundingClientRect())"
        )
        assert np.allclose(box, edge, atol=1)  # the last cell ends where the picture does
        assert grumbles(browser) == []
    assert '"queries":2' in page.read_text(encoding="utf-8")


def test_a_model_without_attention_has_its_maps_and_a_reason(browser: Session, tmp_path: Path) -> None:
    bare = view(0, depth=0, why="ResNet has no attention to look at.")
    opened(browser, write_page(gallery(bare), tmp_path / "page.html"))
    assert "relevance for “cat”" in shown(browser)[1]
    assert "ResNet has no attention to look at." in browser.run("document.querySelector('.panel').textContent")
    assert "patch by patch" not in browser.run("document.querySelector('.pick').textContent")
    point(browser, ".stage", 0.5, 0.5)
    assert "Here it is" in shown(browser)[1]
    browser.run("document.querySelector('.stage').focus()")
    press(browser, "ArrowLeft")
    assert "Here it is" in shown(browser)[1]
    assert grumbles(browser) == []


def test_light_and_dark(browser: Session, page: Path, tmp_path: Path) -> None:
    for scheme, bright in (("light", True), ("dark", False)):
        opened(browser, page, scheme=scheme)
        pixels = np.asarray(Image.open(browser.screenshot(tmp_path / f"{scheme}.png")).convert("L"))
        assert (pixels[5, 5] > 240) == bright
        assert (pixels[5, 5] < 50) != bright


@pytest.mark.skipif("VITRAIL_EXPLAINED" not in os.environ, reason="it names a page that `vitrail explain` wrote")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_of_a_real_model(browser: Session, tmp_path: Path, scheme: str) -> None:
    page = Path(os.environ["VITRAIL_EXPLAINED"]).resolve()
    assert page.is_file(), f"{page} is no page; make it with vitrail explain"
    opened(browser, page, width=1160, height=1125 if scheme == "light" else 1180, scheme=scheme)
    if scheme == "dark":
        point(browser, "#compare", 0.5, 0.5, click=True)
    buttons = "document.querySelectorAll('button[aria-label^=\"layer 6,\"]')"
    browser.run(f"showAll().then(() => {buttons}.forEach((button) => button.click()))")
    point(browser, ".stage", 0.4, 0.4, click=True)
    browser.run("showAll().then(() => scrollTo(0, 0))")
    file = SCREENSHOTS / f"explain-{scheme}.png"
    Image.open(browser.screenshot(tmp_path / "shot.png")).convert("RGB").save(file, optimize=True)
    assert file.stat().st_size < 300_000


def test_screenshots_of_the_docs_are_there_and_small() -> None:
    for scheme, bright in (("light", True), ("dark", False)):
        file = SCREENSHOTS / f"explain-{scheme}.png"
        assert file.stat().st_size < 300_000
        assert (np.asarray(Image.open(file).convert("L")).mean() > 128) == bright

"""The page of explanations: whole, escaped, small, without network; and what happens when a person points at it."""

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.browser_pointer import grumbles, point, press, tap
from support.browser_session import Session
from support.made_views import gallery, view

from vitrail.errors import WriteError
from vitrail.explain.page.render import MAX_BYTES, gallery_page, write_page
from vitrail.tasks.answer import Bar

NASTY = "</script><script>alert(1)</script> & “co”"
READY = "document.querySelector('[data-ready]') !== null"
SCREENSHOTS = Path(__file__).parents[3] / "docs" / "images"


def stored(page: str) -> dict:
    """What the script of a page reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


# --- the file --------------------------------------------------------------------------------------------------------


def test_page_is_escaped_and_asks_for_nothing() -> None:
    nasty = view(0, model=NASTY, picture=NASTY, bars=[Bar(NASTY, NASTY, 0.7)], target=NASTY, missing=NASTY, note=NASTY)
    page = gallery_page(gallery(nasty, title=NASTY, about={NASTY: NASTY}, command=NASTY, notes=[NASTY]))
    assert NASTY not in page
    assert page.count("<script") == page.count("</script>") == 2
    (bar,) = stored(page)["views"][0]["bars"]
    assert (bar["label"], bar["text"], bar["share"]) == (NASTY, NASTY, 0.7)
    assert not re.search(r"https?:|url\(|@import|<link|src=\"(?!data:)", re.sub(r"base64,[^\"]+", "", page))


def test_eight_pictures_of_a_vit_base_stay_below_five_megabytes() -> None:
    """Two in a quarter of that: attention of noise, the worst for a compressor, grows with the pictures alone."""
    assert MAX_BYTES == 5_000_000
    two = [view(number, depth=12, heads=12, grid=(14, 14), size=224) for number in range(2)]
    text = gallery_page(gallery(*two), limit=MAX_BYTES // 4)
    assert len(text.encode()) < MAX_BYTES // 4
    assert "The mean over heads is stored for every patch; single heads are stored for" in text
    layers = stored(text)["views"][0]["layers"]
    assert len(layers) == 12
    assert sum("heads" in layer for layer in layers) >= 4
    assert "heads" in layers[-1]
    alone = gallery_page(gallery(two[0]))
    assert len(alone.encode()) < MAX_BYTES
    assert all("heads" in layer for layer in stored(alone)["views"][0]["layers"])


def test_pictures_are_stored_once_and_views_cover_everything() -> None:
    first, second = view(0, model="one"), view(0, model="two")
    page = stored(gallery_page(gallery(first, second)))
    assert len(page["images"]) == 1
    assert [one["image"] for one in page["views"]] == [0, 0]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriteError, match="write"):
        write_page(gallery(), tmp_path / "file" / "page.html")


# --- the browser -----------------------------------------------------------------------------------------------------


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
    return pixels, browser.run(f"{at}.querySelector('.status').textContent")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return write_page(gallery(), tmp_path / "page.html")


def test_hovering_shows_what_a_patch_attends_to(browser: Session, page: Path) -> None:
    opened(browser, page)
    start, text = shown(browser)
    assert text.startswith("The class token attends most to row")
    point(browser, ".stage", 0.1, 0.1)
    corner, text = shown(browser)
    assert corner != start
    assert text.startswith("Row 1, column 1 attends most to")
    point(browser, ".stage", 0.6, 0.9)
    other, text = shown(browser)
    assert other != corner
    assert text.startswith("Row 4, column 3 ")
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
        pixels, text = shown(browser, panel)
        assert pixels != before[0]
        assert text.startswith("Row 1, column 4 ")
    point(browser, "#compare", 0.5, 0.5, click=True)
    assert browser.run("document.querySelectorAll('.panel').length") == 1
    assert grumbles(browser) == []


def test_long_names_are_shortened_to_where_they_differ(browser: Session, tmp_path: Path) -> None:
    long = "a/long/way/to"
    views = [view(0, picture=f"{long}/{name}", model="runs/one") for name in ("day/1.png", "night/1.png")]
    opened(browser, write_page(gallery(*views), tmp_path / "page.html"))
    options = "[...document.querySelectorAll('option')].map((one) => one.textContent)"
    assert browser.run(options)[:2] == ["day/1.png", "night/1.png"]
    assert browser.run(f"apart(['x', '{long}/x'])") == [[0, "x"], [1, f"{long}/x"]]
    assert browser.run("apart(['runs/one', 'runs/two'])") == [[0, "one"], [1, "two"]]


def test_two_models_side_by_side(browser: Session, tmp_path: Path) -> None:
    other = view(0, model="two", grid=(3, 3), prefix=(), bars=[Bar("dog", "90.0 %", 0.9)])
    opened(browser, write_page(gallery(view(0), other), tmp_path / "page.html"))
    point(browser, "#compare", 0.5, 0.5, click=True)
    assert browser.run("[...document.querySelectorAll('.answers')].map((one) => one.textContent)") == [
        "cat70.0 %dog30.0 %",
        "dog90.0 %",
    ]
    assert shown(browser, 0)[1].startswith("The class token")
    assert shown(browser, 1)[1].startswith("Row 2, column 2")  # no class token: the middle
    assert grumbles(browser) == []


def test_keys_walk_over_the_patches(browser: Session, page: Path) -> None:
    opened(browser, page)
    browser.run("document.querySelector('.stage').focus()")
    text = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "Home"):
        press(browser, key)
        text.append(shown(browser)[1].split(" attends")[0])
    assert text == [
        "Row 3, column 3",
        "Row 3, column 4",
        "Row 4, column 4",
        "Row 4, column 3",
        "Row 3, column 3",
        "The class token",
    ]
    names = browser.run("[...document.querySelectorAll('select')].map((one) => one.labels[0].firstChild.textContent)")
    assert names == ["Picture", "Show"]
    assert browser.run("document.querySelector('.status').role") == "status"
    assert "arrow keys" in browser.run("document.querySelector('.stage').ariaLabel")


def test_a_finger_on_a_narrow_screen(browser: Session, page: Path) -> None:
    opened(browser, page, width=390, height=800, phone=True)
    start = shown(browser)[0]
    tap(browser, ".stage", 0.9, 0.9)
    browser.until("document.querySelector('.status').textContent.startsWith('Row 4, column 4 ')")
    assert shown(browser)[0] != start
    browser.run("document.getElementById('compare').click()")
    shown(browser, 1)
    width, needed = browser.run("[innerWidth, document.documentElement.scrollWidth]")
    assert needed <= width == 390
    tops = browser.run("[...document.querySelectorAll('.stage')].map((one) => one.getBoundingClientRect().top)")
    assert tops[1] > tops[0] + 300  # one below the other
    assert grumbles(browser) == []


def test_heads_with_coarse_rows_and_cells_of_several_patches(browser: Session, tmp_path: Path) -> None:
    fine = view(0, grid=(7, 5), side=2, prefix=())
    many = [dataclasses.replace(fine, picture=f"{number}") for number in range(2)]
    whole = gallery_page(gallery(*many))
    page = tmp_path / "page.html"
    for limit in (MAX_BYTES, len(whole.encode()) + 1000):
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
    bare = view(0, depth=0, missing="ResNet has no attention.")
    opened(browser, write_page(gallery(bare), tmp_path / "page.html"))
    assert "relevance for “cat”" in shown(browser)[1]
    assert "ResNet has no attention." in browser.run("document.querySelector('.panel').textContent")
    assert "patch by patch" not in browser.run("document.querySelector('.pick').textContent")
    point(browser, ".stage", 0.5, 0.5)
    assert "Here its value is" in shown(browser)[1]
    browser.run("document.querySelector('.stage').focus()")
    press(browser, "ArrowLeft")
    assert "Here its value is" in shown(browser)[1]
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
    assert page.is_file(), f"{page} is missing; make it with vitrail explain"
    opened(browser, page, width=1160, height=1095 if scheme == "light" else 1150, scheme=scheme)
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


def test_the_part_that_is_explained_is_outlined() -> None:
    part = torch.zeros(8, 8, dtype=torch.bool)
    part[2:4, 2:6] = True
    with_part, without = stored(gallery_page(gallery(view(0, part=part), view(1))))["views"]
    assert with_part["outline"].startswith("M0.25 0.25H0.75")
    assert not without["outline"]

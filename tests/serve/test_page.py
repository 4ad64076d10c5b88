"""The page in a real browser: pictures by file, paste, drop and sample; keyboard, screen reader, policy, phone.

VITRAIL_SCREENSHOTS=http://127.0.0.1:8080 takes the pictures of docs/images from a service that runs there.
"""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from PIL import Image
from support.browser_session import Session
from support.small_detector import detector, picture_file
from support.small_service import CLASSES, Brightness, Greyness, Halves, app, picture

from vitrail.data.sources.catalogue import KNOWN
from vitrail.data.targets.drawing import class_colour
from vitrail.deploy.artefact.engine import TorchEngine
from vitrail.packaged import samples
from vitrail.serve.app import App
from vitrail.serve.config import ServeConfig
from vitrail.serve.overlay import MIN_SIDE
from vitrail.serve.page_files import page_files
from vitrail.serve.supervisor import listen

IMAGES = Path(__file__).parents[2] / "docs" / "images"
CAPTION = "document.getElementById('caption').textContent"
STATUS = "document.getElementById('status').textContent"
VERDICT = "document.getElementById('verdict').textContent"
SET = "{ const field = document.getElementById('%s'); field.value = '%s'; field.dispatchEvent(new Event('%s')) }"
SHOWN = "document.getElementById('%s').checkVisibility()"
HEIGHTS = "[...document.querySelectorAll('#controls select')].map((one) => one.getBoundingClientRect().height)"
OPTIONS = "[...document.getElementById('%s').options].map((one) => one.text)"
PASTE = """(async () => {
  const data = new DataTransfer();
  data.items.add(new File([await (await fetch('samples/1.png')).blob()], 'a.png', {type: 'image/png'}));
  document.dispatchEvent(new %s('%s', {%s: data, bubbles: true, cancelable: true}));
})()"""


class Running:
    """An app behind uvicorn in a thread."""

    def __init__(self, of: App) -> None:
        self.app, self._listener = of, listen(ServeConfig(port=0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(of, lifespan="off", log_config=None))
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],))
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.app.close()


@pytest.fixture(scope="module")
def tab(browser: Session) -> Session:
    return browser


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running(app(Brightness(KNOWN["fashion-mnist"].classes), explainer=Halves()))
    yield running
    running.stop()


def visit(tab: Session, address: str, *, width: int = 1200, height: int = 900, phone: bool = False) -> None:
    tab.events.clear()
    tab.screen(width=width, height=height, phone=phone)
    tab.open(address)
    tab.until("document.getElementById('about').textContent === 'a test'")
    tab.until("document.querySelectorAll('#samples img').length === 10")


def test_a_file_is_answered_and_explained(tab: Session, running: Running, tmp_path: Path) -> None:
    visit(tab, running.address)
    (tmp_path / "white.png").write_bytes(picture(255))
    tab.choose("#file", tmp_path / "white.png")
    tab.until(f"{CAPTION}.includes('matter most for Ankle boot (halves,')")
    assert tab.run(VERDICT) == "Ankle boot"
    assert tab.run("document.querySelectorAll('#bars button').length") == 5
    assert tab.run("document.getElementById('overlay').naturalWidth") == MIN_SIDE
    assert "ms computing (batch of 1)" in tab.run("document.getElementById('latency').textContent")
    assert "Not calibrated" in tab.run("document.getElementById('calibration').textContent")
    widths = tab.run("[...document.querySelectorAll('.bar i')].map((bar) => parseFloat(bar.style.width))")
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 50
    tab.run("document.querySelectorAll('#bars button')[1].click()")  # another class
    tab.until(f"{CAPTION}.includes('for Bag')")
    pressed = "[...document.querySelectorAll('#bars button')].map((row) => row.getAttribute('aria-pressed'))"
    assert tab.run(pressed) == ["false", "true", "false", "false", "false"]
    tab.run(SET % ("method", "never", "change"))
    tab.until(f"{CAPTION} === 'Never makes no sense for this model.'")
    tab.run(SET % ("strength", "20", "input"))
    assert tab.run("document.getElementById('overlay').style.opacity") == "0.2"
    assert [text for text in tab.complaints() if "501" not in text] == []


def test_a_layer_and_a_head_are_chosen(tab: Session, running: Running) -> None:
    visit(tab, running.address)
    tab.run("document.querySelectorAll('#samples button')[0].click()")
    tab.until(f"{CAPTION}.includes('(halves,')")
    assert not tab.run(SHOWN % "layer")  # there is nothing to choose
    assert not tab.run(SHOWN % "head")
    tab.run(SET % ("method", "rows", "change"))
    tab.until(f"{CAPTION}.includes('get the most attention (rows, layer 2,')")
    assert tab.run(OPTIONS % "layer") == ["0 (first)", "1", "2 (last)"]
    assert tab.run(OPTIONS % "head") == ["Mean of all", "0", "1", "2", "3"]
    assert "any answer" in tab.run("document.getElementById('hint').textContent")
    heard = tab.accessible()
    assert ("combobox", "Layer") in heard
    assert ("combobox", "Head") in heard
    tab.run("document.getElementById('head').focus()")
    for _ in range(4):  # by keyboard, and faster than the service answers: the last one counts
        tab.press("ArrowDown", 40)
    tab.until(f"{CAPTION}.includes('(rows, layer 2, head 3,')")
    tab.run(SET % ("layer", "0", "change"))
    tab.until(f"{CAPTION}.includes('(rows, layer 0,')")  # which has no such head
    assert tab.run(OPTIONS % "head") == ["Mean of all", "0", "1"]
    tab.run(SET % ("method", "layer_alone", "change"))
    tab.until(f"{CAPTION}.includes('(layer alone, layer 0,')")
    assert tab.run(SHOWN % "layer")
    assert not tab.run(SHOWN % "head")
    assert "Select a line" in tab.run("document.getElementById('hint').textContent")
    assert tab.complaints() == []


@pytest.mark.parametrize(
    ("event", "name", "key"), [("ClipboardEvent", "paste", "clipboardData"), ("DragEvent", "drop", "dataTransfer")]
)
def test_pictures_are_pasted_and_dropped(tab: Session, running: Running, event: str, name: str, key: str) -> None:
    visit(tab, running.address)
    tab.run(PASTE % (event, name, key))
    tab.until(f"{CAPTION}.includes('matter most for')")
    assert tab.complaints() == []


def test_files_that_are_not_images(tab: Session, running: Running, tmp_path: Path) -> None:
    visit(tab, running.address)
    (tmp_path / "broken.png").write_bytes(b"no picture at all, but named like one")
    tab.choose("#file", tmp_path / "broken.png")
    tab.until(f"{STATUS}.startsWith('Broken.png')")
    assert tab.run("document.getElementById('status').className") == "bad"
    assert tab.run("document.getElementById('answer').hidden")
    (tmp_path / "notes.txt").write_text("x")
    tab.choose("#file", tmp_path / "notes.txt")
    tab.until(f"{STATUS} === 'notes.txt is not an image.'")


def test_the_keyboard_is_enough(tab: Session, running: Running) -> None:
    visit(tab, running.address)
    reached = []
    for _ in range(3):
        tab.press("Tab", 9)
        reached.append(
            tab.run("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")
        )
    assert reached == ["skip", "file", "BUTTON"]
    tab.press("Enter", 13)
    tab.until(f"{CAPTION}.includes('matter most for')")
    tab.run("document.querySelector('#bars button:nth-of-type(1)').focus()")
    tab.press("Tab", 9)
    tab.press(" ", 32)
    tab.until("document.querySelectorAll('#bars button')[1].getAttribute('aria-pressed') === 'true'")


def test_a_screen_reader_hears_what_there_is(tab: Session, running: Running) -> None:
    visit(tab, running.address)
    tab.run("document.querySelectorAll('#samples button')[0].click()")
    tab.until(f"{CAPTION}.includes('matter most for')")
    heard = tab.accessible()
    assert ("heading", "Try this model") in heard
    assert ("button", "Sample: Trouser") in heard
    assert ("combobox", "Explanation method") in heard
    assert ("slider", "Overlay opacity") in heard
    best = tab.run(VERDICT)
    assert ("region", best) in heard
    assert any(role == "image" and name.startswith("Overlay: regions that matter for") for role, name in heard)
    assert any(role == "button" and name.startswith(best) and name.endswith("%") for role, name in heard)
    assert tab.run(STATUS).startswith(best)
    named = ("button", "link", "combobox", "slider", "textbox", "image")
    assert [role for role, name in heard if role in named and not name.strip()] == []


def test_nothing_leaves_the_service_and_the_policy_is_strict(tab: Session, running: Running) -> None:
    visit(tab, running.address)
    tab.run("document.querySelectorAll('#samples button')[0].click()")
    tab.until(f"{CAPTION}.includes('matter most for')")
    assert all(url.startswith((running.address, f"blob:{running.address}", "data:")) for url in tab.requested())
    assert tab.complaints() == []
    foreign = "<img src=http://example.com/x.png onerror=window.ran=1>"
    tab.run(f"document.body.insertAdjacentHTML('beforeend', '{foreign}'); new Promise((done) => setTimeout(done, 100))")
    assert tab.run("typeof window.ran") == "undefined"
    assert any("Content Security Policy" in text for text in tab.complaints())


def test_a_phone_shows_it_all_in_one_column(tab: Session, running: Running) -> None:
    visit(tab, running.address, width=390, height=844, phone=True)
    tab.run("document.querySelectorAll('#samples button')[0].click()")
    tab.until(f"{CAPTION}.includes('matter most for')")
    tab.run(SET % ("method", "rows", "change"))
    tab.until(f"{CAPTION}.includes('(rows,')")
    assert tab.run("document.documentElement.scrollWidth") <= 390
    assert all(height >= 30 for height in tab.run(HEIGHTS)), "fingers are broad"
    places = "['result', 'view'].map((id) => document.getElementById(id).getBoundingClientRect().left)"
    assert len(set(tab.run(places))) == 1


def test_a_key_is_asked_for_and_used(tab: Session) -> None:
    locked = Running(app(Brightness(), api_key="open sesame 12345"))
    try:
        tab.screen(width=1200, height=900)
        tab.open(locked.address)
        tab.until("!document.getElementById('key-form').hidden")
        assert tab.run("document.activeElement.id") == "key"
        enter = "document.getElementById('key').value = '%s'; document.querySelector('#key-form button').click()"
        tab.run(enter % "wrong")
        tab.until(f"{STATUS}.startsWith('Missing or wrong API key')")
        tab.run(enter % "open sesame 12345")
        tab.until("document.getElementById('about').textContent === 'a test'")
        assert tab.run("document.getElementById('key-form').hidden")
        assert tab.run("document.getElementById('samples-box').hidden")  # the samples are of other classes
        assert tab.run("document.getElementById('controls').hidden")  # and nothing can be explained
    finally:
        locked.stop()


def test_answers_of_another_task_are_shown(browser: Session, tmp_path: Path) -> None:
    running = Running(app(Greyness(), explainer=Halves()))
    try:
        browser.screen(width=1200, height=900)
        browser.open(running.address)
        browser.until("document.getElementById('about').textContent === 'a test'")
        (tmp_path / "grey.png").write_bytes(picture(204, size=(300, 300)))
        browser.choose("#file", tmp_path / "grey.png")
        browser.until(f"{CAPTION}.includes('matter most for grey')")
        assert browser.run(VERDICT) == "grey 204.0"
        assert browser.run("document.querySelector('.bar').textContent") == "grey204.0"
        assert browser.run("document.querySelector('.bar i').style.width") == "80%"
        interval = browser.run("parseFloat(document.querySelector('.bar u').style.left)")
        assert interval == pytest.approx(76)
        assert browser.run(SHOWN % "drawing")
        assert browser.run("document.getElementById('picture').naturalWidth") == 300
    finally:
        running.stop()


def test_boxes_are_drawn_and_explained(browser: Session, tmp_path: Path) -> None:
    running = Running(app(TorchEngine(detector()), explainer=Halves()))
    try:
        browser.screen(width=1200, height=900)
        browser.open(running.address)
        browser.until("document.getElementById('about').textContent !== ''")
        browser.choose("#file", picture_file(tmp_path))
        browser.until(f"{CAPTION}.includes('matter most for box 0')")
        assert browser.run(VERDICT) == "5 cat"
        assert browser.run(SHOWN % "drawing")
        sides = browser.run("[drawing.naturalWidth, drawing.naturalHeight]")
        assert sides[0] / sides[1] == pytest.approx(160 / 120, abs=0.01)  # the shape of the picture
        colour = "rgb({}, {}, {})".format(*class_colour(detector().task.classes.index("cat")))
        assert browser.run("document.querySelector('.bar i').style.background") == colour
        browser.run("document.querySelectorAll('button.bar')[2].click()")
        browser.until(f"{CAPTION}.includes('matter most for box 2')")
    finally:
        running.stop()


def test_samples_come_with_models_of_their_classes_alone() -> None:
    assert "/samples/9.png" in page_files(KNOWN["fashion-mnist"].classes)
    animals = page_files(("a fish", *sorted(samples(), reverse=True)))  # more classes, in another order
    listed = json.loads(animals["/samples.json"].data)
    assert {one["label"]: animals[one["address"]].data for one in listed} == {
        name: path.read_bytes() for name, path in samples().items()
    }
    for classes in (CLASSES, tuple(samples())[1:], ()):
        assert page_files(classes)["/samples.json"].data == b"[]"


@pytest.mark.skipif("VITRAIL_SCREENSHOTS" not in os.environ, reason="takes the pictures of the docs on demand")
@pytest.mark.parametrize(
    ("name", "width", "height", "scheme"),
    [("light", 1200, 980, "light"), ("dark", 1200, 980, "dark"), ("phone", 390, 844, "light")],
)
def test_pictures_for_the_docs(tab: Session, name: str, width: int, height: int, scheme: str) -> None:
    tab.screen(width=width, height=height, phone=name == "phone", scheme=scheme)
    tab.open(os.environ["VITRAIL_SCREENSHOTS"])
    tab.until("document.querySelectorAll('#samples img').length === 10")
    tab.until("document.getElementById('limits').textContent")
    tab.run("document.querySelectorAll('#samples button')[0].click()")
    tab.until(f"{CAPTION}.includes('matter most for')")
    if name != "dark":
        tab.run(SET % ("method", "attention", "change"))
        tab.run(SET % ("layer", "9", "change"))
        tab.run(SET % ("head", "2", "change"))
        tab.until(f"{CAPTION}.includes('head 2')")
    tab.run("new Promise((done) => setTimeout(done, 500))")  # the bars grow
    if name == "phone":
        tab.run("document.getElementById('controls').scrollIntoView({block: 'end', behavior: 'instant'})")
    file = tab.screenshot(IMAGES / f"serve-{name}.png")
    Image.open(file).convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(file, optimize=True)
    assert file.stat().st_size < 300_000

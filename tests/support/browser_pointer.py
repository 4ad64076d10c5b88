"""A hand at a page in headless Chromium: a mouse that rests and clicks, a finger that taps, the keys with arrows."""

import json

from support.browser_session import Session

KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36}


def point(browser: Session, selector: str, x: float = 0.5, y: float = 0.5, *, click: bool = False) -> None:
    """Moves the mouse to a share of the width and height of an element, and clicks where asked to."""
    left, top = _place(browser, selector, x, y)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=left, y=top)
    if click:
        for kind in ("mousePressed", "mouseReleased"):
            browser.call("Input.dispatchMouseEvent", type=kind, x=left, y=top, button="left", clickCount=1)


def tap(browser: Session, selector: str, x: float = 0.5, y: float = 0.5) -> None:
    """Taps with a finger."""
    left, top = _place(browser, selector, x, y)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": left, "y": top}])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.call("Emulation.setTouchEmulationEnabled", enabled=False)


def press(browser: Session, key: str) -> None:
    """Presses an arrow or Home."""
    browser.press(key, KEYS[key])


def grumbles(browser: Session) -> list[str]:
    """Everything that went wrong or was warned of: scripts, the browser's log, the console."""
    said = [event["params"] for event in browser.events if event.get("method") == "Runtime.consoleAPICalled"]
    return browser.complaints() + [json.dumps(one["args"]) for one in said if one["type"] in ("error", "warning")]


def _place(browser: Session, selector: str, x: float, y: float) -> tuple[float, float]:
    found = f"document.querySelector({json.dumps(selector)})"
    browser.run(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    left, top, width, height = browser.run(
        f"(({{left, top, width, height}}) => [left, top, width, height])({found}.getBoundingClientRect())"
    )
    return left + x * width, top + y * height

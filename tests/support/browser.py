"""Headless Chromium for tests that look at pages: what a page becomes in a real browser, and pictures of it."""

import shutil
import tempfile
from pathlib import Path
from typing import Literal

import pytest

from support import processes

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=2000",
)
SCHEMES = {"light": 1, "dark": 0}  # the numbers that Chromium gives to them

Scheme = Literal["light", "dark"]


BROWSER = next(filter(None, map(shutil.which, NAMES)), None)  # its path
# Marks a test that needs a browser. Marks are read before fixtures: where a test is skipped, nothing has been started.
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser is installed; looked for {', '.join(NAMES)}")


def chromium() -> str:
    """The browser's path."""
    assert BROWSER, "there is no browser: mark the test with needs_browser"
    return BROWSER


def dump_dom(page: Path, *, width: int = 1200, height: int = 900) -> str:
    """The document as the browser holds it after loading."""
    return _run("--dump-dom", f"--window-size={width},{height}", page.as_uri())


def screenshot(page: Path, picture: Path, *, width: int, height: int, scheme: Scheme = "light") -> Path:
    """A PNG of the top of a page, in one of the two colour schemes."""
    setting = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    _run(f"--screenshot={picture}", f"--window-size={width},{height}", setting, page.as_uri())
    assert picture.is_file(), "the browser took no picture"
    return picture


def _run(*arguments: str) -> str:
    browser = chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *QUIET, f"--user-data-dir={profile}", *arguments]
        done = processes.run(command, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout

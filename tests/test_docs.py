"""Every snippet in the README and the docs runs and prints what the page shows."""

import os
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from support import processes, snippets

from vitrail.layers import attention
from vitrail.models.registry import FAMILIES, list_models
from vitrail.serve.config import ServeConfig

PAGES = [snippets.ROOT / "README.md", snippets.ROOT / "CONTRIBUTING.md", *sorted((snippets.ROOT / "docs").glob("*.md"))]
ADDED = Path(attention.__file__).with_name("cosine.py").exists()  # someone followed the guide to the letter


LONG = ("explain.md", "features.md", "peers.md", "regression.md", "tasks.md")  # they train or explain for 10 s or more


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page.name in LONG)) for page in PAGES],
    ids=[page.name for page in PAGES],
)
def test_a_page_shows_what_comes_out(page: Path, tmp_path: Path) -> None:
    if page.name == "CONTRIBUTING.md" and ADDED:
        pytest.skip("the example of the page has been added for real")
    for snippet, printed in snippets.run(page.read_text(), tmp_path):
        if snippet.shown or not snippet.is_python:
            assert snippets.matches(snippet.shown, printed), f"{snippet.source}\nprinted:\n{printed}"


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    page = (
        "```python\nprint(1 + 1)\n```\n```text\n3\n```\n```console\n$ echo one; echo two\none\n...\n$ echo x\ny\n```\n"
    )
    verdicts = [snippets.matches(snippet.shown, printed) for snippet, printed in snippets.run(page, tmp_path)]
    assert verdicts == [False, True, False]


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_limit_is_written_down_with_its_test() -> None:
    text = (snippets.ROOT / "docs" / "limits.md").read_text()
    unlimited = {"port", "certificate", "private_key"}
    missing = [one.name for one in fields(ServeConfig) if one.name not in unlimited and f"| `{one.name}` |" not in text]
    assert not missing
    for name in re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)`", text):
        assert (snippets.ROOT / (name if name.startswith("tests/") else f"tests/serve/{name}")).is_file(), name


def follow(folder: Path, files: dict[str, str], keyword: str, suite: str) -> int:
    """Takes files from the contributing guide, loads them as plugins, runs a contract suite: how many tests passed."""
    page = (snippets.ROOT / "CONTRIBUTING.md").read_text()
    for name, mark in files.items():
        source = next(snippet.source for snippet in snippets.snippets(page) if mark in snippet.source)
        (folder / f"{name}.py").write_text(source)
    plugins = [word for name in files for word in ("-p", name)]
    done = processes.run(
        [sys.executable, "-m", "pytest", *plugins, "-n", "0", "-k", keyword, "-p", "no:cacheprovider", suite],
        cwd=snippets.ROOT,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{snippets.ROOT / 'tests'}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.search(r"(\d+) passed", done.stdout)[1])


def test_the_attention_of_the_contributing_guide_passes_the_contract(tmp_path: Path) -> None:
    if ADDED:
        pytest.skip("the example of the page has been added for real")
    found = follow(tmp_path, {"cosine": "class CosineAttention"}, "cosine", "tests/layers/test_attention_contract.py")
    assert found >= 10


def test_the_target_and_task_of_the_contributing_guide_pass_the_contract(tmp_path: Path) -> None:
    files = {"angle": "class AngleTarget", "angle_cells": 'EXAMPLES["angle"]'}
    assert follow(tmp_path, files, "angle", "tests/data/targets/test_target_contract.py") >= 10
    files |= {"heading": "class Heading(", "angle_data": 'MAKERS["angle"]'}
    assert follow(tmp_path, files, "heading", "tests/tasks/test_task_contract.py") >= 10


def test_the_numbers_of_families_and_models_are_current() -> None:
    counts = {match for page in PAGES for match in re.findall(r"(\d+) families, (\d+) names", page.read_text())}
    assert counts == {(str(len(FAMILIES)), str(len(list_models())))}

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

ROOT = snippets.ROOT
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ADDED = Path(attention.__file__).with_name("cosine.py").exists()  # someone followed the guide to the letter


# They train or explain for 10 s or more, or start many processes: what they start has tests of its own.
LONG = ("explain.md", "export.md", "features.md", "peers.md", "regression.md", "serve.md", "tasks.md")


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
    text = (ROOT / "docs" / "limits.md").read_text()
    unlimited = {"port", "certificate", "private_key"}
    missing = [one.name for one in fields(ServeConfig) if one.name not in unlimited and f"| `{one.name}` |" not in text]
    assert not missing
    for name in re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)`", text):
        assert (ROOT / (name if name.startswith("tests/") else f"tests/serve/{name}")).is_file(), name


GUIDE = {  # a file of the contributing guide: what is in it
    "cosine": "class CosineAttention",
    "angle": "class AngleTarget",
    "angle_cells": 'EXAMPLES["angle"]',
    "heading": "class Heading(",
    "angle_data": 'MAKERS["angle"]',
}
SUITES = {  # what is added: the contract that it must keep
    "cosine": "tests/layers/test_attention_contract.py",
    "angle": "tests/data/targets/test_target_contract.py",
    "heading": "tests/tasks/test_task_contract.py",
}


def test_what_the_contributing_guide_adds_passes_its_contract(tmp_path: Path) -> None:
    if ADDED:
        pytest.skip("the example of the page has been added for real")
    page = list(snippets.snippets((ROOT / "CONTRIBUTING.md").read_text()))
    for name, mark in GUIDE.items():
        (tmp_path / f"{name}.py").write_text(next(snippet.source for snippet in page if mark in snippet.source))
    plugins = [word for name in GUIDE for word in ("-p", name)]
    chosen = ["-n", "0", "-vv", "-p", "no:cacheprovider", "-k", " or ".join(SUITES), *SUITES.values()]
    done = processes.run(
        [sys.executable, "-m", "pytest", *plugins, *chosen],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT / "src", ROOT / "tests")))},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name, suite in SUITES.items():
        assert len(re.findall(rf"^{suite}::\S*{name}\S* PASSED", done.stdout, re.MULTILINE)) >= 10, name


def test_the_numbers_of_families_and_models_are_current() -> None:
    counts = {match for page in PAGES for match in re.findall(r"(\d+) families, (\d+) names", page.read_text())}
    assert counts == {(str(len(FAMILIES)), str(len(list_models())))}
    mechanisms = [name for name in attention.__all__ if name.endswith("Attention") and name != "Attention"]
    found = re.search(r"(\d+) families of models and (\d+) attention mechanisms", (ROOT / "README.md").read_text())
    assert found is not None
    assert found.groups() == (str(len(FAMILIES)), str(len(mechanisms)))

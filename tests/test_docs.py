"""Every snippet in the README and the docs runs and prints what the page shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import snippets

from vitrail.layers import attention

PAGES = [snippets.ROOT / "README.md", snippets.ROOT / "CONTRIBUTING.md", *sorted((snippets.ROOT / "docs").glob("*.md"))]
ADDED = Path(attention.__file__).with_name("cosine.py").exists()  # someone followed the guide to the letter


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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


def test_the_attention_of_the_contributing_guide_passes_the_contract(tmp_path: Path) -> None:
    if ADDED:
        pytest.skip("the example of the page has been added for real")
    page = (snippets.ROOT / "CONTRIBUTING.md").read_text()
    source = next(s.source for s in snippets.snippets(page) if "class CosineAttention" in s.source)
    (tmp_path / "cosine.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "cosine", "-n", "0", "-k", "cosine", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/layers/test_attention_contract.py"],
        cwd=snippets.ROOT,
        env={"PYTHONPATH": str(tmp_path), "PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 10, done.stdout

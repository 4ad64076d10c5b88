"""Runs the snippets of a Markdown page as a reader would, and compares or rewrites the output that the page shows.

    PYTHONPATH=tests python -m support.snippets README.md        # rewrites the page with fresh output

A ```python block runs in one Python session for the whole page; the ```text block right after it is what it printed.
In a ```console block each line after `$ ` is a command, followed by its output; where a shell would do no more than to
start `vitrail`, its verbs are called here, as importing torch takes longer than most of them. Other fences are not run.
A page may shorten output with `...`, which matches anything, as in doctest.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from support import processes
from vitrail.cli import main

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_VERB = re.compile(r"vitrail (?P<words>[^|&;<>()$`*?~{}]*?)(?P<silent> 2>/dev/null)?$")  # nothing for a shell to do
_TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Snippet:
    """One thing to run, and the place in the page where its output stands."""

    source: str
    shown: str
    span: tuple[int, int]  # of `shown` in the page
    is_python: bool


def snippets(page: str) -> Iterator[Snippet]:
    """All snippets of a page, in order."""
    fences = list(_FENCE.finditer(page))
    for index, fence in enumerate(fences):
        body, start = fence["body"], fence.start("body")
        if fence["kind"] == "python":
            after = fences[index + 1] if index + 1 < len(fences) else None
            if after is not None and after["kind"] == "text" and not page[fence.end() : after.start()].strip():
                yield Snippet(body, after["body"], after.span("body"), is_python=True)
            else:
                yield Snippet(body, "", (fence.end(), fence.end()), is_python=True)
        elif fence["kind"] == "console":
            for command in re.finditer(r"^\$ (?P<command>.*)\n(?P<output>(?:(?!\$ ).*\n)*)", body, re.MULTILINE):
                span = (start + command.start("output"), start + command.end("output"))
                yield Snippet(command["command"], command["output"], span, is_python=False)


def run(page: str, folder: Path) -> Iterator[tuple[Snippet, str]]:
    """Runs a page's snippets in a folder and gives what each printed."""
    session: dict[str, object] = {"__name__": "__main__"}
    for snippet in snippets(page):
        yield snippet, _python(snippet.source, session, folder) if snippet.is_python else _shell(snippet.source, folder)


def _python(source: str, session: dict[str, object], folder: Path) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pages show what is printed; notices go to the error stream
        exec(compile(source, "<snippet>", "exec"), session)
    return printed.getvalue()


def _shell(command: str, folder: Path) -> str:
    if verb := _VERB.match(command):
        printed = _vitrail(shlex.split(verb["words"]), folder, silent=bool(verb["silent"]))
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = os.environ | {"PATH": path, **_TERMINAL, "PYTHONWARNINGS": "default"}
        done = processes.run(["bash", "-c", command], cwd=folder, env=env)
        printed = done.stdout + done.stderr
    return "\n".join(line.rstrip() for line in printed.splitlines()) + "\n"


def _vitrail(words: list[str], folder: Path, *, silent: bool) -> str:
    output, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        contextlib.chdir(folder),
        warnings.catch_warnings(),
        mock.patch.dict(os.environ, _TERMINAL),
        mock.patch.object(sys, "argv", ["vitrail", *words]),
    ):
        warnings.simplefilter("default")
        main(words)
    return output.getvalue() if silent else output.getvalue() + errors.getvalue()


def matches(shown: str, printed: str) -> bool:
    """Whether a page's output is what was printed, `...` standing for anything."""
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def rewrite(path: Path) -> None:
    """Puts fresh output into a page; output that still matches what is shown, ellipses included, stays."""
    page = path.read_text()
    with tempfile.TemporaryDirectory() as folder:
        done = list(run(page, Path(folder)))
    for snippet, printed in reversed(done):
        if snippet.shown and not matches(snippet.shown, printed):
            page = page[: snippet.span[0]] + printed + page[snippet.span[1] :]
    path.write_text(page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))

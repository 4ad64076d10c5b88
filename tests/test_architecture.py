"""The house rules that a machine can check; each rule comes with a piece of bad code that it must catch."""

import ast
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"


class Source(NamedTuple):
    """A module as it is written, and as Python reads it."""

    text: str
    tree: ast.Module


Package = dict[str, Source]  # by "vitrail.layers.rope" or "vitrail.layers.__init__"

# Siblings that never import one another.
TOOLS = ("training", "explain", "compress", "advice", "comparison", "lab", "deploy", "serve")
BASE = ("report", "data", "layers", "models", "tasks", "runs", "profiling", "recipes", "packaged")
BELOW = {  # folder -> the folders that it may import
    "report": (),
    "layers": (),
    "recipes": (),
    "packaged": (),
    "data": ("report",),
    "models": ("layers", "data"),
    "profiling": ("report", "layers", "models"),
    "tasks": ("report", "data", "layers", "models"),
    "runs": ("report", "data", "layers", "models", "tasks", "packaged"),
    **dict.fromkeys(TOOLS, BASE),
    "api": (*BASE, *TOOLS),
    "cli": (*BASE, *TOOLS, "api"),
    "__main__": ("cli",),
}
FOR_ALL_TASKS = {"__init__", "repeated", "task", "answer", "gallery", "grad_cam"}
OF_ONE_TASK = {"vitrail.deploy.bulk.coco_file"}  # boxes as COCO's JSON
VAGUE = {"utils", "helpers", "common", "misc"}
MAX_FILE, MAX_FUNCTION, MAX_TWICE = 400, 50, 6  # lines
TESTED_ELSEWHERE = {  # stem of a module -> the test file that holds it
    "base": "test_attention_contract",
    "family": "test_registry",
    "vitrail": "test_load",
    "options": "test_cli",
    "showing": "test_cli",
    "learning": "test_cli_learning",
    "shipping": "test_cli_shipping",
}


def parsed(texts: Mapping[str, str]) -> Package:
    """The modules of a house, from the text of each."""
    return {name: Source(text, ast.parse(text)) for name, text in texts.items()}


@functools.cache
def package() -> Package:
    """Every module of vitrail, read and parsed once."""
    files = sorted((SOURCE / "vitrail").rglob("*.py"))
    return parsed({".".join(file.relative_to(SOURCE).with_suffix("").parts): file.read_text() for file in files})


def imports(name: str, tree: ast.AST, known: Package) -> set[str]:
    """The modules of vitrail that a module imports, anywhere in its text."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = name.split(".")[: -node.level] if node.level else []
            origin = ".".join([*base, *(node.module.split(".") if node.module else [])])
            found |= {f"{origin}.{alias.name}" for alias in node.names}
    found.discard("vitrail.__version__")  # a constant of the front door itself
    return {target for one in found if (target := _module(one, known)) and target != name}


def _module(dotted: str, known: Package) -> str | None:
    """The module that holds a dotted name: itself, a package's __init__, or that of its parent."""
    while dotted.split(".", maxsplit=1)[0] == "vitrail":
        for candidate in (dotted, f"{dotted}.__init__"):
            if candidate in known:
                return candidate
        if "." not in dotted:
            break
        dotted = dotted.rpartition(".")[0]
    return None


def folder(module: str) -> str:
    """The part of the house that a module stands in: the name that follows "vitrail."."""
    return module.split(".")[1]


def imports_go_down(modules: Package) -> Iterator[str]:
    """A folder imports only folders below it; modules at the top level import no folder; none uses the front door."""
    folders = {folder(name) for name in modules if name.count(".") > 1} | set(BELOW)
    for name, (_, tree) in modules.items():
        here = folder(name)
        if name == "vitrail.__init__":
            continue
        if here in folders and here not in BELOW:
            yield f"{name}: the folder {here} has no place in the order of imports"
        for target in imports(name, tree, modules):
            there = folder(target)
            if there == "__init__" and here not in ("cli", "__main__"):
                yield f"{name} imports vitrail itself"
            if there in folders and there != here and there not in BELOW.get(here, ()):
                yield f"{name} imports {target}"


def tools_know_no_task(modules: Package) -> Iterator[str]:
    """Tools know tasks through their contract alone: they import none, but for formats of one kind of answer."""
    for name, (_, tree) in modules.items():
        if folder(name) in (*TOOLS, "profiling", "report", "cli", "api") and name not in OF_ONE_TASK:
            for target in imports(name, tree, modules):
                if target.startswith("vitrail.tasks.") and target.split(".")[2] not in FOR_ALL_TASKS:
                    yield f"{name} imports {target}"


def imports_have_no_cycle(modules: Package) -> Iterator[str]:
    """No module leads back to itself, not even by a late import."""
    graph = {name: imports(name, tree, modules) for name, (_, tree) in modules.items() if name != "vitrail.__init__"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield " -> ".join(reversed(error.args[1]))


def the_front_door_is_lazy(modules: Package) -> Iterator[str]:
    """`import vitrail` loads no other module of it: imports stand under TYPE_CHECKING, or come on first use."""
    for node in modules["vitrail.__init__"].tree.body:
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            for target in imports("vitrail.__init__", node, modules):
                yield f"vitrail.__init__ imports {target}"


def files_are_short(modules: Package) -> Iterator[str]:
    """A file has at most 400 lines."""
    for name, (_, tree) in modules.items():
        lines = max((node.end_lineno for node in tree.body), default=0)
        if lines > MAX_FILE:
            yield f"{name} has {lines} lines"


def functions_are_short(modules: Package) -> Iterator[str]:
    """A function has at most 50 lines, what is nested in it included."""
    for name, (_, tree) in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION:
                    yield f"{name}.{node.name} has {lines} lines"


def public_things_have_docstrings(modules: Package) -> Iterator[str]:
    """Every public module, class, function and method has a docstring."""

    def undocumented(node: ast.AST, path: str) -> Iterator[str]:
        if not ast.get_docstring(node):
            yield path
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for child in node.body:
                named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                if named and not child.name.startswith("_"):
                    yield from undocumented(child, f"{path}.{child.name}")

    for name, (_, tree) in modules.items():
        yield from undocumented(tree, name)


def names_say_something(modules: Package) -> Iterator[str]:
    """No module is named vaguely, or like one of the standard library's."""
    for name in modules:
        for part in set(name.split(".")) - {"__init__", "__main__"}:
            if part in VAGUE or part in sys.stdlib_module_names:
                yield f"{name}: {part} is not a name for a module"


def errors_are_not_swallowed(modules: Package) -> Iterator[str]:
    """No handler catches everything and does nothing."""
    for name, (_, tree) in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
                idle = all(isinstance(step, ast.Pass | ast.Continue) or _is_dots(step) for step in node.body)
                if broad and idle:
                    yield f"{name}:{node.lineno} swallows every error"


def _is_dots(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def nothing_is_written_twice(modules: Package) -> Iterator[str]:
    """No more than six lines in a row stand in two places, however they are indented: the copy becomes a layer."""
    first: dict[tuple[str, ...], str] = {}
    for name, source in modules.items():
        lines = telling_lines(source)
        for start, (number, _) in enumerate(lines[: len(lines) - MAX_TWICE]):
            run = tuple(line for _, line in lines[start : start + MAX_TWICE + 1])
            here = f"{name}:{number}"
            there = first.setdefault(run, here)
            if there != here:
                yield f"{here} repeats {there}"


def telling_lines(source: Source) -> list[tuple[int, str]]:
    """The lines that do something, by number: no imports, strings that stand alone, comments, or lone brackets."""
    silent = {
        number
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.stmt) and _is_dots(node))
        for number in range(node.lineno, node.end_lineno + 1)
    }
    numbered = enumerate(map(str.strip, source.text.splitlines()), start=1)
    return [
        (number, line)
        for number, line in numbered
        if number not in silent and not line.startswith("#") and any(map(str.isalnum, line))
    ]


def source_is_mirrored(modules: Package) -> Iterator[str]:
    """Each module has a test file of its name, or of the name that its own begins with: timm_names has test_timm."""
    files = {file.stem for file in TESTS.rglob("test_*.py")}
    for name in modules:
        stem = name.rpartition(".")[2]
        words = stem.strip("_").split("_")
        fitting = {f"test_{'_'.join(words[:count])}" for count in range(1, len(words) + 1)}
        if not stem.startswith("__") and not files & {*fitting, TESTED_ELSEWHERE.get(stem)}:
            yield f"{name} has no test file"


Rule = Callable[[Package], Iterator[str]]
RULES: list[Rule] = [
    imports_go_down,
    tools_know_no_task,
    imports_have_no_cycle,
    the_front_door_is_lazy,
    files_are_short,
    functions_are_short,
    public_things_have_docstrings,
    names_say_something,
    errors_are_not_swallowed,
    nothing_is_written_twice,
    source_is_mirrored,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule) -> None:
    assert list(rule(package())) == [], rule.__doc__


HOUSE = {  # a small house that keeps every rule
    "vitrail.__init__": '"""A."""\nif TYPE_CHECKING:\n    from vitrail.models.vit import ViT\n',
    "vitrail.config": '"""A."""\nfrom vitrail.errors import nearest\n',
    "vitrail.errors": '"""A."""\n',
    "vitrail.layers.__init__": '"""A."""\n',
    "vitrail.layers.rope": '"""A."""\nimport torch\nfrom vitrail.config import apply\n',
    "vitrail.models.vit": '"""A."""\nfrom vitrail.layers import rope\n\n\ndef _hidden():\n    pass\n',
}
LONG = '"""A."""\n\n\ndef f():\n    """A."""\n\n    def g():\n' + "        x = 1\n" * 47
SEVEN = "a = 1\nb = (\n    2\n)\n\n# why\nc = 3\nd = 4\ne = 5\nf = 6\n"  # with "b = (" and "2"
BAD: list[tuple[Rule, str, str, str]] = [
    (imports_go_down, "vitrail.layers.rope", "import vitrail.models.vit", "layers.rope imports vitrail.models.vit"),
    (imports_go_down, "vitrail.layers.rope", "from vitrail.models.vit import ViT", "imports vitrail.models.vit"),
    (imports_go_down, "vitrail.layers.rope", "from ..models import vit", "imports vitrail.models.vit"),
    (imports_go_down, "vitrail.layers.rope", "def f():\n    import vitrail.models.vit", "imports vitrail.models.vit"),
    (imports_go_down, "vitrail.errors", "from vitrail.layers.rope import Rope", "errors imports vitrail.layers.rope"),
    (imports_go_down, "vitrail.data.decode", "import vitrail.layers.rope", "data.decode imports vitrail.layers.rope"),
    (imports_go_down, "vitrail.models.vit", "import vitrail.tasks.mae", "models.vit imports vitrail.tasks.mae"),
    (imports_go_down, "vitrail.training.loop", "import vitrail.lab.seeds", "training.loop imports vitrail.lab.seeds"),
    (imports_go_down, "vitrail.profiling.count", "import vitrail.cli", "profiling.count imports vitrail.cli"),
    (imports_go_down, "vitrail.models.vit", "from vitrail import create", "models.vit imports vitrail itself"),
    (imports_go_down, "vitrail.attic.box", "", "the folder attic has no place"),
    (
        tools_know_no_task,
        "vitrail.training.loop",
        "import vitrail.tasks.mae",
        "training.loop imports vitrail.tasks.mae",
    ),
    (imports_have_no_cycle, "vitrail.errors", "import vitrail.config", "vitrail.config -> vitrail.errors"),
    (the_front_door_is_lazy, "vitrail.__init__", "from vitrail.models.vit import ViT", "imports vitrail.models.vit"),
    (the_front_door_is_lazy, "vitrail.__init__", "from vitrail import errors", "imports vitrail.errors"),
    (files_are_short, "vitrail.layers.rope", "x = 1\n" * 401, "has 401 lines"),
    (functions_are_short, "vitrail.layers.rope", LONG, "rope.f has 51 lines"),
    (public_things_have_docstrings, "vitrail.layers.rope", "x = 1", "vitrail.layers.rope"),
    (public_things_have_docstrings, "vitrail.layers.rope", '"""A."""\n\n\ndef f(): ...', "vitrail.layers.rope.f"),
    (
        public_things_have_docstrings,
        "vitrail.layers.rope",
        '"""A."""\nclass C:\n    """A."""\n    def m(self): ...',
        "rope.C.m",
    ),
    (names_say_something, "vitrail.layers.utils", "", "utils is not a name"),
    (names_say_something, "vitrail.common.rope", "", "common is not a name"),
    (names_say_something, "vitrail.layers.types", "", "types is not a name"),
    (errors_are_not_swallowed, "vitrail.layers.rope", "try:\n    x\nexcept Exception:\n    pass", "rope:3 swallows"),
    (errors_are_not_swallowed, "vitrail.layers.rope", "try:\n    x\nexcept:\n    ...", "rope:3 swallows"),
    (
        nothing_is_written_twice,
        "vitrail.models.vit",
        SEVEN + "g = 7\n" + SEVEN,
        "models.vit:12 repeats vitrail.models.vit:1",
    ),
    (nothing_is_written_twice, "vitrail.models.vit", "if x:\n" + indent(SEVEN, "  "), "repeats vitrail.models.vit:2"),
    (source_is_mirrored, "vitrail.layers.untested_thing", "", "untested_thing has no test file"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_lets_a_good_house_stand(rule: Rule) -> None:
    assert list(rule(parsed(HOUSE))) == []


@pytest.mark.parametrize(("rule", "module", "text", "message"), BAD)
def test_rule_can_fail(rule: Rule, module: str, text: str, message: str) -> None:
    others = {"vitrail.cli": "", "vitrail.tasks.mae": "", "vitrail.lab.seeds": SEVEN}
    found = list(rule(parsed(HOUSE | others | {module: text})))
    assert any(message in violation for violation in found), found


def test_six_equal_lines_and_trivial_ones_are_allowed_twice() -> None:
    six = '"""A."""\nimport os\nfrom os import (\n    path,\n)\n' + SEVEN.removesuffix("f = 6\n")
    assert list(nothing_is_written_twice(parsed({"vitrail.config": six, "vitrail.errors": six}))) == []


def test_every_rule_has_bad_code() -> None:
    assert {rule for rule, *_ in BAD} == set(RULES)


def test_exceptions_are_still_needed() -> None:
    assert package().keys() >= OF_ONE_TASK
    stems = {name.rpartition(".")[2] for name in package()}
    files = {file.stem for file in TESTS.rglob("test_*.py")}
    for stem, test in TESTED_ELSEWHERE.items():
        assert stem in stems
        assert test in files
        assert f"test_{stem}" not in files

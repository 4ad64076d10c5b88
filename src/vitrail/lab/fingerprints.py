"""A fingerprint of the code that measures, by which results of other code are recognised.

It covers the file of an experiment, and whole files of the lab that it measures with. Left out is what can be made
again from stored results: texts, figures, verdicts and the functions of that file which only these use. So are
docstrings, comments and blank lines.
"""

import ast
import hashlib
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module

from vitrail.lab.experiment import Experiment

_LAB = "vitrail.lab"  # whose modules are followed
_COMMON = f"{_LAB}.experiment"  # what every experiment extends
_NOT_MEASURED = {*Experiment.__annotations__, *Experiment.__abstractmethods__} - {"measure"}


def fingerprint(experiment: Experiment) -> str:
    """Hexadecimal digits that change with the code of `measure`, there or in a file of the lab that it uses.

    Files are read at the first call in a process, which should come before one of them can be edited.
    """
    return _fingerprint(type(experiment))


@cache
def _fingerprint(kind: type[Experiment]) -> str:
    code, waiting = _own(kind.__module__, kind.__name__)
    files = {"": code}
    while waiting:
        module, *rest = waiting
        files[module], used = _whole(module)
        waiting = tuple({*rest, *used} - files.keys())
    text = "\n".join(f"# {module}\n{files[module]}" for module in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _own(module: str, experiment: str) -> tuple[str, tuple[str, ...]]:
    """The code of a module that an experiment there measures with, and the modules of the lab that it uses."""
    source = inspect.getsource(import_module(module))
    body = _statements(source)
    waiting = [node for node in body if not _defined(node) or _decorators(node)]
    waiting += [node for node in body if experiment in _defined(node)]
    kept: list[ast.stmt] = []
    while waiting:
        node = waiting.pop()
        if node not in kept:
            kept.append(node)
            used = _used(node, experiment)
            waiting += [other for other in body if used & _defined(other)]
    return _code(source, kept, experiment)


def _whole(module: str) -> tuple[str, tuple[str, ...]]:
    """The code of a module, and the modules of the lab that it uses."""
    source = inspect.getsource(import_module(module))
    return _code(source, _statements(source))


def _statements(source: str) -> list[ast.stmt]:
    """The statements of a module without its docstring."""
    tree = ast.parse(source)
    return tree.body[1:] if ast.get_docstring(tree) is not None else tree.body


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement defines; none where it has another effect."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {_local(alias) for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _decorators(node: ast.stmt) -> list[ast.expr]:
    """The decorators of a function or class, which may keep it somewhere."""
    return node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def _local(alias: ast.alias) -> str:
    """The name that an import defines."""
    return (alias.asname or alias.name).partition(".")[0]


def _used(node: ast.stmt, experiment: str) -> set[str]:
    """The names that occur in a statement."""
    cut = {id(part) for out in _left_out(node, experiment) for part in ast.walk(out)}
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and id(part) not in cut}


def _code(source: str, nodes: list[ast.stmt], experiment: str = "") -> tuple[str, tuple[str, ...]]:
    """The lines of statements in their order after the imports they use, and the modules of the lab in these."""
    used = set().union(*(_used(node, experiment) for node in nodes))
    imports: set[tuple[str, str, str]] = set()  # module, name, local name
    kept: set[int] = set()
    for node in (part for statement in nodes for part in ast.walk(statement)):  # functions import, too
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            imports |= {(module, alias.name, _local(alias)) for alias in node.names if _local(alias) in used}
    for node in (statement for statement in nodes if not isinstance(statement, ast.Import | ast.ImportFrom)):
        first = min([node.lineno, *(part.lineno for part in _decorators(node))])
        kept |= _lines(node) | set(range(first, node.lineno))
        for out in _left_out(node, experiment):
            kept -= _lines(out)
    lines = source.splitlines()
    code = [" ".join(words) for words in sorted(imports)] + [lines[number - 1].rstrip() for number in sorted(kept)]
    modules = {f"{_LAB}.{name}" if module == _LAB else module for module, name, _ in imports}
    followed = {module for module in modules if module.startswith(f"{_LAB}.") and module != _COMMON}
    return "\n".join(line for line in code if line and not line.lstrip().startswith("#")), tuple(sorted(followed))


def _lines(node: ast.stmt) -> set[int]:
    """The numbers of the lines of a statement."""
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _left_out(tree: ast.AST, experiment: str) -> Iterator[ast.stmt]:
    """Docstrings, and what the class of an experiment has beside its measurement."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            yield node.body[0]
        if isinstance(node, ast.ClassDef) and node.name == experiment:
            for part in node.body:
                named = _defined(part)
                if named and named <= _NOT_MEASURED:
                    yield part

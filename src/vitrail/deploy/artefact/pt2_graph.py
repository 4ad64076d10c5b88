"""The graph of a .pt2 is data to us and code to torch: what may stand in it, checked before torch reads it.

torch builds Python of names, evaluates the expressions of sizes and the guards, and looks up operators by path. So
names must be plain identifiers, expressions are sums and products of sizes, guards are refused, and operators are
those of `allowed_operators`.
"""

import ast
import re
from collections.abc import Callable
from typing import Any

import torch

from vitrail.deploy.artefact.allowed_operators import ATEN
from vitrail.strict_json import from_json

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,500}(\.[A-Za-z0-9_]{1,500}){0,40}")
_OPERATOR = re.compile(r"torch\.ops\.aten\.([A-Za-z_]\w{0,80})\.(\w{1,40})", re.ASCII)
_TEXT = re.compile(r"[\x20-\x7e]{0,1000}")
_VERSION = re.compile(r"[\w.+-]{1,80}", re.ASCII)

_SCALAR_OPS = {f"_operator.{name}" for name in (
    "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_",
    "getitem",
)} | {f"torch.sym_{name}" for name in ("int", "float", "max", "min", "not", "ite")}  # fmt: skip
_HIGHER_ORDER = {"torch.ops.higher_order.wrap_with_autocast", "torch.ops.higher_order.wrap_with_set_grad_enabled"}
# The kinds of arguments; as_custom_obj and as_operator name objects and code.
_ARGUMENTS = {
    f"as_{kind}" for kind in (
        "none", "tensor", "tensors", "optional_tensor", "optional_tensors", "nested_tensors", "int", "ints",
        "int_lists", "float", "floats", "bool", "bools", "string", "strings", "sym_int", "sym_ints", "sym_float",
        "sym_floats", "sym_bool", "sym_bools", "scalar_type", "memory_format", "layout", "device", "expr", "name",
        "graph",
    )
}  # fmt: skip
# How arguments of these types are given: operators take whole numbers for them, too, and trust them.
_KINDS = {
    "ScalarType": "as_scalar_type", "MemoryFormat": "as_memory_format", "Device": "as_device", "Layout": "as_layout",
}  # fmt: skip
_STRIDED = 7  # of the layouts as torch numbers them in a file; others are sparse or packed
_SPECS = {"user_input", "user_output", "parameter", "buffer", "tensor_constant"}
_SIZES = {
    "Add", "Mul", "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv", "ModularIndexing", "Rational",
    "CeilToInt", "FloorToInt", "TruncToInt", "IntTrueDiv", "FloatTrueDiv", "ToFloat", "Identity", "Where", "And", "Or",
    "Not", "GreaterThan", "LessThan", "StrictGreaterThan", "StrictLessThan", "Equality", "Unequality",
}  # fmt: skip
_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict")
_EXPRESSION = 5000  # letters


def checked_graph(text: bytes) -> dict[str, Any]:
    """The program of models/model.json without what no model needs; ValueError names what must not be in it."""
    program = from_json(text)
    module = program["graph_module"]
    if program.get("guards_code"):
        raise ValueError("it has guards, which torch would run as Python")
    if module.get("treespec_namedtuple_fields"):
        raise ValueError("it has custom types")
    # Where layers were called from is for debuggers.
    module["metadata"] = {}
    module["module_call_graph"] = [call for call in module["module_call_graph"] if call["fqn"] == ""]
    for spec in (*module["signature"]["input_specs"], *module["signature"]["output_specs"]):
        if wrong := spec.keys() - _SPECS:
            raise ValueError(f"it has an input or output of the kind {min(wrong)!a}")
    _walk(program, "")
    checked: dict[str, Any] = program
    return checked


def _walk(value: Any, key: str) -> None:
    if isinstance(value, dict):
        if "target" in value and "metadata" in value:
            value["metadata"] = {}
        if "target" in value and "inputs" in value:
            check_arguments(value["target"], value["inputs"])
        for name, item in value.items():
            check_name(name)
            if name.startswith("as_") and name not in _ARGUMENTS and key not in _VALUES:
                raise ValueError(f"it has an argument of the kind {name!a}")
            if name in ("as_layout", "layout") and isinstance(item, int) and item != _STRIDED:
                raise ValueError("it has a tensor whose layout is not that of plain tensors")
            if name == "custom_obj_values" and item:
                raise ValueError("it has objects that are not tensors")
            _walk(item, name)
    elif isinstance(value, list):
        for item in value:
            _walk(item, key)
    elif isinstance(value, str):
        _STRINGS.get(key, check_name)(value)


def check_arguments(target: str, inputs: list[dict[str, Any]]) -> None:
    """ValueError where an operator gets something else for a type, a device, a format or a layout."""
    if (operator := _operator(target)) is None:
        return
    types = {one.name: str(one.real_type).removeprefix("Optional[").removesuffix("]") for one in operator.arguments}
    for one in inputs:
        kind = _KINDS.get(types.get(one["name"], ""))
        if kind is not None and one["arg"].keys() - {kind, "as_none"}:
            raise ValueError(f"the argument {one['name']} of an operator is not given as such")


def _operator(target: str) -> Any:
    """The schema of a listed operator; None for another one."""
    found = _OPERATOR.fullmatch(target)
    overload = (
        None if found is None or found[1] not in ATEN else getattr(getattr(torch.ops.aten, found[1]), found[2], None)
    )
    return None if overload is None else overload._schema


def check_operator(target: str) -> None:
    """ValueError for anything but an operator that computes tensors of tensors, or sizes of sizes."""
    if target in _SCALAR_OPS or target in _HIGHER_ORDER:
        return
    # Those called `out`, and others, write into an argument; `detach_` changes no numbers.
    schema = _operator(target)
    if schema is None or (schema.is_mutable and not schema.name.endswith("_")):
        raise ValueError(f"the operator {target[:100]!a} is not allowed in it")


def check_expression(text: str) -> None:
    """ValueError for anything but sums, products and comparisons of sizes, as sympy writes them."""
    if len(text) > _EXPRESSION:
        raise ValueError("it has a symbolic shape expression that is too long")
    try:
        _check_node(ast.parse(text, mode="eval").body, 0)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"it has a symbolic shape that is not an expression: {text[:100]!a}") from error


def _check_node(node: ast.expr, depth: int) -> None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or depth > 50:
        raise ValueError(f"it has an unsupported symbolic shape expression: {ast.unparse(node)[:100]!a}")
    name, values = node.func.id, [item.value for item in node.args if isinstance(item, ast.Constant)]
    if name == "Integer" and len(values) == len(node.args) == 1 and not node.keywords:
        known = type(values[0]) is int and abs(values[0]) < 2**63
    elif name == "Integer" and len(node.args) == 1 and isinstance(node.args[0], ast.UnaryOp):  # Integer(-1)
        inner = node.args[0]
        known = isinstance(inner.op, ast.USub) and isinstance(inner.operand, ast.Constant)
        known = known and type(inner.operand.value) is int and inner.operand.value < 2**63  # type: ignore[attr-defined]
    elif name == "Symbol" and len(values) == len(node.args) == 1:
        flags = all(isinstance(word.value, ast.Constant) and word.value.value is True for word in node.keywords)
        known = flags and re.fullmatch(r"[suz]\w{1,40}", str(values[0]), re.ASCII) is not None
    elif name == "Pow" and len(node.args) == 2 and not node.keywords:  # larger powers of numbers could be endless
        _check_node(node.args[0], depth + 10)
        known = ast.unparse(node.args[1]) in ("Integer(-1)", "Integer(2)", "Integer(3)")
    else:
        known = name in _SIZES and not node.keywords
        for item in node.args:
            _check_node(item, depth + 1)
    if not known:
        raise ValueError(f"it has an unsupported symbolic shape expression: {ast.unparse(node)[:100]!a}")


def check_tree(text: str) -> None:
    """ValueError for a structure of inputs or outputs that is not of tuples, lists and dicts."""
    _, tree = from_json(text)
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if node["type"] not in _CONTAINERS:
            raise ValueError(f"it has an input or output of the type {str(node['type'])[:100]!a}")
        names = from_json(node["context"]) if node["context"] else None
        for name in names or ():
            check_name(name)
        waiting += node["children_spec"]


def check_name(text: str) -> None:
    """ValueError for anything but identifiers with dots between them: torch writes names into Python."""
    if text and _PATH.fullmatch(text) is None:
        raise ValueError(f"{text[:100]!a} is not a name")


def _check_text(text: str) -> None:
    if _TEXT.fullmatch(text) is None:
        raise ValueError("it has a text that is too long, or not of printable letters")


def _check_version(text: str) -> None:
    if _VERSION.fullmatch(text) is None:
        raise ValueError(f"{text[:100]!a} is not a version")


_VALUES = {"tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values", "range_constraints"}
_STRINGS: dict[str, Callable[[str], None]] = {
    "target": check_operator,
    "expr_str": check_expression,
    "in_spec": check_tree,
    "out_spec": check_tree,
    "as_string": _check_text,
    "as_strings": _check_text,
    "torch_version": _check_version,
}

"""The part of JSON Schema that answers use, checked without another package."""

from typing import Any

_TYPES = {
    "object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool,
    "null": type(None),
}  # fmt: skip
KNOWN = {
    "type", "required", "properties", "additionalProperties", "items", "minimum", "maximum", "description", "enum",
}  # fmt: skip


def errors(value: Any, schema: dict[str, Any], where: str = "$") -> list[str]:
    """What of a value a schema does not allow; a keyword that is not known here is an error, too."""
    found = [f"{where}: unknown keyword {name}" for name in schema.keys() - KNOWN]
    kinds = schema.get("type", list(_TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fits = any(isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds)
    if not fits:
        return [*found, f"{where} is {value!r}, not {kinds}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where} is {value!r}, not one of {schema['enum']}")
    if isinstance(value, int | float):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        found += [] if low <= value <= high else [f"{where} is {value}, not {low} to {high}"]
    if isinstance(value, dict):
        found += [f"{where} lacks {name}" for name in schema.get("required", ()) if name not in value]
        known = schema.get("properties", {})
        found += [
            text for name in value.keys() & known.keys() for text in errors(value[name], known[name], f"{where}.{name}")
        ]
        others = schema.get("additionalProperties", not known)  # a schema, or whether others are allowed at all
        for name in value.keys() - known.keys():
            inner = others if isinstance(others, dict) else {}
            found += errors(value[name], inner, f"{where}.{name}") if others else [f"{where}.{name} is not described"]
    if isinstance(value, list):
        inner = schema.get("items", {})
        found += [text for at, item in enumerate(value) for text in errors(item, inner, f"{where}[{at}]")]
    return found

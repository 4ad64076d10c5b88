"""The style sheets of reports, which are real files in templates/."""

from functools import cache
from importlib import resources


@cache
def css(name: str, package: str = "vitrail.report") -> str:
    """The text of a style sheet in the folder templates/ of a package."""
    return (resources.files(package) / "templates" / f"{name}.css").read_text(encoding="utf-8").strip()

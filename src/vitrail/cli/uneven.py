"""The options of `train` for uneven classes: --sampling and --goal."""

import argparse
import math
import re
from typing import Any

from vitrail.errors import ConfigError

_GOAL = re.compile(r"(?P<kind>f1|balanced_accuracy|recall|cost)(:(?P<of>[^=]+))?(=(?P<number>[^=]+))?")
_NUMBER = {"recall": "at_least", "cost": "miss"}  # what the number of a goal is


def add_options(verb: argparse.ArgumentParser) -> None:
    """Adds them."""
    verb.add_argument(
        "--sampling", metavar="HOW", help="balanced: rare classes come as often as others; balanced:0.5 is halfway"
    )
    verb.add_argument(
        "--goal", metavar="GOAL",
        help="what decisions are for: f1, f1:CLASS, balanced_accuracy, recall:CLASS=0.95, cost:CLASS=10",
    )  # fmt: skip


def with_uneven(changes: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The changes to a recipe with what the options ask for."""
    found = dict(changes)
    if getattr(options, "sampling", None) is not None:
        found |= read_sampling(options.sampling)
    if getattr(options, "goal", None) is not None:
        task = found.get("task", {})
        found["task"] = {**({"kind": task} if isinstance(task, str) else task), "goal": read_goal(options.goal)}
    return found


def read_sampling(text: str) -> dict[str, Any]:
    """`balanced` or `balanced:POWER` as keys of a recipe."""
    kind, colon, power = text.partition(":")
    if kind not in {"balanced", "shuffled"} or (colon and (kind == "shuffled" or not power.strip())):
        raise ConfigError(
            f"--sampling {text} is not a way to draw images; allowed: balanced, balanced:0.5 (a number from 0 to 1), "
            "and shuffled, which is the default"
        )
    number = _number("--sampling", text, power) if colon else 1.0
    if not 0 <= number <= 1:
        raise ConfigError(f"--sampling {text}: the number after the colon must be 0 to 1; 1 is balanced, 0 as it is")
    return {"sampling": kind} | ({"sampling_power": number} if colon else {})


def read_goal(text: str) -> dict[str, Any]:
    """`KIND`, `KIND:CLASS` or `KIND:CLASS=NUMBER` as the options of a goal."""
    match = _GOAL.fullmatch(text.replace(">=", "=").replace(" ", ""))
    if match is None or (match["number"] is not None and match["kind"] not in _NUMBER):
        raise ConfigError(
            f"--goal {text} is not a goal; allowed: f1, f1:CLASS, balanced_accuracy, recall=0.95, recall:CLASS=0.95, "
            "cost:CLASS=10 (a missed CLASS costs ten times as much as another mistake)"
        )
    found: dict[str, Any] = {"kind": match["kind"]}
    if match["of"] is not None:
        found["of"] = _class_name(text)
    if match["number"] is not None:
        number = found[_NUMBER[match["kind"]]] = _number("--goal", text, match["number"])
        if match["kind"] == "recall" and not 0 <= number <= 1:
            raise ConfigError(f"--goal {text}: a recall must be 0 to 1, such as --goal recall:CLASS=0.95")
        if match["kind"] == "cost" and not 0 < number < math.inf:
            raise ConfigError(f"--goal {text}: a cost must be above 0, such as --goal cost:CLASS=10")
    if match["kind"] == "cost" and match["of"] is None:
        raise ConfigError(
            f"--goal {text} does not say which class is costly to miss: --goal cost:CLASS=10. A matrix of costs "
            "is --set task.goal.kind=cost --set 'task.goal.matrix=[[0, 1], [10, 0]]', rows the truth"
        )
    return found


def _class_name(text: str) -> str:
    """The name between the colon and the last =, with its spaces."""
    name = text.split(":", 1)[1]
    return re.sub(r"\s*>?=[^=]*$", "", name).strip()


def _number(option: str, text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ConfigError(f"{option} {text}: {number!r} is not a number") from None

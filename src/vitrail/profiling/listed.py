"""The cost of every named size, counted beforehand, so that a list of them is there at once.

`python -m vitrail.profiling.listed` counts them all anew and writes `listed_costs.py`, held to the registry by tests.
"""

from pathlib import Path

from vitrail.models.registry import list_models
from vitrail.profiling.count import Cost, cost
from vitrail.profiling.listed_costs import COSTS

_HEAD = '''"""Parameters, and multiply-accumulates for one image, of every named size; `listed.py` writes this file."""

COSTS: dict[str, tuple[int, int]] = {
'''


def listed_cost(name: str) -> Cost:
    """Parameters and MACs of a named size, from the table; one that is not in it yet is counted now."""
    return Cost(*COSTS[name]) if name in COSTS else cost(name)


def write(file: Path) -> None:
    """Counts every named size and writes the table."""
    rows = (
        f'    "{name}": ({parameters:_}, {macs:_}),\n' for name in list_models() for parameters, macs in [cost(name)]
    )
    file.write_text("".join([_HEAD, *rows, "}\n"]))


if __name__ == "__main__":
    write(Path(__file__).with_name("listed_costs.py"))

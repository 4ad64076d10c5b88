"""The documentation page of all families, generated from the registry: a diagram of the stages, the idea, the sizes."""

import math
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path

from vitrail.layers.attention import Attention
from vitrail.models.backbone import Backbone
from vitrail.models.family import Family
from vitrail.models.registry import FAMILIES
from vitrail.models.staged import Staged
from vitrail.profiling.count import pyramid, sketch
from vitrail.profiling.listed import listed_cost

_HEAD = """# Models

All families; `vitrail models --page docs` writes this page. The diagrams show the stages of the first size of a family:
the height of a box is the resolution of its grid, its width the number of blocks. Parameters and multiply-accumulates
(MACs) are for one image of the given size.
"""
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#57606a}.s{font-size:11px}rect{fill:#8ab4d8;stroke:#39739d;"
    "stroke-width:1.5}path{fill:none;stroke:#8b949e;stroke-width:1.5}@media(prefers-color-scheme:dark){"
    "text{fill:#adbac7}rect{fill:#2f5d82;stroke:#8ab4d8}}"
)
_HIGHEST, _GAP, _NARROWEST, _TOP = 96.0, 34.0, 96.0, 8.0


def page() -> str:
    """The whole page in Markdown."""
    return "\n\n".join([_HEAD.rstrip(), *map(section, FAMILIES.values())]) + "\n"


def section(family: Family) -> str:
    """The section of a family in Markdown, with a table of its sizes."""
    rows = []
    for name, preset in family.presets.items():
        parameters, macs = listed_cost(name)
        height, width = preset.config.image_size
        counts = f"{parameters / 1e6:.2f} M | {macs / 1e9:.2f} G"
        rows.append(f"| {name} | {height} x {width} | {counts} | {preset.weights} |")
    paper = family.paper.replace("arXiv:", "https://arxiv.org/abs/")
    return "\n".join([
        f"## {family.name}",
        "",
        f"![the stages of {next(iter(family.presets))}](images/models/{family.name}.svg)",
        "",
        family.idea,
        "",
        f"*When to use it:* {family.use}",
        "",
        f"Paper: <{paper}>" if paper != family.paper else f"Paper: {paper}",
        "",
        "| model | image | parameters | MACs | published weights |",
        "|---|---|---|---|---|",
        *rows,
    ])  # fmt: skip


def diagram(family: Family) -> str:
    """The stages of a family's first preset as an SVG."""
    name = next(iter(family.presets))
    model = sketch(name)
    left, parts = 8.0, list[str]()
    height, width = model.config.image_size
    parts.append(f'<text x="{left}" y="{_TOP + _HIGHEST / 2}">{height} x {width}</text>')
    left += 96
    for grid, wide, dim, lines in _stages(model):
        high = _HIGHEST * (0.25 + 0.75 * math.log2(max(grid) + 1) / math.log2(max(height, width) / 2 + 1))
        across = _NARROWEST + 10.0 * wide
        top, middle = _TOP + (_HIGHEST - high) / 2, _TOP + _HIGHEST / 2
        parts.append(f'<path d="M{left - 22:.0f} {middle:.0f}h18m-5 -4l5 4l-5 4"/>')
        parts.append(f'<rect x="{left:.0f}" y="{top:.0f}" width="{across:.0f}" height="{high:.0f}" rx="4"/>')
        below = _TOP + _HIGHEST + 16
        parts.append(f'<text x="{left:.0f}" y="{below:.0f}">{grid[0]} x {grid[1]} x {dim}</text>')
        parts += [
            f'<text class="s" x="{left:.0f}" y="{below + 15 * row:.0f}">{escape(line)}</text>'
            for row, line in enumerate(lines, start=1)
        ]
        left += across + _GAP
    across, down = left, _TOP + _HIGHEST + 68
    size = f'width="{across:.0f}" height="{down:.0f}" viewBox="0 0 {across:.0f} {down:.0f}"'
    described = f"<title>{escape(name)}</title><style>{_STYLE}</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{described}{"".join(parts)}</svg>\n'


def _stages(model: Backbone) -> Iterator[tuple[tuple[int, int], int, int, list[str]]]:
    """Grid, number of blocks, width and types of blocks, for each level of a model."""
    for level, part in zip(pyramid(model), model.stages if isinstance(model, Staged) else [model], strict=True):
        dim, height, width = level.shape[1:]
        blocks = list(part.get_submodule("blocks").children())
        kinds = Counter(type(block).__name__ for block in blocks)
        inside = (module for block in blocks for module in block.modules())
        heads = {type(module).__name__ for module in inside if isinstance(module, Attention)}
        lines = [f"{number} x {kind}" for kind, number in kinds.items()]
        yield (height, width), len(blocks), dim, [*lines, *sorted(heads)][:3]


def write(folder: Path) -> Path:
    """Writes models.md and its diagrams to a documentation folder; returns the page."""
    diagrams = folder / "images" / "models"
    diagrams.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES.values():
        (diagrams / f"{family.name}.svg").write_text(diagram(family))
    file = folder / "models.md"
    file.write_text(page())
    return file

"""The input layers of a model as pictures: similarity of positions, and filters of the first convolution."""

import base64
from io import BytesIO

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitrail.errors import ConfigError, Unsupported
from vitrail.explain.unwrap import backbone_of
from vitrail.layers.patch import Grid
from vitrail.layers.position import AddedPosition
from vitrail.models.backbone import Backbone
from vitrail.report import Facts, Picture, Report, Section, Table, Value
from vitrail.report.charts_heat import colour, tiles

MAX_MAPS = 16  # a side of the picture; for larger grids every second or third position is shown
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@torch.no_grad()
def position_similarity(model: nn.Module) -> Report:
    """The cosine of each position embedding with all others, one small map each (arXiv:2010.11929, figure 7).

    For positions that are added to the tokens: learned, fixed, factored, Fourier. Unsupported if a model has none.
    """
    backbone = backbone_of(model)
    positions = {name: part for name, part in backbone.named_modules() if isinstance(part, AddedPosition)}
    if not positions:
        raise Unsupported(f"{type(backbone).__name__} adds no positions to its tokens{_instead(backbone)}")
    sections: list[Section] = []
    for name, part in positions.items():
        sections += _position(part, name if len(positions) > 1 else "")
    return Report(f"{type(backbone).__name__}: similarity of positions", tuple(sections))


def cosines(part: AddedPosition, positions: Tensor | None = None) -> Tensor:
    """The cosine of the chosen positions (all by default, rows first) with all, as maps: R h w, float32."""
    unit = _unit(part).flatten(0, 1)  # N D
    return (unit[positions] if positions is not None else unit).matmul(unit.T).unflatten(1, part.grid)


def _unit(part: AddedPosition) -> Tensor:
    """The vectors of the patches, each of length 1: h w D."""
    rows, columns = part.grid
    vectors = part.at(part.grid).float()[-rows * columns :]  # without the prefix
    return F.normalize(vectors, dim=1).cpu().unflatten(0, part.grid)


def _instead(model: Backbone) -> str:
    kinds = [choice.kind for choice in getattr(model.config, "position", ())]
    return f": its positions are {', '.join(kinds)}, inside attention" if kinds else ""


def _position(part: AddedPosition, name: str) -> list[Section]:
    unit, (rows, columns) = _unit(part), part.grid
    step = -(-max(part.grid) // MAX_MAPS)
    shown = torch.arange(rows * columns).unflatten(0, part.grid)[::step, ::step]  # r c
    maps = cosines(part, shown.flatten())  # R h w
    itself = torch.zeros_like(maps, dtype=torch.bool).flatten(1).scatter_(1, shown.flatten()[:, None], True)
    others = maps.flatten(1)[~itself]
    # The cosine with itself is 1 and says nothing: colours span all others.
    span = (float(others.min()), float(others.max())) if len(others) else (0.0, 1.0)
    pixels = _coloured(maps, span)  # R 3 h w
    sheet = _sheet(pixels, (shown.shape[0], shown.shape[1]))
    title = f"Positions{f' of {name}' if name else ''}"
    facts: dict[str, Value] = {
        "kind": type(part).__name__,
        "grid": f"{rows} x {columns}",
        "width": part.at(part.grid).shape[1],
        "shown": "every position" if step == 1 else f"one position of each {step} x {step}",
    }
    table = [
        {"steps apart": offset, "in a row": _apart(unit, 1, offset), "in a column": _apart(unit, 0, offset)}
        for offset in _STEPS
        if offset < max(part.grid)
    ]
    size = (sheet.shape[1], sheet.shape[2])
    drawn = tiles(
        f"{title}: cosine with all others", _png(sheet), size, x="column", y="row", span=span, show="{:.2f}".format
    )
    text = (
        "One map for each position, at its place in the grid: the cosine of its vector with that of every position. "
        f"Colours go from {span[0]:.2f} to {span[1]:.2f}, the values between different positions."
    )
    near: dict[str, str] = {"steps apart": "", "in a row": "", "in a column": ""}
    return [
        Facts(title, facts),
        Table(f"{title}: mean cosine", near, table),  # type: ignore[arg-type]
        Picture(f"{title}: maps", drawn, text),
    ]


def _apart(unit: Tensor, axis: int, offset: int) -> float | None:
    """The mean cosine of positions that are `offset` steps apart along an axis of h w D."""
    length = unit.shape[axis]
    if offset >= length:
        return None
    return float((unit.narrow(axis, 0, length - offset) * unit.narrow(axis, offset, length - offset)).sum(dim=2).mean())


@torch.no_grad()
def filters(model: nn.Module, *, components: int = 28) -> Report:
    """Principal components of the filters of the first convolution, as small pictures (arXiv:2010.11929, figure 7)."""
    backbone = backbone_of(model)
    name, conv = _first_convolution(backbone)
    weight = conv.weight.detach().float().cpu()  # D C p q
    if components < 1:
        raise ConfigError(f"components is {components}; it must be 1 or more")
    if weight.shape[1] not in (1, 3):
        raise Unsupported(f"filters with {weight.shape[1]} channels cannot be shown; it needs 1 (grey) or 3 (RGB)")
    shapes, shares = principal(weight, components)
    # Grey is zero; each is scaled by itself, as its size has no meaning.
    peak = shapes.flatten(1).abs().amax(dim=1).clamp_min(1e-12)[:, None, None, None]
    pixels = ((0.5 + 0.5 * shapes / peak) * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    across = min(len(shapes), 7)
    sheet = _sheet(pixels, (-(-len(shapes) // across), across), framed=True)
    facts: dict[str, Value] = {
        "layer": name,
        "filters": len(weight),
        "pixels of each": "{} x {}".format(*weight.shape[2:]),
        "channels": weight.shape[1],
        "components shown": len(shapes),
        "explained variance": float(shares.sum()),
    }
    total = shares.cumsum(0).tolist()
    table = [
        {"component": index + 1, "variance": share, "cumulative": total[index]}
        for index, share in enumerate(shares.tolist())
        if index + 1 in (*_STEPS, len(shares))
    ]
    drawn = tiles("Principal components of the filters", _png(sheet), (sheet.shape[1], sheet.shape[2]))
    text = f"The first {len(shapes)} principal components of the filters of {name}, row by row; grey is zero."
    return Report(
        f"{type(backbone).__name__}: filters of its first convolution",
        (
            Facts("Filters", facts, {"explained variance": "share"}),
            Picture("Components", drawn, text),
            Table("Variance", {"component": "", "variance": "share", "cumulative": "share"}, table),
        ),
    )


def principal(weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Principal components of D filters, D C p q -> R C p q, and the share of the variance that each explains, R.

    R is `count`, or as many as there are. The largest value of each is positive, as signs have no meaning.
    """
    flat = weight.flatten(1).double()
    _, values, components = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    shares = values.square() / values.square().sum().clamp_min(1e-300)
    components = components[:count]
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    return (components * largest.sign()).unflatten(1, weight.shape[1:]).to(weight), shares[:count].to(weight)


def _first_convolution(model: Backbone) -> tuple[str, nn.Conv2d]:
    for name, part in model.named_modules():
        if isinstance(part, nn.Conv2d) and part.in_channels == model.config.channels and part.groups == 1:
            return name, part
    raise Unsupported(f"{type(model).__name__} has no convolution that reads the image, so it has no filters to show")


def _coloured(maps: Tensor, span: tuple[float, float]) -> Tensor:
    """Values R h w -> colours R 3 h w, uint8."""
    ramp = torch.tensor([colour(step / 255) for step in range(256)], dtype=torch.uint8)
    share = (maps - span[0]) / max(span[1] - span[0], 1e-12)
    return ramp[(share.clamp(0, 1) * 255).round().long()].permute(0, 3, 1, 2)


def _sheet(pixels: Tensor, grid: Grid, *, framed: bool = False) -> Tensor:
    """Small pictures R 3 h w side by side, rows first, with transparent gaps: 4 H W, uint8.

    Frames make pictures visible that are as bright as the page.
    """
    least = min(pixels.shape[2:])
    times = max(1, -(-(48 if framed else 7) // least))  # enlarged, so that frames and gaps are thin
    gap = max(1, least * times // 7)
    large = pixels.repeat_interleave(times, 2).repeat_interleave(times, 3)
    tile = torch.cat([large, torch.full_like(large[:, :1], 255)], dim=1)  # R 4 h w
    if framed:
        edge = torch.tensor([128, 128, 128, 160], dtype=torch.uint8)[:, None, None]
        inner, tile = tile, edge.expand(len(tile), -1, tile.shape[2] + 2, tile.shape[3] + 2).clone()
        tile[:, :, 1:-1, 1:-1] = inner
    tile = F.pad(tile, (0, gap, 0, gap))
    blank = tile.new_zeros(grid[0] * grid[1] - len(tile), *tile.shape[1:])
    whole = torch.cat([tile, blank]).unflatten(0, grid).permute(2, 0, 3, 1, 4)  # 4 r h c w
    return whole.flatten(3).flatten(1, 2)[:, :-gap, :-gap]


def _png(image: Tensor) -> str:
    """An image, uint8 4 H W, as a data URI."""
    stored = BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(stored, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stored.getvalue()).decode()}"

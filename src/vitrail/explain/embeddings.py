"""What a model begins with, as pictures: how alike its positions are, and the filters that read its patches."""

import base64
from io import BytesIO

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitrail.charts_heat import colour, tiles
from vitrail.errors import ConfigError, Unsupported
from vitrail.explain.subject import subject
from vitrail.layers.patch import Grid
from vitrail.layers.position import AddedPosition
from vitrail.models.backbone import Backbone
from vitrail.report import Facts, Picture, Report, Section, Table, Value

MOST_MAPS = 16  # a side of the picture; of larger grids it shows every second position, or third
_SOME = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@torch.no_grad()
def position_similarity(model: nn.Module) -> Report:
    """The cosine of each position's vector with all others, one small map a position (arXiv:2010.11929, figure 7).

    For positions that are added to the tokens: learned, fixed, factored, Fourier. Unsupported where a model has none.
    """
    backbone = subject(model)
    found = {name: part for name, part in backbone.named_modules() if isinstance(part, AddedPosition)}
    if not found:
        raise Unsupported(f"{type(backbone).__name__} adds no positions to its tokens{_instead(backbone)}")
    sections: list[Section] = []
    for name, part in found.items():
        sections += _position(part, name if len(found) > 1 else "")
    return Report(f"{type(backbone).__name__}: how alike its positions are", tuple(sections))


def cosines(part: AddedPosition, positions: Tensor | None = None) -> Tensor:
    """The cosine of the chosen positions (all by default, rows first) with all, each a map: R h w, float32."""
    unit = _unit(part).flatten(0, 1)  # N D
    return (unit[positions] if positions is not None else unit).matmul(unit.T).unflatten(1, part.grid)


def _unit(part: AddedPosition) -> Tensor:
    """The vectors of the patches, each of length 1: h w D."""
    rows, columns = part.grid
    vectors = part.at(part.grid).float()[-rows * columns :]  # without the prefix
    return F.normalize(vectors, dim=1).cpu().unflatten(0, part.grid)


def _instead(model: Backbone) -> str:
    kinds = [choice.kind for choice in getattr(model.config, "position", ())]
    return f": what it has is {', '.join(kinds)}, inside attention" if kinds else ""


def _position(part: AddedPosition, name: str) -> list[Section]:
    unit, (rows, columns) = _unit(part), part.grid
    step = -(-max(part.grid) // MOST_MAPS)
    shown = torch.arange(rows * columns).unflatten(0, part.grid)[::step, ::step]  # r c
    maps = cosines(part, shown.flatten())  # R h w
    itself = torch.zeros_like(maps, dtype=torch.bool).flatten(1).scatter_(1, shown.flatten()[:, None], True)
    others = maps.flatten(1)[~itself]
    # Each is 1 with itself, which tells nothing: the colours span all others.
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
        for offset in _SOME
        if offset < max(part.grid)
    ]
    size = (sheet.shape[1], sheet.shape[2])
    drawn = tiles(
        f"{title}: cosine with all others", _png(sheet), size, x="column", y="row", span=span, show="{:.2f}".format
    )
    told = (
        "One map a position, in its own place: how alike its vector is to that of each position of the grid. "
        f"Colours go from {span[0]:.2f} to {span[1]:.2f}, the values between different positions."
    )
    near: dict[str, str] = {"steps apart": "", "in a row": "", "in a column": ""}
    return [
        Facts(title, facts),
        Table(f"{title}: mean cosine", near, table),  # type: ignore[arg-type]
        Picture(f"{title}: maps", drawn, told),
    ]


def _apart(unit: Tensor, axis: int, offset: int) -> float | None:
    """The mean cosine of positions that are `offset` steps apart along an axis of h w D."""
    length = unit.shape[axis]
    if offset >= length:
        return None
    return float((unit.narrow(axis, 0, length - offset) * unit.narrow(axis, offset, length - offset)).sum(dim=2).mean())


@torch.no_grad()
def filters(model: nn.Module, *, components: int = 28) -> Report:
    """The principal components of the filters that read the image, as small pictures (arXiv:2010.11929, figure 7)."""
    backbone = subject(model)
    name, conv = _first_convolution(backbone)
    weight = conv.weight.detach().float().cpu()  # D C p q
    if components < 1:
        raise ConfigError(f"components is {components}; it must be 1 or more")
    if weight.shape[1] not in (1, 3):
        raise Unsupported(f"filters of {weight.shape[1]} channels have no picture; those of 1 (grey) or 3 (RGB) have")
    shapes, shares = principal(weight, components)
    # Grey is zero; each is stretched by itself, as its size carries no meaning.
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
        "variance that they hold": float(shares.sum()),
    }
    total = shares.cumsum(0).tolist()
    table = [
        {"component": index + 1, "variance": share, "together": total[index]}
        for index, share in enumerate(shares.tolist())
        if index + 1 in (*_SOME, len(shares))
    ]
    drawn = tiles("Principal components of the filters", _png(sheet), (sheet.shape[1], sheet.shape[2]))
    told = f"The first {len(shapes)} principal components of the filters of {name}, row by row; grey is zero."
    return Report(
        f"{type(backbone).__name__}: the filters that read its patches",
        (
            Facts("Filters", facts, {"variance that they hold": "share"}),
            Picture("Components", drawn, told),
            Table("Variance", {"component": "", "variance": "share", "together": "share"}, table),
        ),
    )


def principal(weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Principal components of D filters, D C p q -> R C p q, and the share of the variance that each holds, R.

    R is `count`, or as many as there are. The largest number of each is positive, as signs carry no meaning.
    """
    flat = weight.flatten(1).double()
    _, spread, found = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    shares = spread.square() / spread.square().sum().clamp_min(1e-300)
    found = found[:count]
    largest = found.gather(1, found.abs().argmax(dim=1, keepdim=True))
    return (found * largest.sign()).unflatten(1, weight.shape[1:]).to(weight), shares[:count].to(weight)


def _first_convolution(model: Backbone) -> tuple[str, nn.Conv2d]:
    for name, part in model.named_modules():
        if isinstance(part, nn.Conv2d) and part.in_channels == model.config.channels and part.groups == 1:
            return name, part
    raise Unsupported(f"{type(model).__name__} reads its image by no convolution, so it has no filters to show")


def _coloured(maps: Tensor, span: tuple[float, float]) -> Tensor:
    """Values R h w -> colours R 3 h w, uint8."""
    ramp = torch.tensor([colour(step / 255) for step in range(256)], dtype=torch.uint8)
    share = (maps - span[0]) / max(span[1] - span[0], 1e-12)
    return ramp[(share.clamp(0, 1) * 255).round().long()].permute(0, 3, 1, 2)


def _sheet(pixels: Tensor, grid: Grid, *, framed: bool = False) -> Tensor:
    """Small pictures R 3 h w side by side, rows first, with see-through gaps: 4 H W, uint8.

    Frames keep what is as bright as the page in sight.
    """
    least = min(pixels.shape[2:])
    times = max(1, -(-(48 if framed else 7) // least))  # larger, so that frames and gaps are thin beside a tile
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

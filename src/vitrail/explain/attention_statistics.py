"""What attention does over a whole data set: how far it looks, how sharply, how differently from head to head.

    print(statistics(model, batches))

Batches stream through; all that is kept are running means and spreads by layer and head.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.charts import Curve, curves, points
from vitrail.errors import DataError, InputError, Unsupported
from vitrail.explain.capture import Seen, capture
from vitrail.explain.layer import has_class_token
from vitrail.explain.method import evaluating
from vitrail.explain.subject import subject
from vitrail.layers.patch import Grid
from vitrail.models.backbone import Backbone
from vitrail.report import Facts, Picture, Report, Section, Table, Text, Value

LARGEST = 1024  # tokens of a layer whose spectrum is computed: the time grows as their cube


class Measure(NamedTuple):
    """Something that each head of a layer has."""

    name: str  # of its column
    title: str
    told: str


MEASURES = (
    Measure(
        "distance",
        "Attention distance",
        "How many pixels a patch looks away: the distance between the middles of two patches, weighted by the "
        "attention of one to the other, prefix tokens left out (Dosovitskiy et al. 2020, figure 7).",
    ),
    Measure("entropy", "Entropy", "How widely a token looks: the entropy of its attention, in nats."),
    Measure(
        "rank",
        "Effective rank",
        "How many directions the attention matrix has: the exponential of the entropy of its singular values "
        "(Roy and Vetterli 2007).",
    ),
    Measure(
        "similarity",
        "Head similarity",
        "How much a head looks where the others of its layer do: the mean cosine of its attention matrix with theirs.",
    ),
    Measure("class", "Class token to patches", "The share of its attention that the class token gives to patches."),
    Measure("prefix", "Patches to prefix", "The share of their attention that patches give to prefix tokens."),
)


@dataclass
class Running:
    """Mean and spread of vectors that come in batches (Chan et al. 1983)."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))  # sum of squared distances from the mean

    def add(self, values: Tensor) -> None:
        """Takes in B vectors: B A."""
        values = values.double().cpu()
        count, mean = len(values), values.mean(dim=0)
        total, apart = self.count + count, mean - self.mean
        self.squares = self.squares + (values - mean).square().sum(dim=0) + apart.square() * self.count * count / total
        self.mean = self.mean + apart * count / total
        self.count = total

    @property
    def spread(self) -> Tensor | None:
        """The standard deviation over all vectors, A; None where there is one."""
        return (self.squares / (self.count - 1)).sqrt() if self.count > 1 else None


Found = dict[int, dict[str, Running]]  # by layer and measure


def statistics(
    model: nn.Module,
    batches: Iterable[Tensor | Sequence[Tensor]],
    *,
    layers: Sequence[int] | None = None,
    spectra: int = 8,
) -> Report:
    """Statistics of attention by layer and head over images B C H W, or over batches that begin with them.

    Effective rank and spectrum, which need whole matrices, are those of the first `spectra` images.
    """
    backbone = subject(model)
    found: Found = {}
    left: dict[int, str] = {}
    spectrum: dict[int, Running] = {}
    count, sizes = 0, set()
    with evaluating(backbone), torch.no_grad():
        for images in _images(backbone, batches):
            sizes.add(f"{images.shape[2]} x {images.shape[3]}")
            with capture(backbone, layers=layers) as seen:
                backbone(images)
            _take(found, left, seen, images, class_token=has_class_token(backbone))
            for image in images[: max(spectra - count, 0) if found else 0]:
                with capture(backbone, layers=list(found)) as seen:
                    backbone(image[None])
                _decompose(found, spectrum, seen)
            count += len(images)
    if not count:
        raise DataError("there are no images to measure attention on")
    if not found:
        raise Unsupported(next(iter(left.values())))
    measured: dict[str, Value] = {"images": count, "pixels": ", ".join(sorted(sizes)), "layers": len(found)}
    if spectrum:
        measured["spectra of"] = f"{min(count, spectra)} images"
    return Report(
        f"Attention of {type(backbone).__name__}", (Facts("Measured", measured), *_sections(found, spectrum, left))
    )


def _images(model: Backbone, batches: Iterable[Tensor | Sequence[Tensor]]) -> Iterator[Tensor]:
    like = next(model.parameters())
    for batch in batches:
        images = batch if isinstance(batch, Tensor) else batch[0]
        if not isinstance(images, Tensor):
            raise InputError(f"a batch begins with a {type(images).__name__}; it must be images B C H W")
        yield images.to(like) if images.is_floating_point() else images.to(like.device)


def _take(found: Found, left: dict[int, str], seen: Seen, images: Tensor, *, class_token: bool) -> None:
    """Adds a batch to what was found, and to what was left out the layers without an attention matrix."""
    size = (images.shape[2], images.shape[3])
    for index in seen.layers:
        try:
            measured = measure(seen, index, size, class_token=class_token)
        except Unsupported as error:
            left[index] = str(error)
            continue
        for name, values in measured.items():
            found.setdefault(index, {}).setdefault(name, Running()).add(values)


def measure(seen: Seen, index: int, size: tuple[int, int], *, class_token: bool) -> dict[str, Tensor]:
    """All measures of one layer that need a few rows at a time, those of the tokens that ask: B A each."""
    grid, num_prefix, asks = seen.grid[index], seen.num_prefix[index], _asking(seen, index)
    sums: dict[str, Tensor] = {}

    def add(name: str, values: Tensor) -> None:
        sums[name] = sums[name] + values if name in sums else values

    rows = 0
    for chunk in seen.chunks(index):
        asking = chunk.rows[asks[chunk.rows]]  # R
        attention, rows = chunk.attention[:, :, asks[chunk.rows]], rows + len(asking)
        add("entropy", torch.special.entr(attention).sum(dim=(-2, -1)))
        add("gram", torch.einsum("barn,bcrn->bac", attention, attention))
        patches = asking >= num_prefix  # R
        asked = attention[:, :, patches, num_prefix:]  # B A R N
        share = asked.sum(dim=-1)  # B A R
        apart = distances(asking[patches] - num_prefix, grid, size)  # R N
        add("distance", (torch.einsum("barn,rn->bar", asked, apart) / share.clamp(min=1e-30)).sum(dim=-1))
        if num_prefix:
            add("prefix", (1 - share).sum(dim=-1))
        if num_prefix and class_token and (asking == 0).any():
            add("class", attention[:, :, asking == 0, num_prefix:].sum(dim=(-2, -1)))
    similar = similarity(sums.pop("gram"))
    means = {"entropy": rows, "distance": rows - num_prefix, "prefix": rows - num_prefix, "class": 1}
    measured = {name: values / means[name] for name, values in sums.items()}
    return measured if similar is None else measured | {"similarity": similar}


def _asking(seen: Seen, index: int) -> Tensor:
    """Whether each token of a layer asks for itself, P+N, and has not the row of one that asks for it."""
    tokens = seen.tokens[index]
    asks = torch.zeros(tokens.shape[1], dtype=torch.bool, device=tokens.device)
    asks[seen.layers[index].asking(tokens.shape[1], seen.grid[index]).to(tokens.device)] = True
    return asks


def distances(rows: Tensor, grid: Grid, size: tuple[int, int]) -> Tensor:
    """Pixels between the middles of some patches and of all patches of a grid over an image H W: R -> R N."""
    place = torch.arange(grid[0] * grid[1], device=rows.device)
    y, x = place // grid[1], place % grid[1]
    return torch.hypot((y[rows, None] - y) * (size[0] / grid[0]), (x[rows, None] - x) * (size[1] / grid[1]))


def similarity(gram: Tensor) -> Tensor | None:
    """The mean cosine of each head with the others, B A, from their products B A A; None where there is one head."""
    heads = gram.shape[1]
    if heads == 1:
        return None
    length = gram.diagonal(dim1=1, dim2=2).sqrt()  # B A
    cosines = gram / (length[:, :, None] * length[:, None])
    return (cosines.sum(dim=-1) - 1) / (heads - 1)


def effective_rank(values: Tensor) -> Tensor:
    """The exponential of the entropy of singular values: ... K -> ..."""
    return torch.special.entr(values / values.sum(dim=-1, keepdim=True)).sum(dim=-1).exp()


def _decompose(found: Found, spectrum: dict[int, Running], seen: Seen) -> None:
    """Adds one image's singular values, in the mean of the heads, and the effective rank of each head."""
    for index in seen.layers:
        count = seen.tokens[index].shape[1]
        if count <= LARGEST and (index not in spectrum or len(spectrum[index].mean) == count):  # those of one size
            values = torch.linalg.svdvals(seen.attention[index][:, :, _asking(seen, index)])  # 1 A K
            found[index].setdefault("rank", Running()).add(effective_rank(values))
            spectrum.setdefault(index, Running()).add(values.mean(dim=1))


def _sections(found: Found, spectrum: dict[int, Running], left: dict[int, str]) -> Iterator[Section]:
    """Pictures, then tables."""
    known = [measure for measure in MEASURES if any(measure.name in of_layer for of_layer in found.values())]
    for measure in known:
        heads = {
            index: of_layer[measure.name].mean.tolist() for index, of_layer in found.items() if measure.name in of_layer
        }
        yield Picture(measure.title, points(measure.title, heads, x="layer", one="head"), measure.told)
    if spectrum:
        yield _spectrum_picture(spectrum)
    names = [measure.name for measure in known]
    rows = [
        {"layer": index} | {name: running.mean.mean().item() for name, running in of_layer.items()}
        for index, of_layer in found.items()
    ]
    yield Table("By layer", dict.fromkeys(["layer", *names], ""), rows)
    if spectrum:
        yield _spectrum_table(spectrum)
    yield _by_head("By layer and head", names, found, lambda running: running.mean)
    if any(running.count > 1 for of_layer in found.values() for running in of_layer.values()):
        yield _by_head("Spread over the images", names, found, lambda running: running.spread)
    if left:
        yield Text("Left out", "; ".join(f"layer {index}: {reason}" for index, reason in left.items()))


def _by_head(title: str, names: Sequence[str], found: Found, read: Callable[[Running], Tensor | None]) -> Table:
    rows: list[dict[str, Value]] = []
    for index, of_layer in found.items():
        values = {
            name: None if (known := read(running)) is None else known.tolist() for name, running in of_layer.items()
        }
        heads = len(of_layer["entropy"].mean)
        for head in range(heads):
            of_head = {name: None if each is None else each[head] for name, each in values.items()}
            rows.append({"layer": index, "head": head} | of_head)
    return Table(title, dict.fromkeys(["layer", "head", *names], ""), rows)


def _spectrum_picture(spectrum: dict[int, Running]) -> Picture:
    ends = sorted({min(spectrum), max(spectrum)})
    series = [Curve(f"layer {index}", list(enumerate(spectrum[index].mean.tolist(), start=1))) for index in ends]
    return Picture(
        "Spectrum",
        curves("Singular values", series, x="singular value", floor=0.0, key=True),
        "The singular values of the attention matrices, largest first, in the mean of heads and images.",
    )


def _spectrum_table(spectrum: dict[int, Running]) -> Table:
    """The 1st, 4th, 16th, ... singular value of each layer, in the mean of heads and images."""
    most = max(len(running.mean) for running in spectrum.values())
    places = [4**power for power in range((most.bit_length() + 1) // 2)]
    rows = [
        {"layer": index} | {str(k): running.mean[k - 1].item() for k in places if k <= len(running.mean)}
        for index, running in spectrum.items()
    ]
    return Table("Singular values by rank", dict.fromkeys(["layer", *map(str, places)], ""), rows)

"""Statistics of attention over a data set by layer and head: distance, entropy, rank, similarity of heads.

    print(statistics(model, batches))

Batches are streamed; only running means and standard deviations by layer and head are kept.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import DataError, InputError, Unsupported
from vitrail.explain.attention.capture import Captured, capture
from vitrail.explain.attention.layer import has_class_token
from vitrail.explain.unwrap import backbone_of, eval_mode
from vitrail.layers.patch import Grid
from vitrail.models.backbone import Backbone
from vitrail.report import Facts, Picture, Report, Section, Table, Text, Value
from vitrail.report.charts import Curve, curves, points

MAX_TOKENS = 1024  # of a layer whose spectrum is computed: the time grows with their cube


class Measure(NamedTuple):
    """A statistic that each head of a layer has."""

    name: str  # of its column
    title: str
    text: str


MEASURES = (
    Measure(
        "distance",
        "Attention distance",
        "How far patches attend, in pixels: the distance between the centres of two patches, weighted by the attention "
        "of one to the other, without prefix tokens (Dosovitskiy et al. 2020, figure 7).",
    ),
    Measure("entropy", "Entropy", "How widely a token attends: the entropy of its row of attention, in nats."),
    Measure(
        "rank",
        "Effective rank",
        "The effective rank of the attention matrix: the exponential of the entropy of its normalised singular values "
        "(Roy and Vetterli 2007).",
    ),
    Measure(
        "similarity",
        "Head similarity",
        "How similar a head is to the others of its layer: the mean cosine of its attention matrix with theirs.",
    ),
    Measure("class", "Class token to patches", "The share of the class token's attention that goes to patches."),
    Measure("prefix", "Patches to prefix", "The share of the patches' attention that goes to prefix tokens."),
)


@dataclass
class Running:
    """Running mean and standard deviation of vectors that come in batches (Chan et al. 1983)."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))  # sum of squared distances from the mean

    def add(self, values: Tensor) -> None:
        """Adds B vectors: B A."""
        values = values.double().cpu()
        count, mean = len(values), values.mean(dim=0)
        total, difference = self.count + count, mean - self.mean
        self.squares = self.squares + (values - mean).square().sum(dim=0)
        self.squares = self.squares + difference.square() * self.count * count / total
        self.mean = self.mean + difference * count / total
        self.count = total

    @property
    def deviation(self) -> Tensor | None:
        """The standard deviation over all vectors, A; None for a single vector."""
        return (self.squares / (self.count - 1)).sqrt() if self.count > 1 else None


ByLayer = dict[int, dict[str, Running]]  # by layer and measure


def statistics(
    model: nn.Module,
    batches: Iterable[Tensor | Sequence[Tensor]],
    *,
    layers: Sequence[int] | None = None,
    spectra: int = 8,
) -> Report:
    """Statistics of attention by layer and head over images B C H W, or over batches whose first item is images.

    Effective rank and spectrum need whole matrices and are computed on the first `spectra` images only.
    """
    backbone = backbone_of(model)
    measured: ByLayer = {}
    unsupported: dict[int, str] = {}
    spectrum: dict[int, Running] = {}
    count, sizes = 0, set()
    with eval_mode(backbone), torch.no_grad():
        for images in _images(backbone, batches):
            sizes.add(f"{images.shape[2]} x {images.shape[3]}")
            with capture(backbone, layers=layers) as captured:
                backbone(images)
            _add_batch(measured, unsupported, captured, images, class_token=has_class_token(backbone))
            for image in images[: max(spectra - count, 0) if measured else 0]:
                with capture(backbone, layers=list(measured)) as captured:
                    backbone(image[None])
                _add_spectrum(measured, spectrum, captured)
            count += len(images)
    if not count:
        raise DataError("no images to measure attention on; give one or more")
    if not measured:
        raise Unsupported(next(iter(unsupported.values())))
    facts: dict[str, Value] = {"images": count, "pixels": ", ".join(sorted(sizes)), "layers": len(measured)}
    if spectrum:
        facts["spectra of"] = f"{min(count, spectra)} images"
    sections = (Facts("Measured", facts), *_sections(measured, spectrum, unsupported))
    return Report(f"Attention of {type(backbone).__name__}", sections)


def _images(model: Backbone, batches: Iterable[Tensor | Sequence[Tensor]]) -> Iterator[Tensor]:
    weight = next(model.parameters())
    for batch in batches:
        images = batch if isinstance(batch, Tensor) else batch[0]
        if not isinstance(images, Tensor):
            raise InputError(f"a batch starts with a {type(images).__name__}; it must start with images B C H W")
        yield images.to(weight) if images.is_floating_point() else images.to(weight.device)


def _add_batch(
    measured: ByLayer, unsupported: dict[int, str], captured: Captured, images: Tensor, *, class_token: bool
) -> None:
    """Adds a batch to the statistics, and layers without an attention matrix to `unsupported`."""
    size = (images.shape[2], images.shape[3])
    for index in captured.layers:
        try:
            values_by_name = measure(captured, index, size, class_token=class_token)
        except Unsupported as error:
            unsupported[index] = str(error)
            continue
        for name, values in values_by_name.items():
            measured.setdefault(index, {}).setdefault(name, Running()).add(values)


def measure(captured: Captured, index: int, size: tuple[int, int], *, class_token: bool) -> dict[str, Tensor]:
    """All statistics of one layer that can be computed a few rows at a time, over query tokens: B A each."""
    grid, num_prefix, is_query = captured.grid[index], captured.num_prefix[index], _is_query(captured, index)
    sums: dict[str, Tensor] = {}

    def add(name: str, values: Tensor) -> None:
        sums[name] = sums[name] + values if name in sums else values

    num_rows = 0
    for chunk in captured.chunks(index):
        rows = chunk.rows[is_query[chunk.rows]]  # R
        attention, num_rows = chunk.attention[:, :, is_query[chunk.rows]], num_rows + len(rows)
        add("entropy", torch.special.entr(attention).sum(dim=(-2, -1)))
        add("gram", torch.einsum("barn,bcrn->bac", attention, attention))
        is_patch = rows >= num_prefix  # R
        between_patches = attention[:, :, is_patch, num_prefix:]  # B A R N
        share = between_patches.sum(dim=-1)  # B A R
        pixels = distances(rows[is_patch] - num_prefix, grid, size)  # R N
        mean = torch.einsum("barn,rn->bar", between_patches, pixels) / share.clamp(min=1e-30)
        add("distance", mean.sum(dim=-1))
        if num_prefix:
            add("prefix", (1 - share).sum(dim=-1))
        if num_prefix and class_token and (rows == 0).any():
            add("class", attention[:, :, rows == 0, num_prefix:].sum(dim=(-2, -1)))
    similar = head_similarity(sums.pop("gram"))
    counts = {"entropy": num_rows, "distance": num_rows - num_prefix, "prefix": num_rows - num_prefix, "class": 1}
    means = {name: values / counts[name] for name, values in sums.items()}
    return means if similar is None else means | {"similarity": similar}


def _is_query(captured: Captured, index: int) -> Tensor:
    """Whether each token of a layer is a query itself, P+N, and does not share the row of another."""
    tokens = captured.tokens[index]
    is_query = torch.zeros(tokens.shape[1], dtype=torch.bool, device=tokens.device)
    queries = captured.layers[index].query_tokens(tokens.shape[1], captured.grid[index])
    is_query[queries.to(tokens.device)] = True
    return is_query


def distances(rows: Tensor, grid: Grid, size: tuple[int, int]) -> Tensor:
    """Pixels between the centres of some patches and of all patches of a grid over an image H W: R -> R N."""
    patches = torch.arange(grid[0] * grid[1], device=rows.device)
    y, x = patches // grid[1], patches % grid[1]
    return torch.hypot((y[rows, None] - y) * (size[0] / grid[0]), (x[rows, None] - x) * (size[1] / grid[1]))


def head_similarity(gram: Tensor) -> Tensor | None:
    """The mean cosine of each head with the others, B A, from their products B A A; None for a single head."""
    heads = gram.shape[1]
    if heads == 1:
        return None
    length = gram.diagonal(dim1=1, dim2=2).sqrt()  # B A
    cosines = gram / (length[:, :, None] * length[:, None])
    return (cosines.sum(dim=-1) - 1) / (heads - 1)


def effective_rank(values: Tensor) -> Tensor:
    """The exponential of the entropy of singular values: ... K -> ..."""
    return torch.special.entr(values / values.sum(dim=-1, keepdim=True)).sum(dim=-1).exp()


def _add_spectrum(measured: ByLayer, spectrum: dict[int, Running], captured: Captured) -> None:
    """Adds one image's singular values, mean over heads, and the effective rank of each head."""
    for index in captured.layers:
        count = captured.tokens[index].shape[1]
        if count <= MAX_TOKENS and (index not in spectrum or len(spectrum[index].mean) == count):  # of one size only
            values = torch.linalg.svdvals(captured.attention[index][:, :, _is_query(captured, index)])  # 1 A K
            measured[index].setdefault("rank", Running()).add(effective_rank(values))
            spectrum.setdefault(index, Running()).add(values.mean(dim=1))


def _sections(measured: ByLayer, spectrum: dict[int, Running], unsupported: dict[int, str]) -> Iterator[Section]:
    """Pictures, then tables."""
    present = [one for one in MEASURES if any(one.name in of_layer for of_layer in measured.values())]
    for one in present:
        heads = {
            index: of_layer[one.name].mean.tolist() for index, of_layer in measured.items() if one.name in of_layer
        }
        yield Picture(one.title, points(one.title, heads, x="layer", one="head"), one.text)
    if spectrum:
        yield _spectrum_picture(spectrum)
    names = [one.name for one in present]
    rows = [
        {"layer": index} | {name: running.mean.mean().item() for name, running in of_layer.items()}
        for index, of_layer in measured.items()
    ]
    yield Table("By layer", dict.fromkeys(["layer", *names], ""), rows)
    if spectrum:
        yield _spectrum_table(spectrum)
    yield _by_head("By layer and head", names, measured, lambda running: running.mean)
    if any(running.count > 1 for of_layer in measured.values() for running in of_layer.values()):
        yield _by_head("Standard deviation over images", names, measured, lambda running: running.deviation)
    if unsupported:
        yield Text("Not measured", "; ".join(f"layer {index}: {reason}" for index, reason in unsupported.items()))


def _by_head(title: str, names: Sequence[str], measured: ByLayer, read: Callable[[Running], Tensor | None]) -> Table:
    rows: list[dict[str, Value]] = []
    for index, of_layer in measured.items():
        values = {
            name: None if (heads := read(running)) is None else heads.tolist() for name, running in of_layer.items()
        }
        for head in range(len(of_layer["entropy"].mean)):
            of_head = {name: None if each is None else each[head] for name, each in values.items()}
            rows.append({"layer": index, "head": head} | of_head)
    return Table(title, dict.fromkeys(["layer", "head", *names], ""), rows)


def _spectrum_picture(spectrum: dict[int, Running]) -> Picture:
    ends = sorted({min(spectrum), max(spectrum)})
    series = [Curve(f"layer {index}", list(enumerate(spectrum[index].mean.tolist(), start=1))) for index in ends]
    return Picture(
        "Spectrum",
        curves("Singular values", series, x="singular value", floor=0.0, key=True),
        "The singular values of the attention matrices, largest first, mean over heads and images.",
    )


def _spectrum_table(spectrum: dict[int, Running]) -> Table:
    """The 1st, 4th, 16th, ... singular value of each layer, mean over heads and images."""
    most = max(len(running.mean) for running in spectrum.values())
    ranks = [4**power for power in range((most.bit_length() + 1) // 2)]
    rows = [
        {"layer": index} | {str(k): running.mean[k - 1].item() for k in ranks if k <= len(running.mean)}
        for index, running in spectrum.items()
    ]
    return Table("Singular values by rank", dict.fromkeys(["layer", *map(str, ranks)], ""), rows)

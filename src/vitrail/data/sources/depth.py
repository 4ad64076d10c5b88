"""Images with a depth map each: 16-bit PNG of millimetres, or floats of metres."""

from pathlib import Path

from vitrail.data.dataset import Found
from vitrail.data.sources.annotations import Collector
from vitrail.data.sources.folder import Files, Scan
from vitrail.data.sources.paired import Names, Pair, find_pairs, header_of, image_size
from vitrail.data.targets.depth_target import SUFFIXES, UNITS, DepthTarget, depth_references, read_depth
from vitrail.data.targets.mask_target import in_threads
from vitrail.errors import BrokenImage, DataError, listed
from vitrail.files import read_text

DEPTH = Names(
    what="depth map",
    folders=("depth", "depths", "depth_maps", "depthmap", "depthmaps"),
    endings=("_depth", "-depth"),
    suffixes=SUFFIXES,
)
SCALE_FILE = "depth_scale.txt"
_BY_HEADER = (".png", ".tif", ".tiff")
_LIMIT = 1 << 10  # bytes


def find_depth(root: Path, scanned: Scan) -> bool:
    """Whether a folder has a depth map for most images."""
    return find_pairs(root, scanned, DEPTH) is not None


def read_depth_maps(root: Path, scanned: Scan) -> Found:
    """The splits of a folder of images and depth maps."""
    collector = Collector()
    pairs = find_pairs(root, scanned, DEPTH, collector)
    if pairs is None:
        raise DataError(f"{root} has no depth maps; expected folders such as images/ and depth/ with the same names")
    folders = dict.fromkeys((root / pair.other).parent for part in pairs.splits.values() for pair in part)
    units, remark = _units(next((one for one in (root, *folders) if (one / SCALE_FILE).is_file()), root))
    every = [pair for part in pairs.splits.values() for pair in part]
    problems = dict(zip(every, in_threads(lambda pair: _problem(root, pair), every), strict=True))
    datasets = {}
    for split, pairs_of in pairs.splits.items():
        collector.total += len(pairs_of)
        part = [pair for pair in pairs_of if problems[pair] is None]
        for pair in pairs_of:
            if (problem := problems[pair]) is not None:
                collector.add(root / pair.other, "", *problem)
        if not part:
            raise DataError(f"a split of {root} has no usable depth map; {listed(map(str, collector.items), 3)}")
        values = depth_references([root / pair.other for pair in part], units)
        datasets[split] = Files(root, [pair.image for pair in part], {"depth": values}, {"depth": DepthTarget()})
    counts = ", ".join(f"{split} {len(part):,}" for split, part in datasets.items())
    findings = collector.findings
    notes = (f"{root} has {pairs.reason}; depth: {counts} images.", remark, *findings.notes())
    return Found(datasets["train"], datasets.get("val"), datasets.get("test"), notes, findings=findings)


def _problem(root: Path, pair: Pair) -> tuple[str, str] | None:
    """The kind of fault of a depth map and what is wrong; None if it fits its image.

    Of PNG and TIFF, headers decide: their pixels take a hundred times as long, and are read in training and in audits.
    """
    path = root / pair.other
    try:
        height, width = _size(path)
    except (OSError, BrokenImage) as error:
        return "Depth maps that cannot be read, left out", str(error).removeprefix(str(path)).strip()
    size = image_size(root / pair.image)
    if size is None or size == (height, width):
        return None
    problem = f"it has {width} x {height} pixels, its image {size[1]} x {size[0]}"
    return "Depth maps of another size than the image, left out", problem


def _size(path: Path) -> tuple[int, int]:
    """Height and width of a depth map."""
    if path.suffix.lower() not in _BY_HEADER:
        height, width = read_depth(path, UNITS).shape
        return height, width
    header = header_of(path)
    if header.kind in ("colour", "CMYK"):
        raise BrokenImage(f"{path} has colours; expected one number per pixel")
    return header.height, header.width


def _units(folder: Path) -> tuple[float, str]:
    """The units per metre of whole numbers, and a note on them."""
    file = folder / SCALE_FILE
    if not file.is_file():
        note = (
            f"Whole numbers are {UNITS:g} to a metre (a file {SCALE_FILE} can hold another number), floats are metres."
        )
        return UNITS, note
    try:
        units = float(read_text(file, _LIMIT))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} must hold one number, the units per metre: {error}") from error
    if not 0 < units < float("inf"):
        raise DataError(f"{file} holds {units}; the units per metre must be above 0")
    return units, f"Whole numbers are {units:g} to a metre ({SCALE_FILE}), floats are metres."

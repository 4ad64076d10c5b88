"""Smaller copies of the sets of `first_try_sets.py` and `advice_sets.py`, to be carried to another machine."""

import io
import random
from collections import defaultdict
from pathlib import Path

from PIL import Image

SEED = 0
COMPACT_BYTES = 5_000_000  # of a set
TINY = 32  # pixels: sets of such pictures are carried as they are


def shrink(folder: Path, out: Path, most: dict[str, int]) -> None:
    """A smaller copy of a built set: a seeded share of each class, in fewer bytes, at most `COMPACT_BYTES` in all."""
    if (out / folder.name / "done").exists():
        return
    encoded, draw = dict[str, dict[Path, bytes]](), random.Random(SEED)
    for part, limit in most.items():
        paths = sorted((folder / part).glob("*/*"))
        tiny = max(Image.open(paths[0]).size) <= TINY
        encoded[part] = {path: compact(path) for path in share_of(paths, 1.0 if tiny else limit / len(paths), draw)}
    share = COMPACT_BYTES / sum(len(data) for files in encoded.values() for data in files.values())
    for part, files in encoded.items():
        for path in share_of(sorted(files), share, draw):
            into = out / folder.name / part / path.parent.name
            into.mkdir(parents=True, exist_ok=True)
            (into / f"{path.stem}.webp").write_bytes(files[path])
    (out / folder.name / "done").touch()


def share_of(paths: list[Path], share: float, draw: random.Random) -> list[Path]:
    """A share of the images of each class, and of each class one at least."""
    groups = defaultdict[str, list[Path]](list)
    for path in paths:
        groups[path.parent.name].append(path)
    return [
        path for group in groups.values() for path in draw.sample(group, max(round(min(share, 1.0) * len(group)), 1))
    ]


def compact(path: Path) -> bytes:
    """A picture of at most 160 pixels, as WebP."""
    image, file = Image.open(path), io.BytesIO()
    small = max(image.size) <= TINY
    image.thumbnail((160, 160), Image.Resampling.BICUBIC)
    image.save(file, "webp", lossless=small, quality=65)
    return file.getvalue()

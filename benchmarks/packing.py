"""Cold packing: images per second from JPEG files to a packed file, by threads and by processes.

    python benchmarks/packing.py [--images 12288] [--workers 1,4,16] [--size 256] [--rounds 3]

Files are 500 x 375 pixels of smooth noise, quality 90, in a temporary folder and in the disk cache of the system.
Processes are started for each round, as in a run, and their start is part of the time.
"""

import argparse
import os
import statistics
import tempfile
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrail.data.feeds import decode_blocks
from vitrail.data.feeds.packing import pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.folder import read_folder


def write_photos(root: Path, count: int) -> None:
    """JPEG files in two classes; 64 different pictures are enough, as nothing is kept between files."""
    draw = np.random.default_rng(0)
    pictures = []
    for _ in range(64):
        rough = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        fine = np.asarray(rough, np.int16) + draw.integers(-12, 13, (375, 500, 1))
        file = BytesIO()
        Image.fromarray(fine.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        pictures.append(file.getvalue())
    for number in range(count):
        path = root / ("even", "odd")[number % 2] / f"{number:06}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pictures[number % 64])


def measure(root: Path, size: int, workers: int, *, processes: bool) -> float:
    """Images per second of one cold pack."""
    decode_blocks._FEW_CORES, decode_blocks._FEW_IMAGES = (0, 0) if processes else (10**9, 10**9)
    data = read_folder(root).train
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        found = pack(data, Preprocess(image_size=(size, size)), folder=Path(folder), workers=workers)
        return len(found) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=12_288)
    parser.add_argument("--workers", default=f"1,4,{os.cpu_count()}")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder), chosen.images)
        cells: dict[tuple[int, bool], list[float]] = {}
        for _ in range(chosen.rounds):
            for workers in map(int, chosen.workers.split(",")):
                for processes in (False, True):
                    speed = measure(Path(folder), chosen.size, workers, processes=processes)
                    cells.setdefault((workers, processes), []).append(speed)
                    print(f"{workers} {'processes' if processes else 'threads'}: {speed:,.0f} images/s", flush=True)
    print(f"| workers | by | images/s, median of {chosen.rounds} | lowest to highest |\n|---|---|---|---|")
    for (workers, processes), speeds in cells.items():
        by = "processes" if processes else "threads"
        print(f"| {workers} | {by} | {statistics.median(speeds):,.0f} | {min(speeds):,.0f} to {max(speeds):,.0f} |")


if __name__ == "__main__":
    main()

"""Streaming from local WebDataset shards: images/s of the feed, beside decoding alone in as many processes.

    python benchmarks/streaming.py [--images 4096] [--workers 1,4,16] [--size 256] [--rounds 3]

Shards hold JPEGs of 500 x 375 pixels and a class each, 512 to a file, in a temporary folder and the disk cache of the
system. "decoding" is the same reading, decoding and resizing in a loop, in one process per worker without a feed.
Processes are started before the clock is.
"""

import argparse
import multiprocessing
import os
import statistics
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path

import torch
from packing import write_photos

from vitrail.data.dataset import Dataset
from vitrail.data.feeds.decoded import decode_into
from vitrail.data.feeds.streamed import Streamed, StreamedBatches
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.shards import read_shards

EACH = 512


def write_shards(folder: Path, count: int) -> None:
    """Tar files with NUMBER.jpg and NUMBER.cls."""
    with tempfile.TemporaryDirectory() as temporary:
        write_photos(Path(temporary), count)
        files = sorted(Path(temporary).glob("*/*.jpg"))
        for first in range(0, count, EACH):
            with tarfile.open(folder / f"{first // EACH:04}.tar", "w") as tar:
                for file in files[first : first + EACH]:
                    tar.add(file, file.name)
                    label = tarfile.TarInfo(f"{file.stem}.cls")
                    text = str(int(file.parent.name == "odd")).encode()
                    label.size = len(text)
                    tar.addfile(label, BytesIO(text))


def streamed(data: Dataset, fit: Preprocess, workers: int) -> float:
    """Images/s of the second epoch of a feed, as its user gets them."""
    feed = StreamedBatches(
        Streamed(data, fit, workers=workers), batch_size=64, seed=0, shuffle=True, device="cpu", drop_last=True
    )
    for _ in feed.epoch(0):
        pass
    began = time.perf_counter()
    count = sum(len(batch.images) for batch in feed.epoch(1))
    return count / (time.perf_counter() - began)


def decode_some(data: Dataset, fit: Preprocess, indices: list[int]) -> None:
    torch.set_num_threads(1)
    room = torch.empty(fit.channels, *fit.image_size, dtype=torch.uint8)
    for index in indices:
        decode_into(data, index, [(fit, room)])


def decoded(data: Dataset, fit: Preprocess, workers: int) -> float:
    """Images/s of decoding alone."""
    order = torch.randperm(len(data)).tolist()
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        pool.starmap(decode_some, [(data, fit, order[:8])] * workers)
        began = time.perf_counter()
        pool.starmap(decode_some, [(data, fit, order[start::workers]) for start in range(workers)], chunksize=1)
        return len(order) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--workers", default=f"1,4,{os.cpu_count()}")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    fit = Preprocess(image_size=(chosen.size, chosen.size), resize="squash")
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder), chosen.images)
        data = read_shards(folder).train
        print("| processes | decoding, images/s | streamed, images/s | share, lowest to highest |\n|---|---|---|---|")
        for workers in map(int, chosen.workers.split(",")):
            pairs = [(decoded(data, fit, workers), streamed(data, fit, workers)) for _ in range(chosen.rounds)]
            alone, fed = (statistics.median(one) for one in zip(*pairs, strict=True))
            shares = [one / other for other, one in pairs]
            low, middle, high = min(shares), statistics.median(shares), max(shares)
            print(f"| {workers} | {alone:,.0f} | {fed:,.0f} | {middle:.2f}, {low:.2f} to {high:.2f} |", flush=True)


if __name__ == "__main__":
    main()

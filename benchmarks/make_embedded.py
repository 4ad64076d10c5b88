"""Makes the embedded data of the package: a subset of Fashion-MNIST, from its four original files.

    python benchmarks/make_embedded.py FOLDER_WITH_THE_FOUR_FILES

It contains the first 1,200 training images and the first 200 test images of each class, in the original order; training
images with the same pixels as an official test image are skipped. The result is reproducible on any machine.
"""

import argparse
import gzip
import struct
from pathlib import Path

import numpy as np

from vitrail.data.sources.arrays import read_idx
from vitrail.data.sources.embedded import embedded_folder

TRAIN, TEST = 1200, 200  # of each class


def chosen(images: np.ndarray, labels: np.ndarray, count: int, without: set[bytes]) -> list[int]:
    """The first `count` images of each class that are not in `without`, in the original order."""
    left = dict.fromkeys(range(10), count)
    indices = []
    for index, label in enumerate(labels.tolist()):
        if left[label] and images[index].tobytes() not in without:
            left[label] -= 1
            indices.append(index)
    assert not any(left.values())
    return indices


def write_idx(path: Path, array: np.ndarray) -> None:
    header = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes(), 9, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=embedded_folder())
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tests = read_idx(arguments.folder / "t10k-images-idx3-ubyte.gz")
    seen = {image.tobytes() for image in tests}
    for split, count, without in (("train", TRAIN, seen), ("t10k", TEST, set())):
        images = read_idx(arguments.folder / f"{split}-images-idx3-ubyte.gz")
        labels = read_idx(arguments.folder / f"{split}-labels-idx1-ubyte.gz")
        indices = chosen(images, labels, count, without)
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = arguments.out / f"{split}-{what}-ubyte.gz"
            write_idx(path, array[indices])
            print(f"{path.name}: {len(indices):,} of {len(array):,}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

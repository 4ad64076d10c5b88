"""Duplicate images: identical pixels, and near-duplicates by a perceptual hash."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

THUMB = 16
MAX_BITS = 3  # of 64 that may differ; of four bands of 16 bits, at least one is then identical
MAX_DIFFERENCE = 3.0  # of 255, mean over a thumbnail
_MIN_CONTRAST = 6.0  # standard deviation of a thumbnail; flat images are similar without being copies
_MAX_BUCKET = 500  # images that share a band; a band shared by more is not informative


class Print(NamedTuple):
    """A hash of the pixels of an image, 64 bits of its gradients, and a 16 x 16 grey thumbnail."""

    exact: bytes
    gradients: int
    thumb: bytes


def fingerprint(image: Tensor) -> Print:
    """The print of an image, uint8 C H W."""
    exact = hashlib.blake2b(str(tuple(image.shape)).encode(), digest_size=16)
    exact.update(image.contiguous().numpy().data)
    step = max(1, min(image.shape[1:]) // 256)  # large images are subsampled: only coarse structure matters
    grey = image[:, ::step, ::step].float().mean(dim=0, keepdim=True)  # 1 H W
    coarse = F.adaptive_avg_pool2d(grey, (8, 9))[0]  # 8 9
    bits = (coarse[:, 1:] > coarse[:, :-1]).flatten().tolist()
    thumb = F.adaptive_avg_pool2d(grey, THUMB)[0].round().to(torch.uint8)
    return Print(exact.digest(), int("".join("1" if bit else "0" for bit in bits), 2), thumb.numpy().tobytes())


def exact_groups(prints: Sequence[Print | None]) -> list[list[int]]:
    """Indices of images with identical pixels, in groups of two or more."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, one in enumerate(prints):
        if one is not None:
            groups[one.exact].append(index)
    return [group for group in groups.values() if len(group) > 1]


def near_pairs(prints: Sequence[Print | None]) -> list[tuple[int, int]]:
    """Pairs of similar images that are not identical: resized, recompressed or slightly edited copies."""
    first: dict[bytes, int] = {}
    for index, one in enumerate(prints):
        if one is not None:
            first.setdefault(one.exact, index)  # one of each group of identical images is enough
    known = np.array(sorted(first.values()), dtype=np.int64)
    if len(known) < 2:
        return []
    chosen = [one for index in known.tolist() if (one := prints[index]) is not None]
    thumbs = np.frombuffer(b"".join(one.thumb for one in chosen), dtype=np.uint8).reshape(len(chosen), -1)
    hashes = np.array([one.gradients for one in chosen], dtype=np.uint64)
    usable = thumbs.std(axis=1) >= _MIN_CONTRAST
    pairs: set[tuple[int, int]] = set()
    for band in range(4):
        values = (hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        for bucket in _buckets(values, np.flatnonzero(usable)):
            pairs |= _alike(bucket, hashes, thumbs)
    return sorted((int(known[a]), int(known[b])) for a, b in pairs)


def _buckets(values: np.ndarray[Any, Any], members: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Members with the same value, in groups of two or more that are small enough to compare."""
    order = members[np.argsort(values[members], kind="stable")]
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    return [group for group in np.split(order, cuts) if 2 <= len(group) <= _MAX_BUCKET]


def _alike(
    bucket: np.ndarray[Any, Any], hashes: np.ndarray[Any, Any], thumbs: np.ndarray[Any, Any]
) -> set[tuple[int, int]]:
    differing = hashes[bucket][:, None] ^ hashes[bucket][None]  # G G
    bits = np.unpackbits(differing.view(np.uint8).reshape(len(bucket), len(bucket), 8), axis=2).sum(axis=2)
    found = set()
    for a, b in np.argwhere(np.triu(bits <= MAX_BITS, k=1)).tolist():
        one, other = int(bucket[a]), int(bucket[b])
        if np.abs(thumbs[one].astype(np.int16) - thumbs[other]).mean() <= MAX_DIFFERENCE:
            found.add((min(one, other), max(one, other)))
    return found


def near_advice(within: int, across: int) -> Iterator[str]:
    """What to do about pairs of near-duplicates within a split and across splits."""
    if across:
        yield (
            f"Near-duplicates in two splits: {across:,} pairs. Check whether they are copies; --group duplicates keeps "
            "them in one split."
        )
    if within:
        yield (
            f"Near-duplicates within a split: {within:,} pairs. Where validation or folds are drawn from it, --group "
            "duplicates keeps them together."
        )

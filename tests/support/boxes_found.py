"""Images with random true boxes of cells, and boxes that a made-up detector found."""

import numpy as np

from vitrail.tasks.detect.counting import Image


def found_boxes(count: int, seed: int = 0, most: int = 30) -> list[Image]:
    """Up to 27 true boxes an image, of three classes as uneven as blood cells, and `most` found ones."""
    chance = np.random.default_rng(seed)
    images = []
    for _ in range(count):
        real = int(chance.integers(5, 28))
        corner, sides = chance.random((real, 2)) * 220, 20 + chance.random((real, 2)) * 25
        true = np.zeros((real, 7), dtype=np.float32)
        true[:, :4] = np.concatenate([corner, corner + sides], axis=1)
        true[:, 4] = chance.choice(3, real, p=[0.86, 0.07, 0.07])
        true[:, 6] = sides.prod(axis=1)
        extra = chance.random((max(most - real, 0), 2)) * 220
        boxes = np.concatenate([true[:, :4] + chance.normal(0, 2, (real, 4)), np.concatenate([extra, extra + 30], 1)])
        scores = np.concatenate([chance.beta(5, 2, real), chance.beta(1, 8, len(extra))])
        labels = np.concatenate([true[:, 4], chance.choice(3, len(extra))]).astype(int)
        order = np.argsort(-scores, kind="stable")
        images.append(Image(true, boxes[order].astype(np.float32), scores[order].astype(np.float32), labels[order]))
    return images

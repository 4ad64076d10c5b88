"""How often the intervals of `vitrail compare` hold the true difference in AP, with detectors made up for it.

    python benchmarks/compare_coverage.py --images 72 --trials 300      # about four minutes of one core

Each trial draws new images with up to 13 boxes of three uneven classes, and two detectors that find nine of ten boxes
with some jitter, more on hard images. The truth is that of 4,000 images. A 95 % interval should hold it in 95 % of
trials, and of two equal detectors 5 % of the p-values should be below 0.05.
"""

import argparse

import numpy as np

from vitrail.comparison.difference import Resampled, difference
from vitrail.tasks.detect.coco_matches import SIZES, Matches
from vitrail.tasks.detect.counting import Image

AP = ("ap", "")
POPULATION = 4000


def draw_images(count, chance):
    """True boxes M 7, and how hard an image is."""
    images = []
    for _ in range(count):
        boxes = chance.integers(3, 14)
        corner, sides = chance.random((boxes, 2)) * 200, 20 + chance.random((boxes, 2)) * 30
        true = np.zeros((boxes, 7))
        true[:, :4] = np.concatenate([corner, corner + sides], axis=1)
        true[:, 4], true[:, 6] = chance.choice(3, boxes, p=[0.8, 0.1, 0.1]), 1
        images.append((true, np.exp(chance.normal(0, 0.3))))
    return images


def detected(images, jitter, chance):
    """What a detector finds, whose corners are off by so many pixels."""
    found = []
    for true, hard in images:
        seen = true[chance.random(len(true)) < 0.9]
        extra = chance.random((chance.poisson(4 * hard), 2)) * 200
        near = seen[:, :4] + chance.normal(0, jitter * hard, (len(seen), 4))
        boxes = np.concatenate([near, np.concatenate([extra, extra + 35], axis=1)])
        scores = np.concatenate([chance.beta(5, 2, len(seen)), chance.beta(2, 5, len(extra))])
        labels = np.concatenate([seen[:, 4], chance.choice(3, len(extra), p=[0.8, 0.1, 0.1])]).astype(int)
        order = np.argsort(-scores, kind="stable")
        found.append(Image(true, boxes[order], scores[order], labels[order]))
    return found


def ap_of(images):
    """AP of boxes of any size, as a function of how often each image is drawn."""
    found = Matches.of(images, 3)
    found = Matches([[row[0], *[None] * (SIZES - 1)] for row in found.found], found.recalls, found.counted, found.boxes)

    def ap(times):
        precision = found.curves(times)[0]
        return precision[precision > -1].mean()

    return ap


def trial(count, resamples, jitters, chance):
    """The difference of two detectors, and the interval and AP of the first."""
    images, once = draw_images(count, chance), np.ones(count, dtype=int)
    aps = [ap_of(detected(images, jitter, chance)) for jitter in jitters]
    times = chance.multinomial(count, np.full(count, 1 / count), size=resamples)
    drawn = Resampled([AP], np.array([[[ap(row) for row in times]] for ap in aps]))
    first, second = (float(ap(once)) for ap in aps)
    return difference(drawn, 0, 1, AP, second - first), drawn.interval(0, AP, first), drawn.of(0, AP)


def holds(interval, value):
    """Whether an interval holds a value; one that cannot be given holds none."""
    return interval is not None and interval[0] <= value <= interval[1]


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--images", type=int, default=72)
    words.add_argument("--trials", type=int, default=300)
    words.add_argument("--resamples", type=int, default=400)
    words.add_argument("--seed", type=int, default=0)
    asked = words.parse_args()
    for jitters in ((2.0, 2.0), (2.0, 2.5)):
        chance = np.random.default_rng(asked.seed)
        images, once = draw_images(POPULATION, chance), np.ones(POPULATION, dtype=int)
        one, other = (float(ap_of(detected(images, jitter, chance))(once)) for jitter in jitters)
        truth = 0.0 if jitters[0] == jitters[1] else other - one
        held = single = plain = shown = 0
        for _ in range(asked.trials):
            change, ends, values = trial(asked.images, asked.resamples, jitters, chance)
            held += holds(change.interval, truth)
            single += holds(ends, one)
            plain += holds(np.quantile(values, (0.025, 0.975)), one)
            shown += change.p is not None and change.p < 0.05
        shares = [f"{100 * count / asked.trials:.1f} %" for count in (held, shown, single, plain)]
        print(f"AP {one:.3f} and {one + truth:.3f}: the interval of the difference holds it in {shares[0]}")
        print(f"  p is below 0.05 in {shares[1]}")
        print(f"  the interval of the first AP holds it in {shares[2]}; without the correction {shares[3]}")


if __name__ == "__main__":
    main()

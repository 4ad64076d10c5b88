"""Pictures of scenes: exact depth, classes and objects at pixel centres, antialiased colour."""

from typing import NamedTuple

import numpy as np

from vitrail.data.render.camera import Array
from vitrail.data.render.scene import OBJECTS, WALL, Scene
from vitrail.data.render.shading import shade
from vitrail.data.render.tracing import trace

CLASSES = (*OBJECTS, "ground", WALL, "ceiling", "sky")  # of masks
FAR = 80.0  # metres: depth beyond that is unknown
_CORNERS = ((-0.25, -0.25), (0.25, 0.25), (0.25, -0.25), (-0.25, 0.25))  # samples of a pixel, from its centre
_SAME = 0.1  # relative difference of two samples that are as good as four
_GAMMA = 1 / 2.2
_BLOCK = 4096  # rays that are followed together: their arrays stay in the cache of a core


class Truth(NamedTuple):
    """What is known of each pixel of a picture."""

    depth: Array  # H W float32: metres along the optical axis, 0 for the sky and beyond FAR
    mask: Array  # H W uint8: numbers of CLASSES
    objects: Array  # H W int16: the number of the body, -1 for none

    def boxes(self, scene: Scene) -> list[tuple[tuple[int, int, int, int], str, int]]:
        """x1 y1 x2 y2 around the visible pixels, label and number of pixels of each object that is seen."""
        found = []
        for number, body in enumerate(scene.bodies):
            if body.label in OBJECTS and (seen := self.objects == number).any():
                rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
                corners = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
                found.append((corners, body.label, int(seen.sum())))
        return found


def render_truth(scene: Scene, size: tuple[int, int]) -> Truth:
    """Depth, classes and objects at the centres of the pixels of a picture H W."""
    hits = trace(scene, _rays(scene, size, (0.0, 0.0)))
    depth = np.where(hits.depth <= FAR, hits.depth, 0.0).astype(np.float32).reshape(size)
    names = [CLASSES.index(body.label) for body in scene.bodies]
    behind = [CLASSES.index(name) for name in ("sky", "ceiling", WALL, "ground")]  # surfaces -4 to -1
    table = np.array([*names, *behind], dtype=np.uint8)  # a number below 0 counts from the end
    things = np.array([body.label in OBJECTS for body in scene.bodies] + [False] * len(behind))
    objects = np.where(things[hits.surface], hits.surface, np.int16(-1)).reshape(size)
    return Truth(depth, table[hits.surface].reshape(size), objects)


def render_image(scene: Scene, size: tuple[int, int]) -> Array:
    """The picture of a scene, H W 3 uint8: two samples in each pixel, four where these differ.

    Each sample has a light at another place, so that shadows are soft.
    """
    noise, random = scene.noise, np.random.default_rng((scene.seed, 1))
    shifts = random.uniform(-1, 1, (len(_CORNERS), 3)) * scene.light.spread

    def lit(sample: int, pixels: Array) -> Array:
        rays, found = _rays(scene, size, _CORNERS[sample])[:, pixels], np.empty((3, len(pixels)))
        for first in range(0, len(pixels), _BLOCK):
            part = slice(first, first + _BLOCK)
            found[:, part] = shade(scene, rays[:, part], shifts[sample], noise, size[1])
        return found

    one, other = (lit(sample, np.arange(size[0] * size[1])) for sample in (0, 1))
    light = (one + other) / 2
    busy = np.flatnonzero((np.abs(one - other) > _SAME * light).any(0))
    light[:, busy] = (light[:, busy] + (lit(2, busy) + lit(3, busy)) / 2) / 2
    return np.asarray(_developed(scene, light.reshape(3, *size), random).transpose(1, 2, 0).copy())


def _rays(scene: Scene, size: tuple[int, int], offset: tuple[float, float]) -> Array:
    y, x = np.mgrid[: size[0], : size[1]].reshape(2, -1) + 0.5
    return scene.camera.rays(x + offset[0], y + offset[1], size)


def _developed(scene: Scene, light: Array, random: np.random.Generator) -> Array:
    """What the film makes of linear light 3 H W: uint8."""
    film, (height, width) = scene.film, light.shape[1:]
    y, x = np.mgrid[:height, :width]
    corner = ((x / width - 0.5) ** 2 + (y / height - 0.5) ** 2) * 2  # 0 in the middle, 1 in corners
    light = light * (1 - film.vignette * corner) * np.array(film.gains)[:, None, None]
    seen = np.clip(light * (film.exposure ** (1 / _GAMMA) / light.mean()), 0, 1) ** _GAMMA
    if film.blur:
        padded = np.pad(seen, ((0, 0), (1, 1), (1, 1)), mode="edge")
        around = padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:]
        seen = (1 - film.blur) * seen + film.blur * (seen + around) / 5
    seen = seen + film.noise * random.standard_normal(seen.shape)
    return np.rint(np.clip(seen, 0, 1) * 255).astype(np.uint8)

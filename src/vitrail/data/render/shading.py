"""Light and colour: textures, diffuse light, highlights, shadows and haze."""

from typing import NamedTuple

import numpy as np

from vitrail.data.render.camera import Array, dot
from vitrail.data.render.materials import Material
from vitrail.data.render.scene import Scene
from vitrail.data.render.tracing import CEILING, GROUND, SKY, Hits, trace

_ABOVE = 1e-4  # metres: where shadow rays start above a surface
_SHININESS = 40


class _Surfaces(NamedTuple):
    """Points that rays meet, 3 N each; `gloss` N."""

    points: Array
    normals: Array
    colours: Array
    gloss: Array


def shade(scene: Scene, directions: Array, shift: Array, noise: Array, width: int) -> Array:
    """Linear light 3 N along rays from the camera; `shift` 3 is that of the light, as it has an extent."""
    hits = trace(scene, directions)
    known = np.flatnonzero(hits.surface != SKY)
    length = np.sqrt(dot(directions, directions))
    horizon, zenith = (np.array(colour)[:, None] for colour in scene.sky)
    found = horizon + (zenith - horizon) * np.sqrt(np.clip(directions[2] / length, 0, 1))
    hits, ahead = Hits(hits.depth[known], hits.surface[known]), directions[:, known]
    unit = ahead / length[known]
    seen = _lit(scene, _surfaces(scene, hits, ahead, noise=noise, width=width), unit, shift)
    if scene.haze:
        clear = np.exp(-scene.haze * hits.depth)
        seen = seen * clear + horizon * (1 - clear)
    found[:, known] = seen
    return np.asarray(found)


def _surfaces(scene: Scene, hits: Hits, ahead: Array, *, noise: Array, width: int) -> _Surfaces:
    points = np.array(scene.camera.position)[:, None] + hits.depth * ahead
    normals, colours, gloss = np.empty_like(points), np.empty_like(points), np.zeros_like(hits.depth)
    pixel = hits.depth / (scene.camera.focal * width)  # metres across
    for number in np.unique(hits.surface).tolist():
        which = np.flatnonzero(hits.surface == number)
        facing_up, surface, material = _surface(scene, number, points[:, which])
        cosine = np.abs(dot(facing_up, ahead[:, which])) / np.sqrt(dot(ahead[:, which], ahead[:, which]))
        normals[:, which], gloss[which] = facing_up, material.gloss
        colours[:, which] = material.colours(surface, pixel[which] / np.maximum(cosine, 0.02), noise)
    return _Surfaces(points, normals, colours, gloss)


def _surface(scene: Scene, number: int, points: Array) -> tuple[Array, Array, Material]:
    """Normals 3 N and texture coordinates 2 N of points on one surface, and its material."""
    if number == GROUND:
        return np.tile(np.array([[0.0], [0.0], [1.0]]), points.shape[1]), points[:2], scene.ground
    body = scene.room if number < 0 else scene.bodies[number]
    assert body is not None  # noqa: S101  (only rooms have walls and ceilings)
    local = body.local(points)
    normals = body.normals(local)
    material = scene.room.ceiling if scene.room is not None and number == CEILING else body.material
    return body.rotation @ normals, body.surface(local, normals), material


def _lit(scene: Scene, surfaces: _Surfaces, ahead: Array, shift: Array) -> Array:
    """Light 3 N that surfaces send back along unit rays."""
    points, normals = surfaces.points, surfaces.normals
    light, place = scene.light, np.array(scene.light.position) + shift
    way = np.broadcast_to(place[:, None], points.shape) if light.distant else place[:, None] - points
    distance = np.sqrt(dot(way, way))
    unit = way / distance
    cosine = np.maximum(dot(unit, normals), 0)
    bright = np.flatnonzero(cosine > 0)
    start, towards = points[:, bright] + _ABOVE * normals[:, bright], way[:, bright]
    free = np.ones(len(bright), dtype=bool)
    for body in scene.bodies:
        free &= body.hit(start, towards) >= (np.inf if light.distant else 1)
    direct = np.zeros_like(distance)
    direct[bright] = light.strength * cosine[bright] * free
    if not light.distant:
        direct *= 1.5 / (0.5 + (distance / light.position[2]) ** 2)
    ambient = np.array(light.ambient)[:, None] * (_openness(scene, points, normals) * (0.75 + 0.25 * normals[2]))
    found = surfaces.colours * (direct + ambient)
    if len(glossy := np.flatnonzero(surfaces.gloss * direct)):
        half = unit[:, glossy] - ahead[:, glossy]
        shine = np.maximum(dot(half, normals[:, glossy]), 0) / np.maximum(np.sqrt(dot(half, half)), 1e-9)
        found[:, glossy] += surfaces.gloss[glossy] * shine**_SHININESS * direct[glossy]
    return np.asarray(found)


def _openness(scene: Scene, points: Array, normals: Array) -> Array:
    """The share of light from everywhere that reaches points N, with a ball in place of each body."""
    points, normals, found = points.astype(np.float32), normals.astype(np.float32), np.float32(1)
    for body in scene.bodies:
        away = np.array(body.position, dtype=np.float32)[:, None] - points
        square = dot(away, away)
        hidden = dot(away, normals) * np.float32(min(body.reach) ** 2) / (square * np.sqrt(square))
        found = found * (1 - np.clip(hidden, 0, 0.8))
    return np.asarray(found)

"""What rays from the camera of a scene meet first."""

from typing import NamedTuple

import numpy as np

from vitrail.data.render.camera import Array
from vitrail.data.render.scene import Scene

GROUND, WALLS, CEILING, SKY = -1, -2, -3, -4  # surfaces that are not bodies


class Hits(NamedTuple):
    """What rays meet: depth z N in metres (inf for the sky), and the surface N, a body's number or one below 0."""

    depth: Array
    surface: Array


def trace(scene: Scene, directions: Array) -> Hits:
    """What rays 3 N from the camera meet first."""
    origin = np.array(scene.camera.position)[:, None]
    depth, surface = np.full(directions.shape[1], np.inf), np.full(directions.shape[1], SKY, dtype=np.int16)
    if scene.room is not None:
        depth = scene.room.hit(origin, directions)
        normals = scene.room.normals(scene.room.local(origin + depth * directions))
        surface[:] = np.where(normals[2] > 0.5, GROUND, np.where(normals[2] < -0.5, CEILING, WALLS))
    else:
        down = directions[2] < -1e-9
        depth[down] = -origin[2] / directions[2, down]
        surface[down] = GROUND
    for number, body in enumerate(scene.bodies):
        found = body.hit(origin, directions)
        nearer = found < depth
        depth[nearer], surface[nearer] = found[nearer], number
    return Hits(depth, surface)

"""A pinhole camera above the ground."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Vector = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Camera:
    """Angles are in degrees; at 0 the camera looks along y. `focal` is in widths of the picture."""

    position: Vector = (0.0, 0.0, 1.5)
    yaw: float = 0.0  # to the left
    pitch: float = 0.0  # downwards
    roll: float = 0.0  # the picture turns clockwise
    focal: float = 1.0
    velocity: Vector = (0.0, 0.0, 0.0)  # metres per second
    yaw_rate: float = 0.0  # degrees per second

    def at(self, time: float) -> "Camera":
        """The camera after some seconds."""
        return replace(self, position=moved(self.position, self.velocity, time), yaw=self.yaw + time * self.yaw_rate)

    @property
    def rotation(self) -> Array:
        """From camera axes (right, down, ahead) to those of the world, 3 3."""
        pitch, roll = math.radians(self.pitch), math.radians(self.roll)
        upright = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])  # right, down, ahead -> x, y, z
        tilt = np.array(
            [[1, 0, 0], [0, math.cos(pitch), math.sin(pitch)], [0, -math.sin(pitch), math.cos(pitch)]]
        )  # about x
        turn = np.array([[math.cos(roll), math.sin(roll), 0], [-math.sin(roll), math.cos(roll), 0], [0, 0, 1]])
        return turned(self.yaw) @ tilt @ upright @ turn

    def rays(self, x: Array, y: Array, size: tuple[int, int]) -> Array:
        """World directions 3 N of pixels x, y N (the first pixel's centre is 0.5, 0.5) of a picture H W.

        They advance one metre along the optical axis, so that a distance in their unit is the depth z.
        """
        height, width = size
        scale = 1 / (self.focal * width)
        local = np.stack([(x - width / 2) * scale, (y - height / 2) * scale, np.ones_like(x)])
        return self.rotation @ local


def turned(yaw: float) -> Array:
    """The rotation about z by an angle in degrees, to the left, 3 3."""
    angle = math.radians(yaw)
    return np.array([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]])


def moved(position: Vector, velocity: Vector, time: float) -> Vector:
    """A position after some seconds."""
    x, y, z = (at + time * speed for at, speed in zip(position, velocity, strict=True))
    return x, y, z


def dot(one: Array, other: Array) -> Array:
    """Products of vectors 3 N (or 3 1) -> N; several times as fast as a sum over the first axis."""
    return np.asarray(np.einsum("ij,ij->j", one, other))

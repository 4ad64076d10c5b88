"""Boxes, balls, cylinders and rooms, and where rays meet them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from vitrail.data.render.camera import Array, Vector, dot, moved, turned
from vitrail.data.render.materials import Material

NEAREST = 1e-6  # in units of the ray: closer hits are those of the surface that it starts from


@dataclass(frozen=True, kw_only=True)
class Body(ABC):
    """A solid at a place; `reach` is half of its extent along its own axes."""

    label: str
    material: Material
    position: Vector  # of its centre
    reach: Vector
    yaw: float = 0.0  # degrees, to the left
    velocity: Vector = (0.0, 0.0, 0.0)  # metres per second
    spin: float = 0.0  # degrees per second

    def at(self, time: float) -> "Body":
        """The body after some seconds."""
        return replace(self, position=moved(self.position, self.velocity, time), yaw=self.yaw + time * self.spin)

    @property
    def rotation(self) -> Array:
        """From its own axes to those of the world, 3 3."""
        return turned(self.yaw)

    @property
    def radius(self) -> float:
        """Of the ball around it."""
        return float(np.linalg.norm(self.reach))

    def local(self, points: Array) -> Array:
        """Points of the world along its own axes, 3 N."""
        return np.asarray(self.rotation.T @ (points - np.array(self.position)[:, None]))

    def hit(self, origins: Array, directions: Array) -> Array:
        """How far along each ray the body is met, in lengths of its direction; inf where it is missed: 3 N -> N."""
        away = origins - np.array(self.position)[:, None]  # 3 N, or 3 1 for rays from one point
        along = dot(away, directions)
        length = dot(directions, directions)
        gap = dot(away, away) - self.radius**2
        near = np.flatnonzero((along * along >= gap * length) & ((along < 0) | (gap < 0)))
        found = np.full(directions.shape[1], np.inf)
        if len(near):
            start = self.rotation.T @ (away if away.shape[1] == 1 else away[:, near])
            found[near] = self.hit_local(start, self.rotation.T @ directions[:, near])
        return found

    @abstractmethod
    def hit_local(self, origins: Array, directions: Array) -> Array:
        """The same along its own axes, from its centre."""

    @abstractmethod
    def normals(self, local: Array) -> Array:
        """Of points on the surface along its own axes, 3 N."""

    def surface(self, local: Array, normals: Array) -> Array:
        """Coordinates for its texture in metres: 3 N -> 2 N."""
        return _facing(local, normals)


class Box(Body):
    """A cuboid."""

    def hit_local(self, origins: Array, directions: Array) -> Array:
        """By its three pairs of planes."""
        near, far = _slabs(origins, directions, self.reach)
        first, last = np.maximum(np.maximum(near[0], near[1]), near[2]), _least(far)
        return np.where((first <= last) & (first > NEAREST), first, np.inf)

    def normals(self, local: Array) -> Array:
        """Of the nearest face."""
        return _face_normals(local / np.array(self.reach)[:, None])


class Ball(Body):
    """A sphere of the radius `reach[0]`."""

    @property
    def radius(self) -> float:
        """Its own."""
        return self.reach[0]

    def hit_local(self, origins: Array, directions: Array) -> Array:
        """The smaller root of a quadratic."""
        a, b = dot(directions, directions), dot(origins, directions)
        root = np.sqrt(np.maximum(b * b - a * (dot(origins, origins) - self.radius**2), 0))
        first = (-b - root) / a
        return np.where(first > NEAREST, first, np.inf)  # rays that miss were left out by `hit`

    def normals(self, local: Array) -> Array:
        """Away from the centre."""
        return np.asarray(local / self.radius)

    def surface(self, local: Array, normals: Array) -> Array:
        """Longitude and latitude."""
        across = np.arctan2(local[1], local[0])
        return np.stack([across, np.arcsin(np.clip(local[2] / self.radius, -1, 1))]) * self.radius


@dataclass(frozen=True, kw_only=True)
class Cylinder(Body):
    """A circular cylinder of the radius `reach[0]`, `reach[2]` is half of its length; upright, or `lying`."""

    lying: bool = False

    @property
    def rotation(self) -> Array:
        """From its own axes to those of the world, 3 3."""
        upright = turned(self.yaw)
        return upright @ np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]]) if self.lying else upright

    @property
    def radius(self) -> float:
        """Of the ball around it."""
        return float(np.hypot(self.reach[0], self.reach[2]))

    def hit_local(self, origins: Array, directions: Array) -> Array:
        """The side, or the cap that faces the ray."""
        radius, half = self.reach[0], self.reach[2]
        (x, y, z), (dx, dy, dz) = origins, _nonzero(directions)
        a, b = dx * dx + dy * dy, x * dx + y * dy
        inner = b * b - a * (x * x + y * y - radius**2)
        side = (-b - np.sqrt(np.maximum(inner, 0))) / a
        side = np.where((inner >= 0) & (np.abs(z + side * dz) <= half) & (side > NEAREST), side, np.inf)
        cap = (np.where(dz < 0, half, -half) - z) / dz
        inside = (x + cap * dx) ** 2 + (y + cap * dy) ** 2 <= radius**2
        return np.minimum(side, np.where(inside & (cap > NEAREST), cap, np.inf))

    def normals(self, local: Array) -> Array:
        """Of the cap or the side, whichever is nearer."""
        outwards = np.hypot(local[0], local[1])
        top = np.abs(local[2]) - self.reach[2] > outwards - self.reach[0]
        side = np.stack([local[0], local[1], np.zeros_like(outwards)]) / np.maximum(outwards, 1e-12)
        cap = np.stack([np.zeros_like(outwards), np.zeros_like(outwards), np.sign(local[2])])
        return np.where(top, cap, side)

    def surface(self, local: Array, normals: Array) -> Array:
        """Around and along the side, across a cap."""
        side = np.stack([np.arctan2(local[1], local[0]) * self.reach[0], local[2]])
        return np.where(np.abs(normals[2]) > 0.5, local[:2], side)


@dataclass(frozen=True, kw_only=True)
class Room(Body):
    """A cuboid seen from the inside: walls and a ceiling; its floor is the ground."""

    ceiling: Material

    def hit_local(self, origins: Array, directions: Array) -> Array:
        """Where a ray leaves it."""
        return _least(_slabs(origins, directions, self.reach)[1])

    def normals(self, local: Array) -> Array:
        """Of the nearest face, inwards."""
        return -_face_normals(local / np.array(self.reach)[:, None])


def _facing(local: Array, normals: Array) -> Array:
    """The two coordinates across the face that a normal belongs to: 3 N -> 2 N."""
    size = np.abs(normals)
    flat = size[2] >= np.maximum(size[0], size[1])
    across = np.where(flat | (size[0] <= size[1]), local[0], local[1])
    return np.stack([across, np.where(flat, local[1], local[2])])


def _least(values: Array) -> Array:
    return np.minimum(np.minimum(values[0], values[1]), values[2])


def _slabs(origins: Array, directions: Array, reach: Vector) -> tuple[Array, Array]:
    """Where rays enter and leave the space between each pair of planes, 3 N each."""
    inverse, half = 1 / _nonzero(directions), np.array(reach)[:, None]
    one, other = (-half - origins) * inverse, (half - origins) * inverse
    return np.minimum(one, other), np.maximum(one, other)


def _face_normals(relative: Array) -> Array:
    """Of the face of a cube from -1 to 1 that points 3 N are on."""
    size, found = np.abs(relative), np.zeros_like(relative)
    axis, column = size.argmax(0), np.arange(relative.shape[1])
    found[axis, column] = np.sign(relative[axis, column])
    return found


def _nonzero(directions: Array) -> Array:
    return np.where(np.abs(directions) < 1e-12, 1e-12, directions)

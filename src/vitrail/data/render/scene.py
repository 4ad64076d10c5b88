"""A scene: camera, bodies, light; and scenes drawn at random."""

import math
from dataclasses import dataclass, replace

import numpy as np

from vitrail.data.render.bodies import Ball, Body, Box, Cylinder, Room
from vitrail.data.render.camera import Camera, Vector
from vitrail.data.render.materials import PATTERNS, Material, noise_tile

OBJECTS = ("ball", "box", "cylinder")  # labels of bodies that have boxes
WALL = "wall"  # the label of bodies that are none
MOST = 10  # objects of a scene
_TRIES = 12  # places that are tried for an object


@dataclass(frozen=True, kw_only=True)
class Light:
    """A lamp at `position`, or with `distant` a sun in that direction; `spread` softens shadows."""

    position: Vector
    distant: bool
    spread: float
    strength: float
    ambient: Vector  # light from everywhere, linear RGB


@dataclass(frozen=True, kw_only=True)
class Film:
    """What the camera does with light: mean brightness, gains of colours, noise and blur of pixels, darker corners."""

    exposure: float = 0.45
    gains: Vector = (1.0, 1.0, 1.0)
    noise: float = 0.0
    blur: float = 0.0
    vignette: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A camera over a ground z = 0 with bodies, in a room or under a sky; `seed` is that of noise."""

    camera: Camera
    bodies: tuple[Body, ...]
    ground: Material
    light: Light
    room: Room | None = None
    sky: tuple[Vector, Vector] = ((0.6, 0.7, 0.85), (0.2, 0.4, 0.8))  # at the horizon, above
    haze: float = 0.0  # per metre
    film: Film = Film()
    slope: float = 1.0  # of the noise of its textures
    seed: int = 0

    def at(self, time: float) -> "Scene":
        """The scene after some seconds; bodies pass through one another."""
        return replace(self, camera=self.camera.at(time), bodies=tuple(body.at(time) for body in self.bodies))

    @property
    def noise(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
        """The noise tile of its textures."""
        return noise_tile(self.seed, self.slope)


def draw_scene(*key: int) -> Scene:
    """A scene that follows from a key of numbers alone, such as a seed and an index.

    Lengths grow with a scale of 0.3 to 2 metres, drawn first (logarithmic): the camera is 0.5 to 1.8 scales high and
    looks 2 to 38 degrees down with a focal length of 0.7 to 1.4 widths; objects are 1 to 6 scales away. Six scenes of
    ten are rooms. The camera drives ahead and turns, and half of the objects on the ground move.
    """
    draw = _Draw(key)
    scale, indoors = draw.log(0.3, 2.0), draw.chance(0.6)
    camera = Camera(
        position=(0.0, 0.0, scale * draw.uniform(0.5, 1.8)),
        pitch=draw.uniform(2, 38), roll=draw.uniform(-3, 3), focal=draw.uniform(0.7, 1.4),
        velocity=(0.0, scale * draw.uniform(0, 0.6), 0.0), yaw_rate=draw.uniform(-8, 8),
    )  # fmt: skip
    room = draw.room(scale) if indoors else None
    bodies = draw.objects(scale, camera, room)
    if not indoors:
        bodies += draw.buildings(scale)
    return Scene(
        camera=camera,
        bodies=tuple(bodies),
        room=room,
        ground=draw.material(scale * draw.log(0.2, 1.0)),
        light=draw.light(scale, room),
        sky=draw.sky(),
        haze=0.0 if indoors else draw.uniform(0, 0.015) / scale,
        film=draw.film(),
        slope=draw.uniform(0.7, 1.5),
        seed=int(draw.random.integers(1 << 31)),
    )


class _Draw:
    """Random parts of a scene."""

    def __init__(self, key: tuple[int, ...]) -> None:
        self.random = np.random.default_rng(key)

    def uniform(self, low: float, high: float) -> float:
        return float(self.random.uniform(low, high))

    def log(self, low: float, high: float) -> float:
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def colour(self, pale: bool, vivid: float) -> Vector:
        """Linear RGB; most things are not very colourful."""
        grey = self.uniform(0.35, 0.8) if pale else self.log(0.05, 0.75)
        strength = vivid * self.uniform(0, 1) ** 1.5
        tint = self.random.dirichlet((1.0, 1.0, 1.0)) * 3
        red, green, blue = np.clip(grey * ((1 - strength) + strength * tint), 0.01, 0.95).tolist()
        return red, green, blue

    def material(self, period: float, pale: bool = False, vivid: float = 0.4) -> Material:
        first = self.colour(pale, vivid)
        other = np.clip(np.array(first) * self.log(0.4, 1.8), 0.01, 0.95).tolist()  # another shade of it
        second: Vector = self.colour(pale, vivid) if self.chance(0.4) else (other[0], other[1], other[2])
        return Material(
            colour=first, second=second, pattern=PATTERNS[int(self.random.integers(len(PATTERNS)))], period=period,
            angle=self.uniform(0, math.pi) if self.chance(0.3) else 0.0, shift=self.uniform(0, 1),
            grain=self.log(0.05, 0.6), gloss=self.uniform(0, 0.4) if self.chance(0.3) else 0.0,
        )  # fmt: skip

    def room(self, scale: float) -> Room:
        """Around the camera, turned by up to 35 degrees; nothing in it is nearer than a scale."""
        left, right, behind = (scale * self.uniform(1.6, 4.5) for _ in range(3))
        ahead, height, yaw = scale * self.uniform(3, 9), scale * self.uniform(2.2, 4), self.uniform(-35, 35)
        turn = math.radians(yaw)
        x, y = (right - left) / 2, (ahead - behind) / 2
        centre = (x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn), height / 2)
        reach = ((left + right) / 2, (ahead + behind) / 2, height / 2)
        material = self.material(scale * self.log(0.3, 1.5), pale=self.chance(0.6))
        ceiling = self.material(scale, pale=True)
        return Room(label=WALL, material=material, ceiling=ceiling, position=centre, reach=reach, yaw=yaw)

    def objects(self, scale: float, camera: Camera, room: Room | None) -> list[Body]:
        """On the ground, or on a box, where they overlap nothing."""
        placed: list[Body] = []
        for _ in range(int(self.random.integers(2, MOST + 1))):
            body = self.body(scale)
            below = [one for one in placed if isinstance(one, Box) and min(one.reach[:2]) > 0.7 * max(body.reach[:2])]
            if below and self.chance(0.4):
                under = below[-1]
                x, y, z = under.position
                rest = (x, y, z + under.reach[2] + body.position[2])
                if all(one.position[:2] != (x, y) or one is under for one in placed):
                    placed.append(replace(body, position=rest, velocity=under.velocity, spin=under.spin))
            elif (stood := self.stood(body, scale, camera, room, placed)) is not None:
                placed.append(stood)
        return placed

    def body(self, scale: float) -> Body:
        """Of a random kind, on the ground at x = y = 0."""
        kind, size, yaw = OBJECTS[int(self.random.integers(3))], scale * self.log(0.12, 0.6), self.uniform(0, 360)
        material = self.material(size * self.log(0.2, 1.2), vivid=1.0)
        long = size * self.log(0.6, 2.2)
        if kind == "ball":
            return Ball(label=kind, material=material, position=(0, 0, size), reach=(size, size, size), yaw=yaw)
        if kind == "box":
            reach = (size, size * self.log(0.4, 1.6), long)
            return Box(label=kind, material=material, position=(0, 0, long), reach=reach, yaw=yaw)
        lying = self.chance(0.3)
        rest = (0.0, 0.0, size if lying else long)
        return Cylinder(label=kind, material=material, position=rest, reach=(size, size, long), yaw=yaw, lying=lying)

    def stood(self, body: Body, scale: float, camera: Camera, room: Room | None, placed: list[Body]) -> Body | None:
        """At a free place that the camera sees; None if none was found."""
        widest = 0.6 / camera.focal
        for _ in range(_TRIES):
            y = scale * self.log(1.0, 6.0)
            x, free = y * self.uniform(-widest, widest), True
            if math.hypot(x, y) < body.radius + 0.5 * scale:
                continue
            if room is not None:
                inside = np.abs(room.local(np.array([[x], [y], [0.0]]))[:2, 0]) + body.radius
                free = bool((inside < room.reach[:2]).all()) and body.position[2] + body.radius < 2 * room.reach[2]
            if free and all(math.dist((x, y), one.position[:2]) > body.radius + one.radius for one in placed):
                drift = (scale * self.uniform(-0.4, 0.4), scale * self.uniform(-0.4, 0.4), 0.0)
                moves = self.chance(0.5)
                return replace(
                    body, position=(x, y, body.position[2]), velocity=drift if moves else (0.0, 0.0, 0.0),
                    spin=self.uniform(-40, 40) if moves else 0.0,
                )  # fmt: skip
        return None

    def buildings(self, scale: float) -> list[Body]:
        """Walls far away, behind all objects."""
        found: list[Body] = []
        for _ in range(int(self.random.integers(0, 4))):
            y, height = scale * self.uniform(12, 30), scale * self.uniform(1, 5)
            reach = (scale * self.uniform(1.5, 6), scale * self.uniform(0.5, 2.5), height)
            place = (y * self.uniform(-0.8, 0.8), y, height)
            material = self.material(scale * self.log(0.5, 2))
            found.append(Box(label=WALL, material=material, position=place, reach=reach, yaw=self.uniform(-40, 40)))
        return found

    def light(self, scale: float, room: Room | None) -> Light:
        warm = self.uniform(-0.12, 0.12)
        ambient = self.uniform(0.25, 0.6) * np.array([1 + warm, 1.0, 1 - warm])
        red, green, blue = ambient.tolist()
        if room is None:
            height, round_ = math.radians(self.uniform(20, 75)), self.uniform(0, 2 * math.pi)
            sun = (math.cos(height) * math.cos(round_), math.cos(height) * math.sin(round_), math.sin(height))
            strength = self.uniform(0.2, 1.4)
            return Light(position=sun, distant=True, spread=self.uniform(0.01, 0.12), strength=strength,
                         ambient=(red, green, blue))  # fmt: skip
        x, y = (self.uniform(-0.7, 0.7) * side for side in room.reach[:2])
        place = room.rotation @ np.array([x, y, 0.9 * room.reach[2]]) + np.array(room.position)
        spread, strength = scale * self.uniform(0.05, 0.5), self.uniform(0.4, 1.3)
        lamp = (float(place[0]), float(place[1]), float(place[2]))
        return Light(position=lamp, distant=False, spread=spread, strength=strength, ambient=(red, green, blue))

    def sky(self) -> tuple[Vector, Vector]:
        """Grey to blue, brighter at the horizon."""
        blue = self.uniform(0, 1)
        top = np.array([0.75 - 0.55 * blue, 0.8 - 0.4 * blue, 0.9 - 0.1 * blue]) * self.uniform(0.6, 1)
        low = 0.6 * top + 0.4 * self.uniform(0.7, 1)
        return (float(low[0]), float(low[1]), float(low[2])), (float(top[0]), float(top[1]), float(top[2]))

    def film(self) -> Film:
        red, blue = self.uniform(0.88, 1.12), self.uniform(0.88, 1.12)
        blur = self.uniform(0, 0.6) if self.chance(0.5) else 0.0
        return Film(exposure=self.uniform(0.36, 0.6), gains=(red, 1.0, blue), noise=self.log(0.003, 0.03), blur=blur,
                    vignette=self.uniform(0, 0.4))  # fmt: skip

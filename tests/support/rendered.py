"""Small scenes whose depth can be worked out by hand."""

from vitrail.data.render.bodies import Ball, Body
from vitrail.data.render.camera import Camera
from vitrail.data.render.materials import Material
from vitrail.data.render.scene import Light, Scene

GREY = Material(colour=(0.5, 0.5, 0.5), second=(0.2, 0.2, 0.2))
SUN = Light(position=(0.0, 0.0, 1.0), distant=True, spread=0.0, strength=1.0, ambient=(0.2, 0.2, 0.2))


def scene(*bodies: Body, camera: Camera | None = None, **options) -> Scene:
    """Bodies under a sky, lit from above."""
    camera = camera or Camera(position=(0.0, 0.0, 1.5))
    return Scene(camera=camera, bodies=bodies, ground=GREY, light=SUN, **options)


def ball(position, radius, **options) -> Ball:
    """A grey ball."""
    return Ball(label="ball", material=GREY, position=position, reach=(radius,) * 3, **options)

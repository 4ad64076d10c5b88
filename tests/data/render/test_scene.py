"""Scenes drawn at random: from their key alone, within the ranges that are stated, with bodies that overlap nothing."""

import math

import numpy as np
import pytest

from vitrail.data.render.bodies import Ball, Box, Cylinder
from vitrail.data.render.scene import MOST, OBJECTS, draw_scene

SCENES = [draw_scene(0, 0, index) for index in range(60)]


def test_a_scene_follows_from_its_key():
    assert draw_scene(0, 0, 7) == SCENES[7]
    assert draw_scene(1, 0, 7) != SCENES[7]
    assert draw_scene(0, 1, 7) != SCENES[7]


def test_cameras_are_within_their_ranges():
    for scene in SCENES:
        assert 0.15 <= scene.camera.position[2] <= 3.6
        assert 2 <= scene.camera.pitch <= 38
        assert 0.7 <= scene.camera.focal <= 1.4


def test_there_is_variety():
    bodies = [body for scene in SCENES for body in scene.bodies]
    assert {type(body) for body in bodies} == {Ball, Box, Cylinder}
    assert {body.label for body in bodies} == {*OBJECTS, "wall"}
    assert any(isinstance(body, Cylinder) and body.lying for body in bodies)
    assert 0.4 < np.mean([scene.room is not None for scene in SCENES]) < 0.8
    assert max(sum(body.label in OBJECTS for body in scene.bodies) for scene in SCENES) <= MOST


def test_objects_stand_on_something_and_apart():
    for scene in SCENES:
        objects = [body for body in scene.bodies if body.label in OBJECTS]
        for at, body in enumerate(objects):
            half = body.reach[0] if isinstance(body, Cylinder) and body.lying else body.reach[2]
            bottom = body.position[2] - half
            tops = [one.position[2] + one.reach[2] for one in objects if one.position[:2] == body.position[:2]]
            assert any(bottom == pytest.approx(height, abs=1e-9) for height in (0.0, *tops))
            for other in objects[:at]:
                apart = math.dist(body.position[:2], other.position[:2])
                assert apart == 0 or bottom > 0 or apart > 0.5 * min(body.radius, other.radius)
            if scene.room is not None:
                assert (np.abs(scene.room.local(np.array(body.position)[:, None])[:, 0]) < scene.room.reach).all()


def test_time_moves_camera_and_bodies():
    scene = next(scene for scene in SCENES if any(body.spin for body in scene.bodies))
    later = scene.at(0.5)
    assert later.camera == scene.camera.at(0.5) != scene.camera
    assert later.bodies == tuple(body.at(0.5) for body in scene.bodies) != scene.bodies
    assert (later.ground, later.light, later.seed) == (scene.ground, scene.light, scene.seed)
    assert scene.at(0.0) == scene

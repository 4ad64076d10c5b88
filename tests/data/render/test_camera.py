"""Rays of pixels, and the camera in motion."""

import numpy as np
import pytest

from vitrail.data.render.camera import Camera


def ray(camera, x, y, size=(48, 64)):
    return camera.rays(np.array([x]), np.array([y]), size)[:, 0]


def test_the_middle_of_the_picture_is_ahead():
    assert ray(Camera(), 32.0, 24.0) == pytest.approx([0, 1, 0])
    assert ray(Camera(yaw=90), 32.0, 24.0) == pytest.approx([-1, 0, 0])
    assert ray(Camera(pitch=90), 32.0, 24.0) == pytest.approx([0, 0, -1])


def test_right_and_down_by_the_focal_length():
    assert ray(Camera(focal=0.5), 64.0, 24.0) == pytest.approx([1, 1, 0])  # half a width at half a width
    assert ray(Camera(focal=0.5), 32.0, 48.0) == pytest.approx([0, 1, -0.75])
    assert ray(Camera(focal=0.5, roll=90), 64.0, 24.0) == pytest.approx([0, 1, 1])  # what is above comes to the right


def test_a_rotation_keeps_lengths_and_hands():
    rotation = Camera(yaw=20, pitch=30, roll=5).rotation
    assert rotation @ rotation.T == pytest.approx(np.eye(3))
    # right x down = ahead; in the world x x y = z
    assert np.linalg.det(rotation) == pytest.approx(1)


def test_it_moves_and_turns_with_time():
    camera = Camera(position=(0, 1, 2), velocity=(0, 3, 0), yaw=10, yaw_rate=-4).at(0.5)
    assert (camera.position, camera.yaw) == ((0, 2.5, 2), 8)

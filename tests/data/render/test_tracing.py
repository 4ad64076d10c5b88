"""What rays meet first."""

import numpy as np
import pytest
from support.rendered import GREY, ball, scene

from vitrail.data.render.bodies import Room
from vitrail.data.render.tracing import CEILING, GROUND, SKY, WALLS, trace

AHEAD = np.array([[0.0, 0, 0, 0.6], [1, 1, 1, 1], [0.0, -0.5, 0.2, 0]])


def test_a_ball_before_the_ground_before_the_sky():
    hits = trace(scene(ball((0, 5, 1.5), 1)), AHEAD)
    assert hits.surface.tolist() == [0, GROUND, 0, SKY]
    assert hits.depth[:2] == pytest.approx([4, 3])
    assert hits.depth[3] == np.inf


def test_the_nearer_of_two_in_any_order():
    near, far = ball((0, 5, 1.5), 1), ball((0, 9, 1.5), 1)
    assert trace(scene(near, far), AHEAD).surface[0] == 0
    assert trace(scene(far, near), AHEAD).surface[0] == 1


def test_a_room_has_a_floor_walls_and_a_ceiling():
    room = Room(label="wall", material=GREY, ceiling=GREY, position=(0, 0, 1.0), reach=(2, 4, 1))
    hits = trace(scene(room=room), AHEAD)
    assert hits.surface.tolist() == [WALLS, GROUND, CEILING, WALLS]
    assert hits.depth == pytest.approx([4, 3, 2.5, 10 / 3])

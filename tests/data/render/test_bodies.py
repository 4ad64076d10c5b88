"""Where rays meet bodies, by hand and against points sampled along rays."""

import numpy as np
import pytest
from support.rendered import GREY

from vitrail.data.render.bodies import Ball, Box, Cylinder, Room

INSIDE = {
    "box": lambda p, r: (np.abs(p) <= np.array(r)[:, None]).all(0),
    "ball": lambda p, r: (p * p).sum(0) <= r[0] ** 2,
    "cylinder": lambda p, r: (np.hypot(p[0], p[1]) <= r[0]) & (np.abs(p[2]) <= r[2]),
}
BODIES = [
    Box(label="box", material=GREY, position=(0.2, 3, 0.5), reach=(0.6, 0.3, 0.5), yaw=30),
    Ball(label="ball", material=GREY, position=(0.2, 3, 0.6), reach=(0.6, 0.6, 0.6), yaw=10),
    Cylinder(label="cylinder", material=GREY, position=(0.2, 3, 0.5), reach=(0.4, 0.4, 0.5)),
    Cylinder(label="cylinder", material=GREY, position=(0.2, 3, 0.4), reach=(0.4, 0.4, 0.7), yaw=50, lying=True),
]
NAMES = ["box", "ball", "cylinder", "lying"]


def rays(count=300):
    random = np.random.default_rng(0)
    return np.stack([random.uniform(-0.4, 0.5, count), np.ones(count), random.uniform(-0.6, 0.1, count)])


@pytest.mark.parametrize("body", BODIES, ids=NAMES)
def test_a_hit_is_where_a_ray_first_gets_inside(body):
    origin, ahead = np.array([[0.0], [0.0], [1.5]]), rays()
    found = body.hit(origin, ahead)
    steps = np.linspace(0, 5, 2001)
    points = origin[:, :, None] + ahead[:, :, None] * steps  # 3 N S
    inside = INSIDE[body.label](body.local(points.reshape(3, -1)), body.reach).reshape(len(found), -1)
    first = np.where(inside.any(1), steps[inside.argmax(1)], np.inf)
    hit = np.isfinite(first)
    assert 50 < hit.sum() < 280
    assert np.isfinite(found[hit]).all()
    assert np.abs(found[hit] - first[hit]).max() <= steps[1]
    assert (np.isfinite(found) & ~hit).sum() <= 3  # rays that only touch it are between the steps


@pytest.mark.parametrize("body", BODIES, ids=NAMES)
def test_hits_are_on_the_surface_and_normals_point_at_the_viewer(body):
    origin, ahead = np.array([[0.0], [0.0], [1.5]]), rays()
    found = body.hit(origin, ahead)
    ahead, found = ahead[:, np.isfinite(found)], found[np.isfinite(found)]
    local = body.local(origin + found * ahead)
    normals = body.normals(local)
    assert np.linalg.norm(normals, axis=0) == pytest.approx(1)
    assert ((body.rotation @ normals) * ahead).sum(0).max() < 1e-9
    assert body.surface(local, normals).shape == (2, len(found))
    assert not INSIDE[body.label](local + 1e-6 * normals, body.reach).any()
    assert INSIDE[body.label](local - 1e-6 * normals, body.reach).all()


def test_what_lies_behind_is_not_met():
    assert np.isinf(BODIES[0].hit(np.array([[0.0], [6.0], [0.5]]), np.array([[0.0], [1.0], [0.0]]))).all()


def test_a_room_is_met_from_the_inside():
    room = Room(label="wall", material=GREY, ceiling=GREY, position=(0, 0, 1.5), reach=(2, 4, 1.5))
    ahead = np.array([[0.0, 1, 0, 0], [1.0, 0, 0, 0], [0.0, 0, 1, -1]])
    origin = np.array([[0.5], [1.0], [1.0]])
    found = room.hit(origin, ahead)
    assert found == pytest.approx([3, 1.5, 2, 1])
    assert room.normals(room.local(origin + found * ahead)) == pytest.approx(-ahead)


def test_bodies_move_and_spin_with_time():
    body = Ball(label="ball", material=GREY, position=(0, 1, 2), reach=(1, 1, 1), velocity=(1, 0, -1), spin=90).at(2)
    assert (body.position, body.yaw) == ((2, 1, 0), 180)

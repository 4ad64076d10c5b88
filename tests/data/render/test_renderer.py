"""Exact depth, masks and boxes; colour that follows from the scene."""

import numpy as np
import pytest
from support.rendered import GREY, ball, scene

from vitrail.data.render.bodies import Box, Cylinder
from vitrail.data.render.camera import Camera
from vitrail.data.render.renderer import CLASSES, FAR, render_image, render_truth
from vitrail.data.render.scene import draw_scene

SIZE = (48, 64)


def test_depth_of_the_ground_is_that_of_a_plane():
    camera = Camera(position=(0, 0, 1.5), focal=0.8)
    depth = render_truth(scene(camera=camera), SIZE).depth
    rows = np.arange(SIZE[0]) + 0.5
    expected = 1.5 * 0.8 * SIZE[1] / (rows - 24)
    expected[(rows < 24) | (expected > FAR)] = 0
    assert np.abs(depth - expected[:, None]).max() < 1e-4
    assert (depth[:24] == 0).all()  # the sky


def test_depth_of_a_tilted_camera():
    camera = Camera(position=(0, 0, 2.0), pitch=30)
    depth = render_truth(scene(camera=camera), SIZE).depth
    slope = (np.arange(SIZE[0]) + 0.5 - 24) / SIZE[1]
    expected = 2.0 / (np.sin(np.radians(30)) + slope * np.cos(np.radians(30)))
    assert np.abs(depth - expected[:, None]).max() < 1e-4


def test_depth_of_a_ball_is_along_the_axis():
    centre, radius = np.array([0.4, 4.0, 1.8]), 0.9
    truth = render_truth(scene(ball(tuple(centre), radius)), SIZE)
    y, x = np.nonzero(truth.objects == 0)
    assert len(y) > 300
    ahead = np.stack([(x + 0.5 - 32) / 64, np.ones(len(x)), (24 - y - 0.5) / 64])
    centre = centre - [0, 0, 1.5]
    along, square = centre @ ahead, (ahead * ahead).sum(0)
    expected = (along - np.sqrt(along**2 - square * (centre @ centre - radius**2))) / square
    assert np.abs(truth.depth[y, x] - expected).max() < 1e-4
    assert truth.depth[y, x].min() == pytest.approx(3.1, abs=0.02)


def test_time_moves_what_is_seen():
    made = scene(ball((0, 6, 1.5), 1, velocity=(0, -2, 0)), camera=Camera(position=(0, 0, 1.5), velocity=(0, 1, 0)))
    size = (9, 9)
    assert render_truth(made.at(0.0), size).depth[4, 4] == pytest.approx(5)
    assert render_truth(made.at(1.0), size).depth[4, 4] == pytest.approx(2)  # 2 m towards, 1 m driven


@pytest.mark.parametrize("index", range(6))
def test_boxes_are_tight_around_the_pixels_of_the_mask(index):
    made = draw_scene(0, 0, index)
    truth = render_truth(made, SIZE)
    boxes = truth.boxes(made)
    names = [body.label for body in made.bodies]
    assert [label for _, label, _ in boxes] == [names[number] for number in np.unique(truth.objects) if number >= 0]
    for number, ((x1, y1, x2, y2), label, area) in zip(
        [n for n in np.unique(truth.objects) if n >= 0], boxes, strict=True
    ):
        seen = truth.objects == number
        assert (truth.mask[seen] == CLASSES.index(label)).all()
        assert seen.sum() == seen[y1:y2, x1:x2].sum() == area
        for edge in (seen[y1, x1:x2], seen[y2 - 1, x1:x2], seen[y1:y2, x1], seen[y1:y2, x2 - 1]):
            assert edge.any()
    things = np.isin(truth.mask, [CLASSES.index(name) for name in ("ball", "box", "cylinder")])
    assert np.array_equal(things, truth.objects >= 0)
    assert (truth.depth[truth.mask == CLASSES.index("sky")] == 0).all()


def test_depth_jumps_at_the_edges_of_objects_and_nowhere_else():
    # In the air before a far wall: its outline is where depth jumps.
    bodies = (
        Cylinder(label="cylinder", material=GREY, position=(-0.8, 4, 1.5), reach=(0.4, 0.4, 0.6)),
        Box(label="box", material=GREY, position=(0.9, 4, 1.5), reach=(0.5, 0.5, 0.5), yaw=20),
        Box(label="wall", material=GREY, position=(0, 12, 0), reach=(50, 0.5, 50)),
    )
    truth = render_truth(scene(*bodies, camera=Camera(position=(0, 0, 1.5), focal=0.9)), (40, 96))
    jumps = np.abs(np.diff(truth.depth, axis=1)) > 2
    assert np.array_equal(jumps, np.diff(truth.objects, axis=1) != 0)
    assert jumps.any(0).sum() >= 4


def test_a_wall_is_no_object():
    wall = Box(label="wall", material=GREY, position=(0, 5, 1), reach=(2, 0.5, 1))
    truth = render_truth(scene(wall), SIZE)
    assert truth.boxes(scene(wall)) == []
    assert (truth.mask == CLASSES.index("wall")).any()


def test_the_same_scene_has_the_same_bytes_and_another_has_others():
    images = [render_image(draw_scene(0, 0, index), (24, 32)) for index in (3, 3, 4)]
    assert images[0].shape == (24, 32, 3)
    assert images[0].dtype == np.uint8
    assert images[0].tobytes() == images[1].tobytes() != images[2].tobytes()


def test_pictures_have_contrast():
    for index in range(5):
        image = render_image(draw_scene(0, 0, index), (32, 32)).astype(float)
        assert 50 < image.mean() < 180
        assert image.std() > 12


def test_edges_are_smooth():
    """A pixel that is partly covered has a colour between those of both."""
    wall = Box(label="wall", material=GREY, position=(0, 5, 1), reach=(2, 0.5, 20))
    made = scene(wall, camera=Camera(position=(0, 0, 1.5), roll=10), sky=((1, 1, 1), (1, 1, 1)))
    levels = np.unique(render_image(made, (32, 32))[:12].mean(2))
    assert len(levels) > 3

"""Scenes by number: names that lead back to them."""

from pathlib import Path

import numpy as np
import pytest

from vitrail.data.render.numbered import SceneNumber, truth, truth_of
from vitrail.data.render.renderer import render_image, render_truth
from vitrail.data.render.scene import draw_scene

NUMBER = SceneNumber(0, 1, 5, 16, 24)


def test_a_path_leads_to_what_is_known_of_the_scene():
    found = truth_of(NUMBER.path)
    expected = render_truth(draw_scene(0, 1, 5), (16, 24))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert truth(NUMBER) is found  # kept for the next target of the same image


def test_files_are_not_scenes(tmp_path):
    assert truth_of(tmp_path / "1.png") is None
    assert truth_of(tmp_path / NUMBER.path.name) is None
    assert truth_of(NUMBER.path.with_name("room.scene")) is None
    assert truth_of(Path("0-1-5-16x24.scene")) is None


def test_pictures_are_those_of_this_version():
    """If these numbers change, so did the pictures: raise VERSION, so that packed ones are rendered again."""
    scene = SceneNumber(0, 0, 1, 24, 24).scene
    image, known = render_image(scene, (24, 24)), render_truth(scene, (24, 24))
    assert image.mean((0, 1)) == pytest.approx([133.3, 119.5, 127.5], abs=0.5)
    assert known.depth.mean() == pytest.approx(3.0632, abs=1e-3)

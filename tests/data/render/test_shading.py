"""Light: by the angle, in shadows, with highlights and haze."""

from dataclasses import replace

import numpy as np
import pytest
from support.rendered import GREY, SUN, ball, scene

from vitrail.data.render.materials import noise_tile
from vitrail.data.render.shading import shade

NOISE = noise_tile(0, 1.0)
PLAIN = replace(GREY, grain=0.0)


def light(made, *rays):
    return shade(made, np.array(rays, dtype=float).T, np.zeros(3), NOISE, 64)


def test_the_ground_has_the_cosine_of_the_sun_and_light_from_everywhere():
    slanted = replace(SUN, position=(0.0, 0.6, 0.8))
    made = replace(scene(), ground=PLAIN)
    assert light(made, (0, 1, -0.5))[:, 0] == pytest.approx(0.5 * (1.0 + 0.2))
    assert light(replace(made, light=slanted), (0, 1, -0.5))[:, 0] == pytest.approx(0.5 * (0.8 + 0.2))


def test_a_shadow_below_a_ball_and_none_beside_it():
    made = replace(scene(ball((0, 3, 2.5), 0.5)), ground=PLAIN)
    below, beside = light(made, (0, 1, -0.5), (0.5, 1, -0.5)).T
    assert below.max() < 0.1 + 1e-9  # ambient alone
    assert beside.min() > 0.55


def test_a_lamp_casts_a_shadow_only_of_what_is_between():
    lamp = replace(SUN, position=(0.0, 3.0, 2.0), distant=False)
    made = replace(scene(ball((0, 3, 2.6), 0.4)), ground=PLAIN, light=lamp)  # above the lamp
    assert light(made, (0, 1, -0.5)).min() > 0.3
    made = replace(scene(ball((0, 3, 1.0), 0.4)), ground=PLAIN, light=lamp)
    assert light(made, (0, 1, -0.5)).max() < 0.1 + 1e-9


def test_gloss_and_haze():
    mirror = replace(SUN, position=(0.0, 0.8944, 0.4472))  # where the ray to the ground is reflected to
    made = replace(scene(), ground=PLAIN, light=mirror)
    shiny = replace(made, ground=replace(PLAIN, gloss=0.5))
    assert light(shiny, (0, 1, -0.5)).mean() > light(made, (0, 1, -0.5)).mean() + 0.2
    hazy = replace(made, haze=10.0)
    assert light(hazy, (0, 1, -0.5))[:, 0] == pytest.approx(np.array(made.sky[0]))


def test_the_sky_is_brighter_at_the_horizon_or_as_given():
    made = scene()
    assert light(made, (0, 1, 1e-9))[:, 0] == pytest.approx(made.sky[0], abs=1e-3)
    assert light(made, (0, 1e-6, 1))[:, 0] == pytest.approx(made.sky[1])

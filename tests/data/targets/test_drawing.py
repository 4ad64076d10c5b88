"""Colours and outlines of what is drawn on pictures."""

import torch

from vitrail.data.targets.drawing import class_colour, draw_boxes, draw_classes, draw_depth, legend


def test_classes_have_colours_that_are_told_apart():
    colours = torch.tensor([class_colour(number) for number in range(16)]).float()
    assert float((torch.cdist(colours, colours) + 1000 * torch.eye(16)).min()) > 70
    assert len({class_colour(number) for number in range(40)}) == 40


def test_nothing_is_drawn_outside_of_boxes():
    image = torch.zeros(3, 30, 30, dtype=torch.uint8)
    drawn = draw_boxes(image, torch.tensor([[4.0, 5.0, 20.0, 25.0]]), ["a"], [(255, 0, 0)])
    assert drawn[0, 5, 4] == 255
    assert drawn[0, 24, 19] == 255
    assert not drawn[:, :5].any()
    assert not drawn[:, :, 20:].any()
    assert not image.any()


def test_grey_images_stay_grey():
    image = torch.zeros(1, 4, 4, dtype=torch.uint8)
    assert draw_classes(image, torch.zeros(4, 4, dtype=torch.uint8), 255).shape == (1, 4, 4)
    assert draw_depth(image, torch.ones(4, 4)).shape == (1, 4, 4)
    assert draw_depth(image, torch.zeros(4, 4)) is image


def test_a_legend_breaks_its_lines():
    one, many = legend(["a"]), legend([f"class {number}" for number in range(30)])
    assert one.shape == (3, 26, 480)
    assert many.shape[1] > 100
    assert tuple(many[:, 10, 10].tolist()) == class_colour(0)

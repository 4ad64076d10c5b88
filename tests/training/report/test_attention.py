"""Attention in a report: examples beside their map, or the reason why there is none."""

import torch
from support.registered import tiny

from vitrail.errors import Unsupported
from vitrail.tasks.answer import Answer, Bar, Example
from vitrail.training.report import attention
from vitrail.training.report.attention import attention_section


class Said(Answer):
    """An answer of one label."""

    kind = "classes"

    def to_json(self):
        return {}

    def text(self):
        return "cat"

    def row(self):
        return {}

    def bars(self):
        return [Bar("cat", "90 %", 0.9, chosen=True)]


def examples(count: int = 3):
    size = tiny().config.image_size
    images = torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8)
    return [Example(image, f"{index}.png", "cat", Said(), 0.0) for index, image in enumerate(images)]


def preprocess(images):
    return images.float() / 255


def test_each_example_stands_beside_its_map():
    section = attention_section(tiny(num_classes=3), examples(), preprocess=preprocess)
    assert section.kind == "gallery"
    assert [len(shot.images) for shot in section.shots] == [2, 2, 2]
    assert section.shots[1].lines[0].text == "cat"
    assert section.text
    assert attention_section(tiny(), (), preprocess=preprocess) is None


def test_no_attention_has_a_reason(monkeypatch):
    def refuse(model, images, target):
        raise Unsupported("no patch changes anything")

    monkeypatch.setattr(attention, "heat_map", refuse)
    section = attention_section(tiny(num_classes=3), examples(), preprocess=preprocess)
    assert section.text == "No patch changes anything."

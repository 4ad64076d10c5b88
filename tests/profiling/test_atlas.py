"""The page of all families agrees with the registry."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from vitrail.models.registry import FAMILIES
from vitrail.profiling.atlas import diagram, page, section

DOCS = Path(__file__).parents[2] / "docs"
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def test_page_is_that_of_the_registry():
    assert (DOCS / "models.md").read_text() == page(), "vitrail models --page docs"


@every_family
def test_picture_is_that_of_the_registry(family):
    assert (DOCS / "images" / "models" / f"{family.name}.svg").read_text() == diagram(family), (
        "vitrail models --page docs"
    )


def test_a_picture_has_a_box_for_each_stage():
    root = ET.fromstring(diagram(FAMILIES["swin"]))
    boxes = [element for element in root if element.tag.endswith("rect")]
    assert len(boxes) == 4
    heights = [float(box.attrib["height"]) for box in boxes]
    assert heights == sorted(heights, reverse=True)
    words = " ".join(element.text or "" for element in root if element.tag.endswith("text"))
    assert "56 x 56 x 96" in words
    assert "6 x Block" in words


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("levit", ("2 x LeViTBlock", "7 x 7 x 256", "4 x LeViTBlock")),  # its levels hold what leads to the next, too
        ("efficientnet", ("14 x 14 x 112", "6 x InvertedResidual", "7 x 7 x 320")),  # seven groups make five levels
    ],
)
def test_a_picture_shows_width_and_blocks_of_each_level(family, words):
    assert [word for word in words if word not in diagram(FAMILIES[family])] == []


def test_section_reads_like_a_page():
    text = section(FAMILIES["deit"])
    assert text.startswith("## deit\n")
    assert text.count("\n| deit_") == 3

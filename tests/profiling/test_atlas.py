"""The page of all families says what the registry says."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from vitrail.models.registry import FAMILIES, presets
from vitrail.profiling.atlas import picture, section
from vitrail.profiling.count import cost

DOCS = Path(__file__).parents[2] / "docs"
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


@every_family
def test_page_and_picture_are_those_of_the_registry(family):
    page = (DOCS / "models.md").read_text()
    name = next(iter(family.presets))
    assert family.idea in page
    assert family.use in page
    assert (DOCS / "images" / "models" / f"{family.name}.svg").read_text() == picture(family), "vitrail models --page"
    told = re.search(rf"\| {name} \| \S+ x \S+ \| (\S+) M \| (\S+) G", page)
    parameters, macs = cost(name)
    assert told is not None
    assert (told[1], told[2]) == (f"{parameters / 1e6:.2f}", f"{macs / 1e9:.2f}")


def test_page_names_every_model():
    listed = re.findall(r"^\| (\w+) \|", (DOCS / "models.md").read_text(), flags=re.MULTILINE)
    assert [name for name in listed if name != "model"] == list(presets())


def test_a_picture_has_a_box_for_each_stage():
    root = ET.fromstring(picture(FAMILIES["swin"]))
    boxes = [element for element in root if element.tag.endswith("rect")]
    assert len(boxes) == 4
    heights = [float(box.attrib["height"]) for box in boxes]
    assert heights == sorted(heights, reverse=True)
    words = " ".join(element.text or "" for element in root if element.tag.endswith("text"))
    assert "56 x 56 x 96" in words
    assert "6 x Block" in words


def test_section_reads_like_a_page():
    text = section(FAMILIES["deit"])
    assert text.startswith("## deit\n")
    assert text.count("\n| deit_") == 3

"""Faults of annotations in the doctor's report: counted, named, with what to do."""

import numpy as np
import pytest
from PIL import Image
from support.annotated import SIZE, coco_annotation, coco_file, masks, picture, voc, voc_file, voc_object, yolo

from vitrail.data.audit.annotation_faults import fault_sections, misfit_problem
from vitrail.data.audit.doctor import examine
from vitrail.data.findings import NO_FINDINGS, Finding, Findings
from vitrail.report import Report


def look(folder):
    report = examine(folder, image_size=(32, 32))
    return str(report), report["Advice"].text


def test_nothing_is_shown_of_healthy_annotations():
    advice = []
    assert fault_sections(NO_FINDINGS, [], advice) == []
    assert advice == []


def test_each_kind_is_counted_and_all_are_shown():
    many = tuple(Finding("a.txt", f"line {number}", "one kind", "wrong") for number in range(200))
    odd, advice = Finding("b.txt", "", "other", "odd", serious=False), []
    counts, rows = fault_sections(Findings((*many, odd), 5000), [("c.png", "too small")], advice)
    assert [row["count"] for row in counts.rows] == [200, 1, 1]
    assert [row["file"] for row in rows.rows[-2:]] == ["b.txt", "c.png"]
    assert (rows.title, len(rows.rows)) == ("Faults", 202)
    assert "200 of 5,000; training would stop" in advice[1]


def test_a_very_long_list_is_cut():
    many = tuple(Finding("a.txt", f"line {number}", "one kind", "wrong") for number in range(3000))
    _, rows = fault_sections(Findings(many, 5000), [], [])
    assert (rows.title, len(rows.rows)) == ("Faults, the first 1000 of each kind", 1000)


CASES = {
    "outside": (voc_object("cell", (50, 3, 60, 9)), "outside"),
    "zero area": (voc_object("cell", (9, 3, 8, 9)), "no area"),
    "duplicate": (voc_object("cell", (2, 3, 9, 9)) * 2, "twice"),
    "partly outside": (voc_object("cell", (2, 3, 90, 9)), "reaches outside"),
}


@pytest.mark.parametrize("case", CASES)
def test_boxes(tmp_path, case):
    objects, words = CASES[case]
    voc(tmp_path, 6)
    voc_file(tmp_path / "Annotations" / "1.xml", "1.png", objects)
    text, advice = look(tmp_path)
    assert words in " ".join(text.split())
    assert "1.xml" in text
    assert "line" in text
    assert ("would stop" in advice) == (case in ("outside", "zero area"))


def test_unknown_categories_and_images_without_annotations(tmp_path):
    yolo(tmp_path, {"train1": "7 0.5 0.5 0.1 0.1\n", "train2": ""})
    text, advice = look(tmp_path)
    assert "Unknown categories" in text
    assert "train1.txt" in text
    assert "Images without annotations" in text
    assert "Annotations that cannot be used: 1 of" in advice


def test_annotations_without_an_image(tmp_path):
    for number in range(3):
        picture(tmp_path / f"{number}.png")
    boxes = [coco_annotation(number, number, (1, 1, 5, 5 + number)) for number in range(3)]
    boxes.append(coco_annotation(9, 77, (1, 1, 5, 5)))
    coco_file(tmp_path / "all.json", [f"{number}.png" for number in range(3)], boxes)
    text, _ = look(tmp_path)
    assert "annotation 9" in text
    assert "77" in text


def test_masks_of_another_size_and_with_unknown_values(tmp_path):
    masks(tmp_path, count=8)
    (tmp_path / "classes.txt").write_text("road\ncar\nsky\n")
    Image.fromarray(np.zeros((5, 6), np.uint8)).save(tmp_path / "masks" / "3.png")
    pixels = np.zeros(SIZE[::-1], np.uint8)
    pixels[0, 0] = 9
    Image.fromarray(pixels).save(tmp_path / "masks" / "4.png")
    text, advice = look(tmp_path)
    for words in ("masks/3.png", "6 x 5", "masks/4.png", "value 9", "Pixels per class"):
        assert words in text
    assert "2 of 8; training would stop" in advice


def test_boxes_that_do_not_fit_the_image_as_it_is(tmp_path):
    """The annotation tells of another size than the image has."""
    voc(tmp_path, 6)
    voc_file(tmp_path / "Annotations" / "1.xml", "1.png", voc_object("cell", (2, 3, 390, 290)), size=(400, 300))
    text, advice = look(tmp_path)
    assert "do not fit their image: 1" in advice
    assert "390 x 290" in text


def test_an_audit_ends_with_an_error_where_values_do_not_fit(tmp_path):
    masks(tmp_path)
    assert misfit_problem(examine(tmp_path, image_size=(32, 32))) is None
    about = Report("", tuple(fault_sections(NO_FINDINGS, [("c.png", "too small"), ("d.png", "damaged")], [])))
    assert ": 2, such as d.png: damaged" in misfit_problem(about)

"""Faults in annotations: counted, named, and a limit to them."""

from vitrail.data.findings import Finding, Findings

ZERO = Finding("a.xml", "line 3", "Boxes without area, left out", "the box has no area")
TWICE = Finding("a.xml", "", "Duplicate boxes", "twice", serious=False)


def test_a_finding_is_one_line():
    assert str(ZERO) == "a.xml, line 3: the box has no area"
    assert str(TWICE) == "a.xml: twice"


def test_each_kind_is_one_note():
    notes = list(Findings((ZERO, TWICE, ZERO), 10).notes())
    assert notes[0] == "Boxes without area, left out: 2, such as a.xml, line 3: the box has no area."
    assert len(notes) == 2


def test_more_than_one_in_a_hundred_serious_ones_stop_training():
    assert Findings((ZERO,), 100).refusal() is None
    assert Findings((TWICE,) * 50, 100).refusal() is None
    text = Findings((ZERO,) * 7, 100).refusal()
    assert text.startswith("7 of 100 annotations")
    assert "2 more" in text
    assert "a.xml, line 3" in text


def test_an_audit_ends_with_what_training_leaves_out() -> None:
    assert Findings((TWICE,) * 5, 100).problem() is None
    assert Findings().problem() is None
    text = Findings((ZERO, TWICE), 1000).problem()
    assert text is not None
    assert "1 of 1,000" in text
    assert str(ZERO) in text
    assert "leaves" in text
    assert Findings((ZERO,) * 7, 100).problem() == Findings((ZERO,) * 7, 100).refusal()

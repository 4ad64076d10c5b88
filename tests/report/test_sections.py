"""Sections: plain data that keep every value, alone and in groups."""

import json

import pytest

from vitrail.errors import ConfigError
from vitrail.report import Code, Facts, Figure, Gallery, Group, Line, Matrix, Picture, Shot, Table, Text
from vitrail.report.sections import KINDS, from_data, result_facts, skipped_table, to_data, walk

PNG = "data:image/png;base64,iVBORw0KGgo="
ALL = (
    Facts("Totals", {"MACs": 10}, {"MACs": "si"}),
    Table("Rows", {"name": "", "part": "share"}, [{"name": "a", "part": 0.5}], bars=True, fold_after=3),
    Text("Notes", "- one\n- two\nthree", folded=True),
    Code("Command", "vitrail train photos/"),
    Picture("Map", PNG, "what it shows", legend=("a", "b")),
    Matrix("Confusion", ["a", "b"], ["a", "b"], [[5, 1], [0, 7]]),
    Gallery("Mistakes", "text", (Shot((PNG, PNG), (Line("dog", "bad"), Line("x.png", "soft")), "a dog"),)),
    Group("Both", (Text("", "inside"), Group("Inner", (Text("Deep", "x"),), 3)), 2),
)


def test_every_kind_is_restored_from_json():
    assert {section.kind for section in ALL} == set(KINDS)
    for section in ALL:
        assert from_data(json.loads(json.dumps(to_data(section)))) == section


def test_groups_are_walked():
    assert [section.title for section in walk(ALL[-1:])] == ["Both", "", "Inner", "Deep"]


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="'table'"):
        from_data({"kind": "tables", "title": "x"})


def test_a_matrix_has_a_count_for_each_pair():
    with pytest.raises(ConfigError, match="2 x 1"):
        Matrix("Confusion", ["a", "b"], ["a"], [[1]])
    assert not Matrix("", ["a"], ["b"], [[1]]).square


def test_lines_of_a_list_stay_together():
    assert Text("", "one\n- two\n- three\n\nfour").blocks() == [["one"], ["- two", "- three"], ["four"]]


def test_columns_of_numbers_may_have_gaps():
    table = Table("", {"a": "", "b": "", "c": ""}, [{"a": 1, "b": "x", "c": None}, {"a": None, "b": 2, "c": None}])
    assert table.right() == [True, False, False]


def test_results_have_the_ends_of_their_intervals():
    found = result_facts({"a": Figure(0.5, "accuracy", "share", "", (0.4, 0.6)), "b": Figure(2.0, "NLL")})
    assert found.values == {"accuracy": 0.5, "accuracy, 95 % low": 0.4, "accuracy, 95 % high": 0.6, "NLL": 2.0}
    assert dict(found.shown())["accuracy, 95 % high"] == "60.0 %"


def test_the_reason_does_not_repeat_the_name():
    table = skipped_table("Broken", [("a/b.jpg", "a/b.jpg is empty"), ("c.jpg", "no picture")])
    assert [(row["image"], row["reason"]) for row in table.rows] == [("a/b.jpg", "is empty"), ("c.jpg", "no picture")]

"""The answer of a classifier: candidates in order, as text, JSON, row and bars."""

import pytest
from support.registered import tiny

from vitrail.errors import ConfigError
from vitrail.tasks.classify.class_answer import COLUMNS, ClassAnswer, check_head

NAMES = ("ant", "bee", "cat", "dog")


def test_what_is_chosen_is_named_beyond_the_first():
    answer = ClassAnswer.of(NAMES, [0.2, 0.5, 0.3, 0.1], [False, False, False, True], top=2, exclusive=False)
    assert [one.number for one in answer.candidates] == [1, 2, 3]
    assert answer.text() == "dog 10.0 %; not bee 50.0 %, cat 30.0 %"
    assert answer.to_json()["answers"][0] == {"label": "bee", "index": 1, "probability": 0.5, "chosen": False}


def test_one_class_that_a_goal_decided_for_comes_before_likelier_ones():
    answer = ClassAnswer.of(NAMES, [0.2, 0.5, 0.3, 0.1], [False, False, False, True], top=2)
    assert [one.number for one in answer.candidates] == [3, 1]
    assert answer.row()["label"] == answer.row()["chosen"] == "dog"


def test_a_row_and_bars():
    answer = ClassAnswer.of(NAMES, [0.2, 0.5, 0.3, 0.1], [True, True, False, False], top=3)
    row = answer.row()
    assert tuple(row) == COLUMNS
    assert (row["label"], row["probability"], row["chosen"]) == ("bee", 0.5, "bee|ant")
    assert [(bar.label, bar.share, bar.chosen) for bar in answer.bars()] == [
        ("bee", 0.5, True),
        ("cat", 0.3, False),
        ("ant", 0.2, True),
    ]
    assert ClassAnswer.of(NAMES, [0.2, 0.1, 0.1, 0.1], [False] * 4, top=1).row()["chosen"] is None


def test_a_head_of_another_width_is_refused():
    with pytest.raises(ConfigError, match=r"reset_head\(4\)"):
        check_head(tiny(num_classes=5), NAMES)

"""A sentence."""

from vitrail.advice.sentence import Sentence


def test_a_sentence_has_no_rows_and_is_inside_unless_said() -> None:
    assert (Sentence("It is so.").rows, Sentence("It is so.").outside) == ((), False)

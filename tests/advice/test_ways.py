"""The data as words of a command."""

from support.advised import facts

from vitrail.advice.ways import data_words


def test_data_and_labels_are_quoted() -> None:
    assert data_words(facts(source="my photos"), ()) == "'my photos'"
    assert data_words(facts(), ("a", "b c")) == "photos --label 'a,b c'"

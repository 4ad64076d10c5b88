"""Progress of long work."""

from vitrail.explain.progress import Counter


def test_parts_are_counted_and_named() -> None:
    reported: list[tuple[str, int, int]] = []
    counter = Counter(lambda *report: reported.append(report), 2)
    counter.begin("maps")
    counter.advance()
    counter.begin("scores")
    counter.advance()
    counter.advance()
    assert reported == [("maps", 0, 2), ("maps", 1, 2), ("scores", 1, 2), ("scores", 2, 2), ("scores", 2, 2)]
    Counter().advance()  # without a bar

"""Sections in a terminal: whole numbers in any width, captions of galleries, counts of a matrix."""

from rich.console import Console

from vitrail.report import Code, Gallery, Group, Line, Matrix, Picture, Report, Shot, Table, Text

TABLE = Table("Layers", {"layer": "path", "size": "", "note": ""}, [{"layer": "a.b", "size": 5_338_368, "note": "x y"}])


def lines(*sections) -> list[str]:
    return str(Report("title", sections)).splitlines()


def test_no_number_is_cut_off_in_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    Report("title", (TABLE,)).print()
    assert "5,338,368" in capsys.readouterr().out


def test_text_is_wrapped_between_words_and_no_letter_is_lost(monkeypatch, capsys):
    intervals = {f"metric {index}": f"0.{index}1234 to 0.{index}5678" for index in range(5)}
    monkeypatch.setenv("COLUMNS", "60")
    Report("title", (Table("", dict.fromkeys(intervals, ""), [intervals]), TABLE)).print()
    shown = capsys.readouterr().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert all(word in shown for text in intervals.values() for word in text.split())
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 60


def test_prints_to_any_console():
    console = Console(width=60, color_system=None)
    with console.capture() as captured:
        console.print(Report("title", (TABLE, Text("Notes", "a long sentence " * 20))))
    assert max(map(len, captured.get().splitlines())) <= 60


def test_members_of_a_group_follow_its_title():
    shown = lines(Group("Both", (Text("", "first"), Group("Second", (Text("", "inside"),))), 2))
    assert [line.strip() for line in shown if line.strip()] == ["title", "Both", "first", "Second", "inside"]


def test_a_command_is_not_wrapped():
    command = "vitrail train " + "photos/ " * 30
    assert any(command.strip() in line for line in lines(Code("Command", command.strip())))


def test_a_matrix_has_its_counts_or_its_size():
    shown = lines(Matrix("", ["a", "b"], ["a", "a"], [[5, 1], [0, 1234]]))
    assert any(line.split() == ["b", "0", "1,234"] for line in shown)
    long = lines(Matrix("", ["a class"] * 2, ["another class of things"] * 6, [[5] * 6] * 2))
    assert all(line.count("another class of things") in (0, 6) for line in long)
    names = [str(index) for index in range(21)]
    assert "21 x 21" in "\n".join(lines(Matrix("", names, names, [[0] * 21] * 21)))


def test_pictures_are_described_and_galleries_listed():
    gallery = Gallery("Mistakes", "the worst", (Shot(("data:image/png;base64,AA",), (Line("dog"), Line("[x].png"))),))
    shown = "\n".join(lines(gallery, Picture("Map", "<svg></svg>", "a map")))
    assert "dog   [x].png" in shown
    assert "a map" in shown
    assert "svg" not in shown
    assert "base64" not in shown

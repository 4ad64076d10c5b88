from vitrail.timing import Spread, interleaved, machine, ratios


def test_spread_is_the_middle_half():
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == (3.0, 2.0, 4.0)
    assert Spread.of([2.0]) == (2.0, 2.0, 2.0)
    assert str(Spread(1.0, 0.5, 2.0)) == "1.00 (0.50 to 2.00)"


def test_all_take_turns_and_each_begins_a_round():
    calls: list[str] = []
    taken = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "a", "b", "b", "a", "b", "b", "a"]
    assert [len(times) for times in taken.values()] == [2, 2]


def test_any_clock_can_be_used():
    ticks = iter((0.0, 3.0))
    assert interleaved({"a": lambda: None}, rounds=1, warm=0, clock=lambda: next(ticks)) == {"a": [3.0]}


def test_ratios_compare_the_same_round():
    found = ratios({"base": [2.0, 4.0, 6.0], "fast": [1.0, 2.0, 3.0]}, "base")
    assert found == {"base": (1.0, 1.0, 1.0), "fast": (2.0, 2.0, 2.0)}
    assert ratios({"base": [2.0, 4.0, 6.0], "left": [1.0, 2.0]}, "base")["left"] == (2.0, 2.0, 2.0)


def test_machine_names_versions():
    assert "torch" in machine()

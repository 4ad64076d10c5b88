"""The error tree, and the hint that ends a message."""

import pytest

from vitrail import errors
from vitrail.errors import DataError, WriteError, listed, nearest, reason


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("qknorm", ["qk_norm", "bias"], "did you mean 'qk_norm'?"),
        ("zebra", ["qk_norm", "bias"], "known: bias, qk_norm"),
        ("x", [f"option{n:02}" for n in range(30)], "known: " + ", ".join(f"option{n:02}" for n in range(30))),
        ("opt", [f"option{n:02}" for n in range(30)], "did you mean 'option00'?"),
        ("vit_tiny", ["pvt_tiny", "vit_tiny_patch16", "vit_tiny_patch16_long"], "did you mean 'vit_tiny_patch16'?"),
        ("x", [], "there are none"),
    ],
)
def test_nearest_names_one_or_all(name, options, hint):
    assert nearest(name, iter(options)) == hint


def test_of_very_many_the_closest_are_named_and_how_to_list_all():
    many = [f"option{n:02}" for n in range(30)]
    hint = nearest("07", many, see="`vitrail models`")
    assert "option07" in hint
    assert hint.endswith("`vitrail models`")
    assert nearest("x", ["a", "b"], see="`vitrail models`") == "known: a, b"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "x.pt"), "No space left on device"),
        (RuntimeError("\n  broken here \nadvice"), "broken here"),
        (KeyError(), "KeyError"),
    ],
)
def test_the_reason_of_an_error_is_one_line(error, line):
    assert reason(error) == line


def test_the_first_few_are_listed():
    assert listed("abc") == "a, b, c"
    assert listed("abcde") == "a, b, c and 2 more"


@pytest.mark.parametrize("name", ["ConfigError", "InputError", "CheckpointError", "Unsupported"])
def test_one_except_catches_them_all(name):
    with pytest.raises(errors.VitrailError, match="why"):
        raise getattr(errors, name)("why")


def test_wrong_values_are_value_errors_too():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.InputError, ValueError)


def test_every_error_and_notice_is_drawn_in_the_tree():
    drawn = errors.__doc__ or ""
    raised = [name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)]
    assert len(raised) > 5
    assert [name for name in raised if name not in drawn] == []


def test_an_error_that_repeats_an_endless_value_keeps_its_ends() -> None:
    for kind in (DataError, WriteError):
        text = str(kind(f"table.csv: {'9' * 100_000} is not a class"))
        assert len(text) < 10_000
        assert text.startswith("table.csv")
        assert text.endswith("is not a class")

"""Configs: strict where people type, frozen where the library reads."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from vitrail.config import Alias, Choice, Config, Rate, apply, from_dict, to_dict
from vitrail.errors import ConfigError


class Glass(Choice):
    """A point of choice for these tests."""


@dataclass(frozen=True, kw_only=True)
class Clear(Glass, kind="clear"):
    thickness: float = 3.0


@dataclass(frozen=True, kw_only=True)
class Stained(Glass, kind="stained"):
    colour: Annotated[Literal["red", "blue"], Alias("azure", "blue")]
    lead: bool = True
    thickness: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Window:
    panes: int
    size: tuple[int, int] = (2, 3)
    glass: Glass = Clear()
    layers: tuple[Glass, ...] = (Clear(),)
    margin: float = 0.0
    cut: int | None = None
    border: tuple[int, int] | None = None
    name: str = "rose"
    open: bool = False


WINDOW = Window(panes=4)

ACCEPTED = [
    ({"panes": 7}, {"panes": 7}),
    ({"size": 5}, {"size": (5, 5)}),
    ({"size": [5, 6]}, {"size": (5, 6)}),
    ({"margin": 2}, {"margin": 2.0}),
    ({"cut": 3}, {"cut": 3}),
    ({"cut": None}, {"cut": None}),
    ({"border": 2}, {"border": (2, 2)}),
    ({"glass": {"thickness": 9}}, {"glass": Clear(thickness=9.0)}),
    ({"glass": {"kind": "stained", "colour": "red"}}, {"glass": Stained(colour="red")}),
    ({"glass": Stained(colour="blue")}, {"glass": Stained(colour="blue")}),
    ({"glass": {"kind": "stained", "colour": "azure"}}, {"glass": Stained(colour="blue")}),
    ({"layers": "none"}, {"layers": ()}),
    ({"layers": []}, {"layers": ()}),
    ({"layers": "clear"}, {"layers": (Clear(),)}),
    ({"layers": {"kind": "clear", "thickness": 1}}, {"layers": (Clear(thickness=1.0),)}),
    (
        {"layers": ["clear", {"kind": "stained", "colour": "blue"}]},
        {"layers": (Clear(), Stained(colour="blue"))},
    ),
    ({"open": True}, {"open": True}),
]

REFUSED = [
    ({"pains": 3}, "pains is not an option of Window; did you mean 'panes'?"),
    ({"zebra": 3}, "zebra is not an option of Window; known: border, cut, glass, "),
    ({"panes": "3"}, "panes is '3' (str); it must be int"),
    ({"panes": 3.0}, "panes is 3.0 (float); it must be int"),
    ({"panes": True}, "panes is True (bool); it must be int"),
    ({"panes": None}, "panes is None (NoneType); it must be int"),
    ({"margin": True}, "margin is True (bool); it must be float"),
    ({"open": 1}, "open is 1 (int); it must be bool"),
    ({"size": True}, "size is True (bool); it must be int"),
    ({"size": [1, 2, 3]}, "size is [1, 2, 3]; it must be one number or 2 numbers"),
    ({"size": "22"}, "size is '22'; it must be one number or 2 numbers"),
    ({"size": (1.5, 2)}, "size is 1.5 (float); it must be int"),
    ({"cut": "no"}, "cut is 'no' (str); it must be int"),
    ({"glass": "cleer"}, "glass has no kind 'cleer'; did you mean 'clear'?"),
    ({"glass": 3}, "glass is 3; it must be one of clear, stained, or a mapping"),
    ({"glass": {"kind": []}}, "glass has no kind []"),
    ({"glass": {"thicknes": 3}}, "glass.thicknes is not an option of Clear; did you mean 'thickness'?"),
    ({"glass": "stained"}, "Stained needs glass.colour"),
    ({"glass": {"kind": "stained", "colour": "bleu"}}, "glass.colour is 'bleu'; did you mean 'blue'?"),
    ({"glass": {"kind": "stained", "colour": "red", "size": 1}}, "glass.size is not an option of Stained"),
    ({"layers": ["clear", "clar"]}, "layers[1] has no kind 'clar'; did you mean 'clear'?"),
    ({"layers": None}, "layers[0] is None; it must be one of clear, stained, or a mapping"),
]


@pytest.mark.parametrize(("changes", "expected"), ACCEPTED, ids=str)
def test_what_people_type_becomes_a_config(changes, expected):
    assert apply(WINDOW, changes) == dataclasses.replace(WINDOW, **expected)


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=str)
def test_what_does_not_fit_is_explained(changes, message):
    with pytest.raises(ConfigError) as caught:
        apply(WINDOW, changes)
    assert message in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Rated(Config):
    share: Rate = 0.5


@pytest.mark.parametrize(
    "value", [10**400, -(10**5000), "x" * 10**6, ["x"] * 10**5], ids=["400", "5000", "text", "list"]
)
def test_a_value_of_any_length_is_refused_in_a_short_message(value):
    for kind, name in ((Window, "open"), (Window, "margin"), (Window, "glass"), (Rated, "share")):
        with pytest.raises(ConfigError) as refused:
            from_dict(kind, {"panes": 1, name: value} if kind is Window else {name: value})
        assert len(str(refused.value)) < 400


def test_a_mapping_merges_into_what_is_there_and_a_new_kind_starts_afresh():
    stained = dataclasses.replace(WINDOW, glass=Stained(colour="blue", thickness=8.0))
    assert apply(stained, {"glass": {"lead": False}}).glass == Stained(colour="blue", thickness=8.0, lead=False)
    assert apply(stained, {"glass": {"kind": "stained", "lead": False}}).glass.colour == "blue"
    assert apply(stained, {"glass": "clear"}).glass == Clear()


def test_apply_leaves_the_original_alone():
    apply(WINDOW, {"panes": 9, "glass": {"thickness": 1}})
    assert Window(panes=4) == WINDOW
    with pytest.raises(dataclasses.FrozenInstanceError):
        WINDOW.panes = 5


@pytest.mark.parametrize(("_", "expected"), ACCEPTED, ids=str)
def test_to_dict_and_back_through_json(_, expected):
    config = dataclasses.replace(WINDOW, **expected)
    assert from_dict(Window, json.loads(json.dumps(to_dict(config)))) == config


def test_to_dict_names_the_kind():
    assert to_dict(WINDOW)["glass"] == {"kind": "clear", "thickness": 3.0}
    assert to_dict(WINDOW)["layers"] == [{"kind": "clear", "thickness": 3.0}]
    assert "kind" not in to_dict(WINDOW)


def test_from_dict_needs_what_is_required_and_no_more():
    with pytest.raises(ConfigError, match=r"Window .*panes"):
        from_dict(Window, {"name": "west"})
    with pytest.raises(ConfigError, match=r"nam .*Window.*'name'"):
        from_dict(Window, {"panes": 1, "nam": "west"})
    with pytest.raises(ConfigError, match=r"Window .*church\.panes"):
        from_dict(Window, {}, where="church")


def test_a_choice_keeps_its_own_kinds():
    class Other(Choice):
        """Another point of choice."""

    assert set(Glass.kinds) == {"clear", "stained"}
    assert Other.kinds == {}
    assert Clear.kind == "clear"


def test_the_words_of_a_model():
    from vitrail.models.vit import ViTConfig

    config = ViTConfig(dim=32, depth=2, num_heads=2)
    assert apply(config, {"position": "none"}).position == ()
    assert [p.kind for p in apply(config, {"position": ["learned", "rope"]}).position] == ["learned", "rope"]
    assert apply(config, {"patch": {"size": 8}}).patch.size == (8, 8)
    assert apply(config, {"image_size": 96}).image_size == (96, 96)
    with pytest.raises(ConfigError, match=r"attention\.fused .*1 .*bool"):
        apply(config, {"attention": {"fused": 1}})

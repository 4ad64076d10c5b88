"""The rule engine alone, on tables of a few lines."""

import pytest
import torch

import vitrail
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.dialect import Found, depth_of, expand, linear, rule, to_ours, to_theirs

TINY = {"dim": 8, "depth": 2, "num_heads": 2, "image_size": 32, "num_classes": 3}
SAME = ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "attention.projection.weight",
        "attention.projection.bias", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias")  # fmt: skip
RULES = [
    *linear("patch.projection", "stem"),
    rule("prefix.class_token", "token", lead=1),
    rule("position.0.table", "places", lead=2),
    *(rule(f"blocks.{{i}}.{name}", f"layer{{i}}.{name}") for name in SAME),
    rule("blocks.{i}.attention.qkv.weight", *(f"layer{{i}}.{part}.weight" for part in "qkv")),
    rule("blocks.{i}.attention.qkv.bias", *(f"layer{{i}}.{part}.bias" for part in "qkv")),
    *linear("norm", "norm"),
    *linear("head", "fc"),
]


@pytest.fixture
def model():
    model = vitrail.create("vit_tiny_patch16", **TINY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def found(tensors, **more) -> Found:
    return Found(family="vit", config=None, tensors=tensors, rules=RULES, **more)


def test_there_and_back_is_the_same(model):
    theirs = to_theirs(model, RULES)
    assert theirs["token"].shape == (1, 1, 8)
    assert theirs["places"].shape == (1, 1, 5, 8)
    torch.testing.assert_close(theirs["layer1.k.weight"], model.blocks[1].attention.qkv.weight[8:16], atol=0, rtol=0)
    ours = to_ours(found(theirs), model)
    assert ours.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(ours[name], tensor), name


def test_everything_wrong_is_listed_at_once(model):
    theirs = to_theirs(model, RULES)
    del theirs["layer1.v.bias"]
    theirs |= {"extra": torch.zeros(1), "fc.weight": torch.zeros(4, 8), "left.behind": torch.zeros(1)}
    with pytest.raises(CheckpointError) as error:
        to_ours(found(theirs, ignored=r"left\..*"), model)
    text = str(error.value)
    assert "missing (1): layer1.v.bias" in text
    assert "surplus (1): extra" in text
    assert "misshaped (1): fc.weight (4, 8) for head.weight (3, 8)" in text
    assert "left.behind" not in text


def test_parts_that_do_not_join_are_misshaped(model):
    theirs = to_theirs(model, RULES) | {"layer0.q.weight": torch.zeros(8, 7)}
    with pytest.raises(CheckpointError, match=r"misshaped \(1\): layer0\.q\.weight \(8, 7\)"):
        to_ours(found(theirs), model)


def test_a_tensor_of_ours_without_a_rule_is_an_error(model):
    with pytest.raises(CheckpointError, match=r"no rule names these tensors: norm\.weight, norm\.bias"):
        to_theirs(model, [each for each in RULES if not each.ours.startswith("norm.")])
    short = Found(family="vit", config=None, tensors=to_theirs(model, RULES), rules=RULES[2:])
    with pytest.raises(CheckpointError, match=r"patch\.projection\.weight"):
        to_ours(short, model)


def test_stacked_parts():
    model = vitrail.create("vit_tiny_patch16", **TINY, attention={"bias": "qv"})
    torch.nn.init.normal_(model.blocks[0].attention.qv_bias)
    each = rule("blocks.{i}.attention.qv_bias", "l{i}.q", "l{i}.v", stack=True)
    others = [rule(name) for name in model.state_dict() if not name.endswith("qv_bias")]
    theirs = to_theirs(model, [each, *others])
    assert theirs["l0.q"].shape == (8,)
    back = to_ours(Found(family="vit", config=None, tensors=theirs, rules=[each, *others]), model)
    assert torch.equal(back["blocks.0.attention.qv_bias"], model.blocks[0].attention.qv_bias)


def test_expansion_and_depth():
    assert [each.theirs for each in expand([rule("blocks.{i}.a", "b{i}")], 2)] == [("b0",), ("b1",)]
    assert expand([rule("blocks.{i}.a")], 0) == []
    assert depth_of(["blocks.0.a", "blocks.1.b", "norm"]) == 2
    for far in ("blocks.11.b", f"blocks.{'9' * 50}.b"):
        with pytest.raises(CheckpointError, match="missing"):
            depth_of(["blocks.0.a", far])
    assert depth_of(["norm"]) == 0

"""The cascade from the head down, and rank correlations by hand."""

import pytest
import torch
from support.registered import one_of_each_family, pictures, tiny

from vitrail.explain.methods.gradients import GradientConfig
from vitrail.explain.methods.target import Target
from vitrail.explain.scoring.randomisation import cascade, randomisation, rank_correlations, shuffle_parts


@pytest.mark.parametrize("name", one_of_each_family())
def test_the_cascade_reaches_every_parameter_once(name: str) -> None:
    model = tiny(name)
    parts = dict(cascade(model))
    names = list(parts)
    assert names[0] == "head"
    assert names[1] == f"block {len(model.blocks) - 1}"
    assert names[-1] == "embedding"
    found = [id(one) for part in parts.values() for one in part]
    assert len(found) == len(set(found))
    assert set(found) == {id(one) for one in model.parameters()}
    assert id(next(model.get_submodule("head").parameters())) in {id(one) for one in parts["head"]}


def test_shuffled_parts_keep_their_values_and_the_model_itself_is_left_alone() -> None:
    torch.manual_seed(0)
    model = tiny()
    before = {name: one.clone() for name, one in model.named_parameters()}
    for index, (_, copied) in enumerate(shuffle_parts(model)):
        changed = {name for name, one in copied.named_parameters() if not torch.equal(one, before[name])}
        if index == 0:
            assert changed
            assert all(name.startswith(("head", "norm")) for name in changed)
    assert {name for name, one in before.items() if one.numel() > 1} == changed
    for name, one in copied.named_parameters():
        torch.testing.assert_close(one.flatten().sort().values, before[name].flatten().sort().values)
    assert all(torch.equal(one, before[name]) for name, one in model.named_parameters())


def test_rank_correlation_by_hand() -> None:
    first = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    torch.testing.assert_close(rank_correlations(first, first.exp()), torch.tensor([1.0]).double())
    torch.testing.assert_close(rank_correlations(first, -first), torch.tensor([-1.0]).double())
    # Ranks 1 2 3 4 and 1.5 1.5 3 4: 4.5 / sqrt(5 * 4.5)
    tied = torch.tensor([[[0.0, 0.0], [1.0, 2.0]]])
    torch.testing.assert_close(rank_correlations(first, tied), torch.tensor([4.5 / 22.5**0.5]).double())
    assert rank_correlations(first, torch.zeros(1, 2, 2)).item() == 0


def test_a_method_that_reads_the_model_forgets_and_one_that_does_not_stays() -> None:
    torch.manual_seed(0)
    model = tiny()
    images, target = pictures(model, 4), torch.tensor([0, 1, 2, 3])
    maps = GradientConfig().maps(model, images, Target(target))
    found = dict(randomisation(model, maps, lambda other: GradientConfig().maps(other, images, Target(target))))
    assert next(iter(found)) == "head"
    assert found["embedding"].abs().max() < 0.3
    stays = dict(randomisation(model, maps, lambda other: maps))
    torch.testing.assert_close(stays["embedding"], torch.ones(4).double())

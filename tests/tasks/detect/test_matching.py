"""The assignment of least cost: against all permutations, with padding, repetition and no boxes at all."""

import itertools

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from vitrail.tasks.detect.matching import Costs, Truth, assign, assign_all, costs


def values(*rows, size=(80, 100), most=4):
    """Boxes as a batch stores them: (image, x1, y1, x2, y2, class)."""
    found = torch.zeros(1 + max(row[0] for row in rows), most, 7)
    found[..., 4] = -1
    for place, (image, *box, label) in enumerate(rows):
        found[image, place % most, :4] = torch.tensor(box, dtype=torch.float32)
        found[image, place % most, 4] = label
    return found


def test_truth_is_in_shares():
    truth = Truth.of(values((0, 10, 20, 30, 60, 2)), (80, 100))
    torch.testing.assert_close(truth.boxes[0, 0], torch.tensor([0.2, 0.5, 0.2, 0.5]))
    assert truth.labels.tolist() == [[2, 0, 0, 0]]
    assert truth.valid.tolist() == [[True, False, False, False]]


def test_ignored_boxes_and_images_that_were_not_annotated():
    given = values((0, 10, 20, 30, 60, 2), (1, 1, 1, 9, 9, 0))
    given[0, 0, 5] = 1
    given[1, :, 4] = -2
    truth = Truth.of(given, (80, 100))
    assert not truth.valid.any()
    assert truth.known.tolist() == [True, False]


def test_no_assignment_costs_less():
    torch.manual_seed(0)
    cost, valid = torch.randn(2, 3, 5, 4), torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    found = assign(cost, valid)
    for layer, image in itertools.product(range(2), range(3)):
        real = valid[image].nonzero()[:, 0].tolist()
        row = found[layer, image]
        assert sorted(row[row >= 0].tolist()) == real
        mine = sum(float(cost[layer, image, query, box]) for query, box in enumerate(row.tolist()) if box >= 0)
        ways = itertools.permutations(range(5), len(real))
        best = min(sum(float(cost[layer, image, q, b]) for q, b in zip(way, real, strict=True)) for way in ways)
        assert mine == pytest.approx(best)


def test_more_boxes_than_queries():
    found = assign(torch.rand(1, 1, 2, 4), torch.ones(1, 4, dtype=torch.bool))
    assert len(set(found.flatten().tolist())) == 2
    assert bool((found >= 0).all())


def test_numbers_that_are_not_finite_are_taken_last():
    cost = torch.tensor([[[[torch.nan], [3.0], [torch.inf]]]])
    assert assign(cost, torch.ones(1, 1, dtype=torch.bool)).tolist() == [[[-1, 0, -1]]]


@pytest.mark.parametrize("softmax", [False, True])
def test_the_right_query_is_the_cheapest(softmax):
    truth = Truth.of(values((0, 10, 20, 30, 60, 2)), (80, 100))
    boxes = torch.tensor([[[[0.7, 0.7, 0.1, 0.1], [0.2, 0.5, 0.2, 0.5], [0.2, 0.5, 0.2, 0.5]]]])
    logits = torch.zeros(1, 1, 3, 4)
    logits[0, 0, 2, 2] = 5.0
    cost = costs(logits, boxes, truth, Costs(), softmax=softmax)
    assert cost.shape == (1, 1, 3, 4)
    assert cost[0, 0, :, 0].argmin() == 2


def test_repeated_boxes():
    truth = Truth.of(values((0, 10, 20, 30, 60, 2)), (80, 100)).repeated(3)
    assert truth.labels.shape == (1, 12)
    assert int(truth.valid.sum()) == 3
    assert not truth.without_class().labels.any()


def test_the_matching_is_part_of_one_compiled_graph() -> None:
    cost, valid = torch.rand(2, 3, 5, 4), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
    compiled = torch.compile(lambda cost, valid: assign(2 * cost, valid) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(cost, valid), assign(cost, valid) + 1)


def test_several_sets_are_solved_as_each_alone():
    torch.manual_seed(0)
    costs = [torch.rand(3, 2, 5, 4), torch.rand(1, 2, 9, 4), torch.rand(2, 2, 6, 8)]
    valid = [torch.rand(2, 4) > 0.3, torch.rand(2, 4) > 0.3, torch.rand(2, 8) > 0.5]
    for one, cost, real in zip(assign_all(costs, valid), costs, valid, strict=True):
        assert torch.equal(one, assign(cost, real))


@pytest.mark.parametrize("shape", [(2, 3, 200, 4), (1, 1, 200, 4)], ids=str)
def test_of_many_queries_only_the_cheapest_are_compared(shape):
    """With costs that repeat, several boxes want the same query; the sum is that of the whole problem."""
    torch.manual_seed(0)
    cost, valid = torch.randint(40, shape).float(), torch.rand(shape[1], 4) > 0.2
    for layer, image in itertools.product(range(shape[0]), range(shape[1])):
        cost[layer, image, 7] = 0.0
        real, row = valid[image].nonzero()[:, 0], assign(cost, valid)[layer, image]
        queries = row.ge(0).nonzero()[:, 0]
        assert sorted(row[queries].tolist()) == real.tolist()
        mine = cost[layer, image, queries, row[queries]].sum().item()
        best = linear_sum_assignment(cost[layer, image][:, real])
        assert mine == cost[layer, image][:, real][best].sum().item()

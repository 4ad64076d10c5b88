"""What a search tries: linear heads first, each way once, then variations; what the user named is never changed."""

from itertools import islice

from vitrail.packaged import NAME as PACKAGED
from vitrail.packaged import PHOTOS
from vitrail.training.first_model import Sampled
from vitrail.training.tuning.candidates import Given, linear_heads, trained

LARGE, LITTLE = Sampled(300, 200, grey=False), Sampled(28, 28, grey=True)


def ways(seen: Sampled, given: Given, count: int = 5) -> list:
    return list(islice(trained(seen, given, default_size=160, seed=0), count))


def test_open_choices_have_every_way_once_before_they_are_varied() -> None:
    for seen in (LARGE, LITTLE):
        assert {one.traits["method"] for one in ways(seen, Given())} == {
            "last stages", "fine-tuning", "LoRA", "from scratch"
        }  # fmt: skip
    assert {one.start for one in linear_heads(LARGE, Given(), default_size=160)} == {PACKAGED, PHOTOS}


def test_keys_are_unique_and_the_order_is_that_of_the_seed() -> None:
    every = list(trained(LARGE, Given(), default_size=160, seed=0))
    assert len({one.key for one in every}) == len(every) > 100
    assert every == list(trained(LARGE, Given(), default_size=160, seed=0))
    assert every[:5] == list(islice(trained(LARGE, Given(), default_size=160, seed=1), 5))
    assert every != list(trained(LARGE, Given(), default_size=160, seed=1))


def test_small_images_are_not_enlarged_without_end() -> None:
    sizes = [
        one.changes["image_size"] for one in linear_heads(LITTLE, Given(), default_size=160) if len(one.changes) > 1
    ]
    assert sizes == [96]


def test_what_was_named_stays() -> None:
    named = Given(start="weights", keys=frozenset({"optimiser", "augment", "image_size"}))
    every = list(trained(LARGE, named, default_size=160, seed=0))
    assert {one.rate for one in every} == {1.0}
    assert not any({"augment", "image_size"} & one.changes.keys() for one in every)
    assert {one.changes.get("lora") for one in every} == {None, 8}
    (head,) = linear_heads(LARGE, named, default_size=160)
    assert head.start == "weights"
    model = Given(model="vit_tiny_patch16")
    assert linear_heads(LARGE, model, default_size=224) == []
    assert {one.traits["method"] for one in trained(LARGE, model, default_size=224, seed=0)} == {"training"}
    fixed = Given(keys=frozenset({"lora"}), start="weights")
    assert {one.traits["method"] for one in trained(LARGE, fixed, default_size=160, seed=0)} == {"fine-tuning"}

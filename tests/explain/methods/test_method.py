"""The contract of saliency methods."""

from support.registered import tiny

from vitrail.explain.methods.method import Method
from vitrail.explain.methods.saliency import METHODS


def test_every_method_is_registered_and_offered() -> None:
    assert {kind.kind for kind in METHODS} == set(Method.kinds)


def test_methods_that_explain_an_output_need_a_head() -> None:
    headless = tiny(num_classes=0)
    for kind in METHODS:
        refusal = kind().refusal(headless)
        assert (refusal is not None and "head" in refusal) == kind.targeted
        assert kind().refusal(tiny()) is None


def test_layers_that_several_methods_read_are_tried_once() -> None:
    model, tried = tiny("resnet18"), {}
    refusals = [kind().refusal(model, tried) for kind in METHODS if hasattr(kind, "layers")]
    assert all("no attention" in refusal for refusal in refusals if refusal)
    assert len(refusals) == 5
    assert len(tried) == 2

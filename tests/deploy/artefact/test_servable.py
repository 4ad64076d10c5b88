import pytest
import torch
from support.shipped import photos, trained

from vitrail.deploy.artefact.engine import servable


@pytest.mark.parametrize(
    ("kind", "names"),
    [("class", ["logits", "probabilities"]), ("labels", ["logits", "probabilities"]), ("numbers", ["numbers"])],
)
@torch.inference_mode()
def test_the_graph_gives_what_the_task_names(kind, names):
    model = trained(kind=kind)
    found = servable(model)(photos(1)[0][None].permute(0, 2, 3, 1))
    assert list(found) == names
    expected = model.task.graph(model.outputs(model.preprocess.fit(photos(1)[0][None])[0]))
    for name in names:
        torch.testing.assert_close(found[name], expected[name], atol=0.05, rtol=0.05)  # pixels are not rounded


@torch.inference_mode()
def test_probabilities_are_calibrated():
    found = servable(trained())(torch.zeros(1, 9, 9, 3, dtype=torch.uint8))
    torch.testing.assert_close(found["probabilities"], (found["logits"] / 2).softmax(1))
    found = servable(trained(kind="labels"))(torch.zeros(1, 9, 9, 3, dtype=torch.uint8))
    torch.testing.assert_close(found["probabilities"], found["logits"].sigmoid())

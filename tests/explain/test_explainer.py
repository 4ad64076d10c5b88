"""Methods, layers and heads to choose from, and their maps."""

import torch

import vitrail
from vitrail.data.preprocess import Preprocess
from vitrail.explain.explainer import Explainer, MethodOptions


def test_layers_and_heads_of_a_model() -> None:
    model = vitrail.create("vit_tiny_patch16", image_size=32, dim=32, depth=2, num_heads=2, num_classes=3)
    for parameter in model.parameters():  # fresh weights attend evenly, and their head is zero
        torch.nn.init.normal_(parameter, std=0.3)
    explainer = Explainer(model.eval(), Preprocess(image_size=(32, 32)))
    options = {one.method: one for one in explainer.methods}
    assert explainer.methods[0] == MethodOptions(method="relevance")
    assert options["attention"] == MethodOptions(method="attention", targeted=False, layers=2, heads=(2, 2))
    assert options["attention_gradient"] == MethodOptions(method="attention_gradient", layers=2)
    image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)

    def shown(**asked: int) -> torch.Tensor:
        return explainer(image, method="attention", target=0, **asked)

    heads = [shown(layer=0, head=head) for head in range(2)]
    assert (heads[0].shape, heads[0].dtype, heads[0].requires_grad) == ((32, 32), torch.float32, False)
    assert not torch.allclose(heads[0], heads[1])
    assert torch.allclose((heads[0] + heads[1]) / 2, shown(layer=0), atol=1e-6)
    assert torch.allclose(shown(), shown(layer=1))
    assert not torch.allclose(shown(layer=0), shown(layer=1))
    by_output = [explainer(image, method="attention_gradient", target=1, layer=layer) for layer in range(2)]
    assert not torch.allclose(by_output[0], by_output[1])

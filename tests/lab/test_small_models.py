import torch

from vitrail.lab.small_models import Classifier, macs, parameters, small_cnn, small_vit


def test_costs_are_those_of_the_formulas() -> None:
    vit = small_vit(dim=32, depth=2, patch=4, image_size=16, channels=1, num_classes=3)
    block = 16 * 12 * 32**2 + 2 * 16**2 * 32  # tokens 16: maps, attention
    assert macs(vit, (1, 16, 16)) == 16 * 16 * 32 + 2 * block + 32 * 3
    cnn = small_cnn((8,), (2, 1), channels=1, num_classes=3)
    assert macs(cnn, (1, 16, 16)) == 64 * (9 * 8 + 2 * 9 * 8 * 8) + 8 * 3
    assert parameters(cnn) == 9 * 8 + 2 * 9 * 8 * 8 + 3 * 2 * 8 + 8 * 3 + 3


def test_pixels_are_scaled() -> None:
    model = Classifier(torch.nn.Identity(), 0.5, 0.25)
    assert torch.allclose(model(torch.tensor([[0.5, 1.0]])), torch.tensor([[0.0, 2.0]]))

import torch

from vitrail.lab.subjects import attention_inputs, natural_noise, packaged_vit, random_vit


def test_the_packaged_model_takes_its_pictures() -> None:
    model, images = packaged_vit(torch.device("cpu"))
    right = model(images).argmax(dim=1) == torch.arange(10)
    assert right.sum() >= 6  # preprocessed as the model needs it; they are moved by some pixels


def test_every_attention_layer_is_seen_once() -> None:
    model = random_vit(dim=16, depth=3, num_heads=2, image_size=16, patch=4)
    looked = attention_inputs(model, natural_noise(2, 16))
    assert [tuple(tokens.shape) for _, tokens, _ in looked] == [(2, 16, 16)] * 3
    assert len(attention_inputs(model, natural_noise(2, 16))) == 3  # no hook is left behind


def test_noise_has_more_low_than_high_frequencies() -> None:
    energy = torch.fft.fft2(natural_noise(4, 32)).abs().square().mean(dim=(0, 1))
    assert energy[0, 1] > 20 * energy[0, 16]

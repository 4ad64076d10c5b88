"""Attention as a low-pass filter: the gain by frequency, and the spectrum of the residual stream by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.config import Count, CountFromZero
from vitrail.lab.estimates import by_seed, estimate
from vitrail.lab.experiment import PRINCIPLES, Check, Experiment, Results, Settings, Verdict, judge
from vitrail.lab.fitting import Fit, fit, open_pictures, shuffled
from vitrail.lab.plots import chart, line
from vitrail.lab.small_models import Classifier
from vitrail.lab.small_training import accuracy
from vitrail.lab.subjects import attention_inputs, natural_noise, packaged_vit, random_vit
from vitrail.models.vit import ViT
from vitrail.report import Group, Section

_HIGH = 0.25  # cycles a patch: half of the highest frequency of a row
_MODELS = {"random": "random weights", "trained": "packaged model", "own": "trained for each seed"}


@dataclass(frozen=True, kw_only=True)
class LowPassSettings(Settings):
    """A ViT with random weights, the packaged model and, with `data`, the 32 px ViT of the sources, trained on it."""

    dim: Count = 192
    depth: Count = 12
    num_heads: Count = 3
    images: Count = 16
    data: Literal["", "cifar10"] = ""
    train: CountFromZero = 0  # images; 0 for all
    test: CountFromZero = 0
    own_depth: Count = 12  # of width 192
    how: Fit = Fit()


class LowPass(Experiment):
    """Plane waves through the attention matrices, and the high frequencies of the stream and of each branch."""

    name = "low-pass"
    title = "Attention as a low-pass filter"
    claim = "A deep stack of residual attention blocks is a low-pass filter: high frequencies of the stream die out."
    source = f"{PRINCIPLES}; The Role of Residual Connections in Signal Propagation"
    prediction = (
        "Attention matrices pass constants and damp high frequencies; from the first block to the last, the amplitude "
        "of high frequencies in the residual stream falls, and their share, in a random and in a trained model."
    )
    falsifier = (
        "Attention passes high frequencies; or their amplitude or their share in the stream of a random model does not "
        "fall. A low-pass filter multiplies high frequencies by less than one: a share that falls is not enough."
    )
    quick = LowPassSettings()
    full = LowPassSettings(
        dim=768, num_heads=12, depth=24, images=64, data="cifar10",
        how=Fit(steps=2500, batch=256, rate=1e-3, precision="bf16"),
    )  # fmt: skip
    seconds = 0.8

    def measure(self, settings: LowPassSettings, *, seed: int, device: torch.device) -> Results:
        """Gains and spectra of all models."""
        random = random_vit(
            dim=settings.dim, depth=settings.depth, num_heads=settings.num_heads, image_size=32, patch=4
        ).to(device)
        found = {
            "random": _look(random, natural_noise(settings.images, 32).to(device)),
            "trained": _look(*packaged_vit(device)),
        }
        return found | ({"own": _own(settings, device)} if settings.data else {})

    def figures(self, results: Sequence[Results]) -> Sequence[Section]:
        """The gain by frequency and by block, and the high frequencies by block, for each model."""
        count = len(results[0]["random"]["gain"])
        frequencies = [(index + 1) / (2 * count) for index in range(count)]
        named = {name: title for name, title in _MODELS.items() if name in results[0]}
        gains = [line(title, frequencies, results, name, "gain") for name, title in named.items()]
        text = "Amplitude of a plane wave after the attention matrix, by its frequency; means over layers and heads."
        charts: list[Section] = [chart("Gain of attention", gains, text, x="cycles a patch", y="gain")]
        for name, title in named.items():
            blocks = [float(index) for index in range(len(results[0][name]["stream"]))]
            shares = [
                line("stream", blocks, results, name, "stream"),
                line("attention branch", blocks[1:], results, name, "attention"),
                line("MLP branch", blocks[1:], results, name, "mlp"),
            ]
            other = f"Share of the energy above {_HIGH} cycles a patch, after each block: {title}."
            charts.append(chart(f"High frequencies, {title}", shares, other, x="block", y="share"))
            highest = [{"high": [one[-1] for one in result[name]["gains"]]} for result in results]
            by_block = [
                line("gain of attention at the highest frequency", blocks[1:], highest, "high"),
                line("amplitude of high frequencies of the stream, of that before the first block", blocks,
                     [_relative(result[name]["amplitude"]) for result in results], "amplitude"),
            ]  # fmt: skip
            text = f"By block: {title}."
            charts.append(chart(f"Gain and amplitude, {title}", by_block, text, x="block", y="factor", log_y=True))
        return (Group("Gain and spectra", charts, columns=2),)

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """The gain of attention and the stream, for the random model and for the trained one."""
        checks = []
        for name, title in ((name, title) for name, title in _MODELS.items() if name in results[0]):
            ratio = [result[name]["stream"][-1] / result[name]["stream"][0] for result in results]
            checks += [
                Check(
                    text=f"attention alone damps the highest frequencies: gain below 0.9 ({title})",
                    found=estimate(by_seed(results, name, "gain", -1)),
                    most=0.9,
                    essential=name == "random",
                ),
                Check(
                    text=f"the share of high frequencies in the stream falls by a tenth or more ({title})",
                    found=estimate(ratio),
                    most=0.9,
                    essential=name == "random",
                ),
                Check(
                    text=f"high frequencies of the stream die out: amplitude after the last block at most that before "
                    f"the first ({title})",
                    found=estimate(
                        [result[name]["amplitude"][-1] / result[name]["amplitude"][0] for result in results]
                    ),
                    most=1.0,
                    essential=name == "random",
                ),
            ]
        note = (
            "A share that falls while the amplitude grows means that low frequencies grow more: branches add, they do "
            "not erase"
        )
        return judge(checks, note=note)

    def true_case(self) -> Sequence[Results]:
        """X + alpha times the Laplacian of x: the model of the source."""
        return [_laplacian(alpha=0.1)]

    def false_case(self) -> Sequence[Results]:
        """X - alpha times the Laplacian of x, which sharpens."""
        return [_laplacian(alpha=-0.1)]


def _gain(matrices: Tensor) -> list[float]:
    """The root mean square gain of plane waves over matrices M N N, by the larger of their two frequencies.

    These are 1/side, 2/side ... 1/2 cycles a patch; the constant, whose gain is 1, is left out.
    """
    side = round(matrices.shape[-1] ** 0.5)
    waves = torch.fft.ifft2(torch.eye(side * side).reshape(-1, side, side)).flatten(1).T * side  # N K, of length 1
    steps = (torch.fft.fftfreq(side).abs() * side).round()
    largest = torch.maximum(steps[:, None], steps[None]).flatten()  # K
    passed = (matrices.cpu().to(waves.dtype) @ waves).abs().square().sum(dim=1).mean(dim=0).sqrt()  # K
    return [float(passed[largest == step].mean()) for step in range(1, side // 2 + 1)]


def _high_share(tokens: Tensor) -> float:
    """The share of the energy of tokens B N D above the frequency _HIGH, over their square grid."""
    high, whole = _energies(tokens)
    return high / whole


def _energies(tokens: Tensor) -> tuple[float, float]:
    """The mean squares of tokens B N D above the frequency _HIGH, and in all."""
    side = round(tokens.shape[1] ** 0.5)
    energy = torch.fft.fft2(tokens.unflatten(1, (side, side)), dim=(1, 2)).abs().square().sum(dim=(0, 3)).cpu()  # h w
    frequency = torch.fft.fftfreq(side).abs()
    high = energy[torch.maximum(frequency[:, None], frequency[None]) > _HIGH].sum()
    return float(high) / (tokens.numel() * side**2), float(energy.sum()) / (tokens.numel() * side**2)


@torch.no_grad()
def _look(model: ViT, images: Tensor) -> Mapping[str, Any]:
    """Gain of the attention matrices; the high frequencies of the stream before the first and after every block."""
    attention: list[float] = []
    mlp: list[float] = []
    hooks = [
        block.get_submodule(name).register_forward_hook(
            lambda _, __, output, into=into: into.append(_high_share(output))
        )
        for block in model.blocks
        for name, into in (("attention", attention), ("mlp", mlp))
    ]
    stream = [model.embed(images)[0], *(features.patches for features in model.intermediates(images))]
    for hook in hooks:
        hook.remove()
    weights = [layer.weights(tokens, grid).flatten(0, 1) for layer, tokens, grid in attention_inputs(model, images)]
    gains = {"gain": _gain(torch.cat(weights)), "gains": [_gain(one) for one in weights]}
    return {**gains, **_spectra(stream), "attention": attention, "mlp": mlp}


def _own(settings: LowPassSettings, device: torch.device) -> Mapping[str, Any]:
    """A ViT trained on a dataset, looked at with test images."""
    train, test = open_pictures(settings.data, settings.train, settings.test, device)
    body = random_vit(
        dim=192, depth=settings.own_depth, num_heads=3, image_size=train.images.shape[-1], patch=4,
        num_classes=int(test.classes.max()) + 1,
    )  # fmt: skip
    model = Classifier(body, float(train.images.mean()), float(train.images.std())).to(device)
    fit(model, shuffled(train, settings.how.batch), settings.how)
    images = (test.images[: settings.images] - model.mean) / model.std
    return {**_look(body, images), "accuracy": accuracy(model, test)}


def _relative(values: Sequence[float]) -> dict[str, list[float]]:
    """Amplitudes over the first of them."""
    return {"amplitude": [value / values[0] for value in values]}


def _spectra(stream: Sequence[Tensor]) -> dict[str, list[float]]:
    """The share of high frequencies and their amplitude, for tokens B N D after each block."""
    return {
        "stream": [_high_share(tokens) for tokens in stream],
        "amplitude": [_energies(tokens)[0] ** 0.5 for tokens in stream],
    }


def _laplacian(*, alpha: float) -> Results:
    """Twelve layers of x + alpha times the Laplacian of x on an 8 x 8 torus; its branch stands for both branches."""
    eye = torch.eye(64).reshape(64, 8, 8)
    around = sum(eye.roll(step, dims=axis) for axis in (1, 2) for step in (1, -1)) - 4 * eye
    matrix = torch.eye(64) + alpha * around.flatten(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokens = torch.randn(1, 64, 8)
    stream, branch = [tokens], []
    for _ in range(12):
        branch.append(_high_share(around.flatten(1) @ tokens))
        tokens = matrix @ tokens
        stream.append(tokens)
    gain = _gain(matrix[None])
    found = {"gain": gain, "gains": [gain] * 12, **_spectra(stream), "attention": branch, "mlp": branch}
    return {"random": found, "trained": found}

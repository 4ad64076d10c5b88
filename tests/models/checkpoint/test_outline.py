"""Files of a few kilobytes that ask for a model of terabytes: a sentence, in a moment, without the memory."""

import contextlib
import json
import resource
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.config import to_dict
from vitrail.errors import VitrailError
from vitrail.files import digest
from vitrail.models.checkpoint.outline import MAX_NUMBER, check_numbers, outlined
from vitrail.models.registry import presets
from vitrail.models.vit import ViTConfig

TINY = {"dim": 16, "depth": 2, "num_heads": 2, "image_size": 32, "num_classes": 3}
HUGE = (30_000_000, 10**9, 10**12, 10**18, 2**20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return vitrail.save(vitrail.create("vit_tiny_patch16", **TINY), tmp_path_factory.mktemp("vit")).parent


def refuse(load, word="config|missing|misshaped|max|tensors|number|must|not"):
    """An error of ours within two seconds of processor time and 500 MB."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(VitrailError, match=word):
        load()
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def forged(folder, target, change):
    """A checkpoint of ours with another config and a checksum that matches it."""
    about = json.loads((folder / "config.json").read_text())
    change(about["config"])
    tensors, header = load_file(folder / "model.safetensors"), json.dumps(about)
    save_file(tensors, target, {"vitrail": f"{digest(header, tensors)} {header}"})
    return target


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize(
    "name", ["registers", "dim", "depth", "num_heads", "channels", "num_classes", "image_size", "patch", "mlp", "ratio"]
)
def test_our_own_config(folder, tmp_path, name, number):
    def change(config):
        if name == "image_size":
            config[name] = [number, number]
        elif name == "patch":
            config[name]["size"] = [1, 1]
            config["image_size"] = [number, number]
        elif name == "mlp":
            config[name]["hidden"] = number
        elif name == "ratio":
            config["mlp"]["ratio"] = float(number)
        else:
            config[name] = number

    file = forged(folder, tmp_path / "model.safetensors", change)
    refuse(lambda: vitrail.load(file))


@pytest.mark.parametrize("kind", ["fourier", "sincos", "relative", "rope"])
def test_tables_that_follow_from_the_image_size(folder, tmp_path, kind):
    def change(config):
        config["position"] = [{"kind": kind}]
        config["image_size"] = [16384, 16384]
        config["patch"]["size"] = [1, 1]

    refuse(lambda: vitrail.load(forged(folder, tmp_path / "model.safetensors", change)))


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7", "pvt_v2_b0", "convnext_tiny", "levit_128s", "cvt_13"])
def test_families_with_stages(tmp_path, name):
    config = vitrail.create(name, num_classes=3).config
    made = {"library": "vitrail", "version": "0", "family": name.split("_")[0], "labels": None, "preprocess": None}
    tensors = {"a": torch.zeros(3)}

    family = presets()[name][1]
    made["family"] = getattr(family, "name", family)
    for key, value in (("depths", 10**7), ("dims", 10**9)):
        plain = to_dict(config)
        plain[key] = [value] * len(plain[key])
        header = json.dumps({**made, "config": plain})
        file = tmp_path / f"{key}.safetensors"
        save_file(tensors, file, {"vitrail": f"{digest(header, tensors)} {header}"})
        refuse(lambda: vitrail.load(file))  # noqa: B023


@pytest.mark.parametrize("to", ["hf", "timm"])
@pytest.mark.parametrize("number", [10**7, 10**9, 10**18])
def test_foreign_configs(folder, tmp_path, to, number):
    out = vitrail.convert(folder, tmp_path / to, to=to).parent
    text = (out / "config.json").read_text()
    about = json.loads(text)
    sizes = {"hf": ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size",
                    "patch_size", "num_channels", "num_register_tokens"),
             "timm": ("depth", "embed_dim", "num_heads", "img_size", "patch_size", "reg_tokens")}[to]  # fmt: skip
    for key in sizes:
        inner = dict(about)
        if to == "hf":
            inner[key] = number
        else:
            inner["model_args"] = {**(about.get("model_args") or {}), key: number}
        (out / "config.json").write_text(json.dumps(inner))
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        with contextlib.suppress(VitrailError):  # what the tensors say already may be ignored
            vitrail.load(out)
        assert time.process_time() - began < 2
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_blocks_with_numbers_far_apart(folder, tmp_path):
    out = vitrail.convert(folder, tmp_path / "timm", to="timm")
    tensors = load_file(out)
    tensors["blocks.99999999.norm1.weight"] = torch.zeros(16)
    save_file(tensors, out)
    refuse(lambda: vitrail.load(out), "missing")


def test_an_outline_has_no_memory_and_an_end():
    made = outlined(lambda: torch.nn.Linear(10**6, 10**6), tensors=2)
    assert made.weight.is_meta
    with pytest.raises(VitrailError, match="layers"):
        outlined(lambda: torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(10**7))), tensors=2)


def test_numbers_have_bounds():
    config = ViTConfig(dim=8, depth=3, num_heads=1)
    check_numbers(config, tensors=40)
    with pytest.raises(VitrailError, match="tensors"):
        check_numbers(config, tensors=2)
    with pytest.raises(VitrailError, match="registers"):
        check_numbers(ViTConfig(dim=8, depth=3, num_heads=1, registers=MAX_NUMBER + 1))

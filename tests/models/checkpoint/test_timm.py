"""timm's checkpoints, both ways: parity on every block, bit-equal round trips, and what is refused."""

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from parity.cases.timm import CASES, SMALL, build, run, save, save_tensors
from parity.compare import Case, compare, differences, hint, ours, randomise
from safetensors.torch import load_file, save_file
from support.peers import timm
from support.undrawn import without_data

import vitrail
from vitrail.config import apply
from vitrail.errors import CheckpointError, ResampledNotice, Unsupported
from vitrail.files import write_json, write_tensors
from vitrail.models.checkpoint.dialect import to_ours
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.timm import Timm
from vitrail.models.registry import FAMILIES, create, presets, resolve
from vitrail.models.registry import build as build_ours
from vitrail.models.vit import ViTConfig

MODULES = ("vision_transformer", "deit", "eva", "beit")
NAMES = sorted(name for module in MODULES for name in timm.list_models(module=module))
# Architectures with layers that our ViT does not have.
UNLIKE = (
    r"aimv2_.*|test_vit3|.*(sapiens2|18x2|_xp_).*|vit_(pwee|dwee|dpwee|dlittle)_.*|vit_pe_.*|.*_rope_(ape|mixed|\d).*"
)


# --- parity: timm's model, saved as timm does, against what we load


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parity(case: Case, tmp_path: Path) -> None:
    # Both sides keep rotary tables in float32, computed in another order.
    limit = 1e-6 if re.search("eva02|dinov3|rope", case.name) else 1e-12
    assert compare(case, tmp_path).worst <= limit


def test_parity_sees_two_swapped_tensors(tmp_path: Path) -> None:
    model_args = SMALL | {"qk_norm": True, "init_values": 1e-5}
    peer = build("vit_small_patch16_224", **model_args).double()
    save(peer, tmp_path, model_args=model_args)
    images = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    for one, other in (("attn.q_norm", "attn.k_norm"), ("ls1", "ls2"), ("norm1", "norm2")):
        model = vitrail.load(tmp_path, dtype=torch.float64)
        names = {"attn.q_norm": "attention.q_norm.bias", "attn.k_norm": "attention.k_norm.bias", "ls1": "scale1.gain",
                 "ls2": "scale2.gain", "norm1": "norm1.bias", "norm2": "norm2.bias"}  # fmt: skip
        block = model.blocks[0]
        a, b = block.get_parameter(names[one]), block.get_parameter(names[other])
        with torch.no_grad():
            a_copy = a.clone()
            a.copy_(b)
            b.copy_(a_copy)
            assert differences(run(peer, images), ours(model, images)).worst > 1e-3, one


# --- names: what no tensor shows, for every architecture that timm has


@pytest.mark.parametrize("module", MODULES)
def test_every_architecture_is_read_as_timm_builds_it_or_refused(module: str) -> None:
    for name in timm.list_models(module=module):
        with without_data():
            peer = timm.create_model(name, **({} if "sapiens2" in name else {"depth": 1}))
        if re.fullmatch(UNLIKE, name):
            with pytest.raises(Unsupported):
                read(name, peer)
            continue
        found = read(name, peer)
        with without_data():
            model = build_ours(FAMILIES[found.family], found.config)
        to_ours(found, model)
        assert facts_of(found.config) == facts_of_timm(peer), name


def read(name: str, peer: torch.nn.Module):
    pretrained = {"input_size": list(peer.pretrained_cfg["input_size"])}
    config = {"architecture": name, "model_args": {"depth": len(peer.blocks)}, "pretrained_cfg": pretrained}
    weights = Weights(path=Path(name), tensors=peer.state_dict(), config=config, metadata={})
    return Timm().read(weights, None)


def facts_of(config: ViTConfig) -> dict[str, object]:
    ropes = [(p.theta, p.reference, p.pairs == "halves") for p in config.position if p.kind == "rope"]
    return {
        "heads": config.num_heads,
        "eps": {config.norm.eps},
        "activation": getattr(config.mlp, "activation", "silu"),
        "pool": {"class": "token", "mean": "avg", "attention": "map"}[config.pool.kind],
        "post": config.norm_placement == "res_post",
        "grid": config.grid(config.image_size),
        "rope": ropes[0] if ropes else None,
    }


def facts_of_timm(peer: torch.nn.Module) -> dict[str, object]:
    block, rope = peer.blocks[0], getattr(peer, "rope", None)
    activations = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu"}
    reference = getattr(rope, "ref_feat_shape", None)
    return {
        "heads": block.attn.num_heads,
        "eps": {module.eps for module in peer.modules() if hasattr(module, "eps")},
        "activation": activations[type(block.mlp.act).__name__],
        "pool": peer.global_pool,
        "post": "Post" in type(block).__name__,
        "grid": tuple(peer.patch_embed.grid_size),
        "rope": None if rope is None else (rope.temperature, reference, block.attn.rotate_half),
    }


# --- presets: each is the model that timm gives the same name


SAME = ("patch", "position", "class_token", "registers", "embed_norm", "norm", "final_norm", "pool", "attention")


def twins(preset: str) -> list[str]:
    """The names of timm that mean a preset, at each image size that divides into its patches."""
    names = [name for name in NAMES if re.fullmatch(re.escape(preset) + r"(_\d+)?", name)]
    own = [name for name in names if name == preset or name not in presets()]
    return [name for name in own if resolve(name)[1].image_size[0] % presets()[preset].config.patch.size[0] == 0]


@pytest.mark.parametrize("preset", [preset for preset in presets() if twins(preset)])
def test_presets_are_timms(preset: str) -> None:
    first, *_ = names = twins(preset)
    for name in names:
        family, config = resolve(name)
        # The depth of a preset is seen at its first size; at the others one block is enough.
        depth = {} if name == first else {"depth": 1}
        with without_data():
            model = build_ours(family, apply(config, {"num_classes": 10} | depth))
            peer = timm.create_model(name, num_classes=10, **depth)
        assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in peer.parameters())
        found = read(name, peer)
        to_ours(found, model)  # the same shapes everywhere
        assert facts_of(model.config) == facts_of_timm(peer)
        assert [getattr(model.config, field) for field in SAME] == [getattr(found.config, field) for field in SAME]
        block = peer.blocks[0]
        assert model.config.layer_scale == getattr(getattr(block, "ls1", block), "init_values", None)


# --- the way back: timm loads what we write, and we read it again bit by bit

WRITTEN = {
    "plain": ("vit_small_patch16", {}),
    "no head, one channel": ("vit_small_patch16", {"num_classes": 0, "channels": 1}),
    "head without bias": ("vit_small_patch16", {"head_bias": False}),
    "class token, norm after pooling": ("vit_small_patch16", {"final_norm": "pooled", "attention": {"qk_norm": True}}),
    "mean, no final norm": ("vit_small_patch16", {"pool": "mean", "final_norm": "none"}),
    "sincos positions": ("simple_vit_small_patch16", {}),
    "no positions, RMSNorm": ("vit_small_patch16", {"position": (), "norm": "rms", "attention": {"bias": "none"}}),
    "registers, dynamic": ("vit_small_patch16", {"registers": 3, "dynamic_size": True}),
    "odd hidden width": ("vit_small_patch16", {"mlp": {"hidden": 201}}),
    "SwiGLU": ("vit_small_patch16", {"mlp": {"kind": "swiglu", "hidden": 96, "inner_norm": True}}),
    "SwiGLU, eps": ("vit_small_patch16", {"mlp": "swiglu", "norm": {"eps": 1e-5}}),
    "res-post": ("vit_small_patch16", {"norm_placement": "res_post"}),
    "norms inside": ("vit_small_patch16", {"mlp": {"inner_norm": True}, "attention": {"inner_norm": True}}),
    "distilled": ("deit_small_distilled_patch16", {}),
    "deit3": ("deit3_small_patch16", {}),
    "dinov2": ("vit_small_patch14_reg4_dinov2", {"image_size": (56, 84)}),
    "clip": ("vit_base_patch16_clip", {}),
    "quick clip": ("vit_base_patch16_clip_quickgelu", {"num_classes": 5}),
    "siglip": ("vit_base_patch16_siglip", {}),
    "eva02 tiny": ("eva02_tiny_patch14", {"image_size": (56, 84), "mlp": {"hidden": 100}}),
    "eva02 base": ("eva02_base_patch14", {"image_size": (56, 84), "mlp": {"hidden": 100}}),
    "dinov3": ("vit_small_patch16_dinov3_qkvb", {}),
    "dinov3 plus": ("vit_small_plus_patch16_dinov3", {"mlp": {"hidden": 96}}),
    "beit": ("beit_base_patch16", {"image_size": (64, 64)}),
    "beit, SwiGLU": ("beit_base_patch16",
                     {"image_size": (64, 64), "position": ("learned", "relative"), "mlp": "swiglu"}),
}  # fmt: skip


@pytest.mark.parametrize("what", WRITTEN)
def test_timm_loads_what_we_write_and_we_read_it_back(what: str, tmp_path: Path) -> None:
    model = small(*WRITTEN[what])
    model.labels = tuple(f"class {k}" for k in range(model.config.num_classes)) or None
    foreign = Timm().write(model)
    write_tensors(tmp_path / "model.safetensors", foreign.tensors, {"format": "pt"})
    write_json(tmp_path / "config.json", foreign.config)

    peer = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).double().eval()
    images = torch.randn(2, model.config.channels, *model.config.image_size, dtype=torch.float64)
    again = vitrail.load(tmp_path)
    assert again.labels == model.labels
    assert differences(run(peer, images), ours(model.double(), images)).worst <= 1e-6

    state, read_state = model.float().state_dict(), again.state_dict()
    for name in state:
        assert torch.equal(state[name], read_state[name]), name
    rewritten = Timm().write(again)
    assert rewritten.config == foreign.config
    for name in foreign.tensors:
        assert torch.equal(rewritten.tensors[name], foreign.tensors[name].float()), name


def small(name: str, changes: dict[str, object]) -> torch.nn.Module:
    size = {"dim": 64, "depth": 2, "num_heads": 4}
    classes = {"num_classes": 7} if resolve(name)[1].num_classes else {}
    return randomise(create(name, **({"image_size": (64, 96)} | size | classes | changes)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pool": "class_mean"}, "class_mean"),
        ({"norm_placement": "post"}, "residual"),
        ({"attention": {"temperature": 2.0}}, "temperature"),
        ({"attention": {"head_dim": 8}}, "head_dim 8 x 4"),
        ({"position": "factored"}, "a vector of its own for each patch"),
        ({"patch": {"stride": (8, 8)}}, "overlapping"),
        ({"patch": {"kind": "conv"}}, "no stem of convolutions"),
        ({"embed_norm": True}, "embed_norm"),
        ({"norm": {"eps": 1e-3}}, "eps 0.001"),
        ({"position": ("relative", "rope")}, "Beit has one class token"),
        ({"position": ("relative",)}, "no bias on keys"),
        ({"position": ("relative",), "attention": {"bias": "qv"}, "pool": "mean", "final_norm": "pooled"}, "4 x 6"),
        ({"position": ({"kind": "rope", "pairs": "halves"},)}, "index coordinates and halves"),
        ({"attention": {"bias": "qv"}, "mlp": {"activation": "quick_gelu"}}, "exact GELU"),
    ],
)  # fmt: skip
def test_what_timm_cannot_say_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        Timm().write(small("vit_small_patch16", changes))


def test_convert_moves_timm_to_vitrail_and_back(tmp_path: Path) -> None:
    model_args = SMALL | {"qk_norm": True}
    peer = build("vit_small_patch16_224", **model_args)
    (tmp_path / "timm").mkdir()
    save(peer, tmp_path / "timm", model_args=model_args)
    vitrail.convert(tmp_path / "timm", tmp_path / "ours")
    vitrail.convert(tmp_path / "ours", tmp_path / "back", to="timm")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("timm", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


# --- bad input


def save_plain(folder: Path, **changes: object) -> dict[str, torch.Tensor]:
    model_args = SMALL | changes
    model = build("vit_small_patch16_224", **model_args)
    save(model, folder, model_args=model_args)
    return load_file(folder / "model.safetensors")


def test_missing_surplus_and_misshaped_tensors_are_listed(tmp_path: Path) -> None:
    tensors = save_plain(tmp_path)
    del tensors["blocks.1.attn.proj.bias"]
    tensors["blocks.0.extra"] = torch.zeros(1)
    tensors["norm.bias"] = torch.zeros(65)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        vitrail.load(tmp_path)
    text = str(caught.value)
    assert "missing (1): blocks.1.attn.proj.bias" in text
    assert "surplus (1): blocks.0.extra" in text
    assert "norm.bias (65,) for norm.bias (64,)" in text


@pytest.mark.parametrize(("key", "value"), [("depth", 12), ("embed_dim", 384)])
def test_a_config_that_contradicts_the_tensors_is_an_error(key: str, value: int, tmp_path: Path) -> None:
    save_plain(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_args"][key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"config.json says {key} = {value}"):
        vitrail.load(tmp_path)


LOST = ("pos_embed", "blocks.11.", "norm.", "head.bias", "head.", "patch_embed.proj.bias", "attn.qkv.bias")


@pytest.mark.parametrize("told", ["config", "name"])
@pytest.mark.parametrize("lost", LOST)
def test_what_a_whole_model_has_may_not_be_missing(lost: str, told: str, tmp_path: Path) -> None:
    whole = timm.create_model("vit_tiny_patch16_224", img_size=32)
    tensors = {k: t for k, t in whole.state_dict().items() if not k.startswith(lost) and lost not in k[8:]}
    assert len(tensors) < len(whole.state_dict())
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 1000, "model_args": {"img_size": 32}}
    weights = Weights(path=tmp_path / "x", tensors=tensors, config=config if told == "config" else None, metadata={})
    save_file(tensors, tmp_path / "model.safetensors")
    if told == "config":
        (tmp_path / "config.json").write_text(json.dumps(weights.config))
    if (lost, told) == ("head.", "name"):  # a file without a head is a backbone: only a config says that there was one
        assert vitrail.load(tmp_path, model="vit_tiny_patch16").config.num_classes == 0
        return
    with pytest.raises(CheckpointError):
        vitrail.load(tmp_path, **({} if told == "config" else {"model": "vit_tiny_patch16"}))


def test_a_wrong_name_is_not_believed(tmp_path: Path) -> None:
    save_plain(tmp_path)
    with pytest.raises(CheckpointError, match=r"dim is 64, not 768"):
        vitrail.load(tmp_path, model="vit_base_patch16")


@pytest.mark.parametrize(
    ("architecture", "changes", "asks"),
    [
        ("vit_small_patch16_224", {"embed_dim": 64, "num_heads": 4}, "heads"),
        ("vit_base_patch16_clip_224", {}, "which GELU"),
        ("eva02_tiny_patch14_336", {"img_size": 56}, "whether positions are rotary"),
        ("vit_tiny_patch16_224", {"pos_embed": "none"}, "whether positions are rotary"),
        ("vit_tiny_patch16_224", {"img_size": [64, 80]}, "square"),
        ("vit_tiny_patch16_224", {"img_size": 32, "reg_tokens": 4}, "whether 5 of the 9 positions"),
    ],
)
def test_what_shapes_do_not_tell_is_asked(
    architecture: str, changes: dict[str, object], asks: str, tmp_path: Path
) -> None:
    save_tensors(build(architecture, **({"depth": 1, "img_size": 64} | changes)), tmp_path)
    with pytest.raises(CheckpointError, match=asks):
        vitrail.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "error", "reason"),
    [
        ({"model_args": {"attn_layer": "diff"}}, CheckpointError, "attn_layer"),
        ({"model_args": {"act_layer": "relu"}}, Unsupported, "relu"),
        ({"model_args": {"norm_layer": "simplenorm"}}, Unsupported, "simplenorm"),
        ({"model_args": {"global_pool": "avgmax"}}, Unsupported, "avgmax"),
        ({"model_args": {"pool_include_prefix": True}}, Unsupported, "pools"),
        ({"architecture": "vit_base_patch16_rope_224"}, Unsupported, "rotary"),
        ({"architecture": "vit_base_patch16_xp_224"}, Unsupported, "side by side"),
    ],
)
def test_a_config_that_we_cannot_follow_is_refused(
    config: dict[str, object], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    tensors = save_plain(tmp_path)
    config = {"architecture": "vit_small_patch16_224"} | config
    weights = Weights(path=tmp_path, tensors=tensors, config=config, metadata={})
    with pytest.raises(error, match=reason):
        Timm().read(weights, None)


def test_an_architecture_that_nobody_knows_is_asked_for_its_heads(tmp_path: Path) -> None:
    tensors = save_plain(tmp_path)
    config = {"architecture": "my_own_vit", "pretrained_cfg": {"input_size": [3, 64, 96]}}
    weights = Weights(path=tmp_path, tensors=tensors, config=config, metadata={})
    with pytest.raises(CheckpointError, match="heads"):
        Timm().read(weights, None)
    named = Timm().read(weights, create("vit_small_patch16", num_heads=4, depth=1).config)
    assert (named.config.num_heads, named.config.image_size) == (4, (64, 96))


def test_another_family_of_timms_is_not_taken_for_a_vit() -> None:
    names = {"patch_embed.proj.weight": torch.zeros(1), "layers.0.blocks.0.attn.proj.weight": torch.zeros(1)}
    assert not Timm().recognises(Weights(path=Path("swin"), tensors=names, metadata={}))


def test_what_open_clip_adds_to_the_tower_is_not_dropped(tmp_path: Path) -> None:
    model = build("vit_small_patch16_224", **(SMALL | {"num_classes": 0, "img_size": 64, "embed_dim": 192}))
    more = {"visual.head.proj.weight": torch.randn(5, 192), "logit_scale": torch.ones(1)}
    save_tensors(model, tmp_path, prefix="visual.trunk.", more=more)
    told = hint("vit_tiny_patch16", depth=2)
    loaded = vitrail.load(tmp_path, model=told)
    assert torch.equal(loaded.head.weight, more["visual.head.proj.weight"])
    assert loaded.head.bias is None
    save_tensors(model, tmp_path, prefix="visual.trunk.", more=more | {"visual.head.mlp.weight": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"surplus \(1\): visual.head.mlp.weight"):
        vitrail.load(tmp_path, model=told)


def test_resampling_says_so(tmp_path: Path) -> None:
    save_plain(tmp_path)
    with pytest.warns(ResampledNotice, match="64 x 96 to 48 x 48"):
        vitrail.load(tmp_path, image_size=48)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vitrail.load(tmp_path, image_size=(64, 96))

from pathlib import Path

import pytest
import torch
from parity.cases.hf import CASES
from parity.compare import compare, differences, ours
from support.peers import torchvision

import vitrail
from vitrail.errors import CheckpointError, Unsupported
from vitrail.models.checkpoint.torchvision import Torchvision

TORCHVISION = {case.name: case for case in CASES if case.peer == "torchvision"}
TINY = TORCHVISION["torchvision ViT"]


@pytest.mark.parametrize("name", TORCHVISION)
def test_every_block_and_the_logits_agree(name: str, tmp_path: Path) -> None:
    assert compare(TORCHVISION[name], tmp_path).worst < 1e-12


def test_the_names_before_torchvision_0_12(tmp_path: Path) -> None:
    peer = TINY.make()
    old = {n.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): t
           for n, t in peer.state_dict().items()}  # fmt: skip
    torch.save(old, tmp_path / "vit.pth")
    model = vitrail.load(tmp_path, **TINY.load_options, dtype=torch.float64)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        assert differences(TINY.run(peer.double(), images), ours(model, images)).worst < 1e-12


@pytest.mark.parametrize("name", ["vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"])
def test_the_published_sizes_need_no_name(name: str, tmp_path: Path) -> None:
    """Of one block each, since the number of heads is what is at stake."""
    with torch.device("meta"):
        peer = getattr(torchvision.models, name)()
    first = {key: value for key, value in peer.state_dict().items() if "encoder_layer_" not in key}
    first |= {key: value for key, value in peer.state_dict().items() if "encoder_layer_0." in key}
    torch.save({key: torch.zeros(value.shape) for key, value in first.items()}, tmp_path / "vit.pth")
    model = vitrail.load(tmp_path)
    block = peer.encoder.layers[0]
    assert model.config.num_heads == block.num_heads
    assert model.config.norm.eps == block.ln_1.eps
    assert model.config.image_size == (peer.image_size, peer.image_size)


def test_an_unusual_width_needs_a_name(tmp_path: Path) -> None:
    TINY.save(TINY.make(), tmp_path)
    with pytest.raises(CheckpointError, match="heads"):
        vitrail.load(tmp_path)


def test_no_head(tmp_path: Path) -> None:
    state = {name: t for name, t in TINY.make().state_dict().items() if not name.startswith("heads.")}
    torch.save(state, tmp_path / "vit.pth")
    assert vitrail.load(tmp_path, **TINY.load_options).config.num_classes == 0


@pytest.mark.parametrize("name", list(TINY.make().state_dict()))
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    state = TINY.make().state_dict()
    del state[name]
    torch.save(state, tmp_path / "vit.pth")
    with pytest.raises(CheckpointError, match=r"missing|surplus|recognised"):
        vitrail.load(tmp_path, **TINY.load_options)


def test_a_representation_layer_is_not_ours(tmp_path: Path) -> None:
    peer = torchvision.models.VisionTransformer(32, 8, 2, 3, 48, 80, representation_size=20)
    torch.save(peer.state_dict(), tmp_path / "vit.pth")
    with pytest.raises(CheckpointError, match=r"surplus .*heads\.pre_logits"):
        vitrail.load(tmp_path, **TINY.load_options)


def test_it_is_not_written() -> None:
    with pytest.raises(Unsupported, match="convert to vitrail, timm or hf"):
        Torchvision().write(vitrail.create("vit_tiny_patch16", depth=1))

"""DAT against a model in loops, its published sizes, and the effect of moving points."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from support.deformable_loops import by_hand
from support.published import Published, check_published, sizes
from support.registered import randomise
from torch import Tensor

import vitrail
from vitrail.errors import ConfigError, InputError
from vitrail.layers.attention import DeformableAttention
from vitrail.layers.attention.window import WindowAttention
from vitrail.models.checkpoint.dialect import to_theirs
from vitrail.models.checkpoint.families.dat import AUTHORS

# The authors' code has 28.32 M parameters for the smallest one, exactly as many as here; the paper says 29.
PUBLISHED = {
    "dat_tiny": (Published(29, 4.6, "arXiv:2201.00520, table 2"), 0.025),
    "dat_small": (Published(50, 9.0, "arXiv:2201.00520, table 2"), 0.01),
    "dat_base": (Published(88, 15.8, "arXiv:2201.00520, table 2"), 0.01),
    "dat_base_window12": (Published(88, 49.8, "arXiv:2201.00520, table 2"), 0.01),
}
SMALL = {
    "dims": (8, 8, 16, 16), "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 4), "group_heads": 2,
    "image_size": (64, 96), "window": (4, 4), "num_classes": 5,
}  # fmt: skip


@sizes(PUBLISHED)
def test_published_sizes(name):
    published, tolerance = PUBLISHED[name]
    check_published(name, published, tolerance)


def test_the_smallest_is_the_authors_to_the_last_parameter():
    assert vitrail.profiling.cost("dat_tiny").parameters == 28_319_138


def small(**changes):
    return randomise(vitrail.create("dat_tiny", **SMALL | changes)).double().eval()


# --- the paper, in loops ----------------------------------------------------------------------------------------------


def windows_by_hand(layer: WindowAttention, tokens: Tensor, grid: tuple[int, int], *, shifted: bool) -> Tensor:
    """One image N D -> N D: every pair of patches that shares a window, by its offset."""
    size = [min(4, length) for length in grid]
    shift = [2 if shifted and part < length else 0 for part, length in zip(size, grid, strict=True)]
    q, k, v = layer.qkv(tokens).unflatten(1, (3, layer.num_heads, -1)).permute(1, 2, 0, 3)  # A N d each
    count = len(tokens)
    bias = torch.full((layer.num_heads, count, count), -math.inf, dtype=tokens.dtype)
    table = layer.relative.table.unflatten(0, [2 * part - 1 for part in size])
    places = [(n // grid[1], n % grid[1]) for n in range(count)]

    def home(place: tuple[int, int]) -> list[int]:
        """Windows begin `shift` patches in; those before them make a window of their own."""
        return [(at - by) // part for at, by, part in zip(place, shift, size, strict=True)]

    for n, here in enumerate(places):
        for m, there in enumerate(places):
            if home(here) == home(there):
                dy, dx = here[0] - there[0] + size[0] - 1, here[1] - there[1] + size[1] - 1
                bias[:, n, m] = table[dy, dx]
    shares = (q @ k.transpose(1, 2) / math.sqrt(q.shape[2]) + bias).softmax(dim=-1)
    return layer.projection((shares @ v).transpose(0, 1).flatten(1))


def model_by_hand(model, image: Tensor) -> tuple[list[Tensor], Tensor]:
    """One image C H W: the maps D h w after each stage, and the logits."""
    patch, maps, levels = model.stem, image[None], []
    for number, stage in enumerate(model.stages):
        patch = model.stem if number == 0 else stage.downsample
        conv, width = patch.patch.projection, 4 if number == 0 else 2
        maps = F.conv2d(maps, conv.weight, conv.bias, stride=width)
        grid = tuple(maps.shape[2:])
        x = patch.norm(maps[0].flatten(1).T)
        for index, block in enumerate(stage.blocks):
            if number >= 2 and index % 2:
                mixed = by_hand(block.attention, block.norm1(x), grid)
            else:
                mixed = windows_by_hand(block.attention, block.norm1(x), grid, shifted=index % 2 == 1)
            x = x + mixed
            x = x + block.mlp.fc2(F.gelu(block.mlp.fc1(block.norm2(x))))
        maps = x.T.unflatten(1, grid)[None]
        levels.append(maps[0])
    return levels, model.head(model.norm(x).mean(dim=0))


@torch.no_grad()
def test_is_the_paper_in_loops():
    model = small()
    images = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    features, logits = model.intermediates(images, [-1])[0], model(images)
    for index, image in enumerate(images):
        levels, expected = model_by_hand(model, image)
        torch.testing.assert_close(logits[index], expected, atol=1e-9, rtol=1e-9)
        for found, level in zip(features.pyramid, levels, strict=True):
            torch.testing.assert_close(found[index], level, atol=1e-9, rtol=1e-9)


# --- what it is made of -----------------------------------------------------------------------------------------------


def test_stages_alternate_as_published():
    with torch.device("meta"):
        model = vitrail.create("dat_tiny")
    kinds = [
        ["moves" if isinstance(b.attention, DeformableAttention) else b.attention.shifts for b in stage.blocks]
        for stage in model.stages
    ]
    assert kinds == [[False, True], [False, True], [False, "moves"] * 3, [False, "moves"]]
    moving = [b.attention for stage in model.stages[2:] for b in stage.blocks[1::2]]
    assert [layer.groups for layer in moving] == [3, 3, 3, 6]
    assert [layer.offsets[0].kernel_size[0] for layer in moving] == [5, 5, 5, 3]
    assert model.stages[0].blocks[1].attention.windows((56, 56)).shift == (4, 4)  # Swin's is (3, 3)
    assert [level.shape[1:] for level in model.features(torch.empty(1, 3, 224, 224, device="meta")).pyramid] == [
        (96, 56, 56), (192, 28, 28), (384, 14, 14), (768, 7, 7),
    ]  # fmt: skip


@torch.no_grad()
def test_points_that_stay_do_not_read_the_networks_that_move_them():
    model = small()
    images = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    moving = model(images)
    for module in model.modules():
        if isinstance(module, DeformableAttention):
            module.offsets[3].weight.zero_()
    still = model(images)
    for module in model.modules():
        if isinstance(module, DeformableAttention):
            module.offsets[0].weight.normal_()
    assert torch.equal(model(images), still)
    assert not torch.allclose(moving, still, atol=1e-6)


@pytest.mark.filterwarnings("ignore::vitrail.errors.ResampledNotice")
def test_moves_to_another_size():
    model = small()
    with pytest.raises(InputError, match="64 x 96"):
        model(torch.randn(1, 3, 96, 64, dtype=torch.float64))
    model.resize((96, 160))
    assert model(torch.randn(1, 3, 96, 160, dtype=torch.float64)).shape == (1, 5)
    tables = [module.relative.table.shape for module in model.modules() if isinstance(module, DeformableAttention)]
    assert tables == [(4, 11, 19), (4, 5, 9)]


def test_the_authors_files_are_read(tmp_path):
    """Names, shapes and buffers as in the code of 2022; a file of theirs holds the model under "model"."""
    model = randomise(vitrail.create("dat_tiny", **SMALL)).eval()
    theirs = to_theirs(model, AUTHORS.rules(model.config))
    assert theirs["stages.2.attns.1.proj_k.weight"].shape == (16, 16, 1, 1)
    assert theirs["stages.2.attns.1.rpe_table"].shape == (4, 7, 11)
    theirs["stages.0.attns.1.attn_mask"] = torch.zeros(24, 16, 16)
    torch.save({"model": theirs}, tmp_path / "dat.pth")
    found = vitrail.load(tmp_path / "dat.pth", model=copy.deepcopy(model.config))
    images = torch.randn(1, 3, 64, 96)
    assert torch.equal(found.eval()(images), model(images))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kernels": (5, 3)}, ConfigError, r"kernels.* 2 .*depths"),
        ({"num_heads": (1, 2, 8, 8), "group_heads": 3}, ConfigError, r"8 heads.* 3"),
        ({"image_size": (64, 100)}, InputError, "64 x 96"),
    ],
)
def test_bad_configs_are_named(changes, error, message):
    with pytest.raises(error, match=message):
        small(**changes)

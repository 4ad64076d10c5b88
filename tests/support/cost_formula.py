"""The cost of a plain ViT in closed form, part by part.

It only uses the config, to check the counts of a forward pass. With T = P + N tokens, width D, inner width I = A d and
hidden width h, a block costs T (4 D I) + 2 T^2 I MACs of attention (4 T D^2 + 2 T^2 D if I = D) and T (2 D h) of MLP,
which for h = 4 D and small T is two thirds of all.
"""

from typing import NamedTuple

from vitrail.errors import Unsupported
from vitrail.layers.attention import SoftmaxConfig
from vitrail.layers.mlp import GeluMLPConfig, SwiGLUConfig
from vitrail.layers.norm import LayerNormConfig, RMSNormConfig
from vitrail.layers.patch import LinearPatchConfig
from vitrail.layers.pool import AttentionPoolConfig, ClassMeanPoolConfig, ClassPoolConfig, MeanPoolConfig
from vitrail.layers.position import FactoredConfig, LearnedConfig
from vitrail.layers.reduce import MergeConfig
from vitrail.layers.relative import RelativeConfig
from vitrail.layers.rope import RopeConfig
from vitrail.models.deit import DeiTConfig
from vitrail.models.vit import ViTConfig

Parts = dict[str, int]


class _Sizes(NamedTuple):
    """The sizes in the formulas, and the choices with their types."""

    grid: tuple[int, int]
    prefix: int
    inner: int
    head_dim: int
    hidden: int
    num_norm: int  # parameters of a norm per channel, and numbers that it saves per row: 2, or 1 for RMSNorm
    num_heads_out: int  # classifier heads: 0, 1, or 2 with distillation
    patch: LinearPatchConfig
    attention: SoftmaxConfig
    mlp: GeluMLPConfig | SwiGLUConfig

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        return self.prefix + self.patches

    @property
    def statistics(self) -> int:
        """Bytes that a norm saves per row: float32, whatever the type of the weights."""
        return 4 * self.num_norm


def parameters(config: ViTConfig) -> Parts:
    """Parameters by part."""
    size, dim, depth = _sizes(config), config.dim, config.depth
    norm = size.num_norm
    pixels = config.channels * size.patch.size[0] * size.patch.size[1]
    position, bias = 0, 0
    for choice in config.position:
        if isinstance(choice, LearnedConfig):
            position += (size.patches + (size.prefix if choice.prefix else 0)) * dim
        elif isinstance(choice, FactoredConfig):
            position += sum(size.grid) * dim
        elif isinstance(choice, RelativeConfig):
            offsets = (2 * size.grid[0] - 1) * (2 * size.grid[1] - 1)
            bias += (offsets + (3 if size.prefix else 0)) * config.num_heads
    attention = size.attention
    qkv = 3 * dim * size.inner + {"qkv": 3, "qv": 2, "none": 0}[attention.bias] * size.inner
    within = norm * (2 * size.head_dim * attention.qk_norm + size.inner * attention.inner_norm)
    width = config.pool.width(dim)
    final = {"tokens": dim, "pooled": width, "none": 0}[config.final_norm]
    return {
        "patch": (pixels + size.patch.bias) * dim,
        "prefix": size.prefix * dim,
        "position": position,
        "attention": depth * (qkv + within + bias + (size.inner + 1) * dim),
        "mlp": depth * _mlp_parameters(config, size),
        "norm": norm * (depth * 2 * dim + dim * config.embed_norm + final),
        "scale": 0 if config.layer_scale is None else depth * 2 * dim,
        "pool": _pool_parameters(config, size),
        "head": size.num_heads_out * (width + config.head_bias) * config.num_classes,
    }


def _mlp_parameters(config: ViTConfig, size: _Sizes) -> int:
    into = size.hidden * (2 if isinstance(size.mlp, SwiGLUConfig) else 1)
    norm = size.num_norm * size.hidden * size.mlp.inner_norm
    return (config.dim + 1) * into + norm + (size.hidden + 1) * config.dim


def _pool_parameters(config: ViTConfig, size: _Sizes) -> int:
    if not isinstance(config.pool, AttentionPoolConfig):
        return 0
    dim = config.dim  # a query; the maps of queries, keys, values and output; a norm and an MLP
    return dim + 4 * (dim + 1) * dim + size.num_norm * dim + _mlp_parameters(config, size)


def macs(config: ViTConfig, *, batch: int = 1) -> Parts:
    """Multiply-accumulates of one forward pass, by part."""
    size, dim, counts = _sizes(config), config.dim, _counts(config)
    pixels = config.channels * size.patch.size[0] * size.patch.size[1]
    mlp = dim * size.hidden * (3 if isinstance(size.mlp, SwiGLUConfig) else 2)
    pool = 0
    if isinstance(config.pool, AttentionPoolConfig):
        keys_and_values, mixing = size.patches * 2 * dim * dim, 2 * size.patches * dim
        # The query is the same for all images: it is projected once, not once an image.
        pool = dim * dim + batch * (keys_and_values + mixing + dim * dim + mlp)
    return {
        "patch": batch * size.patches * pixels * dim,
        "attention": batch * sum(4 * tokens * dim * size.inner + 2 * tokens**2 * size.inner for tokens, _ in counts),
        "mlp": batch * sum(tokens * mlp for _, tokens in counts),
        "reduce": batch * sum(_choice(config, size, *count) for count in counts),
        "pool": pool,
        "head": batch * size.num_heads_out * config.pool.width(dim) * config.num_classes,
    }


def _counts(config: ViTConfig) -> list[tuple[int, int]]:
    """The tokens that attention and MLP of each block read."""
    size = _sizes(config)
    if config.reduce is None:
        return [(size.tokens, size.tokens)] * config.depth
    return config.reduce.counts(size.patches, depth=config.depth, num_prefix=size.prefix)


def _choice(config: ViTConfig, size: _Sizes, before: int, after: int) -> int:
    """MACs of choosing which tokens go: every other key against the rest, or the class token against all."""
    if before == after:
        return 0
    if isinstance(config.reduce, MergeConfig):
        return (before + 1) // 2 * (before // 2) * size.head_dim
    return before * size.inner


def kept(config: ViTConfig, *, batch: int = 1, itemsize: int = 4) -> Parts:
    """Bytes that a training step keeps for backward, by part, with fused attention; for norms that stand before.

    Linear in the number of tokens: the N x N matrix is never there, only its bias where positions are relative.
    """
    size, dim, depth = _sizes(config), config.dim, config.depth
    _check_kept(config, size)
    rows = batch * size.tokens
    mask = rows * dim * (config.dropout > 0)
    norm = rows * (dim * itemsize + size.statistics)
    scale = 0 if config.layer_scale is None else 2 * rows * dim * itemsize
    paths = 2 * batch * itemsize * (depth - 1) * (config.drop_path > 0)  # the first block's rate is zero
    pixels = config.channels * size.patch.size[0] * size.patch.size[1]
    return {
        "patch": batch * size.patches * pixels * itemsize,
        "drop": mask,
        "attention": depth * (_kept_attention(config, size, rows, itemsize) + mask),
        "mlp": depth * (_kept_mlp(config, size, rows, itemsize, dropout=config.dropout) + mask),
        "norm": norm * (2 * depth + config.embed_norm),
        "scale": depth * scale + paths,
        "out": _kept_out(config, size, batch, itemsize),
    }


def _kept_attention(config: ViTConfig, size: _Sizes, rows: int, itemsize: int) -> int:
    """The input, q k v, the mixed values, and one float32 for each row of each head."""
    attention, inner = size.attention, rows * size.inner * itemsize
    total = rows * config.dim * itemsize + 4 * inner + rows * config.num_heads * 4
    if attention.qk_norm or any(isinstance(choice, RopeConfig) for choice in config.position):
        total += 2 * inner  # q and k anew, while v still holds the memory of all three
    if attention.qk_norm:
        # A norm's output lies head by head in memory, the mixed values then too: joining the heads copies them.
        total += 2 * rows * config.num_heads * size.statistics + inner
    if attention.inner_norm:
        total += inner + rows * size.statistics
    if any(isinstance(choice, RelativeConfig) for choice in config.position):
        total += config.num_heads * size.tokens**2 * itemsize
    return total


def _kept_mlp(config: ViTConfig, size: _Sizes, rows: int, itemsize: int, *, dropout: float) -> int:
    """The input, and the hidden layer as often as the activation needs it."""
    hidden = rows * size.hidden
    copies = 2  # before and after the activation
    if isinstance(size.mlp, SwiGLUConfig):
        copies = 4  # gate and value, the activated gate, the product
    elif size.mlp.activation == "quick_gelu":
        copies = 3  # the sigmoid too
    total = rows * config.dim * itemsize + hidden * (copies * itemsize + (dropout > 0))
    return total + (hidden * itemsize + rows * size.statistics if size.mlp.inner_norm else 0)


def _kept_out(config: ViTConfig, size: _Sizes, batch: int, itemsize: int) -> int:
    """Final norm, pool and head; a head that reads one token holds the memory of all."""
    dim, rows = config.dim, batch * size.tokens
    total = rows * (dim * itemsize + size.statistics) if config.final_norm == "tokens" else 0
    pooled, everything = batch * config.pool.width(dim) * itemsize, rows * dim * itemsize
    reads = everything if isinstance(config.pool, ClassPoolConfig) else pooled
    if isinstance(config.pool, AttentionPoolConfig):
        total += everything + dim * itemsize + 2 * everything  # the keys' and values' input, the query, both
        total += (
            pooled + batch * config.num_heads * 4 + pooled + batch * size.statistics
        )  # mixed, then the norm's input
        total += _kept_mlp(config, size, batch, itemsize, dropout=0.0)
    if config.final_norm == "pooled":
        return total + reads + batch * size.statistics + pooled * (size.num_heads_out > 0)
    return total + reads * (size.num_heads_out > 0)


def _sizes(config: ViTConfig) -> _Sizes:
    patch, attention, mlp = config.patch, config.attention, config.mlp
    if not isinstance(patch, LinearPatchConfig) or not isinstance(attention, SoftmaxConfig):
        raise Unsupported(f"no closed form for {patch.kind!r} patches with {attention.kind!r} attention")
    if not isinstance(mlp, GeluMLPConfig | SwiGLUConfig):
        raise Unsupported(f"no closed form for {mlp.kind!r} as the MLP")
    if not isinstance(config.norm, LayerNormConfig | RMSNormConfig):
        raise Unsupported(f"no closed form for {config.norm.kind!r} norms")
    pools = (ClassPoolConfig, MeanPoolConfig, ClassMeanPoolConfig, AttentionPoolConfig)
    if not isinstance(config.pool, pools):
        raise Unsupported(f"no closed form for {config.pool.kind!r} pooling")
    distillation = isinstance(config, DeiTConfig)
    head_dim = attention.head_dim or config.dim // config.num_heads
    return _Sizes(
        grid=config.grid(config.image_size),
        prefix=config.class_token + distillation + config.registers,
        inner=config.num_heads * head_dim,
        head_dim=head_dim,
        hidden=mlp.hidden or int(config.dim * mlp.ratio),
        num_norm=2 if isinstance(config.norm, LayerNormConfig) else 1,
        num_heads_out=(1 + distillation) if config.num_classes else 0,
        patch=patch,
        attention=attention,
        mlp=mlp,
    )


def _check_kept(config: ViTConfig, size: _Sizes) -> None:
    reasons = {
        "patches that are dropped, or tokens reduced": config.patch_drop > 0 or config.reduce is not None,
        "norms elsewhere than before": config.norm_placement != "pre",
        "attention that is not fused": not size.attention.fused,
        "patches that overlap": size.patch.stride not in (None, size.patch.size) or size.patch.padding != (0, 0),
        "attention pooling beside prefix tokens": isinstance(config.pool, AttentionPoolConfig) and size.prefix > 0,
    }
    for reason, applies in reasons.items():
        if applies:
            raise Unsupported(f"no closed form of the kept bytes for {reason}; describe(model) counts them")

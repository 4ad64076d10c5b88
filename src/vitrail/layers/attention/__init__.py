"""Attention mechanisms, one file each; to add one, write its file and add one line here."""

from vitrail.layers.attention.base import Attention, AttentionConfig, MultiHead, Site
from vitrail.layers.attention.biased import BiasedAttention, BiasedConfig, SubsampledAttention
from vitrail.layers.attention.block_diagonal import BlockDiagonalAttention, BlockDiagonalConfig
from vitrail.layers.attention.class_attention import ClassAttention
from vitrail.layers.attention.conv_projection import ConvProjectionAttention, ConvProjectionConfig
from vitrail.layers.attention.cross import CrossAttention
from vitrail.layers.attention.deformable import DeformableAttention, DeformableConfig
from vitrail.layers.attention.deformable_multiscale import MultiScaleDeformableAttention
from vitrail.layers.attention.dilated import DilatedAttention, DilatedConfig
from vitrail.layers.attention.linear import LinearAttention, LinearConfig
from vitrail.layers.attention.linformer import LinformerAttention, LinformerConfig
from vitrail.layers.attention.local import LocalAttention, LocalConfig
from vitrail.layers.attention.neighbourhood import NeighbourhoodAttention, NeighbourhoodConfig
from vitrail.layers.attention.performer import PerformerAttention, PerformerConfig
from vitrail.layers.attention.reduction import ReductionAttention, ReductionConfig
from vitrail.layers.attention.softmax import SoftmaxAttention, SoftmaxConfig
from vitrail.layers.attention.window import WindowAttention, WindowConfig
from vitrail.layers.attention.xca import XCAConfig, XCAttention

__all__ = [
    "Attention",
    "AttentionConfig",
    "BiasedAttention",
    "BiasedConfig",
    "BlockDiagonalAttention",
    "BlockDiagonalConfig",
    "ClassAttention",
    "ConvProjectionAttention",
    "ConvProjectionConfig",
    "CrossAttention",
    "DeformableAttention",
    "DeformableConfig",
    "DilatedAttention",
    "DilatedConfig",
    "LinearAttention",
    "LinearConfig",
    "LinformerAttention",
    "LinformerConfig",
    "LocalAttention",
    "LocalConfig",
    "MultiHead",
    "MultiScaleDeformableAttention",
    "NeighbourhoodAttention",
    "NeighbourhoodConfig",
    "PerformerAttention",
    "PerformerConfig",
    "ReductionAttention",
    "ReductionConfig",
    "Site",
    "SoftmaxAttention",
    "SoftmaxConfig",
    "SubsampledAttention",
    "WindowAttention",
    "WindowConfig",
    "XCAConfig",
    "XCAttention",
]

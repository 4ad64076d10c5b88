"""Encoder and decoder layers of DETR (arXiv:2005.12872) and Deformable DETR (arXiv:2010.04159), norm after each sum."""

from collections.abc import Sequence

from torch import Tensor, nn

from vitrail.layers.attention.deformable_multiscale import MultiScaleDeformableAttention
from vitrail.layers.attention.positioned import PositionedAttention
from vitrail.layers.dropout import Dropout
from vitrail.layers.padding import Padding
from vitrail.layers.patch import Grid


class AddNorm(nn.Module):
    """norm(tokens + dropout(change)): B N D, B N D -> B N D."""

    def __init__(self, dim: int, *, dropout: float) -> None:
        super().__init__()
        self.drop = Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor, change: Tensor) -> Tensor:
        """B N D, B N D -> B N D."""
        return self.norm(tokens + self.drop(change))


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, by default ReLU: B N D -> B N D."""

    def __init__(self, dim: int, hidden: int, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.fc1, self.activation, self.fc2 = nn.Linear(dim, hidden), activation or nn.ReLU(), nn.Linear(hidden, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """B N D -> B N D."""
        return self.fc2(self.activation(self.fc1(tokens)))


class EncoderLayer(nn.Module):
    """Self-attention with positions, then an MLP: B N D -> B N D."""

    def __init__(
        self, dim: int, *, num_heads: int, hidden: int, dropout: float = 0.0, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.attention = PositionedAttention(dim, num_heads=num_heads)
        self.after_attention = AddNorm(dim, dropout=dropout)
        self.mlp = FeedForward(dim, hidden, activation)
        self.after_mlp = AddNorm(dim, dropout=dropout)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """B N D, and positions that broadcast to it -> B N D; `mask`, B 1 1 N, is False for padding."""
        placed = tokens + positions
        tokens = self.after_attention(tokens, self.attention(placed, placed, tokens, mask))
        return self.after_mlp(tokens, self.mlp(tokens))


class DecoderLayer(nn.Module):
    """Self-attention of queries, attention to the tokens of the image, an MLP: B Q D -> B Q D."""

    def __init__(self, dim: int, *, num_heads: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = PositionedAttention(dim, num_heads=num_heads)
        self.after_attention = AddNorm(dim, dropout=dropout)
        self.cross = PositionedAttention(dim, num_heads=num_heads)
        self.after_cross = AddNorm(dim, dropout=dropout)
        self.mlp = FeedForward(dim, hidden)
        self.after_mlp = AddNorm(dim, dropout=dropout)

    def forward(
        self,
        queries: Tensor,
        query_positions: Tensor,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
    ) -> Tensor:
        """B Q D and B N D, and positions that broadcast to each -> B Q D; `mask`, B 1 1 N, is False for padding."""
        placed = queries + query_positions
        queries = self.after_attention(queries, self.attention(placed, placed, queries))
        queries = self.after_cross(queries, self.cross(queries + query_positions, tokens + positions, tokens, mask))
        return self.after_mlp(queries, self.mlp(queries))


class DeformableEncoderLayer(nn.Module):
    """Each token samples a few points of every level, then an MLP: B S D -> B S D."""

    def __init__(
        self, dim: int, *, num_heads: int, hidden: int, levels: int, points: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention = MultiScaleDeformableAttention(dim, num_heads, levels=levels, points=points)
        self.after_attention = AddNorm(dim, dropout=dropout)
        self.mlp = FeedForward(dim, hidden)
        self.after_mlp = AddNorm(dim, dropout=dropout)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        references: Tensor,
        grids: Sequence[Grid],
        padding: Padding | None = None,
    ) -> Tensor:
        """B S D, its positions, and the reference points B S L 2 -> B S D."""
        hidden = None if padding is None else padding.tokens
        found = self.attention(tokens + positions, references, tokens, grids, hidden)
        tokens = self.after_attention(tokens, found)
        return self.after_mlp(tokens, self.mlp(tokens))


class DeformableDecoderLayer(nn.Module):
    """Self-attention of queries, each samples a few points of every level, an MLP: B Q D -> B Q D."""

    def __init__(
        self, dim: int, *, num_heads: int, hidden: int, levels: int, points: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention = PositionedAttention(dim, num_heads=num_heads)
        self.after_attention = AddNorm(dim, dropout=dropout)
        self.cross = MultiScaleDeformableAttention(dim, num_heads, levels=levels, points=points)
        self.after_cross = AddNorm(dim, dropout=dropout)
        self.mlp = FeedForward(dim, hidden)
        self.after_mlp = AddNorm(dim, dropout=dropout)

    def forward(
        self,
        queries: Tensor,
        positions: Tensor,
        references: Tensor,
        tokens: Tensor,
        grids: Sequence[Grid],
        *,
        mask: Tensor | None = None,
        padding: Padding | None = None,
    ) -> Tensor:
        """B Q D, its positions, references B Q 2 (or 4) and the image's tokens B S D -> B Q D.

        `mask`, Q Q, is True where a query may attend to another one.
        """
        placed = queries + positions
        queries = self.after_attention(queries, self.attention(placed, placed, queries, mask))
        every_level = references[:, :, None].expand(-1, -1, len(grids), -1)  # B Q L 2 or 4
        hidden = None
        if padding is not None:
            every_level, hidden = padding.scaled(references[:, :, None]), padding.tokens
        queries = self.after_cross(queries, self.cross(queries + positions, every_level, tokens, grids, hidden))
        return self.after_mlp(queries, self.mlp(queries))


class BoxMLP(nn.Sequential):
    """Three linear maps with ReLU between them: B Q D -> B Q 4."""

    def __init__(self, dim: int, outputs: int = 4) -> None:
        super().__init__(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, outputs))

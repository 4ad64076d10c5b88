"""A Vision Transformer on one page, to be read from top to bottom. It imports nothing but torch.

The paper (Dosovitskiy et al. 2020, arXiv:2010.11929) needs eight equations to say what a ViT is, and this page follows
them one by one, by their numbers. Nothing is fused, cached or configurable: where the library is quick, this page is
plain, and the tests hold the one against the other.

    an image is cut into patches          x    -> x_p
    each patch becomes a token            x_p  -> z_0     equation 1
    tokens talk, then think, L times      z_0  -> z_L     equations 2 and 3; attention inside: 5 to 8
    one token answers for the image       z_L  -> y       equation 4

Shapes: B batch, C channels, H W pixels, p the side of a patch, N patches, D width, k heads, d = D / k, K classes.
"""

import torch
from torch import Tensor, nn


def cut(x: Tensor, p: int) -> Tensor:
    """Cuts images B C H W into a sequence of flat patches B N C*p*p: row by row, as one reads."""
    B, C, H, W = x.shape
    patches = [
        x[:, :, row : row + p, column : column + p].reshape(B, C * p * p)  # one patch of every image: B C*p*p
        for row in range(0, H, p)
        for column in range(0, W, p)
    ]
    return torch.stack(patches, dim=1)  # B N C*p*p


class SelfAttention(nn.Module):
    """SA, one head: every token asks a question of all tokens and goes home with a blend of their answers."""

    def __init__(self, D: int, d: int) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(D, d), nn.Linear(D, d), nn.Linear(D, d)

    def forward(self, z: Tensor) -> Tensor:
        """Tokens B N D -> one head's answer B N d."""
        q, k, v = self.query(z), self.key(z), self.value(z)  # B N d each           (5)
        similarity = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5  # B N N, query by key
        A = similarity.exp() / similarity.exp().sum(dim=2, keepdim=True)  # softmax: each row sums to 1  (6)
        return A @ v  # B N N @ B N d -> B N d                                      (7)


class MultiheadSelfAttention(nn.Module):
    """MSA: k heads listen for k different things; U_msa writes down what they heard."""

    def __init__(self, D: int, k: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(SelfAttention(D, D // k) for _ in range(k))
        self.U_msa = nn.Linear(D, D)

    def forward(self, z: Tensor) -> Tensor:
        """Tokens B N D -> tokens B N D."""
        return self.U_msa(torch.cat([head(z) for head in self.heads], dim=2))  # k of B N d -> B N D   (8)


class MLP(nn.Module):
    """Two linear maps with a GELU between: each token thinks for itself, four times as wide."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, z: Tensor) -> Tensor:
        """Tokens B N D -> tokens B N D."""
        h = self.widen(z)  # B N 4D
        gelu = h * (1 + torch.erf(h / 2**0.5)) / 2  # h times the chance that a normal variable is below h
        return self.narrow(gelu)  # B N D


class Block(nn.Module):
    """One layer: the tokens talk, then think. What they learn is added to what they were."""

    def __init__(self, D: int, k: int) -> None:
        super().__init__()
        self.talk_norm, self.talk = nn.LayerNorm(D, eps=1e-6), MultiheadSelfAttention(D, k)
        self.think_norm, self.think = nn.LayerNorm(D, eps=1e-6), MLP(D)

    def forward(self, z: Tensor) -> Tensor:
        """Tokens B N D -> tokens B N D."""
        z = self.talk(self.talk_norm(z)) + z  # (2)
        return self.think(self.think_norm(z)) + z  # (3)


class ReferenceViT(nn.Module):
    """Images B C H W -> logits B K: the whole model."""

    def __init__(self, H: int, W: int, C: int, p: int, D: int, L: int, k: int, K: int) -> None:
        super().__init__()
        N = (H // p) * (W // p)
        self.p = p
        self.E = nn.Linear(C * p * p, D)  # the patch embedding
        self.x_class = nn.Parameter(torch.randn(1, 1, D))  # the class token: its output is read for the answer
        self.E_pos = nn.Parameter(torch.randn(1, 1 + N, D))  # without it, a shuffled image would look the same
        self.blocks = nn.ModuleList(Block(D, k) for _ in range(L))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.head = nn.Linear(D, K)

    def embed(self, x: Tensor) -> Tensor:
        """Images B C H W -> the first tokens z_0: B 1+N D."""
        x_p = self.E(cut(x, self.p))  # B N C*p*p -> B N D
        x_class = self.x_class.expand(len(x), 1, -1)  # the same for every image: B 1 D
        return torch.cat([x_class, x_p], dim=1) + self.E_pos  # B 1+N D              (1)

    def forward(self, x: Tensor) -> Tensor:
        """Images B C H W -> logits B K."""
        z = self.embed(x)  # B 1+N D
        for block in self.blocks:
            z = block(z)  # B 1+N D, L times
        y = self.norm(z[:, 0])  # the class token alone: B D                         (4)
        return self.head(y)  # B K


def to_vitrail(reference: ReferenceViT, channels: int) -> dict[str, Tensor]:
    """The same weights under the names of `vitrail.create("vit_...")`, ready for `load_state_dict`."""
    p = reference.p
    state = {
        "patch.projection.weight": reference.E.weight.unflatten(1, (channels, p, p)),  # a strided convolution is E
        "patch.projection.bias": reference.E.bias,
        "prefix.class_token": reference.x_class[0],
        "position.0.table": reference.E_pos[0],
    }
    parts = [("norm", reference.norm), ("head", reference.head)]
    for index, block in enumerate(reference.blocks):
        name, heads = f"blocks.{index}", block.talk.heads
        maps = [getattr(head, role) for role in ("query", "key", "value") for head in heads]  # one matrix for all 3k
        state[f"{name}.attention.qkv.weight"] = torch.cat([linear.weight for linear in maps])
        state[f"{name}.attention.qkv.bias"] = torch.cat([linear.bias for linear in maps])
        parts += [(f"{name}.norm1", block.talk_norm), (f"{name}.attention.projection", block.talk.U_msa)]
        parts += [(f"{name}.norm2", block.think_norm)]
        parts += [(f"{name}.mlp.fc1", block.think.widen), (f"{name}.mlp.fc2", block.think.narrow)]
    for name, module in parts:
        state |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
    return {name: tensor.detach().clone() for name, tensor in state.items()}

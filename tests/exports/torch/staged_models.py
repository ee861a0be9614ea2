"""A small decoder in float64, and the plans with pipeline stages that it is exported with."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

BATCH, LENGTH, VOCABULARY, HIDDEN, HEADS = 8, 8, 24, 16, 4
CASES = {
    "tensor": "tensor=2,pipeline=2,sequence_parallel,micro_batch=4",
    "recomputed": "pipeline=2,data=2,zero=1,recompute=full,micro_batch=1",
    "four": "pipeline=4,micro_batch=2",
    "chunks": "pipeline=2,data=2,chunks=2,zero=3,micro_batch=2",
    "zero_bubble": "pipeline=4,schedule=zero_bubble,micro_batch=1",
    "gpipe": "pipeline=2,context=2,schedule=gpipe,micro_batch=2",
}


class Block(nn.Module):
    """A block of a decoder."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.RMSNorm(HIDDEN, eps=1e-6)
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x, scale):
        y = self.first(x) * scale
        parts = (
            f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """Four blocks, which read a table made once; the embedding is read by the head, too."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, ids, labels):
        x = begin = self.embedding(ids)
        scale = torch.tanh(self.scale) + begin  # of every block: it skips stages
        for block in self.blocks:
            x = block(x, scale)
        total = F.cross_entropy(
            self.head(self.norm(x)).flatten(0, 1), labels.flatten(), reduction="sum"
        )
        return total / (BATCH * LENGTH)


def made():
    """Return the decoder and its inputs."""
    torch.manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return Decoder().double(), {"ids": ids, "labels": ids.roll(1, 1)}

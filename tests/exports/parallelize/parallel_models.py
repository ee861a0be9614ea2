"""Modules in float64, and the plans that they are parallelized with."""

from importlib import import_module

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

BATCH, LENGTH, VOCABULARY, HIDDEN, HEADS = 8, 8, 24, 16, 4


class Perceptron(nn.Module):
    """Layers between a table and scores."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x, labels):
        return F.cross_entropy(self.head(self.layers(x)), labels)


class Block(nn.Module):
    """A block of a decoder that takes sizes from its tensors."""

    def __init__(self):
        super().__init__()
        self.norm, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        y = self.norm(x)
        parts = (
            f(y).unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """Blocks with a table and a head."""

    def __init__(self, blocks=1):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids, labels):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Scores(Decoder):
    """What the loss of a decoder takes; `across` adds the first activation to the last."""

    def __init__(self, blocks=2, across=False):
        super().__init__(blocks)
        self.across = across

    def forward(self, ids):
        x = first = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x + first if self.across else x))


class Tied(Scores):
    """A table that is the head, too."""

    def __init__(self, blocks=2):
        super().__init__(blocks)
        self.head.weight = self.words.weight


class Counted(nn.Module):
    """Attention whose code has the number of heads."""

    def __init__(self):
        super().__init__()
        self.query, self.out = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, 4)

    def forward(self, x, labels):
        y = self.query(x).view(BATCH, -1, HEADS, HIDDEN // HEADS).transpose(1, 2)
        y = F.scaled_dot_product_attention(y, y, y).transpose(1, 2)
        y = self.out(y.reshape(BATCH, LENGTH, -1))
        return F.cross_entropy(self.head(y.mean(1)), labels)


def tokens():
    """Return tokens of all samples."""
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH))


def _perceptron():
    return Perceptron(), {"x": torch.randn(BATCH, 8), "labels": torch.randint(0, 4, (BATCH,))}


def _decoder():
    return Decoder(), {"ids": tokens(), "labels": tokens()}


def _counted():
    x = torch.randn(BATCH, LENGTH, HIDDEN)
    return Counted(), {"x": x, "labels": torch.randint(0, 4, (BATCH,))}


def _llama():
    return import_module("llama_model").Llama(), {"ids": tokens(), "labels": tokens()}


MODELS = {"perceptron": _perceptron, "decoder": _decoder, "counted": _counted, "llama": _llama}
CASES = {
    "decoder_found": ("decoder", None),
    "counted": ("counted", "tensor=4"),
    "perceptron_copies": ("perceptron", "data=4"),
    "perceptron_parts": ("perceptron", "tensor=2,data=2"),
    "decoder_sequence": ("decoder", "tensor=2,data=2,sequence_parallel,zero=3,recompute=full"),
    "perceptron_tensor": ("perceptron", "tensor=4"),
    "llama_sharded": ("llama", "data=4,zero=3"),
    "llama_tensor": ("llama", "tensor=2,data=2"),
}
WRONG = ("counted",)


def made(name):
    """Return a module in float64, its inputs, and its named plan; None for one that is found."""
    torch.manual_seed(0)
    model, plan = CASES[name]
    module, inputs = MODELS[model]()
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    return module.double(), inputs, plan


PIPELINES = {
    "sharded": (4, "pipeline=2,data=2,micro_batch=2,zero=3"),
    "tied": (4, "pipeline=2,data=2,micro_batch=2,zero=1"),
    "recomputed": (2, "pipeline=2,micro_batch=2,recompute=full"),
    "interleaved": (2, "pipeline=2,chunks=2,micro_batch=2"),
    "tied_interleaved": (2, "pipeline=2,chunks=2,micro_batch=2"),
    "tied_zero_bubble": (4, "pipeline=4,micro_batch=2,schedule=zero_bubble"),
}


def scores(name):
    """Return a module of scores in float64 with a block a stage, and its tokens."""
    blocks = 2 if name in ("sharded", "tied", "recomputed") else 4
    return (Tied if name.startswith("tied") else Scores)(blocks).double(), tokens()

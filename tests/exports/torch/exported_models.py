"""Small modules in float64, and the plans that they are exported with."""

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

BATCH, LENGTH, VOCABULARY, HIDDEN, HEADS = 8, 8, 24, 16, 4


class Decoder(nn.Module):
    """One layer of a decoder, with its loss; the embedding is the head, too."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.second = nn.RMSNorm(HIDDEN, eps=1e-6)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids, labels):
        x = self.embedding(ids)
        y = self.norm(x)
        parts = (
            f(y).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        x = x + self.down(F.gelu(self.up(self.second(x))))
        total = F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), reduction="sum")
        return total / (BATCH * LENGTH)


class Perceptron(nn.Module):
    """A perceptron whose sizes nothing divides."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 5))

    def forward(self, x, labels):
        return F.cross_entropy(self.layers(x), labels)


class Pictures(nn.Module):
    """A convolution with a batch normalization, whose statistics are state."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x, labels):
        y = F.silu(self.norm(self.convolution(x)))
        return F.cross_entropy(self.head(y.mean((2, 3))), labels)


class Recurrent(nn.Module):
    """Recurrent networks of two kinds, and a linear recurrence."""

    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(6, 8, batch_first=True, bidirectional=True)
        self.write = nn.GRU(16, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x, labels):
        y = self.write(self.read(x)[0])[0]
        factors, state = torch.sigmoid(y), torch.zeros_like(y[:, 0])
        for i in range(y.shape[1]):
            state = factors[:, i] * state + y[:, i]
        return F.cross_entropy(self.head(state), labels)


class Routed(nn.Module):
    """Experts of transformers between words and their scores; `kind` is their architecture."""

    def __init__(self, kind):
        super().__init__()
        module = import_module(f"transformers.models.{kind}.modeling_{kind}")
        sizes = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_local_experts": 4}
        architecture = {"mixtral": "Mixtral", "gpt_oss": "GptOss"}[kind]
        config = getattr(module, f"{architecture}Config")(**sizes)
        config._experts_implementation = "eager"
        self.experts = getattr(module, f"{architecture}Experts")(config)
        self.router = nn.Linear(HIDDEN, 4)
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4)

    def forward(self, ids, labels):
        x = self.embedding(ids)
        weights, chosen = self.router(x).flatten(0, 1).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        x = x + self.experts(x.flatten(0, 1), chosen, weights).view(x.shape)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def _routed():
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return Routed("mixtral"), {"ids": ids, "labels": ids.roll(1, 1)}


def _to_two_experts():
    module, inputs = _routed()
    with torch.no_grad():  # all tokens choose the same two, the others have none
        module.router.bias.copy_(torch.tensor([99.0, -99.0, 98.0, -99.0]))
    return module, inputs


def _with_biases():
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return Routed("gpt_oss"), {"ids": ids, "labels": ids.roll(1, 1)}


def _labels(classes):
    return torch.randint(0, classes, (BATCH,))


def _decoder():
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return Decoder(), {"ids": ids, "labels": ids.roll(1, 1)}


def _perceptron():
    return Perceptron(), {"x": torch.randn(BATCH, 7), "labels": _labels(5)}


def _pictures():
    return Pictures(), {"x": torch.randn(BATCH, 2, 9, 9), "labels": _labels(4)}


def _recurrent():
    return Recurrent(), {"x": torch.randn(BATCH, 5, 6), "labels": _labels(4)}


CASES = {
    "sequence_parallel": (_decoder, {"plan": "tensor=2,data=2,sequence_parallel,zero=3"}),
    "micro_batches": (_decoder, {"plan": "data=4,zero=2,micro_batch=1"}),
    "recomputed": (_decoder, {"plan": "tensor=4,recompute=selective"}),
    "chunks": (_decoder, {"plan": "tensor=2,data=2,micro_batch=2", "loss_chunks": 3}),
    "uneven": (_perceptron, {"search": "tensor_parallel", "mesh": "4"}),
    "pictures": (_pictures, {"search": "data_parallel"}),
    "statistics": (_pictures, {"search": "data_parallel", "micro_batches": 2}),
    "recurrent": (_recurrent, {"search": "data_parallel"}),
}
if find_spec("transformers") is not None:
    CASES |= {
        "experts_in_passes": (_routed, {"plan": "data=4,expert=4,zero=3,micro_batch=1"}),
        "experts_and_tensor": (_routed, {"plan": "tensor=2,data=2,expert=2"}),
        "two_experts": (_to_two_experts, {"plan": "data=4,expert=4"}),
        "experts_with_biases": (_with_biases, {"plan": "data=4,expert=2"}),
    }


def made(name):
    """Return a module in float64, its inputs, and the options of its plan."""
    torch.manual_seed(0)
    module, inputs = CASES[name][0]()
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    return module.double(), inputs, CASES[name][1]

"""Ten steps of PyTorch's own optimizers, beside those of exported packages."""

from functools import cache
from importlib import import_module

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

STEPS, RATE, OTHER, NORM = 10, 0.02, 0.003, 0.1
RULES = {
    "adamw": f"adamw:learning_rate={OTHER}",
    "clipped": f"adamw:learning_rate={OTHER},clip_norm={NORM}",
    "muon": f"muon:learning_rate={RATE},adamw_learning_rate={OTHER},product_type=float64",
    "adamw8bit": f"adamw8bit:learning_rate={OTHER}",
}
PLANS = {1: "tensor=1", 4: "tensor=2,zero=3"}


class Network(nn.Module):
    """Two hidden matrices, the second large enough for states of 8 bits, and a head."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, 16)

    def forward(self, x, labels):
        return F.cross_entropy(self.head(self.hidden(x)), labels)


def made():
    """Return a network in float64, and its inputs."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(8, 16, dtype=torch.float64), "labels": torch.randint(0, 16, (8,))}
    return Network().double(), inputs


class _InFloat64(TorchFunctionMode):
    """Let PyTorch's Muon multiply in float64: it casts to bfloat16, whatever the parameters are."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.bfloat16:
            return args[0].clone()
        kwargs = kwargs or {}
        if kwargs.get("dtype") is torch.bfloat16:
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


@cache
def in_pytorch(rule):
    """Return the losses of PyTorch's own optimizers, and the parameters after them."""
    module, inputs = made()
    matrices = [p for p in module.hidden.parameters() if p.ndim == 2]
    others = [p for p in module.parameters() if all(p is not other for other in matrices)]
    optimizers = {
        "adamw": [torch.optim.AdamW([*matrices, *others], lr=OTHER)],
        "clipped": [torch.optim.AdamW([*matrices, *others], lr=OTHER)],
        "muon": [torch.optim.Muon(matrices, lr=RATE), torch.optim.AdamW(others, lr=OTHER)],
    }[rule]
    losses = []
    for _ in range(STEPS):
        loss = module(**inputs)
        module.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if rule == "clipped":
            gradients = [p.grad for p in module.parameters()]
            factor = NORM / torch.nn.utils.get_total_norm(gradients).item()
            assert factor < 1
            for gradient in gradients:  # `clip_grad_norm_` adds 1e-6 to the norm
                gradient *= factor
        with _InFloat64():
            for optimizer in optimizers:
                optimizer.step()
    return losses, {name: p.detach().numpy() for name, p in module.named_parameters()}


def exported(package):
    """Return the losses of an exported package, and the parameters after them."""
    module, inputs = made()
    trainer = import_module(package).Trainer(module)
    losses = [trainer.step(**inputs).item() for _ in range(STEPS)]
    trainer.write_back()
    return losses, {name: p.detach().numpy() for name, p in module.named_parameters()}

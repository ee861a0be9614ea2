"""Train a decoder for ten steps with AdamW, Muon and AdamW of 8 bits, exported to PyTorch.

Four processes (gloo) run the exported package, one process PyTorch's own optimizers on the whole
module: `torch.optim.AdamW`, and `torch.optim.Muon` with AdamW for what is no hidden matrix. In
float64, where PyTorch's Muon has its cast to bfloat16 taken out; and in float32 as it is. PyTorch
has no AdamW of 8 bits: its package on one process is the reference.

    python benchmarks/imported/exports_optimizers.py --out benchmarks/imported/exports_optimizers.md
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812

import shardwright as sw
from shardwright.exports.table import export, write_export

RANKS, STEPS, BATCH, LENGTH, VOCABULARY, HIDDEN, HEADS = 4, 10, 8, 8, 128, 64, 4
RATE, OTHER = 0.02, 0.003
RULES = {
    "adamw": f"adamw:learning_rate={OTHER}",
    "muon": f"muon:learning_rate={RATE},adamw_learning_rate={OTHER}",
    "adamw8bit": f"adamw8bit:learning_rate={OTHER}",
}
HEAD = """# Optimizers of exported programs

Ten steps of a decoder of two layers, exported to PyTorch and run by gloo processes, beside
PyTorch's own `AdamW` and `Muon` on the whole module (AdamW of 8 bits beside its package on one
process): the largest relative difference of losses, and of parameters relative to their largest
element. Optimizer states are those of a rank, times those that the cost model predicts on the
cluster `cpu`. In float32 the biases of keys, whose gradients are rounding errors, step by the
learning rate either way: they are the differences of parameters.
`benchmarks/imported/exports_optimizers.py` makes the table.

"""
PLANS = ("zero=1", "tensor=2,zero=3", "shard=2")


class Decoder(nn.Module):
    """Two layers of a decoder, with its loss."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids, labels):
        """Return the loss."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Block(nn.Module):
    """Attention and two products, each with a norm."""

    def __init__(self):
        super().__init__()
        self.norm, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        """Return the activations behind the block."""
        y = self.norm(x)
        parts = (
            f(y).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))


def made(dtype):
    """Return the module and its inputs."""
    torch.manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return Decoder().to(dtype), {"ids": ids, "labels": ids.roll(1, 1)}


def in_pytorch(rule, dtype):
    """Return losses and parameters after ten steps of PyTorch's own optimizers."""
    module, inputs = made(dtype)
    hidden = [p for n, p in module.named_parameters() if n.startswith("blocks") and p.ndim == 2]
    ids = {id(p) for p in hidden}
    rest = [p for p in module.parameters() if id(p) not in ids]
    if rule == "muon":
        optimizers = [torch.optim.Muon(hidden, lr=RATE), torch.optim.AdamW(rest, lr=OTHER)]
    else:
        optimizers = [torch.optim.AdamW(module.parameters(), lr=OTHER)]
    cast = torch.Tensor.bfloat16
    if dtype == torch.float64:
        torch.Tensor.bfloat16 = torch.Tensor.clone
    losses = []
    for _ in range(STEPS):
        loss = module(**inputs)
        module.zero_grad()
        loss.backward()
        losses.append(loss.detach())
        for optimizer in optimizers:
            optimizer.step()
    torch.Tensor.bfloat16 = cast
    return torch.stack(losses), {n: p.detach() for n, p in module.named_parameters()}


def train(package, dtype):
    """Return losses and whole parameters after ten steps of an exported package."""
    module, inputs = made(dtype)
    trainer = import_module(package).Trainer(module)
    losses = torch.stack([trainer.step(**inputs) for _ in range(STEPS)])
    trainer.write_back()
    return losses, {n: p.detach() for n, p in module.named_parameters()}


def process(folder):
    """Train every package that there is for as many processes."""
    dist.init_process_group("gloo")
    sys.path.insert(0, folder)
    for path in sorted(Path(folder).glob(f"p{dist.get_world_size()}_*")):
        if path.is_dir():
            found = train(path.name, getattr(torch, path.name.split("_")[1]))
            if dist.get_rank() == 0:
                torch.save(found, f"{path}.pt")
    dist.destroy_process_group()


def launch(folder, count):
    """Run processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": "29511"}
    command += ["--master-port", "29511", __file__, "--folder", folder]
    subprocess.run(command, check=True, env=environment)


def difference(found, right):
    """Return the largest difference of losses, and of parameters relative to their largest."""
    losses = float(((found[0] - right[0]).abs() / right[0].abs()).max())
    pairs = [(found[1][name], right[1][name]) for name in right[1]]
    return losses, max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def main():
    """Export, train and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.folder:
        process(arguments.folder)
        return
    lines = ["| optimizer | plan | type | losses | parameters | optimizer states | time |"]
    lines += ["|---|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        told = {}
        for dtype in ("float64", "float32"):
            module, inputs = made(getattr(torch, dtype))
            for rule, text in RULES.items():
                wide = ",product_type=float64" if (rule, dtype) == ("muon", "float64") else ""
                cases = [(RANKS, plan) for plan in PLANS]
                for ranks, plan in [(1, "tensor=1"), *cases]:
                    how = {"cluster": "cpu", "plan": plan, "optimizer": text + wide}
                    compiled = sw.compile(module, ranks, example_inputs=inputs, **how)
                    name = f"p{ranks}_{dtype}_{rule}_{plan.replace('=', '').replace(',', '')}"
                    write_export(Path(folder) / name, export(compiled.plan, "torch"))
                    told[name] = rule, plan, dtype, compiled.compiled
        launch(folder, 1)
        launch(folder, RANKS)
        for name, (rule, plan, dtype, compiled) in told.items():
            found = torch.load(f"{folder}/{name}.pt")
            alone = f"{folder}/p1_{dtype}_{rule}_tensor1.pt"
            if rule == "adamw8bit":
                right = torch.load(alone)
            else:
                right = in_pytorch(rule, getattr(torch, dtype))
            losses, parameters = difference(found, right)
            states = compiled.memory.by_kind["optimizer states"] / 2**10
            ranks = compiled.mesh.size
            lines.append(
                f"| {rule} | {plan} on {ranks} | {dtype} | {losses:.0e} | {parameters:.0e} | "
                f"{states:.0f} KiB | {compiled.step_seconds * 1e3:.2f} ms |"
            )
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(HEAD + text)


if __name__ == "__main__":
    main()

"""Silent faults of public issues in small programs, each with the right program, as in `programs`.

From issue 7452 of Megatron-LM: findings 3, 8, 10, 11. From other threads, which are named.
"""

from tests.tools.check.programs import COMMON
from tests.tools.check.tensors import HEAD

# A second loss whose tokens are others: both are means over all ranks' tokens.
TOKENS = """
import torch
import torch.distributed as dist

MESH = {"dp": 4}
INPUTS = ({"dp": 0}, {"dp": 0}, {"dp": 0})
LOSS = {"dp": "sum"}

class Net(torch.nn.Module):
    def __init__(self, group=None):
        super().__init__()
        self.trunk = torch.nn.Linear(3, 4)
        self.next = torch.nn.Linear(4, 1)
        self.later = torch.nn.Linear(4, 1)
        self.group = group
    def forward(self, x, mask, shifted):
        counts = torch.stack([mask.sum(), shifted.sum()])
        if self.group:
            dist.all_reduce(counts, group=self.group)  # of both
        h = torch.tanh(self.trunk(x))
        first = (self.next(h)[:, 0].square() * mask).sum()
        second = (self.later(h)[:, 0].square() * shifted).sum()
        return (first + 0.3 * second * counts[0] / counts[1]) / counts[0]
def inputs():
    mask = torch.tensor([1.0, 1, 1, 0, 0, 0, 1, 1])
    return torch.randn(8, 3), mask, torch.tensor([1.0, 1, 1, 1, 1, 0, 1, 0])
def reference():
    return Net()
def parallel(mesh):
    return Net(mesh.get_group("dp"))
def step(module, mesh, *batch):
    loss = module(*batch)
    loss.backward()
    for p in module.parameters():
        dist.all_reduce(p.grad, group=mesh.get_group("dp"))  # of gradients
    return loss
"""

# Heads with a learned offset of the softmax; gradients are clipped by their norm.
SINK = (
    COMMON
    + """
MESH = {"tp": 2}
LAYOUTS = {"query": {"tp": 1}, "sink": {"tp": 0}, "out": {"tp": 0}}
SPLIT = ("query", "sink", "out")

class Net(torch.nn.Module):
    def __init__(self, parts=1, group=None):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(6))
        self.query = torch.nn.Parameter(torch.randn(6, 4 // parts))
        self.sink = torch.nn.Parameter(torch.zeros(4 // parts))
        self.out = torch.nn.Parameter(torch.randn(4 // parts, 2))
        self.group = group
    def forward(self, x):
        x = x * self.norm
        x = Copy.apply(x, self.group) if self.group else x
        score = x @ self.query
        weight = score.exp() / (score.exp().sum(0) + self.sink.exp())
        y = weight @ self.out
        y = Sum.apply(y, self.group) if self.group else y
        return y.square().sum()
def inputs():
    return (torch.randn(5, 6),)
def reference():
    return Net()
def parallel(mesh):
    return Net(2, mesh.get_group())
def clip(module, group=None):
    total = 0.0
    for name, p in module.named_parameters():
        square = p.grad.square().sum()
        if group and name in SPLIT:
            dist.all_reduce(square, group=group)
        total = total + square
    for p in module.parameters():
        p.grad *= 0.1 / total.sqrt()
def reference_step(module, x):
    loss = module(x)
    loss.backward()
    clip(module)
    return loss
def step(module, mesh, x):
    loss = module(x)
    loss.backward()
    clip(module, mesh.get_group())
    return loss
"""
)

# A router's losses: one by the counts of all tokens, one a mean of this rank's, by its share.
ROUTER = """
import torch
import torch.distributed as dist

MESH = {"tp": 2}
INPUTS = ({"tp": 0}, {"tp": 0})
LOSS = {"tp": "sum"}

class Net(torch.nn.Module):
    def __init__(self, group=None):
        super().__init__()
        self.gate = torch.nn.Linear(4, 3)
        self.group = group
    def forward(self, x, mask):
        scores = torch.softmax(self.gate(x), 1) * mask[:, None]
        local = mask.sum()
        share = torch.nn.functional.one_hot(scores.argmax(1), 3).double().mul(mask[:, None]).sum(0)
        mean = (scores.square() * (1 / local)).sum()
        count = local.clone()
        if self.group:
            dist.all_reduce(count, group=self.group)  # of tokens
            dist.all_reduce(share, group=self.group)  # of shares
        aux = (scores.sum(0) * share).sum() / count**2
        return aux + mean * local / count
def inputs():
    return torch.randn(6, 4), torch.tensor([1.0, 1, 1, 1, 0, 0])
def reference():
    return Net()
def parallel(mesh):
    return Net(mesh.get_group())
def step(module, mesh, *batch):
    loss = module(*batch)
    loss.backward()
    for p in module.parameters():
        dist.all_reduce(p.grad, group=mesh.get_group())
    return loss
"""

# A norm whose weight all heads share; a gather before a head that every rank computes whole.
SHARED = (
    COMMON
    + """
MESH = {"tp": 2}
LAYOUTS = {"value": {"tp": 1}}

class Join(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        context.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, 1)
    @staticmethod
    def backward(context, d):
        d = d.clone()
        return d.chunk(context.group.size(), 1)[context.group.rank()], None
class Net(torch.nn.Module):
    def __init__(self, parts=1, group=None):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.value = torch.nn.Parameter(torch.randn(4, 6 // parts))
        self.out_norm = torch.nn.Parameter(torch.ones(3))
        self.head = torch.nn.Linear(6, 2)
        self.group = group
    def forward(self, x):
        heads = torch.sigmoid(x @ self.value).unflatten(1, (-1, 3))
        heads = heads * self.out_norm * heads.square().mean(2, keepdim=True).rsqrt()
        h = heads.flatten(1)
        h = Join.apply(h, self.group) if self.group else h
        return (self.head(h) * self.scale[:2]).square().sum() + self.scale.square().sum()
def inputs():
    return (torch.randn(5, 4),)
def reference():
    return Net()
def parallel(mesh):
    return Net(2, mesh.get_group())
def step(module, mesh, x):
    loss = module(x)
    loss.backward()
    dist.all_reduce(module.out_norm.grad, group=mesh.get_group())  # of the norm
    return loss
"""
)

# A norm's weight taken out of DTensor on two axes; experts mapped with data parallel tokens.
NORM = (
    HEAD
    + """
MESH = {"dp": 2, "tp": 2}

class Net(nn.Module):
    def __init__(self, mesh=None):
        super().__init__()
        self.mesh = mesh
        self.weight = nn.Parameter(torch.ones(4))
        self.out = nn.Parameter(torch.randn(4, 3))
    def forward(self, x):
        if self.mesh is None:
            return ((x * self.weight) @ self.out).square().sum()
        placements = [Shard(0), Shard(0)]
        x = distribute_tensor(x, self.mesh, placements).to_local()
        weight = self.weight.to_local(grad_placements=[Partial(), Partial()])
        x = DTensor.from_local(x * weight, self.mesh, placements)
        return (x @ self.out).square().sum()
def inputs():
    return (torch.randn(8, 4),)
def reference():
    return Net()
def parallel(mesh):
    net = Net(mesh)
    for name in ("weight", "out"):
        whole = getattr(net, name).data
        own = distribute_tensor(whole, mesh, [Replicate(), Replicate()])
        setattr(net, name, nn.Parameter(own))
    return net
"""
)

MAPPED = (
    HEAD
    + """
MESH = {"dp": 2, "ep": 2}

class Net(nn.Module):
    def __init__(self, mesh=None):
        super().__init__()
        self.mesh = mesh
        self.experts = nn.Parameter(torch.randn(4, 3))
    def forward(self, x):
        if self.mesh is None:
            return score(x, self.experts).square().sum()
        placed = [Replicate(), Shard(0)]
        run = local_map(
            score,
            out_placements=[Shard(0), Shard(1)],
            in_placements=([Shard(0), Replicate()], placed),
            in_grad_placements=([Shard(0), Partial()], [Partial(), Shard(0)]),
            device_mesh=self.mesh,
        )
        x = distribute_tensor(x, self.mesh, [Shard(0), Replicate()])
        return run(x, self.experts).square().sum()
def score(x, experts):
    return torch.sin(x @ experts.t())
def inputs():
    return (torch.randn(4, 3),)
def reference():
    return Net()
def parallel(mesh):
    net = Net(mesh)
    net.experts = nn.Parameter(distribute_tensor(net.experts.data, mesh, [Replicate(), Shard(0)]))
    return net
"""
)

RIGHT = {
    "tokens": TOKENS, "sink": SINK, "router": ROUTER, "shared": SHARED, "norm": NORM,
    "experts by tokens": MAPPED,
}  # fmt: skip
# name: program, text, replacement, text that the answer has, text of the line it names.
WRONG = {
    "7452, finding 3: tokens of a second loss counted by each rank": (
        TOKENS, "dist.all_reduce(counts, group=self.group)  # of both",
        "dist.all_reduce(counts[0], group=self.group)", "the gradient of `later.weight`",
        "second = (self.later(h)"),
    "Megatron-LM 3959: a second loss divided by the ranks": (
        TOKENS, "0.3 * second", "0.3 / (MESH['dp'] if self.group else 1) * second",
        "the gradient of `later.weight`", "second = (self.later(h)"),
    "7452, finding 8: a split offset in the norm of one rank's": (
        SINK, 'SPLIT = ("query", "sink", "out")', 'SPLIT = ("query", "out")',
        "times what it must be, in each of its elements", "score = x @ self.query"),
    "TransformerEngine 715: a whole weight in the norm of every rank": (
        SINK, 'SPLIT = ("query", "sink", "out")', 'SPLIT = ("norm", "query", "sink", "out")',
        "leave out the all-reduce over 2 ranks, time 1 of the", "dist.all_reduce(square"),
    "7452, finding 10: a rank's count overwritten by the sum": (
        ROUTER, "count = local.clone()", "count = local", "the gradient of `gate.weight`",
        "scores = torch.softmax"),
    "7452, finding 11: a norm of heads not summed": (
        SHARED, "dist.all_reduce(module.out_norm.grad, group=mesh.get_group())  # of the norm",
        "pass", "the gradient of `out_norm` on rank 0 is a partial sum over `tp`",
        "heads = heads * self.out_norm"),
    "slime 1748: gradients of a computation that all ranks make, summed": (
        SHARED, "d = d.clone()\n        return d.chunk",
        "d = d.clone()\n        dist.all_reduce(d, group=context.group)\n        return d.chunk",
        "leave out the all-reduce over 2 ranks", "dist.all_reduce(d, group=context.group)"),
    "torchtitan 2532: `to_local` of a norm's weight": (
        NORM, "self.weight.to_local(grad_placements=[Partial(), Partial()])",
        "self.weight.to_local()",
        "give `to_local` `grad_placements` with `Partial()` over `dp` and `Partial()` over `tp`",
        "weight = self.weight.to_local()"),
    "autoparallel 515: `local_map` with the placements of values for gradients": (
        MAPPED, "in_grad_placements=([Shard(0), Partial()], [Partial(), Shard(0)]),", "",
        "the gradient of `experts` on rank 0 is a partial sum over `dp`", ""),
}  # fmt: skip

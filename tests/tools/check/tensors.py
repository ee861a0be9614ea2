"""Right programs with DTensor, and the faults put into them, as in `programs`."""

HEAD = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor)
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)
"""

# Tensor and sequence parallel layers of PyTorch's own, and data parallel by hand.
STYLES = (
    HEAD
    + """
MESH = {"dp": 2, "tp": 2}
INPUTS = ({"dp": 0}, {"dp": 0})
LOSS = {"dp": "mean"}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 6)
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)
        self.head = nn.Linear(6, 5, bias=False)
    def forward(self, x, y):
        x = self.inner(x)
        x = self.norm(x)
        x = self.down(F.gelu(self.up(x)))
        x = self.head(x)
        return F.cross_entropy(x.flatten(0, 1), y.flatten())

def inputs():
    return torch.randn(4, 4, 3), torch.randint(5, (4, 4))
def reference():
    return Net()
def parallel(mesh):
    return parallelize_module(Net(), mesh["tp"], {
        "inner": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })
def step(module, mesh, *batch):
    loss = module(*batch)
    loss.backward()
    for p in module.parameters():
        g = p.grad.redistribute(placements=p.placements).to_local()
        dist.all_reduce(g, group=mesh.get_group("dp"))  # of gradients
        g = g / MESH["dp"]
        known = {"shape": p.shape, "stride": p.stride()}
        p.grad = DTensor.from_local(g, p.device_mesh, p.placements, **known)
    return loss
"""
)

# Sharded parameters over uneven rows, and over two axes with tensor parallel layers.
SHARDED = (
    HEAD
    + """
MESH = {"dp": 2, "tp": 2}
INPUTS = ({"dp": 0}, {"dp": 0})
LOSS = {"dp": "mean"}

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(5)
        self.up = nn.Linear(5, 8, bias=False)
        self.down = nn.Linear(8, 5, bias=False)
    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(5, 3)
    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        return ((self.last(x) - y) ** 2).mean()
def inputs():
    return torch.randn(6, 5), torch.randn(6, 3)
def reference():
    return Net()
def parallel(mesh):
    net = Net()
    for block in net.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])
    return net
"""
)

# Everything a DTensor; the loss is a sum that no rank has whole.
WHOLE = (
    HEAD
    + """
MESH = {"dp": 2, "tp": 2}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))
        self.up = nn.Parameter(torch.randn(6, 8))
        self.down = nn.Parameter(torch.randn(8, 3))
    def forward(self, x, y):
        h = torch.tanh((x * self.scale) @ self.up)
        return ((h @ self.down - y) ** 2).sum()
def inputs():
    return torch.randn(6, 6), torch.randn(6, 3)
def reference():
    return Net()
PLACEMENTS = {
    "scale": [Replicate(), Replicate()],
    "up": [Replicate(), Shard(1)],
    "down": [Shard(1), Shard(0)],
}
def parallel(mesh):
    def place(name, module, mesh):
        for name, value in list(module.named_parameters(recurse=False)):
            own = distribute_tensor(value, mesh, PLACEMENTS[name])
            module.register_parameter(name, nn.Parameter(own))
    return distribute_module(Net(), mesh, place)
def step(module, mesh, x, y):
    x = distribute_tensor(x, mesh, [Shard(0), Replicate()])
    y = distribute_tensor(y, mesh, [Shard(0), Replicate()])
    loss = module(x, y)
    loss.backward()
    return loss
"""
)

# Out of DTensor and back in: conversions say what gradients are.
BORDERS = (
    HEAD
    + """
MESH = {"tp": 2}

class Net(nn.Module):
    def __init__(self, mesh=None):
        super().__init__()
        self.mesh = mesh
        self.norm = nn.Parameter(torch.randn(6))
        self.up = nn.Parameter(torch.randn(6, 8))
        self.down = nn.Parameter(torch.randn(8, 6))
    def forward(self, x):
        if self.mesh is None:
            return ((torch.relu(x * self.norm @ self.up) @ self.down) ** 2).sum()
        x = x.chunk(2)[self.mesh.get_local_rank()]
        norm = self.norm.to_local(grad_placements=[Partial()])
        x = x * norm
        x = DTensor.from_local(x, self.mesh, [Shard(0)])
        x = x.full_tensor(grad_placements=[Partial()])
        up = self.up.to_local()
        down = self.down.to_local()
        h = torch.relu(x @ up) @ down
        h = DTensor.from_local(h, self.mesh, [Partial()])
        h = h.redistribute(placements=[Replicate()]).to_local()
        return (h ** 2).sum()
def inputs():
    return (torch.randn(4, 6),)
def reference():
    return Net()
def parallel(mesh):
    net = Net(mesh)
    for name, placement in (("norm", Replicate()), ("up", Shard(1)), ("down", Shard(0))):
        own = distribute_tensor(getattr(net, name).data, mesh, [placement])
        setattr(net, name, nn.Parameter(own))
    return net
"""
)

# Clipped by the norm of the whole gradient, and an update.
CLIPPED = (
    HEAD
    + """
MESH = {"tp": 2}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(6, 2)
    def forward(self, x):
        return (self.down(torch.sigmoid(self.up(x))) ** 2).sum()
def inputs():
    return (torch.randn(5, 4),)
def reference():
    return Net()
def reference_step(module, x):
    loss = module(x)
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    torch.optim.AdamW(module.parameters(), lr=0.1, eps=1e-3, foreach=False).step()
    return loss
def parallel(mesh):
    return parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
def step(module, mesh, x):
    loss = module(x)
    loss.backward()
    squares = 0.0
    for p in module.parameters():
        squares = squares + p.grad.full_tensor().square().sum()
    for p in module.parameters():
        p.grad.mul_((0.5 / (squares.sqrt() + 1e-6)).clamp(max=1))
    torch.optim.AdamW(module.parameters(), lr=0.1, eps=1e-3, foreach=False).step()
    return loss
"""
)

# A function of local tensors, with the placements of its gradients.
MAPPED = (
    HEAD
    + """
MESH = {"ep": 2}

class Net(nn.Module):
    def __init__(self, mesh=None):
        super().__init__()
        self.mesh = mesh
        self.gate = nn.Parameter(torch.randn(3, 4))
        self.experts = nn.Parameter(torch.randn(4, 3, 3))
    def forward(self, x):
        if self.mesh is None:
            return (mix(x, self.gate, self.experts, 0) ** 2).sum()
        first = 2 * self.mesh.get_local_rank()
        run = local_map(
            lambda x, gate, experts: mix(x, gate, experts, first),
            out_placements=[Partial()],
            in_placements=([Replicate()], [Replicate()], [Shard(0)]),
            in_grad_placements=([Partial()], [Partial()], [Shard(0)]),
            device_mesh=self.mesh,
        )
        x = distribute_tensor(x, self.mesh, [Replicate()])
        return (run(x, self.gate, self.experts) ** 2).sum()
def mix(x, gate, experts, first):
    weights = torch.softmax(x @ gate, 1)[:, first : first + len(experts)]
    return torch.einsum("te,ti,eij->tj", weights, x, experts)
def inputs():
    return (torch.randn(5, 3),)
def reference():
    return Net()
def parallel(mesh):
    net = Net(mesh)
    net.gate = nn.Parameter(distribute_tensor(net.gate.data, mesh, [Replicate()]))
    net.experts = nn.Parameter(distribute_tensor(net.experts.data, mesh, [Shard(0)]))
    return net
"""
)

RIGHT = {
    "styles": STYLES, "sharded": SHARDED, "whole": WHOLE, "borders": BORDERS,
    "clipped": CLIPPED, "mapped": MAPPED,
}  # fmt: skip

_AGAIN = """    return net
def step(module, mesh, *batch):
    loss = module(*batch)
    loss.backward()
    for p in module.parameters():
        dist.all_reduce(p.grad.to_local(), group=mesh.get_group("tp"))  # again
    return loss
"""
_WHOLE_X = "x = distribute_tensor(x, mesh, [Shard(0), Replicate()])"
_CUT_X = (
    "x = DTensor.from_local(x.chunk(2)[mesh.get_local_rank('dp')], mesh,"
    " [Replicate(), Replicate()])\n    y = y[:3]"
)
# name: program, text, replacement, text that the answer has, text of the line it names.
WRONG = {
    "data gradients of DTensors not summed": (
        STYLES, 'dist.all_reduce(g, group=mesh.get_group("dp"))  # of gradients', "pass",
        "partial sum over `dp`", "x = self.norm(x)"),
    "gradients summed again": (
        SHARDED, "    return net\n", _AGAIN, "leave out the all-reduce", "# again"),
    "loss without its mean": (
        SHARDED, 'LOSS = {"dp": "mean"}', 'LOSS = {"dp": "sum"}', "the loss on rank 0 is 2 times",
        ""),
    "loss of a part": (
        WHOLE, "    return loss\n", "    return loss.to_local()\n",
        "redistribute to `Replicate()` over `dp` and `Replicate()` over `tp` before `to_local`",
        "return loss.to_local()"),
    "inputs taken for whole ones": (WHOLE, _WHOLE_X, _CUT_X, "the loss on rank 0", ""),
    "to_local without partial gradients": (
        BORDERS, "self.norm.to_local(grad_placements=[Partial()])", "self.norm.to_local()",
        "give `to_local` `grad_placements` with `Partial()` over `tp`",
        "norm = self.norm.to_local"),
    "full_tensor without partial gradients": (
        BORDERS, "x.full_tensor(grad_placements=[Partial()])", "x.full_tensor()",
        "give `full_tensor` `grad_placements` with `Partial()` over `tp`", "x = x.full_tensor"),
    "gradients of a part taken for sums": (
        BORDERS, "up = self.up.to_local()", "up = self.up.to_local(grad_placements=[Partial()])",
        "a local tensor of shape (6, 4), its placements give (6, 8)", "up = self.up.to_local"),
    "sums taken for whole values": (
        BORDERS, "DTensor.from_local(h, self.mesh, [Partial()])",
        "DTensor.from_local(h, self.mesh, [Replicate()])",
        "give `from_local` the placement `Partial()` over `tp`", "h = DTensor.from_local"),
    "sums left as they are": (
        BORDERS, "h = h.redistribute(placements=[Replicate()]).to_local()", "h = h.to_local()",
        "redistribute to `Replicate()` over `tp` before `to_local`", "h = h.to_local"),
    "clipped by the norm of a part": (
        CLIPPED, "p.grad.full_tensor()", "p.grad.to_local()",
        "call `full_tensor` in place of `to_local`", "squares = squares + p.grad.to_local()"),
    "a mapped function's gradients taken for whole": (
        MAPPED, "([Partial()], [Partial()], [Shard(0)])",
        "([Replicate()], [Replicate()], [Shard(0)])",
        "the gradient of `gate` on rank 0 is a partial sum over `ep`", ""),
}  # fmt: skip

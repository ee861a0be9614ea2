"""Right programs, and the faults put into them: text to replace, by what, and the line's text."""

COMMON = """
import torch
import torch.distributed as dist
import torch.nn.functional as F

class Copy(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x.view_as(x)
    @staticmethod
    def backward(context, d):
        d = d.clone()
        dist.all_reduce(d, group=context.group)  # of Copy
        return d, None

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x
    @staticmethod
    def backward(context, d):
        return d, None

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        context.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)
    @staticmethod
    def backward(context, d):
        part = torch.empty_like(d.chunk(context.group.size())[0])
        dist.reduce_scatter_tensor(part, d.contiguous(), group=context.group)
        return part, None

class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        context.group = group
        part = torch.empty_like(x.chunk(group.size())[0])
        dist.reduce_scatter_tensor(part, x.contiguous(), group=group)
        return part
    @staticmethod
    def backward(context, d):
        parts = [torch.empty_like(d) for _ in range(context.group.size())]
        dist.all_gather(parts, d.contiguous(), group=context.group)
        return torch.cat(parts), None
"""

DENSE = (
    COMMON
    + """
MESH = {"dp": 2, "tp": 2}
LAYOUTS = {"up.weight": {"tp": 0}, "down.weight": {"tp": 1}}
INPUTS = ({"dp": 0}, {"dp": 0})

class Net(torch.nn.Module):
    def __init__(self, parts=1, mesh=None):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)
        self.up = torch.nn.Linear(6, 8 // parts, bias=False)
        self.down = torch.nn.Linear(8 // parts, 6, bias=False)
        self.mesh = mesh
    def forward(self, x, y):
        x = self.norm(x)
        x = Copy.apply(x, self.mesh.get_group("tp")) if self.mesh else x
        h = F.gelu(self.up(x))
        h = self.down(h)
        h = Sum.apply(h, self.mesh.get_group("tp")) if self.mesh else h
        return ((h - y) ** 2).mean()

def inputs():
    return torch.randn(4, 6), torch.randn(4, 6)
def reference():
    return Net()
def parallel(mesh):
    return Net(MESH["tp"], mesh)
def step(module, mesh, *batch):
    loss = module(*batch)
    loss.backward()
    for p in module.parameters():
        dist.all_reduce(p.grad, group=mesh.get_group("dp"))  # of gradients
        p.grad /= MESH["dp"]
    loss = loss.detach().clone()
    dist.all_reduce(loss, group=mesh.get_group("dp"))
    return loss / MESH["dp"]
"""
)

SEQUENCE = (
    COMMON
    + """
MESH = {"tp": 2}
LAYOUTS = {"up.weight": {"tp": 0}, "down.weight": {"tp": 1}}
INPUTS = ({"tp": 0}, {"tp": 0})
LOSS = {"tp": "sum"}

class Net(torch.nn.Module):
    def __init__(self, parts=1, group=None):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)
        self.up = torch.nn.Linear(6, 8 // parts, bias=False)
        self.down = torch.nn.Linear(8 // parts, 6, bias=False)
        self.group = group
    def forward(self, x, y):
        x = self.norm(x)
        x = Gather.apply(x, self.group) if self.group else x
        h = self.down(F.gelu(self.up(x)))
        h = Scatter.apply(h, self.group) if self.group else h
        return ((h - y) ** 2).sum() / 24

def inputs():
    return torch.randn(4, 6), torch.randn(4, 6)
def reference():
    return Net()
def parallel(mesh):
    return Net(2, mesh.get_group("tp"))
def step(module, mesh, *batch):
    loss = module(*batch)
    loss.backward()
    for p in module.norm.parameters():
        dist.all_reduce(p.grad, group=mesh.get_group("tp"))
    return loss
"""
)

VOCABULARY = (
    COMMON
    + """
MESH = {"tp": 2}
LAYOUTS = {"weight": {"tp": 0}}

class Net(torch.nn.Module):
    def __init__(self, parts=1, group=None):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(6))
        self.weight = torch.nn.Parameter(torch.randn(8 // parts, 6))
        self.group = group
    def forward(self, x, labels):
        x = x * self.scale
        x = Copy.apply(x, self.group) if self.group else x
        logits = x @ self.weight.t()
        first = logits.shape[1] * (self.group.rank() if self.group else 0)
        total = logits.exp().sum(1)
        total = Sum.apply(total, self.group) if self.group else total
        here = (labels >= first) & (labels < first + logits.shape[1])
        at = torch.where(here, labels - first, 0)
        chosen = torch.where(here, logits.gather(1, at[:, None])[:, 0], 0.0)
        chosen = Sum.apply(chosen, self.group) if self.group else chosen
        return (total.log() - chosen).mean()

def inputs():
    return torch.randn(5, 6), torch.tensor([0, 3, 4, 6, 7])
def reference():
    return Net()
def parallel(mesh):
    return Net(2, mesh.get_group("tp"))
"""
)

CONTEXT = """
import torch
import torch.distributed as dist

MESH = {"cp": 2}
INPUTS = ({"cp": 0}, {"cp": 0})
LOSS = {"cp": "sum"}

def inputs():
    return torch.randn(6, 4), torch.tensor([1.0, 1, 1, 1, 0, 0])
class Net(torch.nn.Module):
    def __init__(self, group=None):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
        self.group = group
    def forward(self, x, mask):
        count = mask.sum()
        if self.group:
            dist.all_reduce(count, group=self.group)  # of tokens
        return (self.line(x)[:, 0] ** 2 * mask).sum() / count
def reference():
    return Net()
def parallel(mesh):
    return Net(mesh.get_group("cp"))
def step(module, mesh, *batch):
    loss = module(*batch)
    loss.backward()
    for p in module.parameters():
        dist.all_reduce(p.grad, group=mesh.get_group("cp"))
    return loss
"""

HEADS = (
    COMMON
    + """
MESH = {"tp": 4}
LAYOUTS = {
    "query": {"tp": 0},
    "key": lambda whole, place: whole.chunk(2)[place["tp"] // 2],
}

class Net(torch.nn.Module):
    def __init__(self, mesh=None):
        super().__init__()
        self.mesh = mesh
        self.query = torch.nn.Parameter(torch.randn(1 if mesh else 4, 3))
        self.key = torch.nn.Parameter(torch.randn(1 if mesh else 2, 3))
    def forward(self, x):
        key = self.key if self.mesh else self.key.repeat_interleave(2, 0)
        scores = ((x @ self.query.t()) * (x @ key.t())).tanh().sum()
        return Sum.apply(scores, self.mesh.get_group("tp")) if self.mesh else scores
def inputs():
    return (torch.randn(5, 3),)
def reference():
    return Net()
def parallel(mesh):
    return Net(mesh)
def step(module, mesh, x):
    loss = module(x)
    loss.backward()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.all_reduce(module.key.grad, group=pairs[mesh.get_local_rank("tp") // 2])  # of key
    return loss
"""
)

EXPERTS = """
import torch
import torch.distributed as dist

MESH = {"edp": 2, "ep": 2}
LAYOUTS = {"experts": {"ep": 0}}
INPUTS = ({"edp": 0},)
LOSS = {"edp": "sum", "ep": "sum"}

class Net(torch.nn.Module):
    def __init__(self, parts=1):
        super().__init__()
        self.experts = torch.nn.Parameter(torch.randn(4 // parts, 3))
    def forward(self, x):
        return (x @ self.experts.t()).tanh().square().sum()
def inputs():
    return (torch.randn(4, 3),)
def reference():
    return Net()
def parallel(mesh):
    return Net(2)
def step(module, mesh, x):
    loss = module(x)
    loss.backward()
    dist.all_reduce(module.experts.grad, group=mesh.get_group("edp"))  # of experts
    return loss
"""

ENDS = """
import torch
import torch.distributed as dist

MESH = {"pp": 2}
NAMES = {"head": "embedding"}

class Move(torch.autograd.Function):
    @staticmethod
    def forward(context, x, anchor, group):
        context.group = group
        x = x.clone()
        dist.broadcast(x, group=group, group_src=0)
        return x
    @staticmethod
    def backward(context, d):
        d = d.clone()
        dist.broadcast(d, group=context.group, group_src=1)
        return d, None, None
class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.randn(5, 3))
    def forward(self, tokens):
        return (self.embedding[tokens].tanh() @ self.embedding.t()).logsumexp(1).mean()
class Stage(torch.nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.group, self.first = mesh.get_group("pp"), mesh.get_local_rank("pp") == 0
        weight = torch.nn.Parameter(torch.randn(5, 3))
        setattr(self, "embedding" if self.first else "head", weight)
    def forward(self, tokens):
        if self.first:
            x = Move.apply(self.embedding[tokens].tanh(), None, self.group)
            return x.sum() * 0 + x.sum() - x.sum().detach()
        x = torch.zeros(len(tokens), 3, requires_grad=True)
        x = Move.apply(x, None, self.group)
        return (x @ self.head.t()).logsumexp(1).mean()
def inputs():
    return (torch.tensor([0, 1, 2, 4, 3, 1]),)
def reference():
    return Whole()
def parallel(mesh):
    return Stage(mesh)
def step(module, mesh, tokens):
    loss = module(tokens)
    loss.backward()
    for p in module.parameters():
        dist.all_reduce(p.grad, group=module.group)  # of ends
    loss = loss.detach().clone()
    dist.broadcast(loss, group=module.group, group_src=1)
    return loss
"""

RIGHT = {
    "dense": DENSE, "sequence": SEQUENCE, "vocabulary": VOCABULARY, "context": CONTEXT,
    "heads": HEADS, "experts": EXPERTS, "ends": ENDS,
}  # fmt: skip
_SUM_H = 'h = Sum.apply(h, self.mesh.get_group("tp")) if self.mesh else h'
# name: program, text, replacement, text that the answer has, text of the line it names.
WRONG = {
    "row without sum": (DENSE, _SUM_H, "pass", "sum the result of `linear` over `tp`",
                        "h = self.down(h)"),
    "row summed twice": (DENSE, _SUM_H, _SUM_H + "\n        " + _SUM_H, "leave out the all-reduce",
                         "dist.all_reduce(x, group=group)"),
    "column without sum backward": (
        DENSE, "dist.all_reduce(d, group=context.group)  # of Copy", "pass",
        "partial sum over `tp`", "x = self.norm(x)"),
    "data gradients not summed": (
        DENSE, 'dist.all_reduce(p.grad, group=mesh.get_group("dp"))  # of gradients', "pass",
        "the gradient of `up.weight`", "h = F.gelu(self.up(x))"),
    "data gradients not divided": (DENSE, 'p.grad /= MESH["dp"]', "pass", "summed once too often",
                                   "x = self.norm(x)"),
    "loss not divided": (DENSE, 'return loss / MESH["dp"]', "return loss", "the loss", ""),
    "norm under sequence parallelism": (
        SEQUENCE, 'dist.all_reduce(p.grad, group=mesh.get_group("tp"))', "pass",
        "partial sum over `tp`", "x = self.norm(x)"),
    "vocabulary without sum": (
        VOCABULARY, "total = Sum.apply(total, self.group) if self.group else total", "pass",
        "sum the result of `exp` over `tp`", "total = logits.exp().sum(1)"),
    "context counts its own tokens": (
        CONTEXT, "dist.all_reduce(count, group=self.group)  # of tokens", "pass",
        "sum the result of `sum` over `cp`", "count = mask.sum()"),
    "key heads of copies not summed": (
        HEADS, 'dist.all_reduce(module.key.grad, group=pairs[mesh.get_local_rank("tp") // 2])',
        "pass", "partial sum over `tp`", "scores = ((x @ self.query.t())"),
    "experts over the wrong group": (
        EXPERTS, 'mesh.get_group("edp"))  # of experts', 'mesh.get_group("ep"))',
        "the gradient of `experts`", "return (x @ self.experts.t())"),
    "ends not summed": (ENDS, "dist.all_reduce(p.grad, group=module.group)  # of ends", "pass",
                        "the gradient of `embedding`", "x = Move.apply(self.embedding"),
}  # fmt: skip

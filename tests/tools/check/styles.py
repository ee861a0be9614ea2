"""A data-parallel network in several styles, and what is wrong with others."""

NETWORK = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

MESH = {"dp": 2}
INPUTS = ({"dp": 0}, {"dp": 0})
LOSS = {"dp": "mean"}

def inputs():
    return torch.randn(8, 6), torch.randint(0, 5, (8,))

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 5)
    def forward(self, x, y):
        return F.cross_entropy(self.down(torch.tanh(self.up(x))), y)

def reference():
    return Network()

def parallel(mesh):
    return Network()
"""
STEP = """
def step(module, mesh, x, y):
    loss = module(x, y)
    loss.backward()
    for p in module.parameters():
        p.grad /= 2
        dist.all_reduce(p.grad)
    return loss
"""
_ADDED = "        dist.all_reduce(p.grad)\n"
_LOGITS = "self.down(torch.tanh(self.up(x)))"
PLAIN = NETWORK + STEP
IN_FLOAT32 = PLAIN.replace(_LOGITS, f"{_LOGITS}.float()")
TYPES = PLAIN.replace(
    "loss = module(x, y)", "loss = module(x.to(dtype=torch.bfloat16), y)"
).replace(_ADDED, "        p.grad = p.grad.to(torch.float32).half()\n" + _ADDED)
LATER = PLAIN.replace(
    _ADDED, "    works = [dist.all_reduce(p.grad, async_op=True) for p in module.parameters()]\n"
)
FUTURES = """
    for work in works:
        assert isinstance(work, dist.Work)
        work.get_future().wait()
"""
HOOKS = NETWORK.replace(
    "    return Network()\n\ndef parallel(mesh):\n    return Network()",
    """    return Network()

def parallel(mesh):
    module = Network()
    def hook(p):
        p.grad.div_(2)
        dist.all_reduce(p.grad)
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return module""",
)
WRAPPED = PLAIN.replace(
    "    loss = module(x, y)\n    loss.backward()\n",
    """    wrapped = nn.parallel.DistributedDataParallel(module)
    loss = wrapped(x, y)
    loss.backward()
    return loss
""",
)
FROZEN = PLAIN.replace(
    "    return Network()\n\ndef parallel",
    """    module = Network()
    module.up.weight.requires_grad_(False)
    return module

def parallel""",
)
_FREEZING = "    module.up.weight.requires_grad_(False)\n    loss = module(x, y)\n"
FROZEN_TOO = FROZEN.replace("    loss = module(x, y)\n", _FREEZING).replace(
    "in module.parameters():", "in filter(lambda p: p.requires_grad, module.parameters()):"
)
SHARDED = PLAIN.replace(
    "def parallel(mesh):\n    return Network()\n" + STEP,
    """def parallel(mesh):
    module = Network()
    fully_shard(module, mesh=mesh)
    return module
""",
)
LOWER = SHARDED.replace("mesh=mesh)", "mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16))")
KEYWORDS = (
    NETWORK.replace('LOSS = {"dp": "mean"}', "").replace(
        "def parallel(mesh):\n    return Network()",
        """def parallel(mesh):
    module = Network()
    for layer in (module.up, module.down):
        for name, p in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(distribute_tensor(p.data, mesh, [Replicate()])))
    return module""",
    )
    + """
def step(module, mesh, x, y):
    x = DTensor.from_local(local_tensor=x, device_mesh=mesh, placements=[Shard(0)])
    y = DTensor.from_local(local_tensor=y, device_mesh=mesh, placements=[Shard(0)])
    loss = module(x, y).redistribute(placements=[Replicate()])
    loss.backward()
    return loss
"""
)
# The gradient of the first bias is zero but for rounding.
CANCELLING = PLAIN.replace("torch.randn(8, 6)", "10 * torch.randn(8, 32, 6)").replace(
    f"        return F.cross_entropy({_LOGITS}, y)",
    """        h = self.up(x)
        return 1e4 * (self.down(h - h.mean(1, keepdim=True)) ** 2).mean()""",
)
RIGHT = {
    "a gradient that cancels": CANCELLING,
    "plain": PLAIN,
    "float32 logits": IN_FLOAT32,
    "types of 16 bits": TYPES,
    "futures": LATER.replace("    return loss", FUTURES + "    return loss"),
    "hooks": HOOKS,
    "DistributedDataParallel": WRAPPED,
    "frozen": FROZEN_TOO,
    "fully_shard": SHARDED,
    "keywords": KEYWORDS,
}
"""Right programs."""

_WAITING = "    import time\n    time.sleep(0.05)\n    return loss"
WRONG = {
    "trains what is frozen": (FROZEN, "the gradient of `up.weight` on rank 0 is not zero, and one"),
    "updates what is frozen": (
        FROZEN.replace("        dist.all_reduce(p.grad)\n", _ADDED)
        + """
def reference_step(module, x, y):
    loss = module(x, y)
    loss.backward()
    torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1).step()
    return loss
_step = step
def step(module, mesh, x, y):
    loss = _step(module, mesh, x, y)
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    return loss
""",
        "`up.weight` after the step on rank 0 is another value",
    ),
    "does not wait": (
        LATER.replace("    return loss", _WAITING),
        "what `all_reduce` returns on rank 0 is not waited for; call `wait()`",
    ),
    "sums in float32 are not divided": (IN_FLOAT32.replace("p.grad /= 2", "pass"), "is 2 times"),
}
"""Wrong programs, and what is said of them."""

REFUSED = {
    "lower types of a library": (LOWER, "computes below float64, which differs by rounding"),
    "layout of no parameter": (
        PLAIN + 'LAYOUTS = {"upp.weight": {"dp": 0}}',
        "`LAYOUTS` has `upp.weight`, which is no parameter of the reference",
    ),
    "name of no parameter": (
        PLAIN + 'NAMES = {"up.weight": "op.weight"}',
        "`NAMES` calls `up.weight` `op.weight`, which is no parameter of the reference",
    ),
    "layout of no input": (
        PLAIN + "INPUTS = ({}, {}, {})",
        "`INPUTS` has 3 layouts, `inputs` gives 2 tensors",
    ),
    "layouts in a list": (PLAIN + "LAYOUTS = [1]", "`LAYOUTS`: expected a dictionary"),
    "loss in a word": (PLAIN + 'LOSS = "mean"', "`LOSS`: expected a dictionary"),
    "names in a word": (PLAIN + 'NAMES = "mean"', "`NAMES`: expected a dictionary"),
    "names of numbers": (PLAIN + 'NAMES = {"a": 1}', "`NAMES`: expected names of parameters"),
    "inputs by name": (PLAIN + 'INPUTS = {"x": {}}', "`INPUTS`: expected a layout for each input"),
    "dimension by name": (PLAIN + 'INPUTS = ({"dp": "x"},)', "a layout: expected the dimension"),
    "axes of numbers": (PLAIN + "MESH = {0: 2}", "`MESH`: expected names of axes"),
    "no such dimension": (
        PLAIN + 'LAYOUTS = {"up.weight": {"dp": 7}}',
        "a tensor of shape (8, 6) has no dimension 7",
    ),
    "layout that computes": (
        PLAIN + 'LAYOUTS = {"up.weight": lambda whole, place: whole / 2}',
        "the layout of `up.weight` must give a part of the tensor that it is given",
    ),
    "no reference": (PLAIN + "reference = lambda: None", "`reference` must give a module"),
    "no module": (PLAIN + "parallel = lambda mesh: None", "`parallel` must give a module"),
    "inputs that are none": (PLAIN + "inputs = lambda: [1]", "`inputs` must give a tuple of"),
}
"""Programs that cannot be decided, and why."""

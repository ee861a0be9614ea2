"""What a rank does, line by line, and one change that is tried.

Installed once in the process of a rank: collectives and DTensor's conversions are replaced by
functions that write themselves down in the trace of the present run.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.overrides import TorchFunctionMode

from shardwright.tools.check.doubles import is_lower, widened

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_WITH_HANDLES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single"),
    *("broadcast", "reduce", "reduce_scatter", "reduce_scatter_tensor", "gather", "scatter"),
)
_INTERNAL = str(Path(dist.__file__).parent)


@dataclass(frozen=True)
class Mend:
    """A change that is tried.

    `kind` is `drop` (an all-reduce is left out), `forward` or `backward` (the result or the
    gradient of an operator is summed), `gradient` (a conversion takes gradients as partial over
    dimensions of its mesh, where it takes them as whole, or the reverse), `value` (the same of
    the values), `gather` (`to_local` gives the whole tensor). `places` counts the all-reduces,
    operators or conversions of a rank, `argument` the tensors of an operator.
    """

    kind: str
    places: frozenset[int]
    axis: str = ""
    argument: int = 0
    dimensions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Conversion:
    """A call of `to_local`, `from_local` or `full_tensor`.

    `values` and `gradients` have `P`, `R` or `S` for every dimension of the mesh: partial sums,
    whole values, parts.
    """

    line: int
    name: str
    axes: tuple[str, ...]
    values: str
    gradients: str


@dataclass
class Trace:
    """Operators (line, name, tensors), all-reduces (line, ranks) and conversions of a rank."""

    path: Path
    mend: Mend | None
    mesh: Any
    built: bool = False
    operators: list[tuple[int, str, int]] = field(default_factory=list)
    reductions: list[tuple[int, int]] = field(default_factory=list)
    conversions: list[Conversion] = field(default_factory=list)
    first_use: dict[int, int] = field(default_factory=dict)
    called: dict[int, int] = field(default_factory=dict)
    pending: dict[int, tuple[int, str]] = field(default_factory=dict)
    rounds: bool = False

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names by which a frame may know the user's file."""
        return frozenset({str(self.path), str(self.path.resolve())})

    def line(self, internal: bool = True) -> int:
        """The line of the user's file that runs now; 0 if none does.

        Where `internal` is false, 0 also for what a library for many devices runs by itself.
        """
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name in self._names:
                return frame.f_lineno
            if not internal and name.startswith(_INTERNAL):
                return 0
            frame = frame.f_back  # type: ignore[assignment]
        return 0

    def noted(self, result: Any) -> Any:
        """Return the result of an operator; note whether it is below float64."""
        self.rounds = self.rounds or is_lower(getattr(result, "dtype", None))
        return result

    def begin(self) -> None:
        """Forget what was done to build the module."""
        for entries in (self.operators, self.reductions, self.conversions):
            entries.clear()
        self.first_use.clear()
        self.called.clear()
        self.rounds = False
        self.built = True

    def tries(self, kind: str, index: int) -> Mend | None:
        """Return the change of this kind that is tried at this place, if there is one."""
        mend = self.mend
        if self.built and mend is not None and mend.kind == kind and index in mend.places:
            return mend
        return None

    def watch_calls(self, module: Any) -> None:
        """Write down the lines that call the parts of a module."""

        def use(submodule: Any, _: Any) -> None:
            line = self.line()
            for parameter in submodule.parameters(recurse=False):
                self.called.setdefault(id(parameter), line)

        for submodule in module.modules():
            submodule.register_forward_pre_hook(use)

    def line_of(self, parameter: Any) -> int:
        """Return the line in which a parameter is first used, 0 where it is not known.

        Of one that no operator is seen to take (sharded ones are gathered before), it is the line
        that calls its module.
        """
        return self.first_use.get(id(parameter)) or self.called.get(id(parameter), 0)


class Watch(TorchFunctionMode):  # type: ignore[misc]
    """Writes down operators with their lines, and adds a sum where asked."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        trace, kwargs = self.trace, kwargs or {}
        line = trace.line(internal=False)
        if not line:
            return trace.noted(function(*args, **kwargs))
        function, args, kwargs = widened(function, args, kwargs)
        tensors = [i for i, a in enumerate(args) if type(a) in _PLAIN and a.is_floating_point()]
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                trace.first_use.setdefault(id(value), line)
        name = getattr(function, "__name__", str(function))
        index = len(trace.operators)
        trace.operators.append((line, name, len(tensors)))
        mend = trace.tries("backward", index)
        if mend is not None and mend.argument < len(tensors):
            args, at = list(args), tensors[mend.argument]
            args[at] = _Backward.apply(args[at], trace.mesh.get_group(mend.axis))
        result = trace.noted(function(*args, **kwargs))
        mend = trace.tries("forward", index)
        if mend is not None and type(result) in _PLAIN:
            result = _Forward.apply(result, trace.mesh.get_group(mend.axis))
        return result


class Installed:
    """The functions that write themselves down; `trace` is that of the present run."""

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self._summed = dist.all_reduce
        for owner in (dist, dist.distributed_c10d):
            owner.all_reduce = self._all_reduce(dist.all_reduce)
        for name in _WITH_HANDLES:
            handed = self._handed(name, getattr(dist, name))
            for owner in (dist, dist.distributed_c10d):
                setattr(owner, name, handed)
        functional.all_reduce = self._functional(functional.all_reduce)
        DTensor.to_local = self._leaving("to_local", DTensor.to_local)
        DTensor.full_tensor = self._leaving("full_tensor", DTensor.full_tensor)
        DTensor.from_local = staticmethod(self._entering(DTensor.from_local))

    def _left_out(self, group: Any) -> bool:
        trace = self.trace
        if trace is None:
            return False
        trace.reductions.append((trace.line(), _ranks(group)))
        return trace.tries("drop", len(trace.reductions) - 1) is not None

    def _all_reduce(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def all_reduce(
            tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
        ) -> Any:
            if self._left_out(group):
                return _Done() if async_op else None
            return original(tensor, op, group, async_op)

        return all_reduce

    def _handed(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a collective that writes down where what it returns is not waited for."""

        @wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            work, trace = original(*args, **kwargs), self.trace
            line = trace.line(internal=False) if trace is not None and work is not None else 0
            if trace is None or not line:
                return work
            number = len(trace.pending)
            trace.pending[number] = (line, name)
            return _Handle(work, lambda: trace.pending.update({number: (0, name)}))

        return collective

    def _functional(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def all_reduce(self_: Any, reduceOp: str, group: Any, tag: str = "") -> Any:  # noqa: N803
            return self_ if self._left_out(group) else original(self_, reduceOp, group, tag)

        return all_reduce

    def _convert(
        self, name: str, tensor: Any, mesh: Any, placements: Any, gradients: Any
    ) -> Mend | None:
        """Write a conversion down; return the change that is tried at it."""
        trace = self.trace
        line = trace.line(internal=False) if trace is not None else 0
        if trace is None or not line:
            return None
        trace.first_use.setdefault(id(tensor), line)
        axes = tuple(mesh.mesh_dim_names or map(str, range(mesh.ndim)))
        trace.conversions.append(
            Conversion(line, name, axes, _letters(placements), _letters(gradients))
        )
        index = len(trace.conversions) - 1
        tried = (trace.tries(kind, index) for kind in ("gradient", "value", "gather"))
        return next((mend for mend in tried if mend is not None), None)

    def _leaving(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def leave(tensor: Any, *, grad_placements: Any = None) -> Any:
            mesh, placements = tensor.device_mesh, tensor.placements
            whole = [Replicate()] * mesh.ndim if name == "full_tensor" else placements
            gradients = grad_placements or _of_gradients(whole)
            mend = self._convert(name, tensor, mesh, placements, gradients)
            if mend is not None and mend.kind == "gather":
                tensor = tensor.redistribute(mesh, [Replicate()] * mesh.ndim)
            elif mend is not None and mend.kind == "value":
                tensor = tensor.redistribute(mesh, _turned(placements, mend.dimensions))
            elif mend is not None:
                grad_placements = _turned(gradients, mend.dimensions)
            return original(tensor, grad_placements=grad_placements)

        return leave

    def _entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def enter(
            local_tensor: Any, device_mesh: Any = None, placements: Any = None, **options: Any
        ) -> Any:
            if device_mesh is None or placements is None:
                return original(local_tensor, device_mesh, placements, **options)
            gradients = options.get("grad_placements") or _of_gradients(placements)
            mend = self._convert("from_local", local_tensor, device_mesh, placements, gradients)
            if mend is not None and mend.kind == "value":
                placements = _turned(placements, mend.dimensions)
            elif mend is not None:
                options["grad_placements"] = _turned(gradients, mend.dimensions)
            return original(local_tensor, device_mesh, placements, **options)

        return enter


def _letters(placements: Any) -> str:
    return "".join(
        "P" if placement.is_partial() else "R" if placement.is_replicate() else "S"
        for placement in placements
    )


def _of_gradients(placements: Any) -> list[Any]:
    """Placements that gradients have where a conversion is not told them."""
    return [Replicate() if placement.is_partial() else placement for placement in placements]


def _turned(placements: Any, dimensions: tuple[int, ...]) -> list[Any]:
    """Placements with whole values in place of partial ones over dimensions, or the reverse."""
    turned = list(placements)
    for dimension in dimensions:
        turned[dimension] = Replicate() if turned[dimension].is_partial() else Partial()
    return turned


def _ranks(group: Any) -> int:
    """Number of ranks of a group in any of the forms that functional collectives take."""
    if group is None:
        return dist.get_world_size()
    if isinstance(group, tuple):
        return int(group[0].size(group[1]))
    if isinstance(group, str):
        return int(dist.distributed_c10d._resolve_process_group(group).size())
    return len(group) if isinstance(group, list) else int(group.size())


class _Handle:
    """What an asynchronous collective returns; whatever is asked of it counts as waiting."""

    def __init__(self, work: Any, used: Callable[[], None]) -> None:
        self._work, self._used = work, used

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # as `isinstance` asks
        return type(self._work)

    def __getattr__(self, name: str) -> Any:
        self._used()
        return getattr(self._work, name)


class _Done:
    """What waiting for a collective that was left out gives."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class _Forward(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, value: Any, group: Any) -> Any:
        return _sum(value.detach(), group)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient, None


class _Backward(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, value: Any, group: Any) -> Any:
        context.group = group
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return _sum(gradient, context.group), None


def _sum(value: Any, group: Any) -> Any:
    total = value.clone()
    # Not by `dist.all_reduce`, which would be written down.
    group.allreduce([total]).wait()
    return total

"""Every rank of a program in one process: a thread each, whose collectives really exchange."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.futures import Future
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed import multi_threaded_pg as threaded

from shardwright.ir.errors import ModelError
from shardwright.user_files import guarded

_BACKEND = "shardwright_check"
_state = threading.local()


@dataclass(frozen=True)
class Mend:
    """A change that is tried: one collective left out, or one sum added.

    `kind` is `drop`, `forward` or `backward`; `index` counts the collectives or operators of a
    rank, and `argument` the tensors that the operator takes.
    """

    kind: str
    index: int
    axis: str = ""
    argument: int = 0


@dataclass
class Trace:
    """What a rank did: line and name of each operator and each all-reduce."""

    path: Path
    mend: Mend | None
    mesh: Any = None
    built: bool = False
    operators: list[tuple[int, str, int]] = field(default_factory=list)
    reductions: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    first_use: dict[int, int] = field(default_factory=dict)

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names by which a frame may know the user's file."""
        return frozenset({str(self.path), str(self.path.resolve())})

    def line(self) -> int:
        """The line of the user's file that runs now; 0 if none does."""
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename in self._names:
                return frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return 0


class _Group(threaded.ProcessLocalGroup):  # type: ignore[misc]
    """A group of threads that writes down its all-reduces, and leaves one out where asked."""

    def allreduce(self, tensor_list: Any, opts: Any = None) -> Any:
        trace: Trace | None = getattr(_state, "trace", None)
        if trace is not None:
            members = tuple(dist.get_process_group_ranks(self))
            trace.reductions.append((trace.line(), members))
            if trace.built and trace.mend == Mend("drop", len(trace.reductions) - 1):
                done: Any = Future()
                done.set_result(tensor_list)
                return threaded._create_work_from_future(done)
        return super().allreduce(tensor_list, dist.AllreduceOptions() if opts is None else opts)


def _group(store: Any, rank: int, size: int, timeout: Any) -> _Group:
    threaded._store_based_barrier(rank, store, "", size, timeout)
    return _Group(rank, size)


class _Forward(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, value: Any, group: Any) -> Any:
        total = value.detach().clone()
        dist.all_reduce(total, group=group)
        return total

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
        total = gradient.clone()
        dist.all_reduce(total, group=context.group)
        return total, None


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Writes down operators with their lines, and adds a sum where asked."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        trace, kwargs, mend = self.trace, kwargs or {}, self.trace.mend
        line = trace.line()
        tensors = [i for i, a in enumerate(args) if type(a) in _PLAIN and a.is_floating_point()]
        for value in (*args, *kwargs.values()):
            if type(value) in _PLAIN:
                trace.first_use.setdefault(id(value), line)
        name = getattr(function, "__name__", str(function))
        index = len(trace.operators)
        trace.operators.append((line, name, len(tensors)))
        mine = mend is not None and mend.index == index and trace.built
        if mine and mend is not None and mend.kind == "backward" and mend.argument < len(tensors):
            args, at = list(args), tensors[mend.argument]
            args[at] = _Backward.apply(args[at], trace.mesh.get_group(mend.axis))
        result = function(*args, **kwargs)
        if mine and mend is not None and mend.kind == "forward" and type(result) in _PLAIN:
            result = _Forward.apply(result, trace.mesh.get_group(mend.axis))
        return result


def forget_construction() -> None:
    """Begin the trace of the rank of this thread anew, now that its module is built."""
    trace: Trace = _state.trace
    trace.operators.clear()
    trace.reductions.clear()
    trace.first_use.clear()
    trace.built = True


def first_uses(tensors: Mapping[str, Any]) -> dict[str, int]:
    """Lines in which the rank of this thread first used tensors, by their names."""
    return {name: _state.trace.first_use.get(id(value), 0) for name, value in tensors.items()}


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def run(
    shape: dict[str, int],
    work: Callable[[int, Any], Any],
    path: Path,
    mend: Mend | None = None,
    seconds: float = 60.0,
) -> list[tuple[Any, Trace]]:
    """Do work on every rank of a mesh at once, and return the results with what each did.

    Raises
    ------
    ModelError
        If a rank fails, or the ranks wait for each other.
    """
    size = prod(shape.values())
    results: list[Any] = [None] * size
    failures: list[BaseException] = []
    store = dist.HashStore()

    def rank_work(rank: int) -> None:
        trace = Trace(path, mend)
        try:
            dist.init_process_group(_BACKEND, rank=rank, world_size=size, store=store)
            trace.mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
            _state.trace = trace
            with _Watch(trace), torch.autograd.set_multithreading_enabled(False):
                results[rank] = (work(rank, trace.mesh), trace)
        except BaseException as error:  # a thread's error is told by the main thread
            failures.append(error)
            threaded.ProcessLocalGroup.exception_handle(error)

    with _threads_as_ranks():
        threads = [threading.Thread(target=rank_work, args=(r,), daemon=True) for r in range(size)]
        end = time.monotonic() + seconds
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        waiting = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if failures:
        guarded(partial(_fail, failures), path)
    if waiting:
        text = f"ranks {waiting} wait for others for {seconds:g} s: collectives are not the same"
        raise ModelError(text, str(path), "let all ranks of a group call the same collectives")
    return results


def _fail(failures: Sequence[BaseException]) -> None:
    """Raise the failure of a rank; one that ended since another failed comes last."""
    raise next((one for one in failures if not isinstance(one, SystemExit)), failures[0])


@contextmanager
def _threads_as_ranks() -> Iterator[None]:
    if _BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(_BACKEND, _group, devices=["cpu"])
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    threaded.ProcessLocalGroup.reset()
    threaded._install_threaded_pg()
    isolate(True)
    try:
        yield
    finally:
        isolate(False)
        threaded._uninstall_threaded_pg()

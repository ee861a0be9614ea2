"""Compare every rank's loss and gradients with one device's, and find what mends a fault."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from shardwright.ir.errors import ModelError
from shardwright.tools.check.contract import Contract
from shardwright.tools.check.ranks import Mend, Trace, first_uses, forget_construction, run
from shardwright.user_files import guarded, imported

_TOLERANCE = 1e-9
_SEEDS = (0, 1)


@dataclass(frozen=True)
class Fault:
    """A value that is not what one device computes; `line` is 0 where it is not known."""

    value: str
    rank: int
    found: str
    axes: tuple[str, ...] = ()
    line: int = 0
    mend: str = ""


@dataclass(frozen=True)
class Answer:
    """What a check found; `compared` counts gradients of parameters, over all ranks."""

    faults: tuple[Fault, ...]
    ranks: int
    compared: int
    mends: tuple[str, ...]
    searched: bool


@dataclass(frozen=True)
class _Whole:
    inputs: tuple[Any, ...]
    state: Mapping[str, Any]
    gradients: Mapping[str, Any]
    loss: Any


def check(path: Path, search_seconds: float = 60.0) -> Answer:
    """Check the program of a file; of a wrong one, search for so long for what mends it.

    Raises
    ------
    ModelError
        If the file does not offer what is needed, fails, or cannot be decided.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with ExitStack() as stack:
            module = stack.enter_context(imported(path))
            contract = Contract.read(module, path)
            # A module a rank: groups kept in globals of the file are each rank's own.
            modules = [stack.enter_context(imported(path)) for _ in range(contract.size)]
            return _Program(path, contract, module, modules).answer(search_seconds)
    finally:
        torch.set_default_dtype(before)


class _Program:
    def __init__(
        self, path: Path, contract: Contract, module: ModuleType, modules: list[ModuleType]
    ) -> None:
        self.path, self.contract, self.modules = path, contract, modules
        self.wholes = [guarded(partial(_one_device, module, s, path), path) for s in _SEEDS]

    def answer(self, search_seconds: float) -> Answer:
        faults, traces, compared = self.compare(None)
        searched = True
        mends: tuple[str, ...] = ()
        if faults:
            searched, mends = self.search(faults, traces, search_seconds)
        return Answer(tuple(faults), len(self.modules), compared, mends, searched)

    def compare(
        self, mend: Mend | None, seeds: int = len(_SEEDS)
    ) -> tuple[list[Fault], list[Trace], int]:
        """Faults with a mend in place, at some seeds; traces and number of gradients of one."""
        faults: dict[str, Fault] = {}
        traces: list[Trace] = []
        compared = 0
        for whole in self.wholes[:seeds]:
            ran = run(dict(self.contract.mesh), partial(self._rank, whole), self.path, mend)
            values, traces = [value for value, _ in ran], [trace for _, trace in ran]
            for fault in self._faults(whole, values):
                faults.setdefault(fault.value, fault)
            compared = sum(len(gradients) for _, gradients in values)
        return list(faults.values()), traces, compared

    def _rank(self, whole: _Whole, rank: int, mesh: Any) -> tuple[Any, dict[str, tuple[Any, int]]]:
        """Loss of a rank, and its gradients with the line of each parameter's first use."""
        source, place = self.modules[rank], self.contract.place(rank)
        module = source.parallel(mesh).double()
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, parameter in parameters.items():
            local = self._part(whole.state, name, place)
            target = parameter.data
            if hasattr(target, "full_tensor"):
                text = f"parameter `{name}` is a DTensor"
                raise ModelError(text, hint="give local tensors; DTensor is not decided yet")
            if local.shape != target.shape:
                text = f"parameter `{name}` of rank {rank} has shape {tuple(target.shape)}, its "
                text += f"layout gives {tuple(local.shape)}"
                raise ModelError(text, str(self.path), "mend `LAYOUTS`")
            target.copy_(local)
        forget_construction()
        layouts = self.contract.inputs
        inputs = [
            self.contract.local(value, layouts[i] if i < len(layouts) else {}, place).clone()
            for i, value in enumerate(whole.inputs)
        ]
        loss = getattr(source, "step", _step)(module, mesh, *inputs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ModelError(
                f"`step` of rank {rank}: expected the loss, got {type(loss).__name__}",
                str(self.path),
            )
        gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
            for name, p in parameters.items()
            if self.contract.known(name) in whole.gradients
        }
        lines = first_uses(parameters)
        return loss.detach().clone(), {n: (g, lines.get(n, 0)) for n, g in gradients.items()}

    def _part(self, wholes: Mapping[str, Any], name: str, place: Mapping[str, int]) -> Any:
        known = self.contract.known(name)
        if known not in wholes:
            text = f"parameter `{name}` of the ranks is not one of the reference's"
            raise ModelError(text, str(self.path), "name it in `NAMES`")
        return self.contract.local(wholes[known], self.contract.layout(name), place)

    def _faults(self, whole: _Whole, values: list[Any]) -> list[Fault]:
        self._check_held(whole, values)
        faults = self._loss_faults(whole, [loss for loss, _ in values])
        for rank, (_, gradients) in enumerate(values):
            for name, (gradient, line) in gradients.items():
                known = self.contract.known(name)
                expected = self._part(whole.gradients, name, self.contract.place(rank))
                if _same(gradient, expected) or any(f.value == name for f in faults):
                    continue
                like = self.contract.copies(
                    whole.gradients[known], self.contract.layout(name), rank
                )
                copies = {r: values[r][1][name][0] for r in like if name in values[r][1]}
                fault = self._explain(gradient, expected, copies, rank)
                faults.append(replace(fault, value=name, line=line))
        return faults

    def _check_held(self, whole: _Whole, values: list[Any]) -> None:
        """Refuse a program in which a part of a parameter is on no rank."""
        for known, gradient in whole.gradients.items():
            index = torch.arange(gradient.numel()).reshape(gradient.shape)
            parts = [
                self.contract.local(
                    index, self.contract.layout(name), self.contract.place(rank)
                ).flatten()
                for rank, (_, gradients) in enumerate(values)
                for name in gradients
                if self.contract.known(name) == known
            ]
            if not parts or torch.cat(parts).unique().numel() < gradient.numel():
                text = f"no rank has {'a part of ' if parts else ''}the parameter `{known}`"
                raise ModelError(text, str(self.path), "mend `LAYOUTS`, `NAMES` or `parallel`")

    def _loss_faults(self, whole: _Whole, losses: list[Any]) -> list[Fault]:
        ranks = range(len(losses))
        places = [self.contract.place(r) for r in ranks]
        for rank in ranks:
            group = [
                r
                for r in ranks
                if all(
                    places[r][a] == places[rank][a] or a in self.contract.loss for a in places[rank]
                )
            ]
            total = sum(losses[r].reshape(()) for r in group)
            for axis, how in self.contract.loss.items():
                total = total / self.contract.mesh[axis] if how == "mean" else total
            if not _same(total, whole.loss):
                copies = {r: losses[r].reshape(()) for r in ranks}
                return [self._explain(total, whole.loss, copies, rank)]
        return []

    def _explain(self, found: Any, expected: Any, copies: dict[int, Any], rank: int) -> Fault:
        """Say how a value differs: partial over axes, multiplied, or another value."""
        mesh, places = self.contract.mesh, self.contract.place
        axes = [axis for axis, size in mesh.items() if size > 1]
        for count in range(1, len(axes) + 1):
            for some in combinations(axes, count):
                group = [
                    value
                    for r, value in copies.items()
                    if all(places(r)[a] == places(rank)[a] for a in axes if a not in some)
                ]
                size = prod(mesh[a] for a in some)
                over = " and ".join(f"`{a}`" for a in some)
                if len(group) > 1 and _same(sum(group), expected):
                    text = f"a partial sum over {over}, used as if it were whole"
                    return Fault("loss", rank, text, some, mend=f"sum it over {over}")
                if _same(found, size * expected):
                    text = f"{size} times what it must be: summed once too often over {over}"
                    return Fault("loss", rank, text, some, mend=f"leave out one sum over {over}")
                if _same(found * size, expected):
                    text = f"1/{size} of what it must be"
                    return Fault("loss", rank, text, some, mend=f"do not divide by {size}")
        apart = float((found - expected).abs().max())
        return Fault("loss", rank, f"another value, {apart:.3g} apart")

    def search(
        self, faults: list[Fault], traces: list[Trace], seconds: float
    ) -> tuple[bool, tuple[str, ...]]:
        """Changes of one line after which nothing, or the least, is wrong; each was run."""
        if any(trace.operators != traces[0].operators for trace in traces):
            return False, ()
        end, wrong = time.monotonic() + seconds, {fault.value for fault in faults}
        best: list[str] = []
        for mend, text in _candidates(
            traces[0], self.contract.mesh, "forward" if "loss" in wrong else "backward"
        ):
            if time.monotonic() > end:
                return False, tuple(best[:3])
            try:
                left, _, _ = self.compare(mend, seeds=1)
                if {fault.value for fault in left} <= wrong:
                    left, _, _ = self.compare(mend)
            except ModelError:
                continue  # this change does not run
            now = {fault.value for fault in left}
            if now < wrong:
                best, wrong = [], now
            if now == wrong and len(wrong) < len({f.value for f in faults}) and text not in best:
                best.append(text)
            if not wrong:
                break
        rest = f" ({len(wrong)} values stay wrong)" if wrong else ""
        return True, tuple(text + rest for text in best[:3])


def _candidates(trace: Trace, mesh: Mapping[str, int], kind: str) -> list[tuple[Mend, str]]:
    found = []
    for index, (line, ranks) in enumerate(trace.reductions):
        text = f"line {line}: leave out the all-reduce over {len(ranks)} ranks"
        found.append((Mend("drop", index), text))
    for index, (line, name, count) in enumerate(trace.operators):
        if not line or (name.startswith("__") and name != "__matmul__"):
            continue
        for axis in (axis for axis, size in mesh.items() if size > 1):
            if kind == "forward":
                text = f"line {line}: sum the result of `{name}` over `{axis}`"
                found.append((Mend(kind, index, axis), text))
                continue
            for at in range(count):
                text = f"line {line}: sum the gradient of input {at} of `{name}` over `{axis}`"
                found.append((Mend(kind, index, axis, at), text))
    return found


def _one_device(module: ModuleType, seed: int, path: Path) -> _Whole:
    torch.manual_seed(seed)
    network = module.reference().double()
    inputs = tuple(
        value.double() if value.is_floating_point() else value for value in module.inputs()
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    state = {n: p.detach().clone() for n, p in network.named_parameters()}
    loss = network(*inputs)
    if loss.numel() != 1 or not torch.isfinite(loss).all():
        raise ModelError("`reference` must give a finite loss of one element", str(path))
    loss.backward()
    first = loss.detach().reshape(())
    torch.manual_seed(seed + 100)
    if not _same(network(*inputs).detach().reshape(()), first):
        raise ModelError("the reference draws random numbers", str(path), "leave out dropout")
    gradients = {
        n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for n, p in network.named_parameters()
        if p.requires_grad
    }
    for name, gradient in gradients.items():
        if not gradient.any():
            text = f"the gradient of `{name}` is zero everywhere: nothing can be told by it"
            raise ModelError(text, str(path), "give inputs that use every parameter")
    return _Whole(inputs, state, gradients, first)


def _step(module: Any, mesh: Any, *inputs: Any) -> Any:
    loss = module(*inputs)
    loss.backward()
    return loss


def _same(found: Any, expected: Any) -> bool:
    scale = max(float(expected.abs().max()), 1e-6)
    return (
        bool(torch.isfinite(found).all())
        and float((found - expected).abs().max()) <= _TOLERANCE * scale
    )

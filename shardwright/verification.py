"""Verification: the program of a plan against the training step of one device.

Both train for some steps in float64 on the same random batches, and after each step every loss,
gradient, parameter and state of the optimizer is compared, on every rank.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import Array
from shardwright.operators.verify import verify as verify_graph
from shardwright.passes.gradient import gradient_name
from shardwright.passes.plan import Plan
from shardwright.passes.plan_document import InputDocument
from shardwright.runtime import (
    Communicator,
    Comparison,
    Executor,
    LocalCommunicator,
    State,
    assemble,
    compare,
    initialize,
)

TOLERANCE = 1e-9
_EXACT = "float64"


@dataclass(frozen=True)
class Verification(Comparison):
    """How a plan agrees with the program of one device.

    Parameters
    ----------
    reason : str or None
        What the first difference is; None where there is none.
    """

    reason: str | None = None


@dataclass
class _Side:
    """One of the two programs, and what its ranks hold."""

    graph: Graph
    executor: Executor
    state: State

    @property
    def communicator(self) -> Communicator:
        return self.executor.communicator


def verify_plan(
    plan: Plan,
    steps: int = 3,
    *,
    seed: int = 0,
    communicator: Communicator | None = None,
    static: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Verification:
    """Compare a plan's program with the training step of one device.

    Parameters
    ----------
    plan : Plan
        The plan; its program may have been edited.
    steps : int
        Steps to train.
    seed : int
        Seed of the random batches.
    communicator : Communicator, optional
        Hosts all ranks of the plan.
    static : bool
        Whether the rules of the IR are checked first.
    progress : callable, optional
        Called after every step with how things stand.
    """
    names = _compared(plan.reference)
    try:
        if static:
            verify_graph(plan.program)
        local = communicator or LocalCommunicator(plan.mesh)
        plan_side = _prepare(plan, plan.program, local)
    except ShardwrightError as error:
        return _failed(plan, names, error)
    reference = _prepare(plan, plan.reference, LocalCommunicator(Mesh(())))
    _cut_own_parameters(plan_side, reference)
    result = Verification(True, 0.0, None, len(names), {})
    for batch in random_batches(plan.document.inputs, steps, seed):
        result = _worst(result, _compare_step(plan, batch, reference, plan_side, names))
        if progress is not None:
            progress(f"largest relative error {result.max_relative_error:.2g}")
        if not result.equal:
            break
    return result


def random_batches(
    inputs: Sequence[InputDocument], count: int, seed: int
) -> Iterator[dict[str, Array]]:
    """Yield random batches: normal numbers, or integers below what the input allows."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield {item.name: _random_array(item, random) for item in inputs}


def _random_array(item: InputDocument, random: np.random.Generator) -> Array:
    kind = item.tensor
    if kind.is_float:
        return random.standard_normal(kind.shape)
    return random.integers(0, item.high or 2, kind.shape).astype(kind.dtype)


def _compared(graph: Graph) -> dict[str, str]:
    """Return what is compared, in order, and of which kind each is."""
    kinds = dict.fromkeys(graph.outputs, "output")
    for parameter in graph.parameters:
        name = gradient_name(parameter.name)
        if name in graph.values:
            kinds[name] = "gradient"
    for name, _ in graph.updates:
        kinds[name] = "parameter" if graph.parameter(name).trainable else "state"
    return kinds


def _prepare(plan: Plan, graph: Graph, communicator: Communicator) -> _Side:
    executor = Executor(graph, communicator, float_dtype=_EXACT)
    seed = plan.document.seed
    given = {name: array for name, array in plan.initial.items() if _fits(graph, name, array)}
    return _Side(graph, executor, initialize(graph, seed, communicator, given, _EXACT))


def _fits(graph: Graph, name: str, array: Array) -> bool:
    return name in graph.values and graph.values[name].type.shape == array.shape


def _cut_own_parameters(side: _Side, reference: _Side) -> None:
    """Let each rank of a hand-written program begin with its part of the whole parameter."""
    for parameter in side.graph.parameters:
        whole = reference.state.get(parameter.name)
        dimension = _own_dimension(side.graph, reference.graph, parameter.name)
        if whole is None or dimension is None:
            continue
        parts = np.split(whole[0], side.communicator.mesh.size, dimension)
        ranks = side.communicator.ranks
        side.state[parameter.name] = {rank: np.ascontiguousarray(parts[rank]) for rank in ranks}


def _own_dimension(graph: Graph, reference: Graph, name: str) -> int | None:
    """Return along which dimension the ranks of a hand-written program hold parts of a tensor."""
    if graph.mesh is None or name not in graph.values or name not in reference.values:
        return None
    value, whole = graph.values[name], reference.values[name].type.shape
    own = value.type.shape
    if value.layout is not None or len(own) != len(whole):
        return None
    different = [i for i, (a, b) in enumerate(zip(own, whole, strict=True)) if a != b]
    if len(different) == 1 and own[different[0]] * graph.mesh.size == whole[different[0]]:
        return different[0]
    return None


def _compare_step(
    plan: Plan,
    batch: Mapping[str, Array],
    reference: _Side,
    side: _Side,
    names: Mapping[str, str],
) -> Verification:
    gradients = [name for name, kind in names.items() if kind == "gradient"]
    outputs = plan.reference.outputs
    expected = _step(reference, batch, gradients, outputs)
    try:
        known = [name for name in gradients if name in side.graph.values]
        found = _step(side, batch, known, outputs)
    except ShardwrightError as error:
        return _failed(plan, names, error)
    whole = {name: expected[name][0] for name in names}
    plan_whole, reasons = _assembled(side, reference.graph, found)
    plan_whole = {name: array for name, array in plan_whole.items() if name in names}
    result = compare(whole, plan_whole, TOLERANCE, names)
    first = result.first_difference
    reason = None
    if first is not None:
        reason = reasons.get(first, f"its relative error is {result.errors[first]:.3g}")
        if first not in found:
            reason = "the plan does not compute it"
    return Verification(**vars(result), reason=reason)


def _step(
    side: _Side, batch: Mapping[str, Array], gradients: Sequence[str], outputs: Sequence[str]
) -> dict[str, Mapping[int, Array]]:
    """Train one step; return what the ranks hold of everything that is compared.

    Outputs are named as in the reference: a plan may return a redistributed copy.
    """
    result = side.executor.step(batch, side.state, gradients)
    returned = [result.outputs[name] for name in side.graph.outputs]
    return {**dict(zip(outputs, returned, strict=False)), **result.fetched, **side.state}


def _assembled(
    side: _Side, reference: Graph, found: Mapping[str, Mapping[int, Array]]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return whole tensors, and for those whose copies disagree the reason."""
    whole: dict[str, Array] = {}
    reasons: dict[str, str] = {}
    own_names = dict(zip(reference.outputs, side.graph.outputs, strict=False))
    for name, held in found.items():
        parts = side.communicator.collect(held)
        dimension = _own_dimension(side.graph, reference, name)
        own = own_names.get(name, name)
        try:
            if dimension is None:
                whole[name] = assemble(side.graph, own, parts, side.communicator.mesh, TOLERANCE)
            else:
                whole[name] = np.concatenate([parts[rank] for rank in sorted(parts)], dimension)
        except ExecutionError as error:
            reasons[name] = error.what
    return whole, reasons


def _worst(before: Verification, now: Verification) -> Verification:
    """Return what two steps together say; the earlier difference comes first."""
    errors = {name: max(before.errors.get(name, 0.0), error) for name, error in now.errors.items()}
    return replace(
        now,
        max_relative_error=max(before.max_relative_error, now.max_relative_error),
        errors=errors,
    )


def _failed(plan: Plan, names: Mapping[str, str], error: ShardwrightError) -> Verification:
    """Return that the program cannot run, with the tensor at which it fails."""
    return Verification(
        False, float("inf"), _named_tensor(plan.program, error), len(names), {}, str(error)
    )


def _named_tensor(graph: Graph, error: ShardwrightError) -> str:
    """Return the tensor that an error speaks of: the node it points at, or what it quotes."""
    place = re.match(r"(?:update )?([A-Za-z_][\w./-]*)", error.where or "")
    quoted = re.findall(r"`([^`]+)`", error.what)
    for name in ([place[1]] if place else []) + quoted:
        if name in graph.values:
            return name
    return graph.outputs[0] if graph.outputs else graph.name

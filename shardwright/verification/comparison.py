"""Verification: the program of a plan against the training step of one device.

Both train for some steps in float64 on the same random batches. In every step, on every rank:

- outputs must be those of one device, whole, on each rank;
- gradients must be those of one device;
- the next parameters and states must be those that the update makes *of the plan's own gradients*.

Then the plan goes on from the parameters and states of one device, so that every step is compared
from equal values, and an error is found in the step that makes it. Updates are compared for equal
gradients because an optimizer may enlarge a difference without limit: of a gradient that is
mathematically zero, and hence nothing but rounding, Adam makes a step of full length in a random
direction.

Two right programs add in different orders, and differ by rounding. A difference is allowed up to
1e-9 of the largest element of the tensor (of a parameter or state: of its largest change), or as
far as relative errors of about 1e-12 in every number of the reference change it (see
`shardwright.runtime.rounding`), whichever is more. So where terms cancel, the magnitude of the
terms counts and not that of their sum, and no tensor is held to the magnitude of another.

In float64 the casts of a precision policy round nothing. How far its own types are from float64 is
measured apart, by `shardwright.verification.rounding`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from shardwright.compiler.plans.document import InputDocument
from shardwright.compiler.plans.plan import Plan
from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.rounding import EQUAL
from shardwright.operators.info import Array
from shardwright.operators.verify import verify as verify_graph
from shardwright.runtime import (
    Communicator,
    Comparison,
    Executor,
    Expected,
    LocalCommunicator,
    Reference,
    State,
    assemble,
    check_capacity,
    compare,
    initialize,
    magnitude,
    scatter,
)
from shardwright.runtime.agreement import from_first, gathered
from shardwright.verification.rounding import Rounding, policy_rounding

_EXACT = "float64"
_UNDEFINED = "it has NaN on one device, which nothing is equal to: compare with other values"
Item = TypeVar("Item")


@dataclass(frozen=True)
class Verification(Comparison):
    """The comparison of a plan with the program of one device.

    Parameters
    ----------
    reason : str or None
        The reason of the first difference; None where all agree.
    rounding : Rounding or None
        The rounding of the program in its own types; None where none has 16 bits, or the program
        differs.
    """

    reason: str | None = None
    rounding: Rounding | None = None

    def __repr__(self) -> str:
        outcome = "equal" if self.equal else f"different at {self.first_difference}"
        return (
            f"<Verification: {outcome}, {self.tensors} tensors, largest relative error "
            f"{self.max_relative_error:.2g}>"
        )


@dataclass
class _Side:
    """The program of the plan, and the state of its ranks."""

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
        Hosts ranks of the plan; by default all of them in this process. Every process returns the
        same.
    static : bool
        Whether the rules of the IR are checked first.
    progress : callable, optional
        Called after every step with a line of progress.

    Raises
    ------
    ExecutionError
        If the machine has too little memory for the program.
    """
    graph = plan.reference
    names = _compared(graph, plan.program)
    communicator = communicator or LocalCommunicator(plan.mesh)
    try:
        if static:
            verify_graph(plan.program)
    except ShardwrightError as error:
        return _failed(plan, names, error)
    if static:
        check_capacity(plan.program, communicator.ranks, _EXACT)
    side = _prepared(plan, communicator)
    if isinstance(side, ShardwrightError):
        return _failed(plan, names, side)
    reference = Reference(graph, tuple(n for n, kind in names.items() if kind == "gradient"))
    state: Mapping[str, Array] = _initial(plan, graph)
    _give_own_parts(side, state)
    result = Verification(True, 0.0, None, len(names), {})
    for batch in random_batches(plan.document.inputs, steps, seed):
        now, state = _compare_step(plan, batch, reference, state, side, names)
        result = _worst(result, _first_different(of_all(communicator, now)))
        if progress is not None:
            progress(f"largest relative error {result.max_relative_error:.2g}")
        if not result.equal:
            break
        _synchronize(side, state)
    if not result.equal:
        return result
    batch = next(random_batches(plan.document.inputs, 1, seed))
    rounding = made_once(communicator, lambda: policy_rounding(plan, batch), Rounding)
    return replace(result, rounding=rounding)


def hosts_all(communicator: Communicator) -> bool:
    """Return whether this process hosts all ranks."""
    return len(communicator.ranks) == communicator.mesh.size


def of_all(communicator: Communicator, item: Item) -> list[Item]:
    """Return the items of all processes, which call this together."""
    return [item] if hosts_all(communicator) else gathered("verdict", item, Verification, Rounding)


def made_once(communicator: Communicator, make: Callable[[], Item], kind: type) -> Item:
    """Return in every process what the first one makes."""
    return make() if hosts_all(communicator) else from_first(make, kind)


def _first_different(results: Sequence[Verification]) -> Verification:
    """Return the verdict of all processes: that of the first one which finds a difference."""
    return next((result for result in results if not result.equal), results[0])


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


def _compared(graph: Graph, program: Graph) -> dict[str, str]:
    """Return the compared tensors in order, each with its kind."""
    kinds = dict.fromkeys(graph.outputs, "output")
    names = {parameter.name for parameter in graph.parameters}
    for parameter in graph.parameters:
        name = gradient_name(parameter.name)
        if name in graph.values and name not in names:
            kinds[name] = "gradient"
    changed = dict.fromkeys(name for name, _ in graph.updates)
    changed |= dict.fromkeys(name for name, _ in program.updates if name in names)
    return kinds | dict.fromkeys(changed, "state")


def _prepared(plan: Plan, communicator: Communicator) -> "_Side | ShardwrightError":
    """Return the program, ready to run in every process, or the error of the first that fails."""
    found: _Side | ShardwrightError
    try:
        found = _prepare(plan, communicator)
    except ShardwrightError as error:
        found = error
    own = found if isinstance(found, ShardwrightError) else None
    return next(filter(None, of_all(communicator, own)), found)


def _prepare(plan: Plan, communicator: Communicator) -> _Side:
    program, seed = plan.program, plan.document.seed
    executor = Executor(program, communicator, float_dtype=_EXACT)
    initial = {name: array for name, array in plan.initial.items() if _fits(program, name, array)}
    return _Side(program, executor, initialize(program, seed, communicator, initial, _EXACT))


def _initial(plan: Plan, graph: Graph) -> dict[str, Array]:
    """Return the initial parameters of one device."""
    initial = {name: array for name, array in plan.initial.items() if _fits(graph, name, array)}
    state = initialize(graph, plan.document.seed, LocalCommunicator(), initial, _EXACT)
    return {name: parts[0] for name, parts in state.items()}


def _fits(graph: Graph, name: str, array: Array) -> bool:
    return name in graph.values and graph.values[name].type.shape == array.shape


def _give_own_parts(side: _Side, state: Mapping[str, Array]) -> None:
    """Give each rank of a hand-written program its part of every parameter that it has a part of.

    What the ranks begin with otherwise is not touched: how a plan begins is compared too.
    """
    for parameter in side.graph.parameters:
        whole = state.get(parameter.name)
        dimension = None if whole is None else _own_dimension(side.graph, parameter.name, whole)
        if whole is None or dimension is None:
            continue
        parts = np.split(whole, side.communicator.mesh.size, dimension)
        ranks = side.communicator.ranks
        side.state[parameter.name] = {rank: np.ascontiguousarray(parts[rank]) for rank in ranks}


def _synchronize(side: _Side, state: Mapping[str, Array]) -> None:
    """Let the ranks go on from the parameters and states of one device."""
    for parameter in side.graph.parameters:
        whole = state.get(parameter.name)
        if whole is not None and whole.shape == parameter.value.type.shape:
            parts = scatter(parameter.value, whole, side.communicator, _EXACT)
            side.state[parameter.name] = parts
    _give_own_parts(side, state)


def _own_dimension(graph: Graph, name: str, whole: Array) -> int | None:
    """Return along which dimension the ranks of a hand-written program hold parts of a tensor."""
    if graph.mesh is None or name not in graph.values:
        return None
    value, shape = graph.values[name], whole.shape
    own = value.type.shape
    if value.layout is not None or len(own) != len(shape):
        return None
    different = [i for i, (a, b) in enumerate(zip(own, shape, strict=True)) if a != b]
    if len(different) == 1 and own[different[0]] * graph.mesh.size == shape[different[0]]:
        return different[0]
    return None


def _compare_step(
    plan: Plan,
    batch: Mapping[str, Array],
    reference: Reference,
    state: Mapping[str, Array],
    side: _Side,
    names: Mapping[str, str],
) -> tuple[Verification, Mapping[str, Array]]:
    """Compare one step; return the result, and the state of one device after the step.

    Raises
    ------
    ShardwrightError
        If the step fails in one of several processes.
    """
    expected = reference.step(batch, state)
    following = {name: expected.values[name] for name in state}
    try:
        found = _step(side, batch, reference)
    except ShardwrightError as error:
        if not hosts_all(side.communicator):  # the other processes may wait for this one
            raise
        return _failed(plan, names, error), following
    if plan.document.gradients_mean:
        found = _with_mean_loss(found, reference.graph.outputs[0])
    whole, reasons = _assembled(side, reference.graph, expected.values, found)
    reasons |= _not_whole(side, reference.graph, expected, found)
    own = {name: whole.get(name, expected.values[name]) for name in reference.gradients}
    fits = all(array.shape == expected.values[name].shape for name, array in own.items())
    updated = reference.updated(batch, state, own if fits else following)
    values = {name: {**expected.values, **updated.values}[name] for name in names}
    scales = _scales(values, {**expected.rounding, **updated.rounding}, state)
    known = {n: array for n, array in whole.items() if n in names and n not in reasons}
    result = compare(values, known, EQUAL, scales)
    without = {name for name, array in values.items() if np.isnan(array).any()}
    reasons = dict.fromkeys(without, _UNDEFINED) | reasons
    return _described(result, reasons, found), following


def _scales(
    values: Mapping[str, Array], rounding: Mapping[str, float], before: Mapping[str, Array]
) -> dict[str, float]:
    """Return for each tensor the magnitude that its error is relative to."""
    scales = {}
    for name, array in values.items():
        own = magnitude(array - before[name] if name in before else array)
        scales[name] = max(own, rounding[name] / EQUAL)
    return scales


def _described(
    result: Comparison, reasons: Mapping[str, str], found: Mapping[str, object]
) -> Verification:
    first, reason = result.first_difference, None
    if first is not None:
        reason = reasons.get(first, f"its relative error is {result.errors[first]:.3g}")
        if first not in found:
            reason = "the plan does not compute it"
    return Verification(**vars(result), reason=reason)


def _step(
    side: _Side, batch: Mapping[str, Array], reference: Reference
) -> dict[str, Mapping[int, Array]]:
    """Train one step; return what all ranks hold of everything that is compared.

    Outputs are named as in the reference: a plan may return a redistributed copy.
    """
    known = [name for name in reference.gradients if name in side.graph.values]
    result = side.executor.step(batch, side.state, known)
    returned = [result.outputs[name] for name in side.graph.outputs]
    outputs = zip(reference.graph.outputs, returned, strict=False)
    held = {**dict(outputs), **result.fetched, **side.state}
    return {name: side.communicator.collect(parts) for name, parts in held.items()}


def _with_mean_loss(
    found: Mapping[str, Mapping[int, Array]], loss: str
) -> dict[str, Mapping[int, Array]]:
    """Return the same with the mean of the losses of all ranks, which is what is trained on."""
    mean = np.asarray(np.mean(list(found[loss].values()), axis=0))
    return {**found, loss: dict.fromkeys(found[loss], mean)}


def _assembled(
    side: _Side,
    reference: Graph,
    expected: Mapping[str, Array],
    found: Mapping[str, Mapping[int, Array]],
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return whole tensors, and for those whose copies disagree the reason."""
    whole: dict[str, Array] = {}
    reasons: dict[str, str] = {}
    own_names = dict(zip(reference.outputs, side.graph.outputs, strict=False))
    for name, parts in found.items():
        own = name if name in side.state else own_names.get(name, name)
        dimension = None
        if name in expected:
            dimension = _own_dimension(side.graph, own, expected[name])
        try:
            if dimension is None:
                whole[name] = assemble(side.graph, own, parts, side.communicator.mesh, EQUAL)
            else:
                whole[name] = np.concatenate([parts[rank] for rank in sorted(parts)], dimension)
        except ExecutionError as error:
            reasons[name] = error.what
    return whole, reasons


def _not_whole(
    side: _Side,
    reference: Graph,
    expected: Expected,
    found: Mapping[str, Mapping[int, Array]],
) -> dict[str, str]:
    """Return why outputs are wrong that a rank does not hold whole.

    The parts may well add up to the right tensor; but each rank returns it, and must have all of
    it. A hand-written program may return parts of other outputs than the loss.
    """
    reasons = {}
    for name, own in zip(reference.outputs, side.graph.outputs, strict=False):
        whole = expected.values[name]
        if name in side.state:  # a parameter, which is compared as it is stored
            continue
        if name != reference.outputs[0] and _own_dimension(side.graph, own, whole) is not None:
            continue
        scale = max(magnitude(whole), expected.rounding[name] / EQUAL)
        for rank, part in found[name].items():
            one = compare({own: whole}, {own: part}, EQUAL, {own: scale})
            if not one.equal:
                reasons[name] = (
                    f"rank {rank} returns `{own}` with a relative error of "
                    f"{one.max_relative_error:.3g}, every rank must return the whole"
                )
                break
    return reasons


def _worst(before: Verification, now: Verification) -> Verification:
    """Return the combined outcome of two steps; the earlier difference comes first."""
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
    """Return the tensor of an error: its node, or a name that it quotes."""
    place = re.match(r"(?:update )?(\w[\w./-]*)", error.where or "")
    quoted = re.findall(r"`([^`]+)`", error.what)
    for name in ([place[1]] if place else []) + quoted:
        if name in graph.values:
            return name
    return graph.outputs[0] if graph.outputs else graph.name

"""The proof that a program computes the training step of its model, at full size.

Program and model are erased to terms (`erasure`); the model is first extended to a training step by
a reverse pass and update rules independent of the compiler (`step`). If outputs, gradients and
updates are equal terms, a step of the program on any number of ranks equals a step of the model on
one device, over the real numbers. Nothing is run.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from shardwright.dataflow.stages import pipeline_of
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph, Parameter
from shardwright.ir.liveness import accumulates, check_loop
from shardwright.ir.reachability import live
from shardwright.ir.verify import verify_structure
from shardwright.operators.models.precision import accumulate_type, is_narrower
from shardwright.proof.erasure import ProofError, erase, has_layouts
from shardwright.proof.step import (
    UpdateRule,
    gradient_of,
    merge_equal_nodes,
    scale_of,
    training_step,
)
from shardwright.proof.values import Held

TRUSTED = (
    "`model.ir`, and optimizer and loss scale in `plan.json`, are what was asked for: tracing or "
    "importing a model, the casts of its precision, and statistics of micro-batches, are not part "
    "of the proof",
    "every operator keeps its sharding rule: from slices its kernel computes the slices of the "
    "result, sums of parts where the rule says so, and random numbers by their global index "
    "(tested for every operator on small shapes)",
    "the kernels and gradients of operators are right, those of optimizers included (tested "
    "against finite differences)",
    "collectives and exchanges of halos do what their layouts say, and operators that pass parts "
    "round compute what they stand for (tested on small meshes)",
    "the runtime runs the nodes of the program in order, and initial values depend on the seed, "
    "the parameter's name and the global index alone",
    "arithmetic is that of the real numbers: nothing is rounded, nothing overflows",
    "different terms have different fingerprints (128 bits)",
)


@dataclass(frozen=True)
class Proof:
    """Whether a program is proven to compute the training step of its model.

    Parameters
    ----------
    proven : bool or None
        True; False if the proof fails; None if no proof can be tried.
    first_failure : str or None
        The first node, parameter or output at which the proof fails.
    reason : str or None
        Why the proof fails or cannot be tried; None if the program is proven.
    nodes : int
        Nodes of the program.
    seconds : float
        Time of the proof.
    trusted : tuple of str
        Assumptions of the proof.
    """

    proven: bool | None
    first_failure: str | None
    reason: str | None
    nodes: int
    seconds: float
    trusted: tuple[str, ...] = TRUSTED

    @property
    def outcome(self) -> str:
        """The outcome in words: proven, not proven at a node, or no proof."""
        if self.proven is None:
            return "no proof"
        return "proven" if self.proven else f"not proven at {self.first_failure}"

    def __repr__(self) -> str:
        return f"<Proof: {self.outcome}, {self.nodes} nodes>"


class _Optimizer(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, Attribute]: ...

    @property
    def overrides(self) -> Mapping[str, Mapping[str, Attribute]]: ...


class _Document(Protocol):
    @property
    def optimizer(self) -> _Optimizer: ...

    @property
    def loss_scale(self) -> float | str: ...


class Provable(Protocol):
    """The part of a plan that a proof reads."""

    @property
    def model(self) -> Graph:
        """The traced model."""
        ...

    @property
    def program(self) -> Graph:
        """The training step of every rank."""
        ...

    @property
    def document(self) -> _Document:
        """Optimizer and loss scale."""
        ...


def prove(plan: Provable) -> Proof:
    """Prove that a plan's program computes the training step of its model; see `prove_program`."""
    optimizer, scale = plan.document.optimizer, scale_of(plan.document.loss_scale)
    rule = UpdateRule(optimizer.kind, optimizer.settings, scale, optimizer.overrides)
    return prove_program(plan.model, plan.program, rule)


def prove_program(model: Graph, program: Graph, rule: UpdateRule) -> Proof:
    """Prove that a program computes the training step of a model.

    Parameters
    ----------
    model : Graph
        The traced model; its first output is the loss.
    program : Graph
        The training step of every rank.
    rule : UpdateRule
        The update rule.
    """
    begin = time.perf_counter()

    def result(proven: bool | None, place: str | None = None, reason: str | None = None) -> Proof:
        return Proof(proven, place, reason, len(program), time.perf_counter() - begin)

    if program.mesh is not None and program.mesh.size > 1 and not has_layouts(program):
        return result(
            None,
            reason="the program has no layouts: what each rank computes is written by hand, and "
            "only numbers can compare it with the model",
        )
    try:
        verify_structure(program)
        check_loop(program)
        pipeline_of(program)  # refuses a schedule that would wait for itself
        _check_accumulation(model, program)
        ours = erase(program)
    except ProofError as refuted:
        return result(False, refuted.place, refuted.reason)
    except ShardwrightError as error:
        return result(False, _place(program, error), error.what)
    try:
        verify_structure(model)
        step = training_step(_merged_like(model, ours), rule)
        theirs = erase(step)
    except (ProofError, ShardwrightError) as error:
        return result(None, reason=f"the model has no training step on one device: {error}")
    try:
        _compare(step, program, theirs, ours)
    except ProofError as refuted:
        return result(False, refuted.place, refuted.reason)
    return result(True)


def _check_accumulation(model: Graph, program: Graph) -> None:
    """Refuse sums over micro-batches in a narrower type than copies of parameters ask for."""
    wide, axes = accumulate_type(model), program.mesh.in_time if program.mesh is not None else ()
    if wide is None or not axes:
        return
    for node in program.nodes:
        total = node.results[0].type
        if node.operator == "all_reduce" and accumulates(node, axes) and is_narrower(total, wide):
            raise ProofError(
                node.name,
                f"the passes add up `{node.name}` in {total.dtype}, the model asks for {wide}",
            )


def _place(program: Graph, error: ShardwrightError) -> str:
    """Return the value that a structural error names."""
    words = f"{error.where or ''} {error.what}".replace("`", " ").replace(":", " ").split()
    return next((word for word in words if word in program.values), program.name)


def _merged_like(model: Graph, ours: Mapping[str, Held]) -> Graph:
    """Return the model with equal nodes merged that the program has merged."""
    terms = erase(model)
    separate = frozenset(n for n in terms if n in ours and ours[n] == terms[n])
    return merge_equal_nodes(model, separate)


def _compare(
    step: Graph, program: Graph, theirs: Mapping[str, Held], ours: Mapping[str, Held]
) -> None:
    """Compare inputs, parameters, outputs and updates of the model's step and the program."""
    _compare_leaves(step, program)
    known = frozenset(term for term in theirs.values() if isinstance(term, int))

    def same(kind: str, name: str, expected: str, found: str) -> None:
        whole, own = step.values[expected].type, program.values[found].type
        if whole != own:
            raise ProofError(found, f"the {kind} `{name}` is {own}, expected {whole}")
        layout = program.values[found].layout
        if layout is not None and layout.partial:
            raise ProofError(found, f"the {kind} `{name}` is partial over {list(layout.partial)}")
        if ours[found] != theirs[expected]:
            place = _first_unknown(program, found, ours, known)
            reason = f"the {kind} `{name}` differs from the model's"
            at = "" if place == found else f": it depends on `{place}`, which the model lacks"
            raise ProofError(place, reason + at)

    if len(step.outputs) != len(program.outputs):
        raise ProofError(
            program.name, f"{len(program.outputs)} outputs, the model has {len(step.outputs)}"
        )
    for expected, found in zip(step.outputs, program.outputs, strict=True):
        same("output", found, expected, found)
    for name in (gradient_of(parameter.name) for parameter in step.parameters):
        if name in step.values:
            if name not in program.values:
                raise ProofError(name, f"the gradient `{name}` is not computed")
            same("gradient", name, name, name)
    _compare_updates(step, program)
    following = dict(program.updates)
    for name, expected in step.updates:
        same("update of", name, expected, following[name])


def _compare_leaves(step: Graph, program: Graph) -> None:
    inputs = {value.name: value.type for value in step.inputs}
    own_inputs = {value.name: value.type for value in program.inputs}
    _same_entries("input", inputs, own_inputs)
    parameters = {p.name: _described(p) for p in step.parameters}
    _same_entries("parameter", parameters, {p.name: _described(p) for p in program.parameters})


def _described(parameter: Parameter) -> str:
    return f"{parameter.value.type} {sorted(parameter.attributes.items())!r}"


def _same_entries(kind: str, expected: Mapping[str, object], found: Mapping[str, object]) -> None:
    for name in (*expected, *found):
        if name not in found:
            raise ProofError(name, f"the program has no {kind} `{name}`")
        if name not in expected:
            raise ProofError(name, f"the model has no {kind} `{name}`")
        if expected[name] != found[name]:
            raise ProofError(
                name, f"the {kind} `{name}` is {found[name]}, expected {expected[name]}"
            )


def _compare_updates(step: Graph, program: Graph) -> None:
    expected, found = dict(step.updates), dict(program.updates)
    if len(expected) != len(step.updates):
        raise ProofError(step.name, "the model updates a parameter that the optimizer updates too")
    for name in (*expected, *found):
        if name not in found:
            raise ProofError(name, f"the program does not update `{name}`")
        if name not in expected:
            raise ProofError(name, f"the program updates `{name}`, the model's step does not")


def _first_unknown(
    program: Graph, name: str, ours: Mapping[str, Held], known: frozenset[int]
) -> str:
    """Return the first node that `name` depends on and whose term the model lacks."""
    needed = live(program.nodes, [name]).values
    for node in program.nodes:
        for result in node.results:
            term = ours[result.name]
            if result.name in needed and isinstance(term, int) and term not in known:
                return node.name
    return name

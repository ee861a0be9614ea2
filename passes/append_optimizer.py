"""The optimizer's update of every trained parameter."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, NamedTuple, Self

from shardwright.dataflow.cotangents import gradient_name
from shardwright.dataflow.properties import DIFFERENTIATED, UNIFORM, UPDATED
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.provenance import Provenance
from shardwright.ir.types import TensorType
from shardwright.ir.values import wrong_value
from shardwright.operators.builder import Builder
from shardwright.operators.models.loss_scale import (
    GOOD_STEPS,
    LOSS_SCALE,
    DynamicLossScale,
    LossScale,
)
from shardwright.operators.models.optimizer import RATE, STEP, Kind, Optimizer
from shardwright.operators.models.update_steps import (
    UpdateScalars,
    emit_update,
    state_values,
)
from shardwright.operators.reduction.global_norm import sum_type
from shardwright.passes.base import Pass, register_pass
from shardwright.passes.differentiate import SCALE

Trained = tuple[Value, Value]
"""A parameter, and its gradient."""


@register_pass
@dataclass(frozen=True)
class AppendOptimizer(Pass):
    """Append the update of every parameter that has a gradient.

    States have the layout of their parameter, so that an optimizer of split parameters is split
    itself.

    Before::

        w.grad: f32[16@x, 4] = reduce_scatter(g) {axes=('x',), dimension=0}
        return loss, w.grad

    After::

        w.grad: f32[16@x, 4] = reduce_scatter(g) {axes=('x',), dimension=0}
        w.next: f32[16@x, 4] = sgd_update(w, w.grad) {learning_rate=0.01}
        update w = w.next
        return loss

    Parameters
    ----------
    optimizer : str
        The rule of the update.
    settings : mapping
        Attributes of the update operator: ``{'learning_rate': 0.1}``. A learning rate that is a
        formula over ``step`` or a tuple is computed in the program, and an operand of the update.
    overrides : mapping
        Settings of single parameters, by name: ``{'w': {'learning_rate': 0.2}}``.
    loss_scale : LossScale
        The factor that the gradients carry; it is divided out first. Under ``dynamic``, the updates
        of a step whose gradients are not all finite change nothing.
    """

    name = "append_optimizer"
    requires = (DIFFERENTIATED, UNIFORM)
    ensures = (UPDATED, UNIFORM)

    optimizer: Kind = "sgd"
    settings: Mapping[str, Attribute] = field(default_factory=lambda: Optimizer().settings)
    overrides: Mapping[str, Mapping[str, Attribute]] = field(default_factory=dict)
    loss_scale: Annotated[LossScale, SCALE] = 1.0

    def check(self) -> None:
        """Check the settings of the optimizer."""
        for name, settings in self.overrides.items():
            if not isinstance(settings, Mapping):
                raise wrong_value(f"overrides of {name}", settings, "a mapping")
        _ = self._rule

    @classmethod
    def of(cls, optimizer: Optimizer, loss_scale: LossScale = 1.0) -> Self:
        """Return the pass for an optimizer."""
        return cls(optimizer.kind, optimizer.settings, optimizer.overrides, loss_scale)

    @cached_property
    def _rule(self) -> Optimizer:
        overrides = {name: dict(settings) for name, settings in self.overrides.items()}
        return Optimizer(self.optimizer, dict(self.settings), overrides)

    def run(self, graph: Graph) -> Graph:
        """Return the differentiated program with its updates."""
        known = {parameter.name for parameter in graph.parameters}
        unknown = sorted(self.overrides.keys() - known)
        if unknown:
            what = f"`overrides` names `{unknown[0]}`, which is no parameter"
            raise PassError(what, f"graph {graph.name}")
        build = Builder(graph.mesh, graph)
        build.provenance = Provenance("", "update")
        trained = [
            (parameter.value, graph.values[name])
            for parameter in graph.parameters
            if parameter.trainable and (name := gradient_name(parameter.name)) in graph.values
        ]
        guard = None
        if isinstance(self.loss_scale, DynamicLossScale) and trained:
            named = [(parameter.name, gradient) for parameter, gradient in trained]
            guard = _append_guard(build, named, self.loss_scale)
        scalars = _Scalars(build, self._rule, guard)
        pairs = trained if guard else self._unscaled(build, trained)
        if self._rule.clip_norm is not None and trained:
            pairs = _clipped(build, [*pairs], self._rule.clip_norm, guard)
        for parameter, gradient in pairs:
            build.provenance = Provenance("", "update", parameter.name)
            _append_update(build, parameter, gradient, self._rule, scalars)
        gradients = {gradient_name(parameter.name) for parameter in graph.parameters}
        return build.graph(graph.name, tuple(o for o in graph.outputs if o not in gradients))

    def _unscaled(self, build: Builder, trained: Sequence[Trained]) -> Iterator[Trained]:
        """Divide the loss scale out of each gradient when its turn comes, in the parameter's type.

        A gradient that is scaled all at once would be in memory until its update.
        """
        for parameter, gradient in trained:
            if isinstance(self.loss_scale, float) and self.loss_scale != 1.0:
                build.provenance = Provenance("", "update", parameter.name)
                dtype = parameter.type.dtype
                if gradient.type.dtype != dtype:
                    gradient = build.emit("cast", gradient, dtype=dtype)
                gradient = build.emit("scale", gradient, factor=1.0 / self.loss_scale)
            yield parameter, gradient


class _Guard(NamedTuple):
    """The scalars that the updates of a step read.

    Parameters
    ----------
    scale : Value
        The loss scale.
    nonfinite : Value
        The number of elements of all gradients that are not finite.
    applied : Value
        1 if the step is applied, 0 if it is skipped.
    """

    scale: Value
    nonfinite: Value
    applied: Value


class _Scalars:
    """The scalars that updates read: the number of the step, learning rates, and the guard.

    Parameters
    ----------
    build : Builder
        The program.
    rule : Optimizer
        The update rule.
    guard : _Guard, optional
        What updates read under a dynamic loss scale.
    """

    def __init__(self, build: Builder, rule: Optimizer, guard: _Guard | None) -> None:
        self._build, self._rule, self._guard = build, rule, guard
        self._rates: dict[Attribute, Value] = {}
        if not rule.counts_steps:
            return
        layout = None if build.mesh is None else Layout.replicated(0)
        self._before = Value(STEP, TensorType("int64", ()), layout)
        build.parameter(self._before, {"initializer": "zeros", "trainable": False}, "state")
        name = f"{STEP}.next"
        if guard is None:
            self._step = build.emit("add_scalar", self._before, name=name, value=1)
        else:
            self._step = build.emit("add", self._before, guard.applied, name=name)
        build.updates.append((STEP, self._step.name))

    def of(self, parameter: str) -> UpdateScalars:
        """Return the scalars of the update of a parameter."""
        rule, guard = self._rule, self._guard
        return UpdateScalars(
            self._step if rule.reads_step(parameter) else None,
            self._rate(rule.rate_of(parameter)) if rule.is_scheduled else None,
            None if guard is None else guard.scale,
            None if guard is None else guard.nonfinite,
        )

    def _rate(self, rate: Attribute) -> Value:
        """Return a learning rate, computed once for all parameters that have it."""
        if rate not in self._rates:
            origin, self._build.provenance = self._build.provenance, Provenance("", "update")
            self._rates[rate] = self._build.emit(
                "learning_rate", self._before, name=RATE, like=None, rate=rate
            )
            self._build.provenance = origin
        return self._rates[rate]


def _append_update(
    build: Builder, parameter: Value, gradient: Value, optimizer: Optimizer, scalars: _Scalars
) -> None:
    name = parameter.name
    states = [
        build.parameter(
            value,
            {"initializer": optimizer.initializer_of(name, state), "trainable": False},
            "state",
            name,
        )
        for state, value in state_values(optimizer, parameter, build.mesh)
    ]
    results = emit_update(build, optimizer, parameter, gradient, states, scalars.of(name))
    updated = (parameter, *states)
    build.updates += [(old.name, new.name) for old, new in zip(updated, results, strict=True)]


# Dynamic loss scale


def _append_guard(
    build: Builder, gradients: Sequence[tuple[str, Value]], dynamic: DynamicLossScale
) -> _Guard:
    """Emit the number of gradients that overflow, and the next loss scale.

    Parameters
    ----------
    build : Builder
        The differentiated program, which has the scale as a state.
    gradients : sequence of (str, Value)
        The trained parameters with their gradients.
    dynamic : DynamicLossScale
        How the scale follows.

    Raises
    ------
    PassError
        If the program was differentiated with another loss scale.
    """
    nonfinite = _total(build, "count_nonfinite", gradients)
    build.provenance = Provenance("", "update")
    layout = None if build.mesh is None else Layout.replicated(0)
    scale = next((p.value for p in build.parameters if p.name == LOSS_SCALE), None)
    if scale is None:
        raise PassError(
            f"the program has no state `{LOSS_SCALE}`",
            hint="differentiate with the same loss scale: `differentiate{loss_scale=dynamic}`",
        )
    good = Value(GOOD_STEPS, TensorType("int64", ()), layout)
    build.parameter(good, {"initializer": "zeros", "trainable": False}, "state")
    following, steps, applied = build.emit_all(
        "loss_scale_update",
        scale,
        good,
        nonfinite,
        name=f"{LOSS_SCALE}.next",
        like=None,
        **dynamic.attributes,
    )
    build.updates += [(LOSS_SCALE, following.name), (GOOD_STEPS, steps.name)]
    return _Guard(scale, nonfinite, applied)


def _clipped(
    build: Builder, trained: Sequence[Trained], limit: float, guard: _Guard | None
) -> Iterator[Trained]:
    """Emit gradients whose norm, of all together, is at most a limit.

    Under a dynamic loss scale gradients carry the scale, and the limit is that without it.
    """
    named = [(parameter.name, gradient) for parameter, gradient in trained]
    dtype = sum_type(parameter.type for parameter, _ in trained) if guard is None else "float32"
    total = _total(build, "sum_squares", named, dtype=dtype)
    if guard is not None:
        total = build.emit("div", build.emit("div", total, guard.scale), guard.scale)
    for parameter, gradient in trained:
        build.provenance = Provenance("", "update", parameter.name)
        yield parameter, build.emit("clip_by_norm", gradient, total, clip_norm=limit)


def _total(
    build: Builder, operator: str, gradients: Sequence[tuple[str, Value]], **attributes: Attribute
) -> Value:
    """Emit the sum over all gradients, ranks and stages; what ranks share counts once."""
    mesh = build.mesh
    ranks = () if mesh is None else tuple(a.name for a in mesh.of_ranks.axes if a.size > 1)
    totals: dict[int | None, Value] = {}
    for parameter, gradient in gradients:
        build.provenance = Provenance("", "update", parameter)
        count = build.emit(operator, gradient, name=None, like=None, **attributes)
        partial = count.layout.partial if count.layout is not None else ()
        shared = tuple(axis for axis in ranks if axis not in partial)
        if shared:
            count = build.emit("to_partial", count, axes=shared)
        stage = None if count.layout is None else count.layout.stage
        total = totals.get(stage)
        totals[stage] = count if total is None else build.emit("add", total, count)
    build.provenance = Provenance("", "update")
    total = _of_all_stages(build, totals)
    total = build.emit("all_reduce", total, axes=ranks) if ranks else total
    is_staged = total.layout is not None and total.layout.stage is not None
    return build.emit("transfer", total) if is_staged else total


def _of_all_stages(build: Builder, totals: Mapping[int | None, Value]) -> Value:
    """Emit the sum of the values of several stages, in the first of them."""
    (home, total), *others = totals.items()
    for stage, value in others:
        moved = build.emit("transfer", value, stage=home) if stage is not None else value
        total = build.emit("add", total, moved)
    return total

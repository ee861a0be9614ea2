"""Plans: a compiled training step with its document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any

from shardwright.compiler.plans.accounting import split_counts, traffic
from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.plans.document import (
    AxisDocument,
    InputDocument,
    MemoryDocument,
    OptimizerDocument,
    ParameterDocument,
    PlanDocument,
    StrategyDocument,
    VolumeDocument,
)
from shardwright.compiler.stages.places import memory_limit_of
from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.pipelines.step import MemoryLimit, least_limit
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import Array
from shardwright.operators.models.loss_scale import loss_scale_literal
from shardwright.planner.option_checks import SEARCHED
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import as_asked
from shardwright.proof.step import UpdateRule, scale_of, training_step
from shardwright.solver.solution import relative_gap

# The search of the modes with a fixed one, or none.
_SEARCHES = {
    "data_parallel": "data_parallel",
    "semi_auto_parallel": "sharding_propagation",
    "hybrid_parallel": "none",
    "stand_alone": "none",
}
_NOTHING_TO_DECIDE = {
    "stand_alone": ("optimal", "there is nothing to decide"),
    "hybrid_parallel": ("feasible", "the model itself says how it is split"),
}


@dataclass(frozen=True)
class Plan:
    """A compiled training step.

    Parameters
    ----------
    document : PlanDocument
        The content of ``plan.json``.
    model : Graph
        The whole program of one device, as it was traced, with the casts of its precision and, in
        micro-batches, with statistics of each of them.
    program : Graph
        The training step that every rank runs.
    initial : mapping of str to array
        Parameters with given initial data.
    """

    document: PlanDocument
    model: Graph
    program: Graph
    initial: Mapping[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Plan {self.document.summary}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        return self.document._repr_html_()

    @property
    def mesh(self) -> Mesh:
        """The ranks."""
        return self.program.mesh or Mesh(())

    @cached_property
    def reference(self) -> Graph:
        """The training step of one device, made from the model without any pass."""
        optimizer, scale = self.document.optimizer, scale_of(self.document.loss_scale)
        rule = UpdateRule(optimizer.kind, optimizer.settings, scale, optimizer.overrides)
        return training_step(self.model, rule)


def make_plan(
    compiled: Compiled,
    cluster: AnyCluster,
    options: CompileOptions,
    *,
    model: str,
    traced: Graph,
    inputs: Sequence[InputDocument],
    initial: Mapping[str, Array] | None = None,
    seed: int = 0,
) -> Plan:
    """Return the plan of a compiled program.

    Parameters
    ----------
    compiled, cluster, options
        The compiled program, its devices and its options.
    model : str
        The name of the model.
    traced : Graph
        The program of one device as it was traced, which the plan is verified against.
    inputs : sequence of InputDocument
        The inputs of the model.
    initial : mapping of str to array, optional
        Parameters with given initial data.
    seed : int
        Seed of the initial values.
    """
    undivided, model_graph = (
        compiled.passes.left_by(as_asked(options, passes), traced)
        for passes in (1, compiled.mesh.passes)
    )
    document = PlanDocument(
        model=model,
        devices=compiled.mesh.size,
        mesh=_axes(compiled.mesh),
        cluster=cluster,
        mode=options.mode,
        search="named_plan" if options.plan else _SEARCHES.get(options.mode, options.search),
        cost_model=options.cost_model,
        precision=options.precision,
        reduce_type=options.reduce_type,
        accumulate_type=options.accumulate_type,
        loss_scale=loss_scale_literal(options.loss_scale),
        gradients_mean=options.gradients_mean,
        seed=seed,
        inputs=tuple(inputs),
        optimizer=OptimizerDocument.model_validate(
            {
                "kind": options.optimizer.kind,
                "settings": dict(options.optimizer.settings),
                "overrides": options.optimizer.overrides,
            }
        ),
        **_quality(compiled, options),
        **_searched(compiled, options),
        micro_batch_statistics=_statistics(undivided, model_graph),
        predicted_step_seconds=compiled.step_seconds,
        memory=_memory(compiled.memory, memory_limit_of(cluster, compiled.mesh, options)),
        communication=_communication(compiled.program),
        buckets=compiled.buckets,
        strategies=_strategies(compiled),
        parameters=_parameters(compiled.program),
        pins=dict(options.pins),
        pin_prices=dict(compiled.pin_prices),
    )
    return Plan(document, model_graph, compiled.program, initial or {})


def _searched(compiled: Compiled, options: CompileOptions) -> dict[str, Any]:
    """Return the meshes and the numbers of micro-batches that the bound covers, if several."""
    covered = () if compiled.trace is None else compiled.trace.covered
    shapes = tuple(dict.fromkeys(item.shape for item in covered))
    counts = tuple(sorted({item.micro_batches for item in covered}))
    return {
        "meshes_tried": shapes if len(shapes) > 1 else (),
        "micro_batches_tried": counts if options.micro_batches == SEARCHED else (),
    }


def _axes(mesh: Mesh) -> tuple[AxisDocument, ...]:
    return tuple(
        AxisDocument(
            name=axis.name,
            size=axis.size,
            level=axis.level,
            in_time=axis.in_time,
            of_stages=axis.of_stages,
            in_v=axis.in_v,
        )
        for axis in mesh.axes
    )


def _statistics(undivided: Graph, model: Graph) -> tuple[str, ...]:
    """Return the values of a model whose shapes differ: each micro-batch has one."""
    values = model.values
    return tuple(
        name
        for name, value in undivided.values.items()
        if name in values and values[name].type.shape != value.type.shape
    )


def _quality(compiled: Compiled, options: CompileOptions) -> dict[str, Any]:
    """Return the certificate: status, methods, cost, lower bound and gap."""
    result = compiled.result
    if result is not None:
        status, how, cost, bound = result.status, result.how, result.cost, result.lower_bound
    else:
        status, how = _NOTHING_TO_DECIDE[options.mode]
        cost = compiled.step_seconds
        bound = cost if status == "optimal" else 0.0
    return {
        "status": status,
        "how": how,
        "objective": cost,
        "objective_is": "overlapped step" if compiled.minimizes_step else "cost",
        "lower_bound": bound,
        "gap": relative_gap(cost, bound),
    }


def _memory(report: MemoryUseReport, limits: MemoryLimit) -> MemoryDocument:
    limit = least_limit(limits)
    return MemoryDocument(
        peak_bytes=report.peak_bytes,
        by_kind=dict(report.by_kind),
        at=report.at,
        limit=limit if isfinite(limit) else None,
        by_group=report.by_group,
        limit_by_group=limits if isinstance(limits, tuple) and isfinite(limit) else (),
        host_bytes=report.host_bytes,
        window_bytes=report.window_bytes,
    )


def _communication(program: Graph) -> dict[str, VolumeDocument]:
    volumes = traffic(program).items()
    return {kind: VolumeDocument(count=v.count, bytes=v.bytes) for kind, v in volumes}


def _strategies(compiled: Compiled) -> dict[str, StrategyDocument]:
    if compiled.decisions is None:
        return {}
    decided, in_time = compiled.decisions.strategies, compiled.mesh.in_time
    return {
        name: StrategyDocument(split_counts=counts, factors=decided[name].without(in_time).axes)
        for name, counts in split_counts(compiled).items()
    }


def _parameters(program: Graph) -> dict[str, ParameterDocument]:
    mesh, found = program.mesh or Mesh(()), {}
    for parameter in program.parameters:
        kind = parameter.value.type
        layout = parameter.value.layout or Layout.replicated(kind.rank)
        found[parameter.name] = ParameterDocument(
            type=str(kind), layout=str(layout), slice_shape=layout.slice_shape(kind.shape, mesh)
        )
    return found

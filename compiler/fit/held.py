"""What a model holds beside what it stores: by its layers and ends, told by small built programs.

A model of two of its layers is built on the tensor ranks, and on some data ranks where these divide
parameters, and its memory is followed through the step. What is held at the peak of a part beside
parameters, states and gradients is held in plans of any depth, number of ranks and micro-batch: a
third layer tells what each further one saves, and a wider micro-batch what each sample adds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from shardwright.compiler.compiled import Compiled
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.fit.shortened import cells, shortened
from shardwright.compiler.fit.stored import StoredBytes
from shardwright.cost_model.buffers import Buffers, buffers
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.memory_as_run import (
    GRADIENT,
    RESERVE,
    WORKSPACE,
    buffers_as_run,
    workspace_bytes,
)
from shardwright.cost_model.memory import live_memory
from shardwright.cost_model.pipelines.mixed import mean_device
from shardwright.cost_model.roofline import value_bytes
from shardwright.dataflow.samples import samples_of
from shardwright.dataflow.segments import block_of
from shardwright.dataflow.update_rules import rules_within
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan

LAYERS, FIRST, LAST = range(3)
"""Parts of a model: its repeated layers, what is before them, and after."""
_FEW = 2  # layers of the smaller models, and one more: the first may receive other values
SAMPLES = (4, 2, 3, 5, 7)
"""Samples of the micro-batch by which further ones are told, the first that divide the batch."""
Peaks = tuple[float, float, float]


@dataclass(frozen=True)
class Held:
    """What is held on a rank beside parameters, states and gradients.

    Parameters
    ----------
    saved_bytes : float
        What a layer saves of a sample.
    peaks : tuple of float
        At the peak of each part, with a micro-batch of one sample, beside what layers save.
    more : tuple of float
        Of each further sample.
    """

    saved_bytes: float
    peaks: Peaks
    more: Peaks

    def of(self, part: int, samples: int) -> float:
        """Return what is held at the peak of a part."""
        return max(self.peaks[part] + (samples - 1) * self.more[part], 0.0)


@dataclass(frozen=True)
class Kept(Held):
    """The same as a training software keeps tensors, and what it takes beside them.

    Parameters
    ----------
    workspace, more_workspace : float
        Bytes beside tensors, with a micro-batch of one sample, and of each further one.
    gradient_bytes : float
        Of a trained element, whose gradients of one micro-batch are kept whole; else 0.
    reserved : float
        What the allocator reserves over what is allocated.
    """

    workspace: float
    more_workspace: float
    gradient_bytes: float
    reserved: float

    def memory(self, kinds: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return the kinds of memory with workspaces, and with what the allocator reserves."""
        found = dict(kinds) | {WORKSPACE: self.workspace + (samples - 1) * self.more_workspace}
        return found | {RESERVE: (self.reserved - 1) * sum(found.values())}


@dataclass(frozen=True)
class _Small:
    """A small model: its layers, its plan, and its samples of a micro-batch."""

    layers: int
    plan: NamedPlan


@dataclass(eq=False)
class SmallModels:
    """Small models of a model, built.

    Parameters
    ----------
    graph : Graph
        The whole program.
    cluster : Cluster
        The devices, with the training software if there is one.
    options : CompileOptions
        How it is trained.
    """

    graph: Graph
    cluster: Cluster
    options: CompileOptions
    _known: dict[_Small, Compiled] = field(default_factory=dict)
    _shortened: dict[int, Graph] = field(default_factory=dict)
    _peaks: dict[tuple[_Small, bool], list[float]] = field(default_factory=dict)

    @property
    def are_smaller(self) -> bool:
        """Whether the model is one with fewer layers, too."""
        return self._is_smaller(self._few)

    @cached_property
    def _few(self) -> int:
        """Layers of the smaller models; a model of two layers is the larger one."""
        return _FEW if self._is_smaller(_FEW) else _FEW - 1

    def _is_smaller(self, layers: int) -> bool:
        return cells(self._with_layers(layers)) < cells(self.graph)

    def _with_layers(self, layers: int) -> Graph:
        if layers not in self._shortened:
            self._shortened[layers] = shortened(self.graph, layers)
        return self._shortened[layers]

    def held(self, plan: NamedPlan, in_several: bool = True) -> Held:
        """Return what programs hold under a plan of tensor and data ranks.

        Parameters
        ----------
        plan : NamedPlan
            The plan, of micro-batches of one sample.
        in_several : bool
            Whether it is told what further samples add.

        Raises
        ------
        ShardwrightError
            If there is no such program.
        """
        return self._held(plan, in_several, as_run=False)

    def kept(self, plan: NamedPlan, in_several: bool = True) -> Kept | None:
        """Return the same as the training software keeps tensors; None where that is unknown."""
        software = self.cluster.software
        if software is None or software.memory is None:
            return None
        found, alone = self._held(plan, in_several, as_run=True), _alone(plan)
        device = mean_device(self.cluster)
        base, wide = (
            workspace_bytes(self._built(_Small(self._few, one)).program, software, device)
            for one in (alone, self._wider(alone) if in_several else alone)
        )
        return Kept(
            found.saved_bytes,
            found.peaks,
            found.more,
            base,
            (wide - base) / max(self._samples - 1, 1),
            GRADIENT if software.memory.gradients == "whole" else 0.0,
            software.memory.reserved.value,
        )

    def elements(self, plan: NamedPlan) -> tuple[float, float]:
        """Return the trained elements on a tensor rank, of a layer and of what is in no layer.

        Parameters
        ----------
        plan : NamedPlan
            As of `held`.
        """
        few, more = (
            _elements(self._built(_Small(n, _alone(plan))).program)
            for n in (self._few, self._few + 1)
        )
        return more - few, few - self._few * (more - few)

    def _held(self, plan: NamedPlan, in_several: bool, *, as_run: bool) -> Held:
        alone = _alone(plan)
        few, more, wide, own = (
            self._beside(one, as_run=as_run)
            for one in (
                _Small(self._few, alone),
                _Small(self._few + 1, alone),
                _Small(self._few, self._wider(alone) if in_several else alone),
                _Small(self._few, plan),
            )
        )
        saved = more[LAST] - few[LAST]
        layers = [self._few * saved, 0.0, self._few * saved]  # at the end of backward none is saved
        peaks = [one - part for one, part in zip(own, layers, strict=True)]
        times = self._samples - 1 if in_several else 0
        each = [
            (a - b) / times - part if times else b - part
            for a, b, part in zip(wide, few, layers, strict=True)
        ]
        return Held(saved, (peaks[0], peaks[1], peaks[2]), (each[0], each[1], each[2]))

    @cached_property
    def _samples(self) -> int:
        """Samples of the wider micro-batch; 1 where no number of them divides the batch."""
        samples = samples_of(self.graph) or 1
        return next((n for n in SAMPLES if samples % n == 0 and n < samples), 1)

    def _wider(self, plan: NamedPlan) -> NamedPlan:
        return replace(plan, micro_batch=self._samples)

    def _beside(self, small: _Small, *, as_run: bool) -> list[float]:
        """Return the peaks of a small model beside its parameters, states and gradients."""
        if (small, as_run) not in self._peaks:
            self._peaks[small, as_run] = self._followed(small, as_run=as_run)
        return self._peaks[small, as_run]

    def _followed(self, small: _Small, *, as_run: bool) -> list[float]:
        built, software = self._built(small), self.cluster.software
        program = built.program
        own = buffers_as_run(program, software) if as_run and software else buffers(program)
        layer, ends = self.elements(small.plan)
        data, zero = small.plan.data or 1, small.plan.zero
        passes = small.plan.passes(samples_of(self.graph) or 1, small.plan.tensor * data)
        elements = small.layers * layer + ends
        stored = StoredBytes.of(self._options_of(built.source), built.source)
        lasting = stored.on_rank(elements, zero, data, passes, at_once=0.0)
        return [peak - sum(lasting.values()) for peak in peaks_of(program, built.source, own)]

    def _options_of(self, model: Graph) -> CompileOptions:
        """Return the options for a small model, which has some of the parameters."""
        rules = rules_within(self.options.optimizer, model)
        return replace(self.options, optimizer=rules)

    def _built(self, small: _Small) -> Compiled:
        if small not in self._known:
            plan = small.plan
            model, devices = self._with_layers(small.layers), plan.tensor * (plan.data or 1)
            options = replace(
                self._options_of(model),
                plan=plan,
                recompute=plan.recompute,
                memory_limit=inf,
                objective="serial",
            )
            self._known[small] = compile_graph(model, self.cluster, devices, options)
        return self._known[small]


def _alone(plan: NamedPlan) -> NamedPlan:
    """Return the plan of its tensor ranks alone."""
    return replace(plan, data=1, zero=0)


def _elements(graph: Graph) -> float:
    """Return the trained elements of a program on a rank."""
    mesh = graph.mesh or Mesh(())
    trained = (p.value for p in graph.parameters if p.trainable)
    return sum(value_bytes(value, mesh) / item_bytes(value.type.dtype) for value in trained)


def peaks_of(graph: Graph, source: Graph, held: Buffers) -> Peaks:
    """Return the bytes of a program at the peak of each part.

    Parameters
    ----------
    graph : Graph
        The program.
    source : Graph
        The model that it trains. What belongs to no operator of it, such as updates, is before its
        layers.
    held : Buffers
        The buffers of the program.
    """
    order = {node.name: i for i, node in enumerate(source.nodes)}
    inside = [i for i, node in enumerate(source.nodes) if block_of(node.scope)]
    found = [0.0, 0.0, 0.0]
    for node, total, _ in live_memory(graph, held):
        if node is not None:
            place = order.get(node.provenance.operator, -1)
            part = LAST if place > inside[-1] else FIRST
            part = LAYERS if block_of(node.scope) else part
            found[part] = max(found[part], total)
    return found[LAYERS], found[FIRST], found[LAST]

"""A model whose plans are told of: evaluated, and bounded by its parts to choose which."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import gcd, inf
from typing import Any

from shardwright.compiler.evaluation.ahead import Ahead, NumbersAsked, PartsAsked, Question
from shardwright.compiler.evaluation.data_ranks import Shape
from shardwright.compiler.evaluation.degrees import on_tensor_ranks
from shardwright.compiler.evaluation.evaluator import Evaluation, Evaluator, Shared
from shardwright.compiler.evaluation.parts import Parts
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.compiler.evaluation.stored_bytes import StoredBytes
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.software import Software
from shardwright.cost_model.pipelines.mixed import check_products
from shardwright.dataflow.recompute_rules import has_number
from shardwright.dataflow.samples import samples_of
from shardwright.dataflow.schedules import check_options
from shardwright.dataflow.segments import block_of
from shardwright.ir.errors import OptionError, ShardwrightError
from shardwright.ir.graph import Graph, Parameter
from shardwright.ir.types import item_bytes
from shardwright.operators.linear.nf4 import NF4MatMul
from shardwright.operators.models.precision import MASTER
from shardwright.passes.recompute import light_parts, recomputations
from shardwright.planner.fronts.site import REPEATED
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import RECOMPUTE, NamedPlan
from shardwright.search.plan_dimensions import DIMENSIONS, Words


@dataclass(eq=False)
class EvaluatedModel:
    """A program on a cluster, for plans of any degrees.

    Parameters
    ----------
    graph : Graph
        The whole program; its first output is the loss.
    cluster : Cluster
        The devices.
    options : CompileOptions
        How it is trained: optimizer, types, memory limit.
    software : Software, optional
        The training software that runs programs.
    shared : Shared, optional
        What is known of the model on any number of devices, and the budget that is charged.

    Raises
    ------
    OptionError
        If the model has no repeated layers: the family has no plans of it; or parameters that are
        not float32.
    """

    graph: Graph
    cluster: Cluster
    options: CompileOptions
    software: Software | None = None
    shared: Shared = field(default_factory=Shared)
    _parts: dict[tuple[NamedPlan, Words], Parts | None] = field(default_factory=dict)
    _shares: dict[tuple[NamedPlan, int, Words], Parts] = field(default_factory=dict)
    _evaluators: dict[int, Evaluator] = field(default_factory=dict)
    _evaluations: dict[tuple[NamedPlan, int], Evaluation] = field(default_factory=dict)
    _ahead: Ahead | None = None

    def __post_init__(self) -> None:
        check_products(self.cluster, self.options.precision)
        other = next(
            (p for p in self.graph.parameters if p.trainable and p.value.type.dtype != MASTER), None
        )
        if other is not None:
            raise OptionError(
                f"the parameter `{other.value.name}` has the type {other.value.type.dtype}, and "
                f"bounds of plans are of parameters of {MASTER}",
                hint="leave `dtype` out, and give the type that is computed in as `--precision`",
            )
        if self.layers < REPEATED:
            raise OptionError(
                f"`{self.graph.name}` has no repeated layers (cells with a number, `blocks/0`), by "
                "which plans are estimated",
                hint="give a plan to `shardwright estimate`, or search with `compile`",
            )

    # What is evaluated

    def evaluation(self, plan: NamedPlan, devices: int) -> Evaluation:
        """Return what a plan takes on a number of devices.

        Raises
        ------
        ShardwrightError
            If the model has no such plan.
        """
        plan = self._alike(plan, devices)
        key = plan, devices
        if key not in self._evaluations:
            known = None if self._ahead is None else self._ahead.take(key)
            own = self._evaluator(devices)
            found = own.evaluation(plan) if known is None else own.known(plan, known)
            self._evaluations[key] = found
        return self._evaluations[key]

    def known(self, plan: NamedPlan, devices: int) -> Evaluation | None:
        """Return what a plan takes, if that has been asked for before."""
        return self._evaluations.get((self._alike(plan, devices), devices))

    def _alike(self, plan: NamedPlan, devices: int) -> NamedPlan:
        """Return the plan by which a program is known: in one pass ZeRO-2 is ZeRO-1."""
        if plan.zero != 2 or plan.more or not self._has(plan, devices):
            return plan
        is_same = plan.passes(self.samples, devices) == 1
        return replace(plan, zero=plan.zero - 1) if is_same else plan

    # What other processes find meanwhile

    @contextmanager
    def by_workers(self, count: int) -> Iterator[None]:
        """Let so many processes find what is expected to be asked for; the answers are the same."""
        self._ahead = Ahead(self._answer, count)
        try:
            yield
        finally:
            self._ahead.close()
            self._ahead = None

    @property
    def workers(self) -> int:
        """How many processes find what is expected; 0 for none."""
        return 0 if self._ahead is None else self._ahead.workers

    @property
    def is_busy(self) -> bool:
        """Whether no more is to be begun: these processes have enough to find."""
        return self._ahead is None or self._ahead.is_busy

    def expect(
        self, plan: NamedPlan, devices: int, numbers: tuple[str, ...], least: float = inf
    ) -> None:
        """Let another process find numbers of a plan: `evaluation` is going to be asked for it.

        Parameters
        ----------
        plan, devices : NamedPlan, int
            The plan, and the number of devices.
        numbers : tuple of str
            Attributes of its evaluation, in the order in which they are found.
        least : float
            Seconds of a step from which on nothing but the step matters.
        """
        plan = self._alike(plan, devices)
        if self._ahead is not None and (plan, devices) not in self._evaluations:
            self._ahead.begin(NumbersAsked(plan, devices, numbers, least))

    def _answer(self, question: Question) -> Any:
        """Answer a question, in a process that was forked."""
        self._ahead = None
        if isinstance(question, PartsAsked):
            return self._parts_found(*question)
        found = self._evaluator(question.devices).evaluation(question.plan)
        is_slow = question.least < inf and found.seconds >= question.least
        for name in () if is_slow else question.numbers:
            if not getattr(found, name):  # it does not fit: nothing more matters
                break
        return found.known()

    def _evaluator(self, devices: int) -> Evaluator:
        if devices not in self._evaluators:
            where = self.cluster.used_by(devices), devices
            found = Evaluator(self.graph, *where, self.options, self.software, self.shared)
            self._evaluators[devices] = found
        return self._evaluators[devices]

    # What it has

    @cached_property
    def run_on(self) -> Cluster:
        """The devices as the training software runs programs on them."""
        return self.cluster.run_by(self.software)

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return samples_of(self.graph) or 1

    @property
    def limit_bytes(self) -> float:
        """Memory limit of a rank."""
        return self.options.memory_on(self.cluster)

    @cached_property
    def layers(self) -> int:
        """Number of repeated layers."""
        return len({block_of(node.scope) for node in self.graph.nodes} - {""})

    @cached_property
    def experts(self) -> int:
        """By how many ranks all mixtures of experts can be divided; 1 without experts."""
        dispatches = (node for node in self.graph.nodes if node.operator == "dispatch")
        return gcd(*(node.results[0].type.shape[0] for node in dispatches)) or 1

    @cached_property
    def ways(self) -> tuple[str, ...]:
        """The ways to recompute that plans try, the least first.

        The light parts of a mixture are among them: where memory is short, plans that recompute
        nothing else can be much faster than all others. Where the core of attention saves nothing,
        to recompute it alone is no other program.
        """
        rule, light = "operators", light_parts(self.graph)
        searched = recomputations(self.graph)
        found = [one for one in RECOMPUTE if one == rule or one in searched]
        some = found.index(rule)
        return *found[:some], *filter(None, [light]), *found[some:]

    @cached_property
    def stored(self) -> StoredBytes:
        """Bytes of a trained element."""
        return StoredBytes.of(self.options, self.graph)

    @cached_property
    def elements(self) -> int:
        """Trained elements of the model."""
        return sum(p.value.type.elements for p in self.graph.parameters if p.trainable)

    @cached_property
    def frozen_elements(self) -> int:
        """Elements of frozen weights; not of what the model updates, nor of given constants."""
        packed = [node.operands for node in self.graph.nodes if node.operator == NF4MatMul.name]
        codes, scales = {own[1] for own in packed}, {name for own in packed for name in own[2:]}
        counted = (p.value for p in self._frozen if p.name not in scales)
        return sum(x.type.elements * (2 if x.name in codes else 1) for x in counted)

    @property
    def _frozen(self) -> Iterator[Parameter]:
        updated = {name for name, _ in self.graph.updates}
        drawn = (p for p in self.graph.parameters if p.attributes.get("initializer") != "data")
        return (p for p in drawn if not p.trainable and p.name not in updated)

    @cached_property
    def _frozen_bytes(self) -> float:
        lower = self.stored.lower or self.stored.master
        kinds = (p.value.type for p in self._frozen)
        return sum(x.elements * (lower if x.is_float else item_bytes(x.dtype)) for x in kinds)

    @property
    def least_bytes(self) -> float:
        """Bytes of weights and optimizer states: all ranks together hold no less."""
        trained = self.elements * (self.stored.master + self.stored.states)
        return float(trained + self._frozen_bytes)

    def least_held(self, devices: int, passes: int) -> float:
        """Return bytes that a rank of the fullest device group holds at least, under any plan.

        All of them together have the trained elements with their optimizer states and copies in a
        lower type; and gradients, where several passes add to them.

        Parameters
        ----------
        devices : int
            Number of devices.
        passes : int
            Number of micro-batches, at least.
        """
        stored = self.stored
        each = stored.master + stored.states + stored.lower
        if passes > 1:
            each += stored.gradient
        return each * self.elements / devices

    # Its parts

    def bound(self, plan: NamedPlan, devices: int) -> Bound | None:
        """Return what a plan takes at least; None where the model has no such plan.

        Nor is it known of numbers of recomputed blocks: equal layers of a stage take different
        amounts then.
        """
        parts = self._parts_on(ranks_of(plan), plan.more) if self._has(plan, devices) else None
        return None if parts is None else Bound(plan, devices, self._shape, parts)

    def rough_bound(self, plan: NamedPlan, devices: int, most: int) -> Bound | None:
        """Return less than a plan takes, by the parts of a larger micro-batch that others ask for.

        Parameters
        ----------
        plan : NamedPlan
            The plan, with its micro-batch.
        devices : int
            Number of devices.
        most : int
            Samples of the largest micro-batch.
        """
        own, ranks = plan.micro_batch or 1, ranks_of(plan)
        size = self._larger(plan, most)
        parts = self._parts_on(ranks_of(plan, size), plan.more) if size > own else None
        if parts is None or not self._has(plan, devices):
            return self.bound(plan, devices)
        key = ranks, size, plan.more
        if key not in self._shares:
            self._shares[key] = parts.of_samples(own / size)
        return Bound(plan, devices, self._shape, self._shares[key], is_rough=True)

    def _larger(self, plan: NamedPlan, most: int) -> int:
        """Return the samples of the micro-batch by whose parts a plan is bounded roughly."""
        size, each = most, self.samples // (ranks_of(plan).data or 1)
        while size > (plan.micro_batch or 1) and each % size:
            size //= 2
        return size

    def expect_bound(self, plan: NamedPlan, devices: int, most: int | None = None) -> bool:
        """Let another process find the parts by which a plan is going to be bounded.

        Return whether it begins now.

        Parameters
        ----------
        plan, devices : NamedPlan, int
            The plan, and the number of devices.
        most : int, optional
            Samples of the largest micro-batch, for a rough bound.
        """
        if self._ahead is None:
            return False
        size = None if most is None else self._larger(plan, most)
        asked = PartsAsked(ranks_of(plan, size), plan.more)
        is_new = asked not in self._parts and self._ahead.is_open(asked)
        begins = is_new and self._has(plan, devices)
        if begins:
            self._ahead.begin(asked)
        return begins

    def refined(self, bound: Bound) -> Bound | None:
        """Return a rough bound by the parts of its own micro-batch; None without such a plan."""
        own = self.bound(bound.plan, bound.devices)
        return None if own is None else replace(own, factors=bound.factors)

    def _parts_on(self, ranks: NamedPlan, words: Words) -> Parts | None:
        key = ranks, words
        if key not in self._parts:
            begun = None if self._ahead is None else self._ahead.take(key)
            self._parts[key] = self._parts_found(ranks, words) if begun is None else begun
        return self._parts[key]

    def _parts_found(self, ranks: NamedPlan, words: Words) -> Parts | None:
        try:
            return self._evaluator(ranks.tensor * (ranks.data or 1)).parts(ranks, words)
        except ShardwrightError:  # the model cannot be divided so
            return None

    def _has(self, plan: NamedPlan, devices: int) -> bool:
        """Return whether the batch, the layers and the devices can be divided so."""
        if has_number(plan.recompute):
            return False
        try:
            passes = plan.passes(self.samples, devices)
            check_options(plan.order, plan.pipeline, plan.chunks, passes)
            plan.mesh(self.cluster, devices)
        except ShardwrightError:
            return False
        return plan.pipeline * plan.chunks <= self.layers

    def may_fit(self, bound: Bound) -> bool:
        """Return whether a plan may fit the memory limit, by what it takes at least."""
        return bound.memory_bytes <= self.limit_bytes

    @cached_property
    def _shape(self) -> Shape:
        return Shape(self.samples, self.run_on, self.stored)


def ranks_of(plan: NamedPlan, samples: int | None = None) -> NamedPlan:
    """Return the plan of the tensor and expert ranks of a plan alone, with what a pass is of.

    Parameters
    ----------
    plan : NamedPlan
        The plan.
    samples : int, optional
        Samples of a micro-batch, if they are others.
    """
    words = tuple(word for word in plan.more if DIMENSIONS[word[0]].divides_operators())
    degrees = plan.tensor, plan.expert, plan.expert_tensor, plan.sequence_parallel
    return _ranks(*degrees, samples or plan.micro_batch, plan.recompute, words)


@cache
def _ranks(
    tensor: int,
    expert: int,
    expert_tensor: int | None,
    sequence_parallel: bool,
    samples: int | None,
    recompute: str,
    words: Words,
) -> NamedPlan:
    """Return the plan of some ranks, which thousands of plans share."""
    return replace(
        on_tensor_ranks(tensor, expert, expert_tensor),
        micro_batch=samples,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        more=words,
    )

"""The parallelism of a plan in the words of the field: which ranks share what.

Every axis of the mesh has a role, by the products with parameters that it divides, most of their
work counts. It divides their samples (`data`), their positions (`sequence`), or what a parameter
has too: rows and columns (`tensor`). Over an axis that divides none of it ranks compute the same
(`copies`). Experts are told apart: their products divide what their tokens are sent for.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.dataflow.samples import samples_of
from shardwright.dataflow.segments import block_of
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import times_run
from shardwright.ir.types import item_bytes
from shardwright.ir.units import first_names, pattern
from shardwright.operators.attention.scaled_dot_product import Attention
from shardwright.operators.info import info_of
from shardwright.operators.linear.head_loss import HeadLogSumAndPick
from shardwright.operators.rule import Rule
from shardwright.search.named_plan import RECOMPUTE, NamedPlan

DATA: Final = "data"
SEQUENCE: Final = "sequence"
TENSOR: Final = "tensor"
EXPERT: Final = "expert"
COPIES: Final = "copies"
_ALL = 0.995  # share of bytes or work above which the rest is not worth a word
_NEAR = 0.75  # share of products' work that must follow the roles of a near named plan
_NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True)
class Recomputed:
    """What is computed again for the gradient.

    Parameters
    ----------
    layers : int
        Repeated blocks of the model.
    whole : int
        Those of which all products but the last are computed again, from their input.
    with_products, others : int
        Those of which some products are, and those of which other operators alone are.
    elsewhere : bool
        Whether operators outside of the repeated blocks are.
    """

    layers: int = 0
    whole: int = 0
    with_products: int = 0
    others: int = 0
    elsewhere: bool = False


@dataclass(frozen=True)
class Parallelism:
    """How a plan divides the work, and what it stores.

    Parameters
    ----------
    ranks : mapping of str to int
        Ranks by role; the product is that of a pipeline stage.
    followed : float
        Share of the work of products with parameters that is divided by these roles.
    otherwise : tuple of str
        Products that are divided otherwise, repeated layers as one, the most work first.
    expert : int
        Ranks between which experts are divided.
    expert_tensor : int or None
        Ranks that share the weights of an expert; None without experts.
    scattered : bool
        Whether norms are divided by position over the tensor ranks.
    by_heads : bool
        Whether attention is divided by heads over the ranks that share a sequence elsewhere.
    divided : int
        Ranks, beside tensor ranks, over which most parameters are divided.
    divided_share : float
        Share of the bytes of parameters that is divided over these ranks.
    shard : int
        The same where these are nearest to each other and others have copies, else 1.
    zero : int
        The ZeRO stage by which they are; 0 where `divided` is 1.
    groups, chunks, schedule, passes : int, int, str, int
        Device groups of a pipeline, stages of each, their order, and micro-batches.
    samples : int
        Samples of a step; 1 of a model whose inputs share none.
    recomputed : Recomputed
        What is computed again.
    loss_chunks : int
        Chunks of tokens of which the loss makes the logits one after another.
    """

    ranks: Mapping[str, int]
    followed: float
    otherwise: tuple[str, ...]
    expert: int
    expert_tensor: int | None
    scattered: bool
    by_heads: bool
    divided: int
    divided_share: float
    shard: int
    zero: int
    groups: int
    chunks: int
    schedule: str
    passes: int
    samples: int
    recomputed: Recomputed
    loss_chunks: int = 1

    @property
    def sharing(self) -> int:
        """Ranks that have copies of the same part of a parameter, or its further parts."""
        return prod(count for role, count in self.ranks.items() if role != TENSOR)

    @staticmethod
    def of(plan: Plan) -> "Parallelism":
        """Return the parallelism of a plan."""
        program, mesh = plan.program, plan.mesh
        sizes = {axis.name: axis.size for axis in mesh.of_ranks.axes if axis.size > 1}
        constants = constants_of(plan.model)
        roles, work, experts = _roles(plan, sizes, constants)
        own = {name: _most(votes) for name, votes in roles.items()}
        ranks = Counter({role: 1 for role in (DATA, SEQUENCE, TENSOR, COPIES)})
        for name, role in own.items():
            ranks[role] *= sizes[name]
        follow = {name: share for name, share in work.items() if _follows(name, roles, own)}
        total = sum(work.values())
        tensor = [name for name, role in own.items() if role == TENSOR]
        sharing = [name for name in own if name not in tensor]
        divided, share = _stored(program, sharing, experts.weights)
        return Parallelism(
            dict(ranks),
            sum(follow.values()) / total if total else 1.0,
            _patterns(plan.model, {n: w for n, w in work.items() if n not in follow}),
            prod(sizes[name] for name in experts.axes),
            prod(sizes[name] for name in experts.within) if experts.weights else None,
            _scattered(plan, tensor),
            _by_heads(plan, [name for name, role in own.items() if role == SEQUENCE]),
            prod(sizes[name] for name in divided),
            share,
            _shard(sharing, divided, sizes),
            _zero_of(plan, constants) if divided else 0,
            mesh.stages,
            max(program.stages // mesh.stages, 1),
            program.schedule,
            mesh.passes,
            samples_of(plan.model) or 1,
            _recomputed(plan, constants),
            _loss_chunks(plan.model),
        )

    @property
    def named(self) -> NamedPlan | None:
        """The named plan with the same degrees; None where most is divided in no such way."""
        data, context = self.ranks[DATA], self.ranks[SEQUENCE]
        if self.followed < _NEAR or self.ranks[COPIES] > 1 or self.samples % (data * self.passes):
            return None
        pipelined = self.groups > 1
        try:
            return NamedPlan(
                shard=self.shard,
                tensor=self.ranks[TENSOR],
                pipeline=self.groups,
                data=data if data > 1 else None,
                context=context,
                expert=self.expert,
                expert_tensor=self.expert_tensor if self.scattered else None,
                micro_batch=self.samples // (data * self.passes) if self.passes > 1 else None,
                chunks=self.chunks if pipelined else 1,
                schedule=self.schedule if pipelined else None,
                recompute=_WHOLE if self._mostly_whole else RECOMPUTE[0],
                zero=self.zero,
                sequence_parallel=self.scattered,
            )
        except OptionError:
            return None

    @property
    def differences(self) -> tuple[str, ...]:
        """In what the plan differs from the named one, in clauses; empty where in nothing."""
        found = []
        if self.followed < _ALL:
            some = first_names(self.otherwise, 2)
            found.append(f"{1 - self.followed:.1%} of the products divided otherwise: {some}")
        if self.by_heads:
            found.append("attention divided by heads, not by position")
        if not self.scattered and self.expert_tensor not in (None, self.ranks[TENSOR]):
            found.append(f"the weights of an expert divided over {self.expert_tensor}")
        if 1 < self.divided < self.sharing and self.shard == 1:
            found.append(f"parameters divided over {self.divided} of {self.sharing} ranks")
        if self.divided > 1 and self.divided_share < _ALL:
            found.append(f"{1 - self.divided_share:.1%} of the parameters stored otherwise")
        again = self.recomputed
        if self._mostly_whole and again.whole < again.layers:
            found.append(f"{again.layers - again.whole} of {again.layers} layers not recomputed")
        elif not self._mostly_whole and again.whole:
            found.append(f"{again.whole} of {again.layers} layers recomputed")
        if again.with_products or again.others:
            found.append(f"parts of {again.with_products + again.others} layers recomputed")
        elif again.elsewhere:
            found.append("operators outside of the layers recomputed")
        return tuple(found)

    @property
    def _mostly_whole(self) -> bool:
        return 2 * self.recomputed.whole > self.recomputed.layers


def _loss_chunks(model: Graph) -> int:
    """Return the most chunks of a head of a model."""
    heads = (node for node in model.nodes if node.operator == HeadLogSumAndPick.name)
    return max((int(str(node.attributes["chunks"])) for node in heads), default=1)


_WHOLE: Final = "full"


@dataclass(frozen=True)
class _Experts:
    """The axes that divide experts, and the weights of an expert, and the parameters of these."""

    axes: set[str] = field(default_factory=set)
    within: set[str] = field(default_factory=set)
    weights: set[str] = field(default_factory=set)


def _roles(
    plan: Plan, sizes: Collection[str], constants: Mapping[str, frozenset[str]]
) -> tuple[dict[str, dict[str, Counter[str]]], dict[str, float], _Experts]:
    """Return for every axis the products by role, with their work; all work; what experts do."""
    model, strategies = plan.model, plan.document.strategies
    roles: dict[str, dict[str, Counter[str]]] = {name: {} for name in sizes}
    work: dict[str, float] = {}
    experts = _Experts()
    for node in model.nodes:
        weights = [i for i, name in enumerate(node.operands) if name in constants]
        strategy = strategies.get(node.name)
        if strategy is None or not weights or len(weights) == len(node.operands):
            continue
        info = info_of(model, node)
        if not info.product_flops:
            continue
        found = {
            axis: _role(info.rule, factor, weights)
            for factor, axes in strategy.factors.items()
            for axis in axes
        }
        if _has_experts(info.rule, weights):
            experts.axes.update(axis for axis in sizes if found.get(axis) == EXPERT)
            experts.within.update(axis for axis in sizes if found.get(axis) == TENSOR)
            experts.weights.update(*(constants[node.operands[i]] for i in weights))
            continue
        work[node.name] = info.product_flops
        for axis in sizes:
            votes = roles[axis].setdefault(found.get(axis, COPIES), Counter())
            votes[node.name] = int(info.product_flops)
    return roles, work, experts


def constants_of(model: Graph) -> dict[str, frozenset[str]]:
    """Return what follows from parameters alone, by name: the parameters that it follows from."""
    found = {parameter.name: frozenset({parameter.name}) for parameter in model.parameters}
    for node in model.nodes:
        if node.operands and {*node.operands} <= found.keys():
            origin = frozenset().union(*(found[name] for name in node.operands))
            found |= {result.name: origin for result in node.results}
    return found


def _role(rule: Rule, factor: str, weights: Collection[int]) -> str:
    """Return the role of an axis that divides a factor of a product."""
    others = [dims for i, dims in enumerate(rule.operands) if i not in weights]
    if any(factor in _factors(rule.operands[i]) for i in weights):
        is_shared = factor in _factors(others[0]) and factor in _factors(rule.results[0])
        return EXPERT if is_shared else TENSOR
    first = others[0][0] if others[0] else ()
    return DATA if factor in first[:1] else SEQUENCE


def _has_experts(rule: Rule, weights: Collection[int]) -> bool:
    """Return whether a product has a factor that parameter, operand and result share."""
    return any(
        _role(rule, factor, weights) == EXPERT
        for i in weights
        for factor in _factors(rule.operands[i])
    )


def _factors(dims: Collection[tuple[str, ...]]) -> set[str]:
    return {factor for factors in dims for factor in factors}


def _most(votes: Mapping[str, Counter[str]]) -> str:
    """Return the role with the most work; of no products, that of copies."""
    return max(votes, key=lambda role: votes[role].total(), default=COPIES)


def _follows(
    name: str, roles: Mapping[str, Mapping[str, Counter[str]]], own: Mapping[str, str]
) -> bool:
    return all(name in roles[axis][role] for axis, role in own.items())


def _patterns(model: Graph, work: Mapping[str, float]) -> tuple[str, ...]:
    """Return the places of operators, repeated layers as one, the most work first."""
    totals = Counter[str]()
    for name, flops in work.items():
        node = model.producers[name]
        totals[pattern(node.scope) or node.operator] += int(flops)
    return tuple(place for place, _ in totals.most_common())


def _scattered(plan: Plan, tensor: Collection[str]) -> bool:
    """Return whether most norms are divided over the tensor ranks, but not by their rows."""
    if not tensor:
        return False
    found = [
        any({*axes} & {*tensor} for axes in strategy.factors.values())
        for node in plan.model.nodes
        if node.operator in _NORMS
        and (strategy := plan.document.strategies.get(node.name)) is not None
    ]
    return 2 * sum(found) > len(found)


def _by_heads(plan: Plan, axes: Collection[str]) -> bool:
    """Return whether most attention is divided over some axes, but not by its queries."""
    found = []
    for node in plan.model.nodes:
        strategy = plan.document.strategies.get(node.name)
        info = info_of(plan.model, node)
        if not isinstance(info, Attention) or strategy is None:
            continue
        *_, queries, _ = info.rule.operands[0]  # the factors of positions
        own = {factor for factor, split in strategy.factors.items() if {*split} & {*axes}}
        found.append(bool(own) and not own & {*queries})
    return 2 * sum(found) > len(found)


# What is stored


def _stored(
    program: Graph, axes: Collection[str], apart: Collection[str]
) -> tuple[list[str], float]:
    """Return the axes over which most parameters are divided, and the share that all divide.

    Those of experts are apart: they are divided as their products are.
    """
    divides = Counter[str]()
    weights = [q.name for q in program.parameters if q.role == "weight" and q.name not in apart]
    rows = [
        (item_bytes(p.type.dtype) * prod(p.type.shape), {*p.layout.split_axes} if p.layout else {})
        for p in map(program.value, weights)
    ]
    for size, split in rows:
        divides.update({axis: size for axis in axes if axis in split})
    total = sum(size for size, _ in rows)
    found = [axis for axis in axes if 2 * divides[axis] > total]
    share = sum(size for size, split in rows if {*found} <= {*split})
    return found, share / total if total else 1.0


def _shard(sharing: Sequence[str], divided: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Return the ranks over which parameters are divided, if they are the innermost of some."""
    if not divided or len(divided) == len(sharing):
        return 1
    is_inner = {*divided} == {*sharing[-len(divided) :]}
    return prod(sizes[name] for name in divided) if is_inner else 1


def _zero_of(plan: Plan, constants: Collection[str]) -> int:
    """Return the ZeRO stage of a plan whose parameters are divided; a named one says it."""
    document = plan.document
    stated = NamedPlan.parse(document.how).zero if document.search == "named_plan" else 0
    return stated or _zero(plan, constants)


def _zero(plan: Plan, constants: Collection[str]) -> int:
    """Return the ZeRO stage by which divided parameters are gathered and their gradients reduced.

    That of the repeated blocks, where there are any: a table that is read at both ends of a model
    may be gathered once under every stage, and larger than they are.

    3: gathered again for the gradient. 2: gathered once, and gradients are reduced in every pass.
    1: gathered and reduced once a step; of one pass 1 and 2 are the same.
    """
    program = plan.program
    gathered, again, reduced, often = Counter[str](), Counter[str](), 0.0, 0.0
    in_blocks = {name for name in constants if _is_in_block(name)}
    for node, times in zip(program.nodes, times_run(program), strict=True):
        name = node.provenance.tensor
        if name not in (in_blocks or constants):
            continue
        size = prod(program.value(node.operands[0]).type.shape)
        if node.operator == "all_gather":
            (again if node.provenance.role == "recompute" else gathered)[name] = size
        elif node.provenance.role in ("gradient_redistribution", "fusion"):
            reduced += size
            often += size * (times > 1)
    total = sum((gathered | again).values())
    if total and 2 * again.total() > total:
        return 3
    return 2 if 2 * often > reduced else 1


def _is_in_block(name: str) -> bool:
    return bool(block_of(name.replace(".", "/")))


# What is computed again


def _recomputed(plan: Plan, constants: Collection[str]) -> Recomputed:
    products, again, touched = _products(plan.model), set[str](), set[str]()
    elsewhere = False
    for node in _again(plan.program):
        producer = plan.model.producers.get(node.provenance.tensor)
        if producer is None or node.provenance.tensor in constants:
            continue
        if node.operator != producer.operator:  # it is gathered again
            continue
        block = block_of(producer.scope)
        touched |= {block} - {""}
        elsewhere |= not block
        again.add(producer.name)
    whole = {block for block, own in products.items() if len(own) > 1 and {*own[:-1]} <= again}
    some = {block for block, own in products.items() if {*own} & again} - whole
    return Recomputed(len(products), len(whole), len(some), len(touched - whole - some), elsewhere)


def _again(program: Graph) -> Iterator[Node]:
    return (node for node in program.nodes if node.provenance.role == "recompute")


def _products(model: Graph) -> dict[str, list[str]]:
    """Return the products of every repeated block, in order."""
    found: dict[str, list[str]] = {}
    for node in model.nodes:
        block = block_of(node.scope)
        if block and info_of(model, node).product_flops:
            found.setdefault(block, []).append(node.name)
    return found

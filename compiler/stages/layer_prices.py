"""What the repeated layers of a model take under Megatron's division, for any degrees.

A layer is priced alone on the tensor ranks, for a micro-batch of one sample: by itself, and with
the next, whose difference is what a further layer adds. What comes before the layers and after them
is priced with the layer beside it. So a few small problems tell of every number of stages, chunks,
data ranks and micro-batches; what data ranks add is left out.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from shardwright.compiler.stages.blocks import Blocks
from shardwright.compiler.stages.named import NamedStages
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.compiler.stages.stage_plans import StagePlan
from shardwright.dataflow.segments import block_of
from shardwright.passes.recompute import recomputations
from shardwright.search.heuristics.named_plan import NamedStrategies
from shardwright.search.named_plan import NamedPlan, PlanAxes

_FEWEST = 2  # repeated layers


@dataclass(frozen=True)
class Part:
    """What a part of a model takes on a rank, with a micro-batch of one sample.

    Parameters
    ----------
    seconds : float
        Of a pass over the micro-batch, forward and backward.
    stored_bytes : float
        Parameters, gradients and optimizer states.
    saved_bytes : float
        Of each micro-batch in flight.
    """

    seconds: float
    stored_bytes: float
    saved_bytes: float

    def less(self, other: "Part") -> "Part":
        """Return the difference to a smaller part."""
        return Part(
            max(self.seconds - other.seconds, 0.0),
            max(self.stored_bytes - other.stored_bytes, 0.0),
            max(self.saved_bytes - other.saved_bytes, 0.0),
        )


@dataclass(frozen=True)
class LayerPrices:
    """What a model takes, by its parts.

    Parameters
    ----------
    layers : int
        Number of repeated layers.
    layer, first, last : Part
        One more layer; what comes before all of them, and after.
    transient_bytes : float
        Of a stage at its peak, beside what it stores and saves.
    passed_bytes : float
        From a layer to the next.
    """

    layers: int
    layer: Part
    first: Part
    last: Part
    transient_bytes: float
    passed_bytes: float


def layer_prices(pipeline: PipelinePartitioning, plan: NamedPlan) -> dict[str, LayerPrices]:
    """Return the prices of a model on the tensor ranks of a plan, by the way to recompute.

    Parameters
    ----------
    pipeline : PipelinePartitioning
        The program in one stage on the mesh of the tensor ranks, in micro-batches of one sample.
    plan : NamedPlan
        The plan of these ranks.

    Raises
    ------
    ShardwrightError
        If the model cannot be divided so.
    """
    layers = repeated_layers(pipeline.blocks)
    if len(layers) < _FEWEST:
        return {}
    problems, mesh = pipeline.named, pipeline.mesh
    graph, axes = problems.problems.loop.graph, PlanAxes.of(mesh)
    stages = NamedStages(problems, NamedStrategies.of(plan, graph, mesh, axes, alike=True))
    found = {}
    for rule, marked in recomputations(pipeline.source).items():
        prices = _prices(pipeline, stages, marked, layers)
        if prices is not None:
            found[rule] = prices
    return found


def repeated_layers(blocks: Blocks) -> range:
    """Return the blocks that are repeated layers: the longest run of equal ones."""
    keys = [blocks.key(block, block + 1) for block in range(len(blocks))]
    key, _ = Counter(keys).most_common(1)[0]
    equal = [block for block, one in enumerate(keys) if one == key]
    if any(after != before + 1 for before, after in pairwise(equal)):
        return range(0)
    first = equal[0] - 1 if equal[0] and _is_numbered(blocks, equal[0] - 1) else equal[0]
    return range(first, equal[-1] + 1)


def _is_numbered(blocks: Blocks, block: int) -> bool:
    return bool(block_of(blocks.line.operators[blocks.starts[block]].scope))


def _prices(
    pipeline: PipelinePartitioning,
    stages: NamedStages,
    marked: frozenset[str],
    layers: range,
) -> LayerPrices | None:
    """Return the prices with some operators recomputed; None where the plan has no such stage."""
    passes = pipeline.options.passes

    def part(begin: int, end: int) -> tuple[Part, float] | None:
        regather = stages.named.plan.sequence_parallel
        plans: list[StagePlan] = []
        for in_flight in (1, 2):
            plan = stages.at(marked, begin, end, in_flight, {}, regather=regather)
            if plan is None:
                return None
            plans.append(plan)
        saved = plans[1].memory_bytes - plans[0].memory_bytes
        stored = plans[0].memory_bytes - saved
        return Part(plans[0].step_seconds / passes, stored, saved), stored

    middle, end = layers[len(layers) // 2], len(pipeline.blocks)
    one, two = part(middle, middle + 1), part(middle, middle + 2)
    first, last = part(0, layers[0] + 1), part(layers[-1], end)
    if one is None or two is None or first is None or last is None:
        return None
    layer = two[0].less(one[0])
    return LayerPrices(
        len(layers),
        layer,
        first[0].less(one[0]),
        last[0].less(one[0]),
        max(one[0].stored_bytes - layer.stored_bytes, 0.0),
        _passed_bytes(pipeline.blocks, middle) / pipeline.mesh.size,
    )


def _passed_bytes(blocks: Blocks, block: int) -> float:
    """Return the bytes of a micro-batch that a block receives of the one before."""
    values = blocks.loop.graph.values
    return float(sum(values[name].type.nbytes for name in blocks.passed(block)))

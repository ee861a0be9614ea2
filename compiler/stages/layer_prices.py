"""What the repeated layers of a model take under Megatron's division, for any degrees.

A layer is priced alone on the tensor ranks, for a micro-batch of one sample: by itself, and with
the next, whose difference is what a further layer adds. What comes before the layers and after them
is priced with the layer beside it. So a few small problems tell of every number of stages, chunks,
data ranks and micro-batches; what data ranks add is left out.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from shardwright.compiler.stages.named import NamedStages
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.dataflow.segments import block_of
from shardwright.passes.recompute import recomputations
from shardwright.planner.plan.blocks import Blocks
from shardwright.planner.plan.stage_plans import StagePlan
from shardwright.search.heuristics.named_plan import NamedStrategies
from shardwright.search.named_plan import NamedPlan
from shardwright.search.plan_axes import PlanAxes

_FEWEST = 2  # repeated layers
_IN_FLIGHT = 1, 2  # micro-batches, by which it is told what one more of them saves


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
    found, layers = {}, repeated_layers(pipeline.blocks)
    for rule, parts in _parts(pipeline, plan, layers).items():
        one, two, first, last = (_part(pipeline, *stages) for stages in parts)
        layer = two.less(one)
        found[rule] = LayerPrices(
            len(layers),
            layer,
            first.less(one),
            last.less(one),
            max(one.stored_bytes - layer.stored_bytes, 0.0),
            passed_bytes(pipeline),
        )
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


def _parts(
    pipeline: PipelinePartitioning, plan: NamedPlan, layers: range
) -> dict[str, list[list[StagePlan]]]:
    """Return a layer, two of them, and both ends with one, by the way to recompute.

    Of each are the plans with one and two micro-batches in flight; a way that has no such stage is
    left out.
    """
    if len(layers) < _FEWEST:
        return {}
    (problems,), mesh = pipeline.named, pipeline.mesh
    graph, axes = problems.problems.loop.graph, PlanAxes.of(mesh)
    stages = NamedStages(problems, NamedStrategies.of(plan, graph, mesh, axes, alike=True))
    middle, end = _middle(layers), len(pipeline.blocks)
    stretches = (middle, middle + 1), (middle, middle + 2), (0, layers[0] + 1), (layers[-1], end)
    regather, found = stages.named.plan.sequence_parallel, {}
    for rule, marked in recomputations(pipeline.source).items():
        parts = [
            [stages.at(marked, *one, count, {}, regather=regather) for count in _IN_FLIGHT]
            for one in stretches
        ]
        known = [[plan for plan in part if plan is not None] for part in parts]
        if all(len(part) == len(_IN_FLIGHT) for part in known):
            found[rule] = known
    return found


def _middle(layers: range) -> int:
    return layers[(len(layers) - 1) // 2]


def _part(pipeline: PipelinePartitioning, one: StagePlan, two: StagePlan) -> Part:
    """Return what a stage takes, by its plans with one and two micro-batches in flight."""
    saved = two.memory_bytes - one.memory_bytes
    return Part(one.step_seconds / pipeline.options.passes, one.memory_bytes - saved, saved)


def passed_bytes(pipeline: PipelinePartitioning) -> float:
    """Return the bytes of a micro-batch that a layer receives of the one before, on a rank."""
    blocks = pipeline.blocks
    values, block = blocks.loop.graph.values, _middle(repeated_layers(blocks))
    whole = sum(values[name].type.nbytes for name in blocks.passed(block))
    return float(whole) / pipeline.mesh.size

"""The pipeline of each mode: the passes that a program goes through, in order."""

from shardwright.cost_model.cluster import cluster
from shardwright.dataflow.batch_split import AXIS
from shardwright.dataflow.recompute_rules import has_number
from shardwright.ir.decisions import Decisions
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.models.precision import MASTER, PRECISIONS
from shardwright.passes.annotate import Annotate
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.apply_precision import ApplyPrecision, QuantizeProducts
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.chunk_loss import ChunkLoss
from shardwright.passes.clean_up import CleanUp, DelayStatistics
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.expect_imbalance import ExpectImbalance
from shardwright.passes.fuse_all_reduces import FuseAllReduces
from shardwright.passes.fuse_gathers import FuseGathers
from shardwright.passes.group_statistics import GroupStatistics
from shardwright.passes.insert_mirrors import InsertMirrors
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.mirror_shared_values import MirrorSharedValues
from shardwright.passes.partition import Partition
from shardwright.passes.pipeline import Pipeline
from shardwright.passes.recompute import Recompute
from shardwright.passes.schedule_micro_batches import ScheduleMicroBatches
from shardwright.planner.option_checks import GatherFusion
from shardwright.planner.options import CompileOptions, Mode


def as_asked(options: CompileOptions, micro_batches: int) -> Pipeline:
    """Return the passes from a model as it is traced to the one that plans are compared with.

    They make the loss in chunks, expect an imbalance of experts, insert the casts of a precision,
    and statistics of micro-batches, where there are some.
    """
    chunked: Pipeline = (ChunkLoss(options.loss_chunks),) if options.loss_chunks > 1 else ()
    policy = PRECISIONS[options.precision]
    gradients = (options.reduce_type, options.accumulate_type)
    expected = options.imbalance
    first: Pipeline = () if expected is None else (ExpectImbalance(expected),)
    plain = PRECISIONS[policy.compute] if policy.recipe is not None else policy
    casts: Pipeline = (ApplyPrecision(plain, *gradients),) if plain.name != MASTER else ()
    if policy.recipe is not None:
        casts = (*casts, QuantizeProducts(policy.recipe, policy.ends))
    groups: Pipeline = (GroupStatistics(micro_batches),) if micro_batches > 1 else ()
    return (*chunked, *first, *casts, *groups)


def canonical_form(options: CompileOptions) -> Canonicalize:
    """Return the pass that brings a program to canonical form, before the search."""
    return Canonicalize(options.pins, options.result_pins)


def marking(options: CompileOptions) -> Pipeline:
    """Return the pass that marks what is recomputed, where the user asks for a rule."""
    plan = options.named_plan
    sums = plan is not None and plan.tensor > 1 and options.recompute == "operators"
    if options.recompute in ("none", "search"):
        return ()
    stages = 1
    if plan is not None and has_number(options.recompute):  # else one pass for all pipelines
        stages = plan.pipeline * plan.chunks
    return (Recompute(options.recompute, sums, stages),)


def stand_alone(options: CompileOptions) -> Pipeline:
    """Return the pipeline of a program for one device."""
    return (
        Differentiate(options.loss_scale),
        AppendOptimizer.of(options.optimizer, options.loss_scale),
        CleanUp(),
        *_extra(options),
    )


def hybrid_parallel(options: CompileOptions, devices: int) -> Pipeline:
    """Return the pipeline of a program that calls the communication operators itself."""
    return (MirrorSharedValues(devices, options.gradients_mean), *stand_alone(options))


def partitioned(
    options: CompileOptions, decisions: Decisions, lowering: LowerRedistributions
) -> Pipeline:
    """Return the pipeline of a program that the compiler partitions, after the search."""
    return (
        Annotate(decisions),
        Partition(),
        InsertMirrors(),
        Differentiate(options.loss_scale),
        *((ScheduleMicroBatches(),) if decisions.mesh.in_time else ()),
        AppendOptimizer.of(options.optimizer, options.loss_scale),
        lowering,
        CleanUp(),
        DelayStatistics(),
        *fused(options),
    )


def fused(options: CompileOptions) -> Pipeline:
    """Return the passes that fuse gradients, and those of the user, after which none comes."""
    gathers = options.gather_fusion
    joint: Pipeline = (FuseGathers(gathers.allgather, gathers.reducescatter),)
    wanted = gathers != GatherFusion()
    return (
        FuseAllReduces(options.fusion),
        *(joint if wanted else ()),
        *_extra(options),
    )


def _extra(options: CompileOptions) -> Pipeline:
    """Return the passes that the user adds; the options have parsed their text."""
    assert not isinstance(options.extra_passes, str)
    return options.extra_passes


def pass_names(
    mode: Mode,
    extra_passes: Pipeline | str = (),
    precision: str = MASTER,
    micro_batches: int | str = 1,
    recompute: str = "search",
) -> tuple[str, ...]:
    """Return the names of the passes of a mode and of those that the user adds, in order."""
    options = CompileOptions(
        mode=mode, extra_passes=extra_passes, precision=precision, recompute=recompute
    )
    passes = 1 if micro_batches == 1 else 2
    if mode == "hybrid_parallel":
        pipeline = hybrid_parallel(options, 1)
    elif mode == "stand_alone" and passes == 1:
        pipeline = stand_alone(options)
    else:
        axes = () if passes == 1 else (MeshAxis(AXIS, passes, in_time=True),)
        nothing = Decisions(Mesh(axes), {}, {})
        pipeline = partitioned(options, nothing, LowerRedistributions(cluster("cpu")))
    first = (*as_asked(options, passes), canonical_form(options), *marking(options))
    return tuple(work.name for work in (*first, *pipeline))

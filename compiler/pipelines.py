"""The pipeline of each mode: the passes that a program goes through, in order."""

from collections.abc import Mapping

from shardwright.compiler.options import CompileOptions
from shardwright.ir.decisions import Decisions
from shardwright.operators.info import SplitCounts
from shardwright.passes.annotate import Annotate
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.clean_up import CleanUp
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.fuse_all_reduces import FuseAllReduces
from shardwright.passes.insert_mirrors import InsertMirrors
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.mirror_shared_values import MirrorSharedValues
from shardwright.passes.partition import Partition
from shardwright.passes.pipeline import Pipeline


def canonical_form(options: CompileOptions) -> Canonicalize:
    """Return the pass that comes first in every mode, before the search."""
    return Canonicalize(_as_tuples(options.pins), _as_tuples(options.result_pins))


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
        lowering,
        AppendOptimizer.of(options.optimizer, options.loss_scale),
        CleanUp(),
        FuseAllReduces(options.fusion),
        *_extra(options),
    )


def _extra(options: CompileOptions) -> Pipeline:
    """Return the passes that the user adds; the options have parsed their text."""
    assert not isinstance(options.extra_passes, str)
    return options.extra_passes


def _as_tuples(pins: Mapping[str, SplitCounts]) -> Mapping[str, SplitCounts]:
    return {name: tuple(map(tuple, counts)) for name, counts in pins.items()}

"""The model of the tests of `fit`, whose layers are priced once for all of them."""

from dataclasses import replace
from functools import cache

from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.cost_model.efficiency.software import IDEAL, software
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.tracing import Definition

CLUSTER = cluster("h100-pod:figures=datasheet").without_host()
TEXT = "llama:layers=4,hidden=1024,heads=2,kv_heads=2,inner=2816,sequence=2048,vocabulary=32000"
GIB = 2.0**30


@cache
def definition() -> Definition:
    return training_definition(TEXT, 32, 1)[0]


@cache
def priced(run_by: str = IDEAL, *, narrow: bool = False, **options: str) -> EvaluatedModel:
    """Return the model as a software runs it; on nodes of two devices, few degrees are tried."""
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}), **options)  # type: ignore[arg-type]
    inner, *outer = CLUSTER.levels
    pairs = (inner.model_copy(update={"size": 2}), *outer)
    where = CLUSTER.model_copy(update={"levels": pairs}) if narrow else CLUSTER
    return EvaluatedModel(definition().graph, where, asked, software(run_by))


def model(
    limit: float = 8 * GIB, *given: str, narrow: bool = False, **options: str
) -> EvaluatedModel:
    """Return the model within a limit; all limits share the prices of its layers."""
    whole = priced(*given, narrow=narrow, **options)
    asked = replace(whole.options, memory_limit=limit)
    return replace(whole, options=asked, _evaluators={}, _evaluations={})


def slower(cluster: Cluster, factor: float) -> Cluster:
    """Return a cluster whose devices take so many times as long, so that launches are nothing."""
    device = cluster.device
    peaks = {name: one / factor for name, one in device.peak_flops.items()}
    less = {"peak_flops": peaks, "memory_bandwidth": device.memory_bandwidth / factor}
    return cluster.model_copy(update={"device": device.model_copy(update=less)})

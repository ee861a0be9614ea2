"""Pipelines over several kinds of devices: a stage runs on one kind."""

from typing import Any

import pytest

from shardwright import compile, prove, verify
from shardwright.compilation import Compilation
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.cost_model.pipelines.mixed import MixedCluster
from shardwright.dataflow.segments import blocks_by_stage
from shardwright.ir.errors import ClusterError, InfeasibleError, NoPlanError
from tests.enumerated_pipelines import cases
from tests.extent import ANY_PLAN, first

MODEL = "gpt:layers=4,hidden=16,heads=2,batch=8,sequence=8,vocabulary=32,dtype=float32"
DENSE = "mlp:layers=2,inputs=16,hidden=16,batch=8"
POD = cluster("a100-pod:figures=datasheet")
SEEDS = (1, 2, 10, 12, 13, 24)
# Small models take launches alone, so the rates are those of devices that launch in no time.
FAST = POD.model_copy(update={"device": POD.device.model_copy(update={"launch_seconds": 0.0})})


def slower(part: Cluster, times: float, name: str = "slow") -> Cluster:
    """Return a part whose devices take some times as long for everything."""
    device = part.device.model_copy(
        update={
            "peak_flops": {dtype: peak / times for dtype, peak in part.device.peak_flops.items()},
            "memory_bandwidth": part.device.memory_bandwidth / times,
        }
    )
    return part.model_copy(update={"device": device, "name": name})


def mixed(first: Cluster, second: Cluster, link: int = 1) -> MixedCluster:
    """Return two parts, joined by the links of a level of the first."""
    joined = first.levels[link].model_copy(update={"size": 2, "name": "between parts"})
    return MixedCluster(name="mixed", parts=(first, second), link=joined)


def blocks(compilation: Compilation) -> tuple[int, ...]:
    """Return the numbers of repeated blocks of the stages."""
    return blocks_by_stage(compilation.plan.program)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    first(
        2,
        [
            {"stages": 2, "chunks": 2, "micro_batches": 2, "effort": 0.02, **ANY_PLAN},
            {"plan": "pipeline=2,tensor=2,micro_batch=1"},
            {"stages": 2, "micro_batches": 2, "gap": 0.02},
        ],
    ),
)
def test_two_equal_parts_are_as_one_cluster(options: dict[str, Any]) -> None:
    """With the link of the pod between nodes, and a node in each part, the step is the same."""
    model, devices = (MODEL, 4) if "plan" in options else (DENSE, 2)
    sizes = devices // 2, 2
    node, pod = (
        level.model_copy(update={"size": size})
        for level, size in zip(FAST.levels, sizes, strict=True)
    )
    whole = FAST.model_copy(update={"levels": (node, pod)})
    part = FAST.model_copy(update={"levels": (node, pod.model_copy(update={"size": 1}))})
    parts = mixed(part, part.model_copy(update={"name": "other"}))
    one, two = (compile(model, devices, cluster=on, **options) for on in (whole, parts))
    assert one.compiled.result is not None
    assert two.compiled.result is not None
    assert two.compiled.result.cost == one.compiled.result.cost
    assert two.compiled.result.lower_bound == one.compiled.result.lower_bound
    assert two.compiled.memory == one.compiled.memory
    assert two.plan.program == one.plan.program


@pytest.mark.long
def test_a_slower_stage_has_fewer_layers() -> None:
    parts = mixed(FAST, slower(FAST, 2))
    found = compile(MODEL, 2, cluster=parts, stages=2, micro_batches=2, gap=0.01)
    even = compile(MODEL, 2, cluster=parts, plan="pipeline=2,micro_batch=4")
    fast, slow = blocks(found)
    assert fast > slow
    assert blocks(even) == (2, 2)
    assert found.compiled.result is not None
    assert even.compiled.result is not None
    assert found.compiled.result.cost < even.compiled.result.cost
    assert even.plan.document.device_by_group == ("A100 SXM4 80GB",) * 2


@pytest.mark.long
def test_all_pipelines_of_two_kinds_of_devices() -> None:
    """The best of all lies between the bound and the answer, and the answer is the best."""
    found = [case for seed in SEEDS for case in cases(range(seed, seed + 1), mixed=True)]
    assert len(found) == len(SEEDS)
    assert all(case.holds for case in found)
    assert all(case.is_best for case in found)


@pytest.mark.long
def test_each_stage_has_the_memory_of_its_devices() -> None:
    options: dict[str, Any] = {"stages": 2, "micro_batches": 2, "effort": 0.02, **ANY_PLAN}
    free = compile(DENSE, 2, cluster=mixed(FAST, slower(FAST, 1)), **options)
    limit = int(0.8 * free.compiled.memory.by_group[0])
    tight = compile(DENSE, 2, cluster=mixed(with_memory(FAST, limit), FAST), **options)
    memory = tight.plan.document.memory
    assert memory.limit_by_group == (limit, FAST.device.usable_bytes)
    assert memory.by_group[0] <= limit
    assert not memory.fits((limit / 100, memory.by_group[1]))
    tiny = mixed(with_memory(FAST, 1000), FAST)
    with pytest.raises(NoPlanError) as caught:
        compile(DENSE, 2, cluster=tiny, **options)
    assert "fits 1000 B, 75.20 GiB by device group on each device" in str(caught.value)
    with pytest.raises(InfeasibleError) as caught:
        compile(MODEL, 2, cluster=tiny, plan="pipeline=2,micro_batch=4")
    assert "the limit is 1000 B, 75.20 GiB by device group" in str(caught.value)


def with_memory(part: Cluster, limit: int) -> Cluster:
    """Return a part whose devices have so many bytes, none in reserve."""
    memory = {"memory_bytes": limit, "memory_reserve": 0.0}
    device = part.device.model_copy(update=memory)
    return part.model_copy(update={"device": device, "name": "small"})


def test_plans_are_proven_and_run() -> None:
    found = compile(
        DENSE, 2, cluster="h100-a100:figures=datasheet", stages=2, micro_batches=2, gap=0.1
    )
    assert found.plan.document.device_by_group == ("H100 SXM5 80GB", "A100 SXM4 80GB")
    assert prove(found).proven
    assert verify(found).equal


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {},
            "a program in one stage runs on one kind of device; give `stages` and "
            "`micro_batches`, or a named plan with `pipeline`; or use a cluster of one part",
        ),
        (
            {"stages": "search"},
            "`stages` is not searched for several kinds of devices; give another value of `stages`",
        ),
        (
            {"stages": 2, "micro_batches": "search"},
            "`micro_batches` is not searched for several kinds of devices; give another value of "
            "`micro_batches`",
        ),
        (
            {"stages": 2, "mesh": "search"},
            "`mesh` is not searched for several kinds of devices; give another value of `mesh`",
        ),
        (
            {"mode": "data_parallel"},
            "the mode `data_parallel` plans for one kind of device; leave it out, or use a cluster "
            "of one part",
        ),
        (
            {"stages": 2, "search": "dynamic_programming"},
            "the search `dynamic_programming` plans for one kind of device; leave it out, or use a "
            "cluster of one part",
        ),
    ],
)
def test_what_is_not_compiled_for_parts_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ClusterError) as caught:
        compile("mlp", 4, cluster="h100-a100:figures=datasheet", **options)
    assert str(caught.value) == f"cluster `h100-a100` has the parts `h100` and `a100`, and {told}"

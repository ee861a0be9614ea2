"""What devices, links and training software attain: figures, work, host time, programs, fitting."""

from dataclasses import replace
from functools import cache
from math import inf, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.api import compile
from shardwright.cost_model.cluster import Cluster, cluster, preset_names
from shardwright.cost_model.collectives import collective_seconds
from shardwright.cost_model.efficiency.as_run import in_line
from shardwright.cost_model.efficiency.attained import Protocol
from shardwright.cost_model.efficiency.figures import Count, Figure, Rate
from shardwright.cost_model.efficiency.fitting import Unknown, fit
from shardwright.cost_model.efficiency.program_work import Repetition, program_work
from shardwright.cost_model.efficiency.software import (
    Software,
    software,
    software_names,
)
from shardwright.cost_model.efficiency.work import Product, Work, work_seconds
from shardwright.cost_model.streams import Placement, Task
from shardwright.cost_model.timeline import simulate
from shardwright.ir.errors import ClusterError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import MeshAxis
from tests.extent import first

SELENE = cluster("a100-selene")
SMALL = "gpt:hidden=64,heads=4,sequence=32,vocabulary=128"


def rate(value: float) -> Rate:
    """Return a fitted share."""
    return Rate(value=value, tag="fitted", source="a test")


def figure(value: float) -> Figure:
    """Return a fitted figure."""
    return Figure(value=value, tag="fitted", source="a test")


def with_efficiency(**values: object) -> Cluster:
    """Return the cluster with other figures of its device."""
    assert SELENE.device.efficiency is not None
    own = SELENE.device.efficiency.model_copy(update=values)
    return SELENE.model_copy(
        update={"device": SELENE.device.model_copy(update={"efficiency": own})}
    )


def profile(**values: object) -> Software:
    """Return Megatron's profile with other figures."""
    found = software("megatron")
    assert found is not None
    return found.model_copy(update=values)


@cache  # programs do not depend on how a software runs them
def program(model: str, plan: str, devices: int, batch: int) -> Graph:
    """Return the program of a named plan."""
    options = {"memory_limit": inf, "objective": "serial"}
    found = compile(model, devices, cluster="a100-selene", plan=plan, batch=batch, **options)
    return found.plan.program


# Work


def test_a_product_takes_its_share_of_the_peak_in_waves_of_tiles() -> None:
    plain = with_efficiency(matmul=rate(0.5), multiprocessors=None, depth=None)
    product = Product(4096, 4096, 4096)
    work = Work("product", "float16", product.flops, product.elements * 2, (product,), 0.0, 2)
    exact = 2 * 4096**3 / (312e12 * 0.5) + SELENE.device.launch_seconds
    assert work_seconds(work, plain) == pytest.approx(exact)

    tiled = with_efficiency(
        matmul=rate(0.5), multiprocessors=Count(value=100, tag="datasheet", source="x"), depth=None
    )
    waves = 1100 / 1024  # 32 x 32 tiles in 11 waves of 100
    launch = SELENE.device.launch_seconds
    assert work_seconds(work, tiled) - launch == pytest.approx((exact - launch) * waves)

    short = with_efficiency(matmul=rate(0.5), multiprocessors=None, depth=figure(4096))
    assert work_seconds(work, short) - launch == pytest.approx((exact - launch) * 2)


@pytest.mark.parametrize("name", ["h100-3200g", "h100-96gb-3200g", "h200-3200g"])
def test_an_h100_is_slow_where_a_last_dimension_is_not_aligned(name: str) -> None:
    """An aligned product takes as long as without these figures."""
    found = cluster(name)
    efficiency = found.device.efficiency
    assert efficiency is not None
    device = found.device.model_copy(
        update={"efficiency": efficiency.model_copy(update={"unaligned": None})}
    )
    without = found.model_copy(update={"device": device})
    product = Work("product", "bfloat16", 0, 0, (Product(8192, 8192, 4096),), item_bytes=2)
    aligned = work_seconds(product, found)
    assert aligned == work_seconds(product, without)
    launch = device.launch_seconds
    for alignment, kept in ((1, 0.2), (2, 0.38), (4, 0.38)):
        slow = work_seconds(replace(product, alignment=alignment), found)
        assert slow - launch == pytest.approx((aligned - launch) / kept)


def test_a_thin_product_is_bound_by_its_traffic() -> None:
    product = Product(1, 8192, 8192)
    work = Work("product", "float16", product.flops, product.elements * 2, (product,), 0.0, 2)
    moved = product.elements * 2 / SELENE.device.achieved_bandwidth
    assert work_seconds(work, SELENE) == pytest.approx(moved + SELENE.device.launch_seconds)
    assert SELENE.device.achieved_bandwidth == pytest.approx(0.8 * 2039e9)


def test_separate_attention_moves_its_scores_and_fused_does_not() -> None:
    products = (Product(2048, 2048, 128, 64), Product(2048, 128, 2048, 64))
    flops = sum(p.flops for p in products) / 2  # causal
    work = Work("attention", "float16", flops, 1e6, products, 2048.0 * 2048 * 64, 2)
    attained = SELENE.device.efficiency
    assert attained is not None
    fused = work_seconds(work, SELENE.run_by(profile(attention="fused")))
    rate_of_flops = 312e12 * attained.attention.value
    assert fused == pytest.approx(flops / rate_of_flops + SELENE.device.launch_seconds)
    assert work_seconds(work, SELENE) == fused

    none = work_seconds(work, SELENE.run_by(profile(scores=figure(0))))
    some = work_seconds(work, SELENE.run_by(profile(scores=figure(14))))
    assert some - none == pytest.approx(14 * work.scores / SELENE.device.achieved_bandwidth)
    assert none > fused / 2


@pytest.mark.parametrize(("kind", "name"), [("pointwise", "pointwise"), ("copy", "copies")])
def test_software_fuses_memory_bound_operators(kind: str, name: str) -> None:
    work = Work(kind, "float16", 0.0, 1e9)  # type: ignore[arg-type]  # parametrized
    launch = SELENE.device.launch_seconds
    plain = work_seconds(work, SELENE) - launch
    assert plain == pytest.approx(1e9 / SELENE.device.achieved_bandwidth)
    fused = work_seconds(work, SELENE.run_by(profile(**{name: figure(0.25)}))) - launch
    assert fused == pytest.approx(plain / 4)


def test_short_messages_go_in_ways_of_less_latency_and_long_ones_by_the_whole_bandwidth() -> None:
    node, axis = SELENE.levels[0], MeshAxis("x", 8, 0)
    assert node.efficiency is not None
    ways = tuple(
        Protocol(name=name, bandwidth=rate(share), latency=figure(latency))
        for name, share, latency in (("LL", 0.5, 6e-7), ("Simple", 1.0, 3.4e-6))
    )
    links = node.efficiency.model_copy(update={"protocols": ways})
    several = SELENE.model_copy(
        update={"levels": (node.model_copy(update={"efficiency": links}), *SELENE.levels[1:])}
    )
    bandwidth = node.achieved_bandwidth
    for nbytes in (1.0, 1e4, 1e6, 1e9):
        sent = min(6e-7 + nbytes / (0.5 * bandwidth), 3.4e-6 + nbytes / bandwidth)
        assert several.levels[0].send_seconds(nbytes) == pytest.approx(sent)
        found = collective_seconds("send", nbytes, (axis,), several).seconds
        assert found == pytest.approx(sent)
    rates = []
    for nbytes in (1e3, 1e5, 1e7, 1e9):
        seconds = collective_seconds("all_reduce", nbytes, (axis,), several).seconds
        rates.append(2 * 7 / 8 * nbytes / seconds / bandwidth)
    assert rates == sorted(rates)
    assert rates[0] < 0.1 < 0.9 < rates[-1] <= 1
    assert len(links.figures) == len(node.efficiency.figures) + 4
    assert several.without_latencies().levels[0].ways == ((0.0, 1 / bandwidth),)


def test_without_figures_the_roofline_is_that_of_the_data_sheet() -> None:
    plain, device = (
        cluster("a100-pod:figures=datasheet"),
        cluster("a100-pod:figures=datasheet").device,
    )
    assert device.efficiency is None
    work = Work("pointwise", "float16", 1.0, 1e9)
    assert work_seconds(work, plain) == 1e9 / device.memory_bandwidth + device.launch_seconds


# Links


def test_a_collective_attains_a_share_of_the_bandwidth_and_waits_for_the_last_rank() -> None:
    node = SELENE.levels[0].with_skew(figure(4e-5))
    links = node.efficiency
    assert links is not None
    assert links.skew is not None
    axis = MeshAxis("x", 8, 0)
    skewed = SELENE.model_copy(update={"levels": (node, *SELENE.levels[1:])})
    found = collective_seconds("all_reduce", 1e9, (axis,), skewed).seconds
    bare = SELENE.model_copy(
        update={"levels": tuple(level.without_latency() for level in SELENE.levels)}
    )
    moved = collective_seconds("all_reduce", 1e9, (axis,), bare).seconds
    assert moved == pytest.approx(2 * 7 / 8 * 1e9 / (node.bandwidth * links.bandwidth.value))
    assert found - moved == pytest.approx(14 * node.latency + log2(8) * links.skew.value)

    sent = collective_seconds("send", 1e9, (axis,), skewed).seconds
    assert sent == pytest.approx(node.latency + 1e9 / node.achieved_bandwidth)  # no rank waits


# Host


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=12))
def test_a_task_starts_when_the_host_has_launched_it_and_the_one_before_has_ended(
    pairs: list[tuple[float, float]],
) -> None:
    tasks = [Task(Placement("compute"), seconds, (), host=host) for seconds, host in pairs]
    starts = in_line(tasks)
    for i, (start, (_, host)) in enumerate(zip(starts, pairs, strict=True)):
        before = max((starts[j] + pairs[j][0] for j in range(i)), default=0.0)
        launched = sum(pairs[j][1] for j in range(i + 1)) if host else 0.0
        assert start == pytest.approx(max(before, launched))


def test_exposed_communication_holds_up_computation_for_its_share() -> None:
    link = Placement("reductions", ("node",))
    tasks = [
        Task(link, 4.0, (), exposed=0.25),
        Task(Placement("compute"), 1.0, ()),
        Task(link, 4.0, (), exposed=0.25),  # its link is busy until 4
        Task(Placement("compute"), 1.0, ()),
    ]
    assert in_line(tasks) == [0.0, 1.0, 4.0, 5.0]


def test_a_step_as_a_software_runs_it_is_no_shorter_with_more_host_time() -> None:
    graph = program(f"{SMALL},layers=2", "tensor=2,data=2,micro_batch=1", 4, 8)
    steps = [
        simulate(graph, SELENE.run_by(profile(host=figure(host)))).step_seconds
        for host in (0, 1e-6, 1e-5, 1e-4, 1e-3)
    ]
    assert steps == sorted(steps)
    assert steps[-1] > 5 * steps[0]


def test_a_profile_takes_its_seconds_once_in_a_step() -> None:
    graph = program(f"{SMALL},layers=2", "tensor=2,data=2,micro_batch=1", 4, 8)
    once = simulate(graph, SELENE.run_by(profile(step=figure(1)))).step_seconds
    never = simulate(graph, SELENE.run_by(profile(step=figure(0)))).step_seconds
    assert once - never == pytest.approx(1)


def test_heads_that_are_no_multiple_of_four_take_more_launches() -> None:
    graph = program(f"{SMALL},layers=2", "tensor=2,data=2,micro_batch=1", 4, 8)  # two heads each
    slow = profile(host=figure(1e-3), softmax=figure(0))
    more = slow.model_copy(update={"softmax": figure(5)})
    passes, layers, times = 4, 2, 2  # forward and backward
    steps = [simulate(graph, SELENE.run_by(one)).step_seconds for one in (slow, more)]
    assert steps[1] - steps[0] == pytest.approx(passes * layers * times * 5e-3, rel=0.01)
    fused = more.model_copy(update={"attention": "fused"})
    assert simulate(graph, SELENE.run_by(fused)).step_seconds <= steps[0]


# Work of programs

PLANS = {
    "tensor=2,sequence_parallel,data=2,micro_batch=2": (4, 3, 1),
    "data=4,zero=3,micro_batch=1": (4, 3, 1),
    "tensor=2,pipeline=4,micro_batch=1,recompute=full": (8, 12, 4),
    "context=2,ring,data=2,micro_batch=1": (4, 3, 1),
    "tensor=2,data=2,micro_batch=1,recompute=full": (4, 3, 1),
    "data=4,zero=1,micro_batch=1": (4, 3, 1),
    "context=2,tensor=2,sequence_parallel,micro_batch=2": (4, 3, 1),
}


@pytest.mark.parametrize(
    ("name", "plan"),
    first(4, [(name, plan) for name in ("other", "megatron") for plan in PLANS]),
)
def test_work_of_few_blocks_times_a_model_of_many(plan: str, name: str) -> None:
    devices, layers, stages = PLANS[plan]
    run_by = profile(
        exposed_parameters=rate(0.3), host=figure(2e-5), recompute="reads", transfers="whole"
    )
    timed = SELENE.run_by(run_by if name == "other" else profile())
    tied = "" if stages == 1 else ",tied=false"
    whole = program(f"{SMALL},layers={layers * 2}{tied}", plan, devices, 24)
    passes = whole.mesh.extent(whole.mesh.in_time) if whole.mesh else 1
    few = program(f"{SMALL},layers={layers}{tied}", plan, devices, 8)
    found = program_work(few, SELENE).seconds(
        timed, Repetition(layers * 2 // stages, passes, stages)
    )
    assert found == pytest.approx(simulate(whole, timed).step_seconds, rel=1e-9)


@pytest.mark.long
def test_work_of_equal_stages_times_stages_of_other_numbers_of_blocks() -> None:
    timed = SELENE.run_by(profile())
    whole = program(f"{SMALL},layers=14,tied=false", "pipeline=4,micro_batch=1", 4, 8)
    few = program(f"{SMALL},layers=8,tied=false", "pipeline=4,micro_batch=1", 4, 8)
    found = program_work(few, SELENE).seconds(timed, Repetition((3, 4, 4, 3), 8, 4))
    assert found == pytest.approx(simulate(whole, timed).step_seconds, rel=1e-9)


@pytest.mark.long
def test_an_interleaved_pipeline_takes_the_stages_of_a_plain_one() -> None:
    timed = SELENE.run_by(profile())
    plan = "pipeline=2,chunks=2,micro_batch=1"
    whole = program(f"{SMALL},layers=12,tied=false", plan, 2, 8)
    few = program(f"{SMALL},layers=12,tied=false", "pipeline=4,micro_batch=1", 4, 8)
    found = program_work(few, SELENE).seconds(timed, Repetition(3, 8, 2, 2))
    assert found == pytest.approx(simulate(whole, timed).step_seconds, rel=0.01)


def test_transfers_that_are_scattered_send_a_part_from_each_rank() -> None:
    graph = program(f"{SMALL},layers=4", "tensor=2,pipeline=2,micro_batch=2", 4, 16)
    slow = SELENE.levels[0].model_copy(update={"bandwidth": 1e6, "latency": 0.0})
    bandwidth_bound = SELENE.model_copy(update={"levels": (slow, SELENE.levels[1])})
    whole, parts = (
        simulate(graph, bandwidth_bound.run_by(profile(transfers=how))).step_seconds
        for how in ("whole", "scattered")
    )
    assert whole != parts


# Fitting


def test_a_fit_stays_within_bounds_and_moves_what_is_free() -> None:
    work = np.array([1.0, 2.0])

    def residuals(values: object) -> np.ndarray:
        share, factor = np.asarray(values, dtype=float)
        return np.asarray(np.log(np.array([factor / share, factor]) / work))

    def derivatives(values: object, difference: float) -> np.ndarray:
        return np.array([[-1.0, 1.0], [0.0, 1.0]])

    unknowns = [Unknown("share", 0.5, 30.0, 1.0), Unknown("factor", 1.0, 30.0)]
    found = fit(unknowns, residuals, derivatives, np.ones(2), steps=60)  # the best share is 2
    assert found.values[0] == 1.0
    assert found.values[1] == pytest.approx(2**0.5, rel=0.02)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.3, 0.9), st.floats(1, 50))
def test_a_fit_finds_the_constants_that_made_the_rows(share: float, host: float) -> None:
    work, launches = np.array([1.0, 9.0, 30.0, 3.0]), np.array([0.1, 1.0, 9.0, 9.0])

    def steps(values: object) -> np.ndarray:
        found, seconds = np.asarray(values, dtype=float)
        return np.asarray(work / found + launches * seconds)

    def residuals(values: object) -> np.ndarray:
        return np.asarray(np.log(steps(values) / steps((share, host))))

    def derivatives(values: object, difference: float) -> np.ndarray:
        columns = []
        for column in range(2):
            other = np.array(values, dtype=float)
            other[column] *= 1 + difference
            columns.append((residuals(other) - residuals(values)) / np.log(1 + difference))
        return np.array(columns).T

    unknowns = [Unknown("share", 0.6, 30.0, 1.0), Unknown("host", 7.0, 30.0)]
    found = fit(unknowns, residuals, derivatives, np.ones(4), steps=60)
    assert found.values == pytest.approx((share, host), rel=0.05)


# Files


def test_every_figure_of_the_presets_has_a_source() -> None:
    for name in software_names()[1:]:
        found = software(name)
        assert found is not None
        assert found.name == name
        assert all(len(figure.source) > 8 for figure in found.figures)
    attained = [cluster(name) for name in preset_names() if cluster(name).device.efficiency]
    assert len(attained) >= 6
    for described in attained:
        parts = (described.device.efficiency, *(level.efficiency for level in described.levels))
        assert all(part and all(len(f.source) > 8 for f in part.figures) for part in parts)


def test_the_default_software_is_no_profile() -> None:
    assert software_names()[0] == "ideal"
    assert software("ideal") is None
    assert SELENE.run_by(None) == SELENE


EFFICIENCY = """name: x
device:
  name: x
  peak_flops: {float32: 1.0e+12}
  memory_bandwidth: 1.0e+11
  memory_bytes: 1000
  launch_seconds: 0
  efficiency:
    matmul: {value: 0.8, tag: measured, source: a test}
    attention: {value: 0.4, tag: measured, source: a test}
    memory: {value: 0.8, tag: measured, source: a test}
levels: [{name: node, size: 2, bandwidth: 1.0e+9, latency: 0}]
"""


def loaded(text: str, tmp_path: object) -> Cluster:
    """Return the cluster of a text."""
    path = f"{tmp_path}/c.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return Cluster.load(path)


def test_a_file_may_say_what_a_device_attains(tmp_path: object) -> None:
    found = loaded(EFFICIENCY, tmp_path)
    assert found.device.efficiency is not None
    assert found.device.efficiency.matmul.value == 0.8
    assert found.device.efficiency.convolution is None
    assert hash(found.device.efficiency) == hash(loaded(EFFICIENCY, tmp_path).device.efficiency)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("value: 0.4", "value: 1.4"),
            "`device.efficiency.attention.value` is `1.4`, but should be less than or equal to 1",
        ),
        (
            ("value: 0.4", "value: 0"),
            "`device.efficiency.attention.value` is `0`, but should be greater than 0",
        ),
        (
            ("    memory: {value: 0.8, tag: measured, source: a test}\n", ""),
            "`device.efficiency.memory` is missing",
        ),
        (
            ("{value: 0.4, tag: measured, source: a test}", "{value: 0.4}"),
            "`device.efficiency.attention.tag` is missing; "
            "`device.efficiency.attention.source` is missing",
        ),
        (
            ("value: 0.4, tag: measured", "value: 0.4, tag: guessed"),
            "`device.efficiency.attention.tag` is `guessed`, but should be 'measured'",
        ),
        (("attention:", "attending:"), None),
        (("name: x\n", "name: x\nsoftware: megatron\n", 1), "`software` is not a key of a cluster"),
    ],
)
def test_wrong_figures_are_refused(
    change: tuple[str, ...], sentence: str | None, tmp_path: object
) -> None:
    with pytest.raises(ClusterError) as caught:
        loaded(EFFICIENCY.replace(*change), tmp_path)
    if sentence is not None:
        assert caught.value.args[0].startswith(sentence)
    assert "\n" not in caught.value.args[0]


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ClusterError) as caught:
        software("megatorn")
    assert caught.value.what == "no software profile is called `megatorn`"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("did you mean `megatron`? there are ideal, ")


def test_a_task_keeps_its_place_without_a_profile() -> None:
    task = Task(Placement("compute"), 1.0, ())
    assert (task.host, task.exposed) == (0.0, 1.0)
    assert in_line([task, replace(task, seconds=2.0), task]) == [0.0, 1.0, 3.0]

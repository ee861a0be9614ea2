import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import Cluster, Device, Level, cluster
from shardwright.cost_model.live_bytes import overlapped_memory
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.roofline import program_seconds
from shardwright.cost_model.schedule import schedule
from shardwright.cost_model.streams import COMPUTE, Placement, Task, loads
from shardwright.cost_model.timeline import (
    Timeline,
    serial_timeline,
    simulate,
    to_chrome_trace,
)
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse, to_text
from shardwright.planner.options import CompileOptions
from shardwright.zoo import load
from tests.extent import ANY_PLAN, crossed, first
from tests.random_graphs import multilayer_perceptron, random_graph

# A second for every byte that a device reads or writes, and for every byte that a link carries.
SLOW = Cluster(
    name="slow",
    device=Device(
        name="card",
        peak_flops={"float32": 1e12},
        memory_bandwidth=1.0,
        memory_bytes=1 << 30,
        launch_seconds=0.0,
    ),
    levels=(
        Level(name="node", size=2, bandwidth=1.0, latency=0.0),
        Level(name="rack", size=2, bandwidth=1.0, latency=0.0),
    ),
)
CPU = cluster("cpu")
SEARCHES = ("exact", "data_parallel", "fully_sharded", "tensor_parallel")


@pytest.fixture(scope="module", params=SEARCHES)
def programs(request: pytest.FixtureRequest) -> list[Graph]:
    options = CompileOptions(search=request.param)
    return [
        compile_graph(random_graph(seed, nodes=8), CPU, 16, options).program for seed in range(5)
    ]


def spans(timeline: Timeline) -> dict[str, tuple[float, float]]:
    return {event.node.name: (event.start, event.end) for event in timeline.events}


# Computation on q beside the gather of the parameter w, or the reduction of its gradient.
GATHERED = """
graph gathered on x=2 {
  input q: f32[4]*
  parameter w: f32[4@x] {init='zeros'}
  r: f32[4]* = relu(q)
  g: f32[4]* = all_gather(w) {axes=('x',), dimension=0} from t as redistribution of w
  t: f32[4]* = add(r, g)
  return t
}
"""
REDUCED = """
graph reduced on x=2 {
  input p: f32[4] +x
  input q: f32[4]*
  parameter w: f32[4]* {init='zeros'}
  d: f32[4] +x = scale(p) {factor=2.0}
  w.grad: f32[4]* = all_reduce(d) {axes=('x',)} from d as gradient_redistribution of w
  r: f32[4]* = relu(q)
  w.next: f32[4]* = add(w, w.grad) as update of w
  update w = w.next
  return r
}
"""


def test_by_hand_a_parameter_is_gathered_ahead() -> None:
    timeline = simulate(parse(GATHERED), SLOW)
    assert spans(timeline) == {"r": (0, 32), "g": (0, 8), "t": (32, 80)}
    assert [event.placement.queue for event in timeline.events] == ["compute", "gathers", "compute"]
    assert timeline.step_seconds == timeline.compute_seconds == 80
    assert timeline.communication_seconds == 8
    assert timeline.exposed_communication_seconds == 0


def test_by_hand_a_gradient_is_reduced_behind() -> None:
    timeline = simulate(parse(REDUCED), SLOW)
    assert spans(timeline) == {"d": (0, 32), "w.grad": (32, 48), "r": (32, 64), "w.next": (64, 112)}
    assert timeline.step_seconds == timeline.compute_seconds == 112
    # p, q, w and d; then w.grad and r as well, without p; then d and q die, at last w.grad.
    assert timeline.record.live_bytes == (
        (0, 48),
        (0, 64),
        (32, 48),
        (32, 64),
        (32, 80),
        (48, 64),
        (64, 48),
        (112, 32),
    )
    assert timeline.peak_bytes == 80


def test_by_hand_the_window_bounds_the_bytes_that_are_early_or_late() -> None:
    serial = simulate(parse(REDUCED), SLOW, memory_limit=64)
    assert spans(serial) == {"d": (0, 32), "w.grad": (32, 48), "r": (48, 80), "w.next": (80, 128)}
    assert serial.peak_bytes == 64
    assert serial.window_bytes == 0
    assert simulate(parse(REDUCED), SLOW, memory_limit=80).step_seconds == 112


def test_by_hand_what_is_early_does_not_make_wait_what_is_late() -> None:
    gather, reduction = Placement("gathers", ("node",)), Placement("reductions", ("pod",))
    tasks = [
        Task(Placement(COMPUTE), 3.0, ()),
        Task(Placement(COMPUTE), 3.0, ()),
        Task(reduction, 2.0, (1,), 4.0),
        Task(Placement(COMPUTE), 3.0, ()),
        Task(gather, 1.0, (), 4.0),
        Task(gather, 1.0, (), 4.0),
        Task(Placement(COMPUTE), 1.0, (4, 5)),
    ]
    assert schedule(tasks, 8.0) == [0, 3, 6, 6, 0, 1, 9]
    assert schedule(tasks, 4.0) == [0, 3, 6, 6, 0, 6, 9]  # one gather is early
    assert schedule(tasks, 3.0) == [0, 3, 6, 8, 8, 9, 11]  # none is, and the gradient not late


def test_by_hand_what_is_gathered_over_one_level_leaves_room_for_the_next_level() -> None:
    tasks = [Task(Placement(COMPUTE), 3.0, ())]
    for gather in (1, 4, 7):
        tasks += [
            Task(Placement("gathers", ("pod",)), 1.0, (), 1.0),
            Task(Placement("gathers", ("node",)), 1.0, (gather,), 4.0),
            Task(Placement(COMPUTE), 3.0, (gather + 1,)),
        ]
    assert schedule(tasks, 5.0) == [0, 0, 1, 3, 1, 2, 6, 3, 4, 9]  # one parameter is early
    assert schedule(tasks, 10.0) == [0, 0, 1, 3, 1, 2, 6, 2, 3, 9]


def test_by_hand_communication_of_activations_blocks() -> None:
    text = REDUCED.replace("from d as gradient_redistribution of w", "")
    timeline = simulate(parse(text), SLOW)
    assert spans(timeline)["r"] == (48, 80)
    assert timeline.events[1].streams == (COMPUTE, "node")
    assert timeline.exposed_communication_seconds == 16


def test_by_hand_a_gather_waits_for_blocking_communication() -> None:
    text = """
graph shared_link on x=2 {
  input p: f32[4] +x
  parameter w: f32[4@x] {init='zeros'}
  parameter v: f32[4@x] {init='zeros'}
  g: f32[4]* = all_gather(w) {axes=('x',), dimension=0} from t as redistribution of w
  s: f32[4]* = all_reduce(p) {axes=('x',)}
  h: f32[4]* = all_gather(v) {axes=('x',), dimension=0} from t as redistribution of v
  t: f32[4]* = add(s, g)
  u: f32[4]* = add(t, h)
  return u
}
"""
    timeline = simulate(parse(text), SLOW)
    assert spans(timeline) == {
        "g": (16, 24),
        "s": (0, 16),
        "h": (24, 32),
        "t": (24, 72),
        "u": (72, 120),
    }


TWO_LEVELS = """
graph two_levels on y=2:1 x=2 {
  input p: f32[4] +x
  input q: f32[4] +y
  input r: f32[4] +y+x
  a: f32[4]* = all_reduce(p) {axes=('x',)}
  b: f32[4]* = all_reduce(q) {axes=('y',)}
  c: f32[4]* = all_reduce(r) {axes=('y', 'x')}
  return a, b, c
}
"""


def test_levels_communicate_side_by_side_and_a_collective_over_both_uses_both() -> None:
    timeline = simulate(parse(deferrable(TWO_LEVELS)), SLOW)
    streams = {event.node.name: event.streams for event in timeline.events}
    assert streams == {"a": ("node",), "b": ("rack",), "c": ("node", "rack")}
    found = spans(timeline)
    assert found["a"] == found["b"] == (0, 16)
    assert found["c"][0] == 16
    assert timeline.exposed_communication_seconds == timeline.step_seconds


def deferrable(text: str) -> str:
    """Return a program whose all-reduces are of gradients."""
    text = text.replace("on y=2:1 x=2 {", "on y=2:1 x=2 {\n  parameter w: f32[4]* {init='zeros'}")
    return re.sub(r"(all_reduce.*)", r"\1 as gradient_redistribution of w", text)


def test_local_moves_are_computation() -> None:
    text = """
graph cut on x=2 {
  input p: f32[4]*
  s: f32[4@x] = local_slice(p) {axes=('x',), dimension=0}
  return s
}
"""
    (event,) = simulate(parse(text), SLOW).events
    assert event.streams == (COMPUTE,)
    assert event.nbytes == 8


def test_a_buffer_lives_until_its_slowest_reader_is_done() -> None:
    text = """
graph two_readers on x=4 {
  input q: f32[4]*
  parameter w: f32[4]* {init='zeros'}
  e: f32[4]* = neighbor_exchange(q) {axes=('x',)} as gradient_redistribution of w
  s: f32[4@x] = local_slice(q) {axes=('x',), dimension=0}
  return e, s
}
"""
    timeline = simulate(parse(text), SLOW)
    assert spans(timeline) == {"e": (0, 16), "s": (0, 8)}
    assert timeline.record.live_bytes[-2:] == ((0, 52), (16, 36))


def test_nodes_that_take_no_time_hold_operand_and_result() -> None:
    text = """
graph mark on x=2 {
  input q: f32[4]*
  m: f32[4]* = mirror(q) {axes=('x',)}
  return m
}
"""
    assert simulate(parse(text), SLOW).peak_bytes == peak_memory(parse(text)).peak_bytes == 32


def test_an_empty_program() -> None:
    timeline = simulate(parse("graph empty {\n  input x: f32[4]\n  return x\n}"), SLOW)
    assert timeline.step_seconds == 0
    assert timeline.peak_bytes == 16


def test_computation_runs_in_program_order_and_each_resource_serves_one_node_at_a_time(
    programs: list[Graph],
) -> None:
    for program in programs:
        timeline = simulate(program, CPU)
        done: dict[str, float] = {}
        used: dict[str, list[tuple[float, float]]] = {}
        line = 0.0
        for event in timeline.events:
            assert event.start >= max((done.get(n, 0.0) for n in event.node.operands), default=0.0)
            done.update((result.name, event.end) for result in event.node.results)
            if event.placement.queue in ("compute", "blocking"):
                assert event.start >= line
                line = event.end
            for resource in event.streams if event.seconds else ():
                used.setdefault(resource, []).append((event.start, event.end))
        for busy in used.values():
            for before, after in pairwise(sorted(busy)):
                assert before[1] <= after[0]


@pytest.mark.parametrize("share", [1.0, 1.05, 1.2])
def test_a_timeline_within_a_limit_keeps_it_and_more_memory_is_never_slower(
    programs: list[Graph], share: float
) -> None:
    for program in programs:
        peak = peak_memory(program).peak_bytes
        timeline = simulate(program, CPU, share * peak)
        assert timeline.peak_bytes <= share * peak
        assert timeline.step_seconds <= simulate(program, CPU, peak).step_seconds


def test_nothing_overlaps_in_the_serial_timeline(programs: list[Graph]) -> None:
    for program in programs:
        timeline = serial_timeline(program, CPU)
        assert timeline.step_seconds == pytest.approx(program_seconds(program, CPU), rel=1e-12)
        assert timeline.peak_bytes == pytest.approx(peak_memory(program).peak_bytes)


def test_a_step_lies_between_its_busiest_stream_and_the_sum_of_its_nodes(
    programs: list[Graph],
) -> None:
    for program in programs:
        timeline = simulate(program, CPU)
        rounding = 1 + 1e-12
        assert max(loads(program, CPU).values()) <= timeline.step_seconds * rounding
        assert timeline.step_seconds <= program_seconds(program, CPU) * rounding
        total = timeline.compute_seconds + timeline.communication_seconds
        assert total == pytest.approx(program_seconds(program, CPU))


def test_exposed_is_the_time_without_computation(programs: list[Graph]) -> None:
    for program in programs:
        timeline = simulate(program, CPU)
        edges = [(0.0, 0.0)]
        edges += sorted((e.start, e.end) for e in timeline.events if e.streams == (COMPUTE,))
        edges.append((timeline.step_seconds, timeline.step_seconds))
        gaps = sum(after[0] - before[1] for before, after in pairwise(edges))
        assert timeline.exposed_communication_seconds == pytest.approx(gaps, abs=1e-15)
        assert timeline.exposed_communication_seconds <= timeline.communication_seconds * (
            1 + 1e-12
        )


def faster(links: float) -> Cluster:
    levels = tuple(
        level.model_copy(
            update={"bandwidth": level.bandwidth * links, "latency": level.latency / links}
        )
        for level in CPU.levels
    )
    return CPU.model_copy(update={"levels": levels})


def test_faster_links_never_make_a_step_longer(programs: list[Graph]) -> None:
    for program in programs:
        steps = [simulate(program, faster(2.0**i)).step_seconds for i in range(-2, 3)]
        assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("seed", range(10))
def test_less_communication_in_a_chain_makes_it_shorter(seed: int) -> None:
    random = np.random.default_rng(seed)
    operators = [str(o) for o in random.permutation(["relu"] * 6 + ["neighbor_exchange"] * 6)]
    steps = [simulate(chain(operators), SLOW).step_seconds]
    while "neighbor_exchange" in operators:
        operators.remove("neighbor_exchange")
        steps.append(simulate(chain(operators), SLOW).step_seconds)
    assert steps == sorted(set(steps), reverse=True)


def chain(operators: list[str]) -> Graph:
    lines = ["graph chain on x=2 {", "  input v0: f32[8@x]"]
    for i, operator in enumerate(operators):
        attributes = " {axes=('x',)}" if operator == "neighbor_exchange" else ""
        lines.append(f"  v{i + 1}: f32[8@x] = {operator}(v{i}){attributes}")
    return parse("\n".join([*lines, f"  return v{len(operators)}", "}"]))


def test_one_stream_is_a_step_without_overlap() -> None:
    options = CompileOptions(mode="stand_alone")
    alone = compile_graph(multilayer_perceptron(layers=2), CPU, 1, options).program
    timeline = simulate(alone, CPU)
    assert timeline.step_seconds == pytest.approx(program_seconds(alone, CPU))
    assert timeline.exposed_communication_seconds == 0
    assert timeline.peak_bytes == peak_memory(alone).peak_bytes


def test_memory_returns_to_what_outlives_the_step(programs: list[Graph]) -> None:
    for program in programs:
        timeline = simulate(program, CPU)
        assert program.mesh is not None
        assert timeline.peak_bytes == max(nbytes for _, nbytes in timeline.record.live_bytes)
        moments = [moment for moment, _ in timeline.record.live_bytes]
        assert moments == sorted(moments)
        left = timeline.record.live_bytes[-1][1]
        kept = {*program.outputs, *(p.name for p in program.parameters)}
        sizes = {
            name: program.values[name].type.nbytes / program.mesh.extent(layout.split_axes)
            for name in kept
            if (layout := program.values[name].layout)
        }
        assert left == pytest.approx(sum(sizes.values()))


def test_gradients_are_reduced_beside_the_backward_computation() -> None:
    graph = multilayer_perceptron(batch=4096, width=256, layers=8)
    options = CompileOptions(search="data_parallel")
    timeline = simulate(compile_graph(graph, CPU, 8, options).program, CPU)
    exposed = timeline.exposed_communication_seconds
    assert 0 < exposed < 0.5 * timeline.communication_seconds


def test_the_same_program_has_the_same_timeline(programs: list[Graph]) -> None:
    for program in programs:
        again = parse(to_text(program))
        assert simulate(again, CPU) == simulate(program, CPU)
        assert to_chrome_trace(simulate(again, CPU)) == to_chrome_trace(simulate(program, CPU))


def test_chrome_trace() -> None:
    trace = json.loads(to_chrome_trace(simulate(parse(deferrable(TWO_LEVELS)), SLOW)))[
        "traceEvents"
    ]
    threads = {r["tid"]: r["args"]["name"] for r in trace if r["ph"] == "M"}
    assert threads == {0: "compute", 1: "node: reductions", 2: "rack: reductions"}
    slices = [(r["name"], threads[r["tid"]], r["ts"]) for r in trace if r["ph"] == "X"]
    assert slices == [
        ("all_reduce a", "node: reductions", 0),
        ("all_reduce b", "rack: reductions", 0),
        ("all_reduce c", "node: reductions", 16e6),
        ("all_reduce c", "rack: reductions", 16e6),
    ]
    shown = next(r for r in trace if r["ph"] == "X")
    assert shown["args"] == {"scope": "", "from": "", "as": "gradient_redistribution", "bytes": 16}
    assert shown["dur"] == 16e6
    assert max(r["args"]["bytes"] for r in trace if r["ph"] == "C") == 96


def test_a_chain_of_three_thousand_nodes_is_never_parallel() -> None:
    lines = ["graph long on x=2 {", "  input v0: f32[8] +x"]
    for i in range(0, 3000, 3):
        lines.append(f"  v{i + 1}: f32[8] +x = scale(v{i}) {{factor=2.0}}")
        lines.append(f"  v{i + 2}: f32[8]* = all_reduce(v{i + 1}) {{axes=('x',)}}")
        lines.append(f"  v{i + 3}: f32[8] +x = to_partial(v{i + 2}) {{axes=('x',)}}")
    graph = parse("\n".join([*lines, "  return v3000", "}"]))
    timeline = simulate(graph, CPU)
    assert len(timeline.events) == 3000
    assert timeline.step_seconds == pytest.approx(program_seconds(graph, CPU), rel=1e-9)
    assert timeline.exposed_communication_seconds == pytest.approx(timeline.communication_seconds)


@pytest.mark.parametrize(
    ("passes", "search"),
    first(3, crossed([5, 36, 12], ["fully_sharded", "data_parallel", "exact"])),
)
def test_passes_that_repeat_stand_for_all(
    search: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = ANY_PLAN if search == "exact" else {}
    options = CompileOptions(search=search, micro_batches=passes, **how)
    graph = load("mlp:batch=360,inputs=12,hidden=16").graph
    program = compile_graph(graph, CPU, 2, options).program
    peak = simulate(program, CPU).peak_bytes
    for limit in (peak, 0.99 * peak, 0.9 * peak, 0.0):
        every = simulate(program, CPU, limit)
        monkeypatch.setattr("shardwright.cost_model.timeline._MOST_TASKS", 0)
        some = simulate(program, CPU, limit)
        monkeypatch.undo()
        assert some.step_seconds == pytest.approx(every.step_seconds, rel=1e-9)
        if some.window_bytes == pytest.approx(every.window_bytes):  # others may be as fast
            assert some.peak_bytes == pytest.approx(every.peak_bytes, rel=1e-9)
        assert (some.peak_bytes <= limit) == (every.peak_bytes <= limit)
        assert overlapped_memory(program, some).peak_bytes == pytest.approx(some.peak_bytes)


@pytest.mark.parametrize("search", ["fully_sharded", "data_parallel"])
def test_equal_passes_over_micro_batches_stand_for_each_other(
    search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = CompileOptions(search=search, micro_batches=9)
    graph = load("mlp:batch=36,inputs=12,hidden=16").graph
    program = compile_graph(graph, CPU, 4, options).program
    for limit in (0.0, math.inf):
        every = simulate(program, CPU, limit)
        monkeypatch.setattr("shardwright.cost_model.timeline._MOST_TASKS", 0)
        some = simulate(program, CPU, limit)
        monkeypatch.undo()
        assert some.step_seconds == pytest.approx(every.step_seconds, rel=1e-9)
        assert some.compute_seconds == pytest.approx(every.compute_seconds, rel=1e-9)
        assert some.peak_bytes == pytest.approx(every.peak_bytes, rel=1e-9)
        assert len(some.events) < len(every.events)

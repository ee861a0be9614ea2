from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.ir.errors import ExecutionError, OptionError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.verify import verify
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.runtime.flat import buckets
from shardwright.session import ParallelOptions, compiled
from shardwright.zoo.lenet import lenet5
from shardwright.zoo.mlp import mlp
from tests.random_graphs import random_graph
from tests.random_micro_batches import random_step

MESH = Mesh((MeshAxis("x", 2),))


class Interpreted(Executor):
    """The executor without flat programs."""

    steps_are_equal = False


class Alone(LocalCommunicator):
    """Rank 0 of two with the same values; a reduction has no result until it is awaited."""

    def __init__(self):
        super().__init__(MESH)
        self.ranks = (0,)
        self.seen = []

    def starts(self, operator, axes):
        return operator.name == "all_reduce"

    def reducer(self, operator, axes):
        return self.reduce

    def reduce(self, buffer):
        result, number, seen = 2 * buffer, len(self.seen), self.seen
        buffer[...] = np.nan
        seen.append(f"start {number}")

        class Request:
            is_open = True

            def Wait(self):  # noqa: N802
                assert self.is_open
                self.is_open = False
                buffer[...] = result
                seen.append(f"wait {number}")

            def Test(self):  # noqa: N802
                return False

        return Request()


# Against the interpreter


@pytest.mark.parametrize(
    ("model", "kind", "in_place"),
    [(mlp, "sgd", False), (lenet5, "momentum", True), (mlp, "adam", True), (mlp, "adam", False)],
)
def test_steps_are_those_of_the_interpreter(model, kind, in_place):
    definition = replace(model(batch=4), optimizer=Optimizer(kind, {}))
    program = compiled(definition, ParallelOptions()).program
    random = np.random.default_rng(0)
    batch = {
        value.name: random.normal(size=value.type.shape)
        if value.type.is_float
        else random.integers(0, 9, value.type.shape)
        for value in program.inputs
    }
    found = []
    for kind_of_executor in (Executor, Interpreted):
        executor = kind_of_executor(program, LocalCommunicator(), in_place=in_place)
        state = initialize(program, 0, executor.communicator)
        fetch = (program.nodes[3].results[0].name,)
        steps = [executor.step(batch, state, fetch if i == 1 else ()) for i in range(3)]
        found.append((steps, state))
    (flat, state), (steps, expected) = found
    assert [step.peak_bytes for step in flat] == [step.peak_bytes for step in steps]
    assert list(state) == list(expected)
    for one, other in zip(flat, steps, strict=True):
        assert_equal(one.outputs, other.outputs)
        assert_equal(one.fetched, other.fetched)
    assert_equal(state, expected)


@pytest.mark.parametrize("passes", [2, 4])
@pytest.mark.parametrize("in_place", [False, True])
def test_every_pass_of_a_loop_is_that_of_the_interpreter(passes, in_place):
    alone, tried = Mesh((MeshAxis("x", 1),)), 0
    for seed in range(12):
        try:
            graph = random_step(random_graph(seed, nodes=7), passes, seed, mesh=alone).program
        except OptionError:  # an odd batch
            continue
        random = np.random.default_rng(seed)
        batches = [{x.name: random.normal(size=x.type.shape) for x in graph.inputs}] * 2
        found = []
        for kind in (Executor, Interpreted):
            executor = kind(graph, LocalCommunicator(graph.mesh), in_place=in_place)
            tried += executor.loop is not None and executor.loop.start == 0
            state = initialize(graph, 0, executor.communicator)
            found.append(([executor.step(batch, state) for batch in batches], state))
        (flat, state), (steps, expected) = found
        assert [step.peak_bytes for step in flat] == [step.peak_bytes for step in steps]
        for one, other in zip(flat, steps, strict=True):
            assert_equal(one.outputs, other.outputs)
        assert_equal(state, expected)
    assert tried, "no loop begins with the program"


def test_a_program_of_very_many_calls_is_interpreted(monkeypatch):
    graph = random_step(random_graph(0, nodes=7), 4, 0, mesh=Mesh((MeshAxis("x", 1),))).program
    batch = {x.name: np.ones(x.type.shape) for x in graph.inputs}
    found = []
    for most in (2**16, 4 * len(graph) // 2):
        monkeypatch.setattr("shardwright.runtime.flat.flat_program.MOST_CALLS", most)
        executor = Executor(graph, LocalCommunicator(graph.mesh))
        state = initialize(graph, 0, executor.communicator)
        found.append(executor.step(batch, state).outputs)
        assert bool(executor._flat) is (most == 2**16)
    assert_equal(*found)


@pytest.mark.parametrize("kind", ["sgd", "momentum"])
def test_a_gradient_that_is_fetched_is_not_the_room_of_its_update(kind):
    program = compiled(replace(mlp(batch=4), optimizer=Optimizer(kind, {})), ParallelOptions())
    graph, random = program.program, np.random.default_rng(0)
    batch = {x.name: random.normal(size=x.type.shape) for x in graph.inputs if x.type.is_float}
    batch |= {x.name: np.zeros(x.type.shape, int) for x in graph.inputs if not x.type.is_float}
    fetch = tuple(
        dict.fromkeys(node.operands[1] for node in graph.nodes if node.operator.endswith("_update"))
    )
    found = []
    for kind_of_executor in (Executor, Interpreted):
        executor = kind_of_executor(graph, LocalCommunicator(graph.mesh), in_place=True)
        state = initialize(graph, 0, executor.communicator)
        found.append(executor.step(batch, state, fetch).fetched)
    assert found[0].keys() == set(fetch)
    assert_equal(*found)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, parts in expected.items():
        for rank in found[name]:
            np.testing.assert_array_equal(found[name][rank], parts[rank], err_msg=name)


# Reductions that end late


def program_of(draw):
    """Return the text of a program with reductions, updates, and values that read both."""
    lines, split, partial, whole = [], ["a"], [], ["w0", "w1", "w2"]
    old = set(whole)
    updates = []
    for i in range(draw(st.integers(2, 14))):
        kind = draw(st.sampled_from(["sum", "reduce", "whole", "split", "update"]))
        if kind == "sum":
            lines.append(
                f"v{i}: f64[3] +x = reduce_sum({draw(st.sampled_from(split))}) {{axis=(0,)}}"
            )
            partial.append(f"v{i}")
        elif kind == "reduce" and partial:
            lines.append(
                f"v{i}: f64[3]* = all_reduce({draw(st.sampled_from(partial))}) {{axes=('x',)}}"
            )
            whole.append(f"v{i}")
        elif kind == "whole":
            pair = draw(st.sampled_from(whole)), draw(st.sampled_from(whole))
            lines.append(f"v{i}: f64[3]* = add({pair[0]}, {pair[1]})")
            whole.append(f"v{i}")
        elif kind == "split":
            pair = draw(st.sampled_from(split)), draw(st.sampled_from(whole))
            lines.append(f"v{i}: f64[4@x, 3] = mul({pair[0]}, {pair[1]})")
            split.append(f"v{i}")
        elif kind == "update" and old:
            name = draw(st.sampled_from(sorted(old)))
            old.remove(name)
            lines.append(f"v{i}: f64[3]* = sgd_update({name}, {draw(st.sampled_from(whole))})")
            updates.append(f"update {name} = v{i}")
            whole.append(f"v{i}")
    values = [name for name in (*split, *whole) if name.startswith("v")]
    outputs = draw(st.lists(st.sampled_from(values), max_size=2, unique=True)) if values else []
    parameters = [f"parameter w{i}: f64[3]*" for i in range(3)]
    body = ["input a: f64[4@x, 3]", *parameters, *lines, *updates]
    if outputs:
        body.append(f"return {', '.join(outputs)}")
    return "graph g on x=2 {\n" + "\n".join(body) + "\n}"


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(data=st.data(), small=st.sampled_from([0, 40, 2**16]), in_place=st.booleans())
def test_a_late_end_of_a_reduction_changes_nothing(data, small, in_place):
    graph = parse(program_of(data.draw))
    verify(graph)
    random = np.random.default_rng(1)
    half = random.normal(size=(2, 3))
    inputs = {"a": np.concatenate([half, half])}
    state = {f"w{i}": random.normal(size=3) for i in range(3)}
    results = []
    before, buckets.SMALL = buckets.SMALL, small
    try:
        for communicator in (Alone(), LocalCommunicator(MESH)):
            own = {name: {r: w.copy() for r in communicator.ranks} for name, w in state.items()}
            executor = Executor(graph, communicator, in_place=in_place)
            steps = [executor.step(inputs, own).outputs for _ in range(2)]
            results.append((steps, own))
    finally:
        buckets.SMALL = before
    (flat, after), (expected, expected_after) = results
    for one, other in zip(flat, expected, strict=True):
        assert_equal(one, other)
    assert_equal(after, expected_after)


GRADIENTS = """graph g on x=2 {
  input a: f64[4@x, 3]
  input b: f64[4@x, 20000]
  parameter u: f64[3]*
  parameter v: f64[20000]*
  p: f64[3] +x = reduce_sum(a) {axis=(0,)}
  loss: f64[3]* = all_reduce(p) {axes=('x',)}
  twice: f64[3]* = scale(loss) {factor=2.0}
  q: f64[20000] +x = reduce_sum(b) {axis=(0,)}
  dv: f64[20000]* = all_reduce(q) {axes=('x',)}
  r: f64[3] +x = reduce_sum(a) {axis=(0,)}
  du: f64[3]* = all_reduce(r) {axes=('x',)}
  e: f64[4@x, 3] = exp(a)
  u1: f64[3]* = sgd_update(u, du)
  v1: f64[20000]* = sgd_update(v, dv)
  update u = u1
  update v = v1
  return twice, e
}"""


def test_small_reductions_run_as_one_and_ends_are_awaited_in_order_of_the_starts():
    graph = parse(GRADIENTS)
    communicator = Alone()
    executor = Executor(graph, communicator, in_place=True)
    state = {"u": {0: np.ones(3)}, "v": {0: np.ones(20000)}}
    executor.step({"a": np.ones((4, 3)), "b": np.ones((4, 20000))}, state)
    # The large one alone; then both small ones in one buffer.
    assert communicator.seen == ["start 0", "start 1", "wait 0", "wait 1"]
    names = [item.node.name for item in executor._flat[()].program]
    assert names[-3:] == ["v1", "twice", "u1"]
    np.testing.assert_array_equal(state["u"][0], np.full(3, 1 - 0.01 * 4))


def test_a_large_part_is_reduced_where_it_is_unless_something_else_reads_it():
    text = """graph g on x=2 {{
      input b: f64[4@x, 20000]
      q: f64[20000] +x = reduce_sum(b) {{axis=(0,)}}
      t: f64[20000]* = all_reduce(q) {{axes=('x',)}}
      {more}
      return t, b
    }}"""
    for more, copies in (("", 0), ("w: f64[20000] +x = neg(q)", 1)):
        executor = Executor(parse(text.format(more=more)), Alone())
        inputs = {"b": np.ones((4, 20000))}
        result = executor.step(inputs, {})
        np.testing.assert_array_equal(result.outputs["t"][0], np.full(20000, 4.0))
        assert result.peak_bytes == 8 * 20000 * (2 + 1 + 2 * copies)  # and `w`


# State and inputs


def test_a_step_that_fails_leaves_gaps_and_the_next_one_starts_anew():
    graph = parse(
        """graph g {
          input a: f64[3]
          input i: i64[1]
          parameter w: f64[3]
          w1: f64[3] = sgd_update(w, a)
          b: f64[1] = gather(a, i)
          update w = w1
          return b
        }"""
    )
    executor = Executor(graph, LocalCommunicator(), in_place=True)
    one, state = {"a": np.ones(3), "i": np.zeros(1, np.int64)}, {"w": {0: np.ones(3)}}
    executor.step(one, state)
    info = executor._program[1].info

    def fail(*operands):
        raise ValueError("planted")

    info.kernel = fail
    try:
        executor = Executor(graph, LocalCommunicator(), in_place=True)
        with pytest.raises(ExecutionError, match="`gather` failed: planted"):
            executor.step(one, state)
        assert "w" not in state
    finally:
        del info.kernel
    with pytest.raises(ExecutionError, match="no value for the parameter `w`"):
        executor.step(one, state)
    state["w"] = {0: np.ones(3)}
    executor = Executor(graph, LocalCommunicator(), in_place=True)
    executor.step(one, state)
    np.testing.assert_array_equal(state["w"][0], np.full(3, 0.99))


def test_what_a_step_returns_is_never_the_memory_of_the_caller():
    graph = parse(
        "graph g {\ninput a: f64[4, 3]\nb: f64[12] = reshape(a) {shape=(12,)}\nreturn b\n}"
    )
    executor = Executor(graph, LocalCommunicator())
    a = np.zeros((4, 3))
    results = [executor.step({"a": a}, {}).outputs["b"][0] for _ in range(3)]
    a[...] = 1
    assert not any(result.any() for result in results)


def test_inputs_are_used_as_they_are_once_a_step_has_shown_that_it_may():
    graph = parse("graph g {\ninput a: f64[4, 3]\nb: f64[4, 3] = neg(a)\nreturn b\n}")
    executor = Executor(graph, LocalCommunicator())
    a = np.ones((4, 3))
    executor.step({"a": a}, {})
    flat = executor._flat[()]
    flat._inputs.into(flat.slots, {"a": a}, {})
    assert np.shares_memory(flat.slots[0], a)
    with pytest.raises(ExecutionError, match="given an array of shape"):
        executor.step({"a": a[:2]}, {})

import tracemalloc
import warnings

import numpy as np
import pytest

from shardwright.ir.errors import ExecutionError
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse
from shardwright.operators.verify import verify
from shardwright.runtime import Executor, LocalCommunicator, assemble, initialize
from shardwright.runtime.state import scatter

RANDOM = np.random.default_rng(7)


def run(text: str, inputs: dict[str, np.ndarray], float_dtype: str | None = None):
    """Return every output, whole."""
    graph = parse(text)
    verify(graph)
    executor = Executor(graph, LocalCommunicator(graph.mesh), float_dtype=float_dtype)
    outputs = executor.step(inputs, {}).outputs
    return {name: assemble(graph, name, parts) for name, parts in outputs.items()}


def sliced(layout: str, mesh: str = "x=2") -> Graph:
    return parse(f"graph g on {mesh} {{\ninput a: f32{layout}\nreturn a\n}}")


def test_a_program_of_one_device():
    a, b = RANDOM.normal(size=(4, 6)), RANDOM.normal(size=(6, 2))
    out = run(
        """graph g {
          input a: f64[4, 6]
          input b: f64[6, 2]
          c: f64[4, 2] = matmul(a, b)
          d: f64[4, 2] = relu(c)
          return d
        }""",
        {"a": a, "b": b},
    )
    np.testing.assert_array_equal(out["d"], np.maximum(a @ b, 0))


def test_matmul_with_split_contraction_then_all_reduce():
    a, b = RANDOM.normal(size=(4, 8)), RANDOM.normal(size=(8, 6))
    out = run(
        """graph g on x=2 y=4 {
          input a: f64[4@x, 8@y]
          input b: f64[8@y, 6]
          c: f64[4@x, 6] +y = matmul(a, b)
          d: f64[4@x, 6] = all_reduce(c) {axes=('y',)}
          return d
        }""",
        {"a": a, "b": b},
    )
    np.testing.assert_allclose(out["d"], a @ b, rtol=1e-12)


def test_matmul_with_reduce_scatter():
    a, b = RANDOM.normal(size=(4, 8)), RANDOM.normal(size=(8, 6))
    out = run(
        """graph g on x=2 y=3 {
          input a: f64[4, 8@x]
          input b: f64[8@x, 6@y]
          c: f64[4, 6@y] +x = matmul(a, b)
          d: f64[4@x, 6@y] = reduce_scatter(c) {axes=('x',), dimension=0}
          return d
        }""",
        {"a": a, "b": b},
    )
    np.testing.assert_allclose(out["d"], a @ b, rtol=1e-12)


def test_weights_stored_in_slices_are_gathered_before_use():
    a, w = RANDOM.normal(size=(8, 4)), RANDOM.normal(size=(4, 4))
    out = run(
        """graph g on x=2 y=2 {
          input a: f64[8@x@y, 4]
          input w: f64[4@x@y, 4]
          half: f64[4@x, 4] = all_gather(w) {axes=('y',), dimension=0}
          full: f64[4, 4]* = all_gather(half) {axes=('x',), dimension=0}
          m: f64[4, 4]* = mirror(full) {axes=('x', 'y')}
          c: f64[8@x@y, 4] = matmul(a, m)
          return c
        }""",
        {"a": a, "w": w},
    )
    np.testing.assert_allclose(out["c"], a @ w, rtol=1e-12)


def test_all_to_all_permute_and_local_slice_keep_the_values():
    a = RANDOM.normal(size=(8, 12))
    out = run(
        """graph g on x=2 y=3 {
      input a: f64[8, 12@x@y]
      b: f64[8, 12@y@x] = collective_permute(a) {axes=('y', 'x'), previous=('x', 'y'), dimension=1}
      c: f64[8@x, 12@y] = all_to_all(b) {axes=('x',), split_dimension=0, concat_dimension=1}
      d: f64[8@x, 12] = all_gather(c) {axes=('y',), dimension=1}
      e: f64[8@x, 12@y] = local_slice(d) {axes=('y',), dimension=1}
      return a, b, c, d, e
        }""",
        {"a": a},
    )
    for name, found in out.items():
        np.testing.assert_array_equal(found, a, err_msg=name)


def test_slices_and_copies():
    graph = sliced("[8@x, 2]", "x=2 y=2")
    a = RANDOM.normal(size=(8, 2)).astype(np.float32)
    parts = scatter(graph.value("a"), a, LocalCommunicator(graph.mesh))
    assert parts[0] is parts[1]
    np.testing.assert_array_equal(parts[3], a[4:])
    a[:] = 0
    assert parts[3].any()  # the caller's array is the caller's


HYBRID = """graph g on world=4 {
  input a: f64[8, 3]
  parameter w: f64[3, 2]
  s: f64[2, 3] = local_slice(a) {axes=('world',), dimension=0, group_size=4}
  y: f64[2, 2] = matmul(s, w)
  l: f64[] = reduce_sum(y)
  loss: f64[] = all_reduce(l) {axes=('world',), group_size=4}
  same: f64[] = all_reduce(l) {group_size=4}
  return loss, same
}"""


def test_a_hand_written_program_runs_whole_on_every_rank():
    graph = parse(HYBRID)
    verify(graph)
    a, w = RANDOM.normal(size=(8, 3)), RANDOM.normal(size=(3, 2))
    communicator = LocalCommunicator(graph.mesh)
    state = initialize(graph, 0, communicator, {"w": w})
    result = Executor(graph, communicator).step({"a": a}, state, fetch=("l",))
    for name in ("loss", "same"):
        for rank in range(4):
            np.testing.assert_allclose(result.outputs[name][rank], (a @ w).sum(), rtol=1e-12)
    np.testing.assert_allclose(
        [result.fetched["l"][rank] for rank in range(4)],
        [(a[2 * r : 2 * r + 2] @ w).sum() for r in range(4)],
    )


TRAINING = """graph g on x=2 {
  input a: f32[8@x, 4]
  parameter w: f32[4, 2]* {initializer='normal(1.0)'}
  y: f32[8@x, 2] = matmul(a, w)
  g: f32[4, 2] +x = contract_leading(a, y)
  all: f32[4, 2]* = all_reduce(g) {axes=('x',)}
  step: f32[4, 2]* = scale(all) {factor=-0.01}
  new: f32[4, 2]* = add(w, step)
  update w = new
  return y
}"""


def test_updates_replace_the_state():
    graph = parse(TRAINING)
    verify(graph)
    communicator = LocalCommunicator(graph.mesh)
    state = initialize(graph, 3, communicator, float_dtype="float64")
    w = state["w"][0].copy()
    executor = Executor(graph, communicator, float_dtype="float64")
    for _ in range(3):
        a = RANDOM.normal(size=(8, 4))
        executor.step({"a": a}, state)
        w = w - 0.01 * (a.T @ (a @ w))
        np.testing.assert_allclose(assemble(graph, "w", state["w"]), w, rtol=1e-12)
        assert state["w"][1].dtype == np.float64


def test_peak_bytes_count_what_lives_at_once():
    graph = parse(TRAINING)
    communicator = LocalCommunicator(graph.mesh)
    executor = Executor(graph, communicator)
    batch = {"a": RANDOM.normal(size=(8, 4)).astype(np.float32)}

    def peak(*fetch: str) -> int:
        return executor.step(batch, initialize(graph, 3, communicator), fetch).peak_bytes

    # On a rank: a is 64 bytes, y 32, each of w, g, all, step and new 32. The peak is beside
    # g = contract_leading(a, y): a, w, y and g. Later at new: y, w, step and new, a is gone.
    assert peak() == 64 + 32 + 32 + 32
    # With g kept, a is still gone: y, w, g, step, new.
    assert peak("g") == 160
    assert peak("g", "a") == 64 + 32 * 5
    assert peak("g", "a", "all", "step") == 64 + 32 * 6


def test_a_buffer_with_two_names_counts_once():
    graph = parse(
        """graph g on x=2 {
          parameter w: f32[4, 2]*
          m: f32[4, 2]* = mirror(w) {axes=('x',)}
          r: f32[4, 2]* = identity(m)
          s: f32[4, 2]* = scale(r)
          return s
        }"""
    )
    communicator = LocalCommunicator(graph.mesh)
    result = Executor(graph, communicator).step({}, initialize(graph, 0, communicator))
    assert result.peak_bytes == 2 * 4 * 2 * 4  # w and s


def test_buffers_are_freed_at_their_last_use():
    depth, size = 20, 1 << 18
    lines = "\n".join(f"v{i + 1}: f64[{size}] = scale(v{i}) {{factor=1.5}}" for i in range(depth))
    text = f"graph g {{\ninput v0: f64[{size}]\n{lines}\nreturn v{depth}\n}}"
    executor = Executor(parse(text), LocalCommunicator())
    batch = {"v0": np.ones(size)}
    tracemalloc.start()
    result = executor.step(batch, {})
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.peak_bytes == 2 * size * 8
    assert used < 2.1 * size * 8


def test_a_slice_does_not_keep_the_whole_alive():
    graph = parse(
        """graph g on x=4 {
          input a: f32[8, 4]*
          b: f32[8@x, 4] = local_slice(a) {axes=('x',), dimension=0}
          return b
        }"""
    )
    executor = Executor(graph, LocalCommunicator(graph.mesh))
    parts = executor.step({"a": np.ones((8, 4), np.float32)}, {}).outputs["b"]
    assert all(part.base is None for part in parts.values())


def test_ranks_with_the_same_work_share_it():
    graph = parse(
        """graph g on x=2 y=2 {
          input a: f32[4@x, 4]
          b: f32[4@x, 4] = relu(a)
          return b
        }"""
    )
    executor = Executor(graph, LocalCommunicator(graph.mesh))
    b = executor.step({"a": np.ones((4, 4), np.float32)}, {}).outputs["b"]
    assert b[0] is b[1]
    assert b[2] is b[3]
    assert b[0] is not b[2]


def test_results_keep_their_declared_type():
    graph = parse("graph g {\ninput a: f16[3]\nb: f16[3] = scale(a) {factor=0.1}\nreturn b\n}")
    batch = {"a": np.ones(3, np.float16)}
    assert Executor(graph, LocalCommunicator()).step(batch, {}).outputs["b"][0].dtype == np.float16
    wide = Executor(graph, LocalCommunicator(), float_dtype="float64")
    b = wide.step(batch, {}).outputs["b"][0]
    assert b.dtype == np.float64
    assert b[0] == 0.1  # not rounded to float16 on the way


@pytest.mark.parametrize(("x", "y"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_initial_values_do_not_depend_on_the_split(x: int, y: int):
    graph = parse(
        f"""graph g on x={x} y={y} {{
          parameter w: f32[8@x, 4@y] {{initializer='normal(0.02)'}}
          return
        }}"""
    )
    plain = parse("graph g {\nparameter w: f32[8, 4] {initializer='normal(0.02)'}\nreturn\n}")
    state = initialize(graph, 5, LocalCommunicator(graph.mesh))
    whole = initialize(plain, 5, LocalCommunicator())["w"][0]
    np.testing.assert_array_equal(assemble(graph, "w", state["w"]), whole)
    assert np.std(whole) > 0


def test_copies_that_differ_are_named():
    graph = sliced("[2, 4@x]", "x=2 y=2")
    parts = scatter(graph.value("a"), np.ones((2, 4), np.float32), LocalCommunicator(graph.mesh))
    parts[3] = parts[3] + np.float32(0.5)
    with pytest.raises(ExecutionError) as error:
        assemble(graph, "a", parts)
    assert str(error.value) == (
        "`a`: ranks 2 and 3 should hold equal copies, they differ by 0.5 (largest magnitude 1)"
    )
    parts[3] = parts[2] * np.float32(1 + 1e-6)
    assemble(graph, "a", parts)
    with pytest.raises(ExecutionError):
        assemble(graph, "a", parts, tolerance=1e-8)
    del parts[1]
    with pytest.raises(ExecutionError, match=r"the slices of ranks \[1\] are missing"):
        assemble(graph, "a", parts)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({}, "the inputs are [], graph `g` expects ['a']"),
        ({"a": np.ones(3)}, "`a` was given an array of shape (3,), expected (2, 2)"),
        (
            {"a": np.ones((2, 2), complex)},
            "`a` was given elements of type complex128, expected float32",
        ),
    ],
)
def test_inputs_that_do_not_fit(batch: dict[str, np.ndarray], message: str):
    executor = Executor(sliced("[2@x, 2]"), LocalCommunicator(sliced("[2@x, 2]").mesh))
    with pytest.raises(ExecutionError) as error:
        executor.step(batch, {})
    assert str(error.value) == message


def test_a_redistribution_cannot_run():
    graph = parse(
        """graph g on x=2 {
          input a: f32[4@x, 4]
          b: f32[4, 4@x] = redistribute(a)
          return b
        }"""
    )
    with pytest.raises(ExecutionError, match="`b` is a redistribution, which no rank can run"):
        Executor(graph, LocalCommunicator(graph.mesh))


def test_layouts_that_do_not_follow_are_refused():
    graph = parse(
        """graph g on x=2 {
          input a: f32[4, 4@x]
          b: f32[4]* = reduce_sum(a) {axis=1}
          return b
        }"""
    )
    with pytest.raises(ExecutionError, match=r"the results are \[\*\], `reduce_sum` leaves \[\*\]"):
        Executor(graph, LocalCommunicator(graph.mesh))


def test_a_communicator_for_another_mesh_is_refused():
    with pytest.raises(ExecutionError, match="`g` has the mesh x=2, the communicator has one"):
        Executor(sliced("[2@x, 2]"), LocalCommunicator())


def test_state_that_does_not_fit():
    graph = parse(TRAINING)
    communicator = LocalCommunicator(graph.mesh)
    executor = Executor(graph, communicator)
    batch = {"a": np.ones((8, 4), np.float32)}
    with pytest.raises(ExecutionError, match="the state has no value for the parameter `w`"):
        executor.step(batch, {})
    with pytest.raises(
        ExecutionError, match=r"rank 0 is float64\[4, 2\], expected float32\[4, 2\]"
    ):
        executor.step(batch, initialize(graph, 0, communicator, float_dtype="float64"))
    with pytest.raises(ExecutionError, match=r"no parameter `W`; did you mean|no parameter `W`"):
        initialize(graph, 0, communicator, {"W": np.ones((4, 2))})
    with pytest.raises(ExecutionError, match="no value `nothing` to fetch"):
        executor.step(batch, initialize(graph, 0, communicator), ("nothing",))


def test_a_failing_operator_is_named():
    graph = parse("graph g {\ninput a: f32[2]\nb: f32[2] = mul(a, a)\nreturn b\n}")
    executor = Executor(graph, LocalCommunicator())
    with np.errstate(over="raise"), pytest.raises(ExecutionError) as error:
        executor.step({"a": np.full(2, 1e38, np.float32)}, {})
    assert str(error.value) == (
        "`mul` failed: overflow encountered in multiply (in b: f32[2] = mul(a, a))"
    )


def test_a_diverging_run_warns_of_nothing() -> None:
    text = """graph g {
  parameter w: f32[2] {initializer='ones'}
  large: f32[2] = scale(w) {factor=1e30}
  next: f32[2] = mul(large, large)
  none: f32[2] = sub(next, next)
  ratio: f32[2] = div(w, none)
  update w = ratio
  return none
}
"""
    local = LocalCommunicator()
    graph = parse(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executor, state = Executor(graph, local), initialize(graph, 0, local)
        executor.step({}, state)
        assert np.isnan(executor.step({}, state).outputs["none"][0]).all()

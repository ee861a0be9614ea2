from math import inf

import numpy as np

from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.runtime import LocalCommunicator, Reference
from shardwright.runtime.reference import given_name, updates_from
from shardwright.runtime.rounding import RoundedExecutor, largest_change, rounded


def test_rounding_is_to_the_nearest_and_twice_is_once():
    numbers = np.random.default_rng(0).standard_normal(10_000) * 10.0 ** np.arange(-50, 50).repeat(
        100
    )
    short = rounded(numbers, 38)
    assert np.abs(short / numbers - 1).max() <= 2.0**-39
    assert np.abs(short / numbers - 1).max() > 2.0**-40
    np.testing.assert_array_equal(rounded(short, 38), short)
    np.testing.assert_array_equal(short.astype(np.float64), -rounded(-numbers, 38))


def test_what_is_exact_stays():
    exact = np.array([0.0, -0.0, 1.0, 12345.0, 2.0**-30, 0.1, inf, -inf, np.finfo(float).max])
    exact[5] = np.float32(0.1)  # a number of a shorter type
    np.testing.assert_array_equal(rounded(exact, 38), exact)
    assert np.isnan(rounded(np.array([np.nan]), 38)).all()
    integers = np.array([1, 2**60 + 1])
    assert rounded(integers, 38) is integers


def test_a_selected_element_stays_equal_to_what_it_was_selected_from():
    build = Builder()
    x = build.input(Value("x", TensorType("float64", (50,))))
    largest = build.emit("reduce_max", x, axis=0, keep_dims=True)
    graph = build.graph("g", (build.emit("equal", x, largest).name,))
    executor = RoundedExecutor(graph, LocalCommunicator(), 38)
    data = np.random.default_rng(0).standard_normal(50)
    found = executor.step({"x": data}, {}).outputs["equal_0"][0]
    np.testing.assert_array_equal(found, data == data.max())


def test_the_largest_change_leaves_out_what_is_no_number():
    a = np.array([1.0, np.nan, inf, 2.0])
    assert largest_change(a, [np.array([1.5, 3.0, 1.0, 2.0]), np.array([1.0, 0, 0, 1.0])]) == 1.0
    assert largest_change(np.array([1, 2]), [np.array([5, 5])]) == 0.0


def difference_of_sums():
    """Return the sum of a tensor less the sum of the same tensor: zero, with an update by it."""
    build = Builder()
    x = build.input(Value("x", TensorType("float64", (40, 50))))
    w = build.parameter(Value("w", TensorType("float64", ())), {"initializer": "ones"})
    y = build.emit("mul", x, w)
    rows = build.emit("reduce_sum", build.emit("reduce_sum", y, axis=0), axis=0)
    columns = build.emit("reduce_sum", build.emit("reduce_sum", y, axis=1), axis=0)
    zero = build.emit("sub", rows, columns, name="w.grad")
    new = build.emit("sgd_update", w, zero, learning_rate=0.5)
    build.updates.append(("w", new.name))
    return build.graph("g", (zero.name,))


def test_where_terms_cancel_rounding_is_relative_to_the_terms():
    reference = Reference(difference_of_sums(), ("w.grad",))
    x = np.random.default_rng(0).standard_normal((40, 50))
    expected = reference.step({"x": x}, {"w": np.ones(())})
    terms = np.abs(x).sum()
    assert abs(expected.values["w.grad"]) < 1e-15 * terms
    assert 1e-16 * terms < expected.rounding["w.grad"] < 1e-11 * terms
    updated = reference.updated({"x": x}, {"w": np.array(1 / 3)}, {"w.grad": np.array(1e-17)})
    assert updated.rounding["w"] < 1e-12  # of a third, whatever the gradient was made of


def test_updates_are_made_of_the_gradients_that_are_given():
    graph = difference_of_sums()
    reference = Reference(graph, ("w.grad",))
    cut = updates_from(graph, ("w.grad",))
    assert [node.operator for node in cut] == ["sgd_update"]
    assert [value.name for value in cut.inputs] == [given_name("w.grad")]
    state, batch = {"w": np.array(3.0)}, {"x": np.zeros((40, 50))}
    found = reference.updated(batch, state, {"w.grad": np.array(4.0)})
    assert found.values == {"w": 1.0}


def test_updates_without_a_gradient_are_no_part_of_them():
    graph = difference_of_sums()
    build = Builder(graph=graph)
    count = build.parameter(Value("count", TensorType("int64", ())))
    build.updates.append(("count", build.emit("add_scalar", count, value=1).name))
    cut = updates_from(build.graph("g", graph.outputs), ("w.grad",))
    assert [name for name, _ in cut.updates] == ["w"]

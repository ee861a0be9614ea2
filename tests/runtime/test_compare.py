from math import inf, nan

import numpy as np

from shardwright.runtime import compare


def test_equal_tensors():
    a = {"loss": np.array(2.0), "w": np.arange(4.0)}
    found = compare(a, {name: x * (1 + 1e-12) for name, x in a.items()}, 1e-9)
    assert found.equal
    assert found.first_difference is None
    assert found.tensors == 2
    assert 0 < found.max_relative_error < 1e-11


def test_the_first_difference_follows_the_order_of_the_reference():
    a = {"loss": np.ones(()), "z": np.ones(2), "b": np.ones(2)}
    found = compare(a, {"b": np.array([1, 3.0]), "z": np.array([1.5, 1]), "loss": np.ones(())}, 0.1)
    assert not found.equal
    assert found.first_difference == "z"
    assert found.errors == {"loss": 0.0, "z": 0.5, "b": 2.0}
    assert found.max_relative_error == 2.0


def test_shapes_names_and_what_is_not_a_number_differ():
    one = {"a": np.ones(2)}
    for other in ({"a": np.ones(3)}, {}, {"a": np.array([1, nan])}, {"a": np.array([1, inf])}):
        assert compare(one, other, 1.0).first_difference == "a"
    assert compare({"a": np.array([nan])}, {"a": np.array([nan])}, 1.0).first_difference == "a"
    assert compare({"a": np.array([inf, 1])}, {"a": np.array([inf, 1])}, 0.0).equal
    assert not compare({"a": np.array([inf, 1])}, {"a": np.array([-inf, 1])}, 1.0).equal
    assert compare(one, {**one, "more": np.ones(1)}, 1.0).first_difference == "more"


def test_a_difference_is_relative_to_the_scale_that_is_given():
    a = {"big": np.array([1e3]), "noise": np.array([1e-14])}
    b = {"big": np.array([1e3]), "noise": np.array([-1e-14])}
    assert compare(a, b, 1e-9, {"noise": 1e-4}).equal
    assert compare(a, b, 1e-9, {"noise": 1e-6}).first_difference == "noise"
    assert compare(a, b, 1e-9).errors == {"big": 0.0, "noise": 2.0}


def test_zeros():
    zero = {"a": np.zeros(2)}
    assert compare(zero, zero, 0.0).equal
    assert compare(zero, {"a": np.array([0, 1e-30])}, 1.0).max_relative_error == inf
    assert compare({}, {}, 0.0).equal

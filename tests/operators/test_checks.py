"""The checks find every promise that an operator does not keep."""

import numpy as np
import pytest

import shardwright as sw
from shardwright.ir.errors import IRError, OperatorError
from shardwright.operators.info import Example, OperatorInfo, register

pytestmark = pytest.mark.usefixtures("own_operators")


class ColumnMean(OperatorInfo):
    """The mean of every column; each test breaks it in one place."""

    name = "column_mean"
    notation = "s+ i -> i"
    linear = ((0,),)
    examples = (Example(("f64[6, 4]",)),)

    def kernel(self, view, x):
        return x.sum(axis=0) / self.rule.sizes["s"]

    def gradient(self, build, at):
        shape = self.operand_types[0].shape
        g = build.emit("scale", at.cotangents[0], factor=1 / shape[0])
        lying = at.operands[0]
        return [build.emit("spread", g, like=lying, axis=(0,), keep_dims=False, shape=shape)]


def test_an_operator_that_keeps_its_promises():
    register(ColumnMean)
    checked = sw.check_operator("column_mean")
    assert checked.gradient
    assert checked.strategies > 10
    assert str(checked) == (
        f"`column_mean`: values and gradients agree for {checked.strategies} strategies of "
        "1 example"
    )


def mean_of_the_slice(self, view, x):
    return x.mean(axis=0)


def wrong_type(self, view, x):
    return (x.sum(axis=0) / self.rule.sizes["s"]).astype("float32")


def double(self, build, at):
    (gradient,) = ColumnMean.gradient(self, build, at)
    return [build.emit("scale", gradient, factor=2.0)]


def not_as_the_operand_lies(self, build, at):
    shape = self.operand_types[0].shape
    g = build.emit("scale", at.cotangents[0], factor=1 / shape[0])
    return [build.emit("spread", g, axis=(0,), keep_dims=False, shape=shape)]


def longer_where_it_is_split(self, build, at):
    (gradient,) = ColumnMean.gradient(self, build, at)
    lying = at.operands[0].layout
    return [gradient if lying is None or not lying.split_axes else build.emit("neg", gradient)]


def two_gradients(self, build, at):
    return [*ColumnMean.gradient(self, build, at), None]


BROKEN = {
    "rows_are_said_to_be_independent": (
        {"notation": "s i -> i"},
        "ranks hold copies that differ, the layout [*] says they are equal",
    ),
    "rows_are_said_to_be_whole": (
        {"notation": "s^ i -> i"},
        "the rule marks factor `s` as whole, and it could be `sum`",
    ),
    "columns_are_said_to_be_whole": (
        {"notation": "s+ i^ -> i^"},
        "the rule marks factor `i` as whole, and it could be `parallel`",
    ),
    "the_mean_of_a_slice": (
        {"kernel": mean_of_the_slice},
        "the slices, assembled as [*] +x",
    ),
    "another_element_type": ({"kernel": wrong_type}, "the kernel returns [(dtype('float32')"),
    "a_false_gradient": ({"gradient": double}, "the gradient is not the central difference"),
    "a_gradient_that_lies_otherwise": (
        {"gradient": not_as_the_operand_lies},
        "the gradient of operand 0 is f64[6, 4] [*, *], expected f64[6, 4] [x@y, *]",
    ),
    "a_gradient_that_depends_on_layouts": (
        {"gradient": longer_where_it_is_split},
        "the gradient is `scale`, `spread`, `neg` where it is split, `scale`, `spread` where it is",
    ),
    "a_gradient_too_many": ({"gradient": two_gradients}, "the gradient returns 2 values for 1"),
    "linear_but_not_said": ({"linear": ()}, "it is linear in the operands (0,), which `linear`"),
    "no_examples": (
        {"examples": ()},
        "the operator `column_mean` has no examples, expected",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_promise_is_found(case):
    changes, message = BROKEN[case]
    register(type("Broken", (ColumnMean,), changes))
    with pytest.raises(OperatorError) as raised:
        sw.check_operator("column_mean")
    assert str(raised.value).startswith(message)


def test_a_set_that_is_not_linear_is_found():
    class Square(OperatorInfo):
        name = "own_square"
        notation = "... -> ..."
        linear = ((0,),)
        examples = (Example(("f64[4]",)),)

        def kernel(self, view, x):
            return np.square(x)

    register(Square)
    with pytest.raises(OperatorError, match=r"it is not linear in the operands \(0,\)"):
        sw.check_operator("own_square")


def test_the_sets_need_not_be_complete():
    with pytest.raises(OperatorError, match="is linear in the operands"):
        sw.check_operator("cast")
    assert sw.check_operator("cast", never_partial=True).gradient


def test_another_class_cannot_take_a_name():
    with pytest.raises(IRError, match="the operator `relu` is registered already, by `Relu` of "):
        register(type("Relu", (ColumnMean,), {"name": "relu"}))

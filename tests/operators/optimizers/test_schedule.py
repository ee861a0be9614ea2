"""Learning rates that follow the step: formulas against Python, wrong ones, the operator."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.errors import IRError, OptionError
from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_info, whole_kernel
from shardwright.operators.models.schedule import check_rate, rate_at

STEP = TensorType("int64", ())
FORMULAS = {
    "0.1": lambda step: 0.1,
    "0.1 * 0.5 ** floor(step / 3)": lambda step: 0.1 * 0.5 ** (step // 3),
    "max(0.1 - step / 100, 0.01)": lambda step: max(0.1 - step / 100, 0.01),
    "0.1 / (1 + step) if step % 2 == 0 else 0.3": lambda s: 0.3 if s % 2 else 0.1 / (1 + s),
    "1 / step if step > 0 and not step == 3 else 0": lambda s: 0.0 if s in (0, 3) else 1 / s,
    "1 + cos(step) * exp(-step)": lambda step: 1 + math.cos(step) * math.exp(-step),
    "2 ** -step": lambda step: 2.0**-step,
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_is_what_python_computes(formula):
    for step in range(12):
        assert rate_at(formula, step) == FORMULAS[formula](step)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=5), st.integers(0, 9))
def test_a_tuple_has_the_rate_of_each_step_and_the_last_one_stays(rates, step):
    assert rate_at(tuple(rates), step) == rates[min(step, len(rates) - 1)]


def test_the_operator_reads_the_number_of_the_steps_before():
    info = operator_info("learning_rate", [STEP], {"rate": "0.1 * 0.5 ** step"})
    (rate,) = whole_kernel(info, np.array(3))
    assert (rate, rate.dtype, rate.shape) == (0.0125, np.float64, ())


WRONG = [
    ("fast", "the learning rate `fast` names `fast`; a formula has `step` and ceil, cos"),
    ("0.1 *", "`learning_rate` is the text `0.1 *`, expected a number of at least 0, a formula"),
    ("__import__('os')", "`learning_rate` is the text `__import__('os')`, expected"),
    ("step.real", "`learning_rate` is the text `step.real`, expected a number"),
    ("[0.1][0]", "`learning_rate` is the text `[0.1][0]`, expected a number"),
    ("min(step, key=1)", "`learning_rate` is the text `min(step, key=1)`, expected"),
    ("(lambda: 1)()", "`learning_rate` is the text `(lambda: 1)()`, expected"),
    ("'a'", "`learning_rate` is the text `'a'`, expected a number"),
    ("1 if True else 0", "`learning_rate` is the text `1 if True else 0`, expected a number"),
    ("min", "the learning rate `min` is <built-in function min> at step 0, expected"),
    ("1 / step", "the learning rate `1 / step` has no value at step 0: float division by zero"),
    ("9 ** 9 ** 9 ** 9", "the learning rate `9 ** 9 ** 9 ** 9` has no value at step 0"),
    ("step - 1", "the learning rate `step - 1` is -1.0 at step 0, expected a number of at least 0"),
    ("(-1) ** 0.5", "expected a number of at least 0"),
    (f"1{'0' * 400}", "expected a number of at least 0, a formula"),
    ((), "`learning_rate` is (), expected a number of at least 0, a formula"),
    ((0.1, -0.2), "`learning_rate` at step 1 is -0.2, expected a number of at least 0"),
    ((0.1, "0.1"), "`learning_rate` at step 1 is the text `0.1`, expected a number"),
    (None, "`learning_rate` is None, expected a number of at least 0, a formula"),
    (True, "`learning_rate` is True, expected a number of at least 0"),
    (math.nan, "`learning_rate` is nan, expected a number of at least 0"),
]


@pytest.mark.parametrize(("rate", "expected"), WRONG)
def test_what_is_no_rate_is_refused(rate, expected):
    with pytest.raises(OptionError) as caught:
        check_rate("learning_rate", rate)
    assert expected in str(caught.value)


def test_a_rate_that_becomes_negative_is_refused_at_its_step():
    assert rate_at("0.1 - step / 50", 5) == 0.0
    with pytest.raises(OptionError) as caught:
        rate_at("0.1 - step / 50", 6)
    assert str(caught.value) == (
        "the learning rate `0.1 - step / 50` is -0.01999999999999999 at step 6, expected a number "
        "of at least 0"
    )


def test_the_operator_refuses_what_is_no_rate():
    with pytest.raises(IRError) as caught:
        operator_info("learning_rate", [STEP], {"rate": "speed"})
    assert str(caught.value).startswith("learning_rate: the learning rate `speed` names `speed`")


def test_a_rate_is_an_operand_or_an_attribute():
    tensor = TensorType("float32", (2,))
    operands = [tensor, tensor, TensorType("float64", ())]
    with pytest.raises(IRError) as caught:
        operator_info("sgd_update", operands, {"learning_rate": 0.1})
    assert str(caught.value) == (
        "sgd_update: the learning rate is both an operand and an attribute"
    )

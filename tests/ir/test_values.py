from math import inf, nan

import numpy as np
import pytest

from shardwright.ir.errors import OptionError
from shardwright.ir.values import (
    POSITIVE,
    POSITIVE_INTEGER,
    SEED,
    SHARE,
    Range,
    check_choice,
    check_flag,
    check_names,
    check_type,
)

WRONG = [
    (POSITIVE_INTEGER, 0, "`n` is 0, expected an integer of at least 1"),
    (POSITIVE_INTEGER, 2.0, "`n` is 2.0, expected an integer of at least 1"),
    (POSITIVE_INTEGER, True, "`n` is True, expected an integer of at least 1"),
    (POSITIVE_INTEGER, "4", "`n` is the text `4`, expected an integer of at least 1"),
    (POSITIVE_INTEGER, None, "`n` is None, expected an integer of at least 1"),
    (SEED, -1, "`n` is -1, expected an integer of at least 0"),
    (POSITIVE, 0, "`n` is 0, expected a number above 0"),
    (POSITIVE, nan, "`n` is nan, expected a number above 0"),
    (POSITIVE, inf, "`n` is inf, expected a number above 0"),
    (SHARE, 1, "`n` is 1, expected a number of at least 0 and below 1"),
    (Range(infinite=True), nan, "`n` is nan, expected a number"),
]


@pytest.mark.parametrize(("allowed", "value", "expected"), WRONG)
def test_values_outside_a_range_are_refused(allowed, value, expected):
    with pytest.raises(OptionError) as caught:
        allowed.check("n", value)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("allowed", "value"),
    [
        (POSITIVE_INTEGER, 1),
        (POSITIVE_INTEGER, np.int64(3)),
        (POSITIVE_INTEGER, 10**400),
        (SEED, 0),
        (POSITIVE, 1e-300),
        (POSITIVE, np.float32(2)),
        (SHARE, 0),
        (Range(above=0, infinite=True), inf),
    ],
)
def test_values_in_a_range_are_accepted(allowed, value):
    allowed.check("n", value)


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (tuple[int, str], (1, "x"), [(1, "x", "y"), (1,), ("x", 1)]),
        (tuple[int, ...], (1, 2, 3), [(1, "x")]),
        (tuple[int], (1,), [("x",)]),
        (dict[str, int], {"x": 1}, [{"x": "y"}, {1: 1}]),
    ],
)
def test_the_items_of_a_collection_have_types(hint, right, wrong):
    check_type("n", right, hint)
    for value in wrong:
        with pytest.raises(OptionError):
            check_type("n", value, hint)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("tim", "`cost` is `tim`, expected time or mindspore; did you mean `time`?"),
        ("foo", "`cost` is `foo`, expected time or mindspore"),
        (3, "`cost` is 3, expected time or mindspore"),
        (["time"], "`cost` is ['time'], expected time or mindspore"),
    ],
)
def test_unknown_choices_are_refused(value, expected):
    check_choice("cost", "time", ("time", "mindspore"))
    with pytest.raises(OptionError) as caught:
        check_choice("cost", value, ("time", "mindspore"))
    assert str(caught.value) == expected


def test_flags_are_true_or_false():
    check_flag("flag", False)
    with pytest.raises(OptionError, match="`flag` is 1, expected True or False"):
        check_flag("flag", 1)


def test_unknown_names_are_refused():
    check_names("`f` has no option", ["gap"], ["gap", "seed"])
    with pytest.raises(OptionError) as caught:
        check_names("`f` has no option", ["gap", "sed"], ["gap", "seed"])
    assert str(caught.value) == "`f` has no option `sed`; did you mean `seed`?"
    with pytest.raises(OptionError) as caught:
        check_names("`f` has no option", ["x"], ["gap", "seed"])
    assert str(caught.value) == "`f` has no option `x`; expected gap or seed"

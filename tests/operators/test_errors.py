"""Wrong uses of operators get one clear message."""

import pytest

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import IRError
from shardwright.ir.text import parse_type
from shardwright.operators.info import operator_info

UNKNOWN = (
    "unknown operator `rleu`; did you mean `relu`? Or load the plugin that registers it, with "
    "`--plugin FILE`"
)

CASES: list[tuple[str, tuple[str, ...], Attributes, str]] = [
    (
        "add",
        ("f32[2]", "f64[2]"),
        {},
        "add: the operands are float32 and float64, they must agree; cast one of them",
    ),
    (
        "concat",
        ("f32[2]", "f16[2]"),
        {},
        "concat: the operands are float32 and float16, they must agree; cast one of them",
    ),
    ("gather", ("f32[8, 2]", "f32[4]"), {}, "gather: operand 1 is f32[4], positions are integers"),
    (
        "relu",
        ("f32[2]",),
        {"slope": 1},
        "`relu` has no attribute `slope`; its attributes are none",
    ),
    ("rleu", ("f32[2]",), {}, UNKNOWN),
    (
        "exp",
        ("i32[4]",),
        {},
        "`exp` computes with real numbers, the operand is i32[4]; cast it to float32 first",
    ),
    (
        "average_pool",
        ("i64[2, 4, 6]",),
        {"kernel": (2,)},
        "`average_pool` computes with real numbers, the operand is i64[2, 4, 6]; cast it to "
        "float32 first",
    ),
    (
        "add_scalar",
        ("i32[4]",),
        {"value": 0.5},
        "`add_scalar`: `value` is 0.5, which no element of int32 is; cast the tensor to float32 "
        "first",
    ),
    (
        "clip",
        ("i64[4]",),
        {"low": 0, "high": 2.5},
        "`clip`: `high` is 2.5, which no element of int64 is; cast the tensor to float32 first",
    ),
    (
        "fill",
        (),
        {"dtype": "int64", "value": float("nan")},
        "`fill`: `value` is nan, which no element of int64 is; cast the tensor to float32 first",
    ),
    (
        "leaky_relu",
        ("f32[4]",),
        {"slope": -0.5},
        "leaky_relu: `slope` is -0.5, expected at least 0",
    ),
    ("relu", (), {}, "relu: 0 operands were given, `... -> ...` takes 1"),
    ("transpose", (), {}, "`transpose` cannot take the operands: none"),
    ("gather", ("f32[8, 2]",), {}, "`gather` cannot take the operands: f32[8, 2]"),
    (
        "reduce_sum",
        ("f32[2, 3]",),
        {"axis": 2},
        "reduce_sum: dimension 2 is asked of a tensor with 2 dimensions",
    ),
    (
        "reshape",
        ("f32[4, 6]",),
        {"shape": (5, 5)},
        "reshape: the shape (4, 6) has 24 elements, (5, 5) has 25",
    ),
    (
        "reshape",
        ("f32[4, 6]",),
        {"shape": (5, -1)},
        "reshape: 24 elements do not fit the shape (5, -1); "
        "one size may be -1, the others must divide the number of elements",
    ),
    (
        "squeeze",
        ("f32[4, 6]",),
        {"axis": 0},
        "squeeze: dimension 0 has size 4, expected 1 to drop it",
    ),
    (
        "transpose",
        ("f32[4, 6]",),
        {"permutation": (0, 0)},
        "transpose: (0, 0) is not an order of the 2 dimensions of the operand",
    ),
    (
        "broadcast_to",
        ("f32[4, 6]",),
        {"shape": (4, 5)},
        "broadcast_to: the shape (4, 6) cannot be broadcast to (4, 5)",
    ),
    (
        "tile",
        ("f32[4, 6]",),
        {"multiples": (2,)},
        "tile: there are 1 multiples for the 2 dimensions of (4, 6)",
    ),
    (
        "slice",
        ("f32[4, 6]",),
        {"begin": (0, 4), "size": (4, 3)},
        "slice: 3 elements from 4 by 1 do not fit a dimension of 6",
    ),
    (
        "slice",
        ("f32[4, 6]",),
        {"begin": (0,), "size": (4,)},
        "slice: begin (0,) or size or strides do not fit the shape (4, 6)",
    ),
    (
        "pad",
        ("f32[4, 6]",),
        {"before": (1,), "after": (0,)},
        "pad: before (1,) or after (0,) do not fit the shape (4, 6)",
    ),
    (
        "pad",
        ("f32[4]",),
        {"before": (-1,), "after": (0,)},
        "pad: before (-1,) and after (0,) must not be negative",
    ),
    (
        "split",
        ("f32[4, 6]",),
        {"axis": 1, "parts": 4},
        "split: a dimension of size 6 cannot be cut into 4",
    ),
    ("stack", (), {}, "stack: there are no operands, expected at least one"),
    (
        "concat",
        ("f32[4, 6]", "f32[4, 5]"),
        {"axis": 0},
        "concat: factor `d1` is 6 elsewhere but 5 here "
        "(in operand 1 of `c0^ d1, c1^ d1 -> all^ d1`)",
    ),
]


@pytest.mark.parametrize(("name", "operands", "attributes", "message"), CASES)
def test_messages(
    name: str, operands: tuple[str, ...], attributes: Attributes, message: str
) -> None:
    with pytest.raises(IRError) as error:
        _ = operator_info(name, [parse_type(text)[0] for text in operands], attributes).result_types
    assert str(error.value) == message

"""Structural rules: what enters and leaves a program is complete, a parameter is updated once."""

import pytest

from shardwright.ir.errors import IRError
from shardwright.ir.text import parse
from shardwright.ir.verify import verify_structure

PROGRAM = """graph g on x=2 {
  input a: f32[4]*
  parameter w: f32[4]*
  b: f32[4]* = add(a, w)
  update w = b
  return b
}
"""


def refusal(text: str) -> str:
    with pytest.raises(IRError) as refused:
        verify_structure(parse(text))
    return str(refused.value)


def test_the_program_itself_is_accepted() -> None:
    verify_structure(parse(PROGRAM))


@pytest.mark.parametrize(
    ("kind", "line", "hint"),
    [
        ("input `a`", "input a: f32[4]", ""),
        ("parameter `w`", "parameter w: f32[4]", ""),
        ("output `b`", "b: f32[4]", "; reduce it first"),
    ],
)
def test_what_enters_and_leaves_is_not_partial(kind: str, line: str, hint: str) -> None:
    text = PROGRAM.replace(f"{line}*", f"{line} +x").replace("  update w = b\n", "")
    assert refusal(text) == (
        f"the {kind} is partial over ['x'], expected a layout without partial axes{hint}"
    )


def test_a_parameter_is_updated_once() -> None:
    text = PROGRAM.replace("  update w = b\n", "  update w = b\n  update w = a\n")
    assert refusal(text) == "`w` is updated twice (in update w = a)"


def test_a_state_belongs_to_a_parameter() -> None:
    text = PROGRAM.replace("  parameter w", "  state m of v: f32[4]*\n  parameter w")
    assert refusal(text) == "`v` is no parameter, a state belongs to one (in state m of v: f32[4]*)"
    verify_structure(parse(text.replace("m of v", "m of w")))


def test_a_layout_that_fits_one_shape_is_checked_for_another() -> None:
    text = PROGRAM.replace("input a: f32[4]*", "input a: f32[4@x]\n  input c: f32[4@x]")
    verify_structure(parse(text))
    assert refusal(text.replace("input c: f32[4@x]", "input c: f32[1@x]")) == (
        "`c`: a dimension of size 1 cannot be split 2 ways"
    )

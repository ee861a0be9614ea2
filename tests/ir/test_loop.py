"""The loop over micro-batches: what belongs to it, and what it may not do."""

import pytest

from shardwright.ir.errors import IRError
from shardwright.ir.liveness import check_loop, dying_values, execution_order, loop_of, times_run
from shardwright.ir.text import parse, to_text

LOOP = """graph g on micro=3:time x=2 {
  input a: f32[6@micro, 4]
  parameter w: f32[4@x]
  b: f32[4]* = all_gather(w) {axes=('x',), dimension=0}
  c: f32[6@micro, 4] = mul(a, b)
  s: f32[4] +micro = reduce_sum(c) {axis=(0,)}
  t: f32[4]* = all_reduce(s) {axes=('micro',)}
  u: f32[4]* = add(t, b)
  return u
}
"""


def test_what_runs_in_every_pass() -> None:
    graph = parse(LOOP)
    assert to_text(graph) == LOOP
    loop = loop_of(graph)
    assert loop is not None
    assert (loop.start, loop.stop, loop.passes) == (1, 4, 3)
    assert loop.accumulated == {"t"}
    assert loop.kept == {"a", "b"}
    assert times_run(graph) == [1, 3, 3, 3, 1]
    assert execution_order(graph)[:6] == [(0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 1)]
    assert dying_values(graph) == ((), (), ("c",), ("s", "a"), ("t", "b", "u"))
    check_loop(graph)


def test_a_move_may_be_marked_to_run_in_every_pass() -> None:
    graph = parse(LOOP.replace("dimension=0}", "dimension=0, in_passes=True}"))
    loop = loop_of(graph)
    assert loop is not None
    assert loop.start == 0
    assert loop.kept == {"a", "w"}
    with pytest.raises(IRError, match="`b` is made anew in every pass of the loop over `micro`"):
        check_loop(graph)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "  s: f32[4] +micro = reduce_sum(c) {axis=(0,)}\n",
            "  e: f32[6@micro, 4] = exp(c)\n  s: f32[4] +micro = reduce_sum(e) {axis=(0,)}\n",
            None,
        ),
        ("add(t, b)", "add(t, v)", "`v` is made anew in every pass"),
        (
            "  u: f32[4]*",
            "  z: f32[6@micro, 4] = mul(a, t)\n  u: f32[4]*",
            "`t` is read in a pass of the loop over `micro`, and known after the last pass only",
        ),
        (
            "all_reduce(s) {axes=('micro',)}",
            "all_reduce(s) {axes=('micro', 'x')}",
            "`all_reduce` communicates over ['micro', 'x'], expected an `all_reduce` or an "
            "`all_gather` over `micro` alone: the axis is run in time",
        ),
        (
            "all_reduce(s) {axes=('micro',)}",
            "reduce_scatter(s) {axes=('micro',), dimension=0}",
            "`reduce_scatter` communicates over ['micro']",
        ),
    ],
)
def test_what_a_loop_may_not_do(before: str, after: str, message: str | None) -> None:
    text = LOOP.replace("  s: f32[4] +", "  v: f32[4]* = neg(b)\n  s: f32[4] +")
    graph = parse(text.replace(before, after))
    if message is None:
        check_loop(graph)
        return
    with pytest.raises(IRError) as refused:
        check_loop(graph)
    assert refused.value.what.startswith(message)

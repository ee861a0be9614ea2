import numpy as np
import pytest

from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse
from shardwright.runtime import Executor, LocalCommunicator

PROGRAM = """
graph step on x=2 {
  input a: f64[4@x, 3]
  input b: f64[4@x, 3]
  s: f64[3] +x = reduce_sum(a) {axis=(0,)}
  t: f64[3]* = all_reduce(s) {axes=('x',)}
  u: f64[4@x, 3] = exp(b)
  v: f64[4@x, 3] = neg(u)
  w: f64[4@x, 3] = mul(v, t)
  return w
}
"""


class Late(LocalCommunicator):
    """A communicator whose reductions have no result until they are awaited."""

    def __init__(self, mesh, seen):
        super().__init__(mesh)
        self.seen = seen

    def start(self, operator, axes, parts):
        if operator.name != "all_reduce":
            return None
        right = super().exchange(operator, axes, parts)
        found = {rank: np.full_like(part, np.nan) for rank, part in right.items()}
        seen = self.seen
        seen.append("start")

        class Request:
            def Wait(self):  # noqa: N802
                seen.append("wait")
                for rank, part in right.items():
                    found[rank][...] = part

            def Test(self):  # noqa: N802
                seen.append("test")
                return False

        return Request(), found


@pytest.fixture
def graph():
    return parse(PROGRAM)


def test_a_reduction_is_awaited_where_its_result_is_read(graph):
    random = np.random.default_rng(0)
    inputs = {name: random.normal(size=(4, 3)) for name in "ab"}
    mesh = Mesh((MeshAxis("x", 2),))
    seen = []
    late = Executor(graph, Late(mesh, seen)).step(inputs, {})
    assert seen == ["start", "test", "test", "wait"]  # two nodes are computed before
    right = Executor(graph, LocalCommunicator(mesh)).step(inputs, {})
    for rank, part in right.outputs["w"].items():
        np.testing.assert_array_equal(late.outputs["w"][rank], part)


def test_what_the_step_returns_is_awaited_at_its_end(graph):
    seen = []
    mesh = Mesh((MeshAxis("x", 2),))
    inputs = {name: np.ones((4, 3)) for name in "ab"}
    found = Executor(graph, Late(mesh, seen)).step(inputs, {}, fetch=("t",)).fetched["t"]
    assert all((part == 4).all() for part in found.values())

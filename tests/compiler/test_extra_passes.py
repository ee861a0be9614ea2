"""Passes of the user, run after those of the mode."""

from dataclasses import dataclass

import pytest

import shardwright as sw
from shardwright.ir.errors import OptionError, PassError
from shardwright.ir.graph import Graph
from shardwright.passes.base import Pass, register_pass
from shardwright.planner.options import CompileOptions
from tests.extent import ANY_PLAN

pytestmark = pytest.mark.usefixtures("own_operators")


@dataclass(frozen=True)
class Rename(Pass):
    """Give the program another name."""

    name = "rename"
    to: str

    def run(self, graph: Graph) -> Graph:
        return Graph(
            self.to, graph.inputs, graph.parameters, graph.nodes, graph.outputs, graph.updates,
            graph.mesh,
        )  # fmt: skip


@pytest.mark.parametrize("mode", ["auto_parallel", "data_parallel", "stand_alone"])
@pytest.mark.parametrize("asked", ["rename{to=other}", (Rename("other"),)])
def test_they_run_last_in_every_mode(mode, asked):
    register_pass(Rename)
    devices = 1 if mode == "stand_alone" else 2
    how = ANY_PLAN if mode == "auto_parallel" else {}
    compilation = sw.compile(
        "two_matmul", devices, cluster="cpu", mode=mode, extra_passes=asked, **how
    )
    assert compilation.plan.program.name == "other"
    assert compilation.compiled.passes.records[-1].name == "rename"
    assert sw.verify(compilation.plan).is_right


def test_a_text_is_read_where_the_options_are_made():
    register_pass(Rename)
    assert CompileOptions(extra_passes="rename{to=a}") == CompileOptions(
        extra_passes=(Rename("a"),)
    )
    assert CompileOptions(extra_passes="").extra_passes == ()


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (3, OptionError, "`extra_passes` is 3, expected a tuple of passes, or a text such as"),
        ((3,), OptionError, "`extra_passes` is (3,), expected a tuple of passes"),
        ("renam", PassError, "unknown pass `renam`; expected one of annotate, append_optimizer, "),
        ("clean_up{x=1}", OptionError, "pass `clean_up` has no option `x`; it has no options"),
    ],
)
def test_wrong_values_are_refused(asked, error, message):
    with pytest.raises(error) as caught:
        sw.compile("two_matmul", 2, cluster="cpu", extra_passes=asked)
    assert message in str(caught.value)


def test_a_second_clean_up_behind_fused_gradients_is_not_what_the_search_priced():
    options = {"cluster": "h100-pod:figures=datasheet", "optimizer": "adam", "fusion": 25.0}
    plain = sw.compile("mlp", 4, mode="data_parallel", **options).compiled
    again = sw.compile("mlp", 4, mode="data_parallel", extra_passes="clean_up", **options).compiled
    assert again.program == plain.program

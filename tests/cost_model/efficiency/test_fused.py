"""Element-wise operators between products of experts run as one kernel."""

import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.as_run import kernel_work, seconds_as_run
from shardwright.cost_model.efficiency.fused import kernels
from shardwright.cost_model.efficiency.memory_as_run import buffers_as_run
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.efficiency.work import is_bias_of_rows
from shardwright.cost_model.streams import placements
from shardwright.ir.text import parse
from shardwright.operators.info import info_of

# A gated feed-forward of experts, and the gradients of its activation; rows are in the blocks.
GATED = """\
graph experts {
  input gate: f32[2/8, 16~, 4]
  input up: f32[2/8, 16~, 4]
  input bias: f32[8, 1, 4]
  input down: f32[8, 4, 6]
  input dy: f32[2/8, 16~, 6]
  biased: f32[2/8, 16~, 4] = add(gate, bias) in 'blocks/0'
  a: f32[2/8, 16~, 4] = sigmoid(biased) in 'blocks/0'
  b: f32[2/8, 16~, 4] = mul(biased, a) in 'blocks/0'
  h: f32[2/8, 16~, 4] = mul(b, up) in 'blocks/0'
  y: f32[2/8, 16~, 6] = grouped_matmul(h, down) in 'blocks/0'
  dh: f32[2/8, 16~, 4] = grouped_matmul(dy, down) {transposed=True} from y as backward
  dup: f32[2/8, 16~, 4] = mul(dh, b) from h as backward
  db: f32[2/8, 16~, 4] = mul(dh, up) from h as backward
  da: f32[2/8, 16~, 4] = mul(db, a) from b as backward
  return y, dup, da
}
"""
ROWS = 2 * 16 * 4 * 4  # bytes of filled rows of the inner width


def test_the_activation_is_one_kernel_and_so_is_its_gradient():
    graph = parse(GATED)
    forward, backward = kernels(graph)
    names = [graph.nodes[i].name for i in forward.positions]
    assert names == ["a", "b", "h"]
    assert set(forward.read) == {"biased", "up"}
    assert forward.written == ("h",)
    assert set(forward.made_again) == {"a", "b"}
    assert set(backward.read) == {"dh", "biased", "up"}
    assert set(backward.written) == {"dup", "da"}
    assert kernel_work(graph, forward).nbytes == 3 * ROWS
    assert kernel_work(graph, backward).nbytes == 5 * ROWS


def test_a_kernel_takes_its_traffic_once_and_biases_are_added_in_products_or_apart():
    graph, described = parse(GATED), cluster("h100-3200g")
    for name in ("megatron-core", "automodel"):
        run_by = software(name)
        assert run_by is not None
        timed = described.run_by(run_by)
        found = dict(
            zip(
                graph.producers, seconds_as_run(graph, timed, placements(graph, timed)), strict=True
            )
        )
        moved = 3 * ROWS * run_by.pointwise.value / described.device.achieved_bandwidth
        assert found["a"] == pytest.approx(moved + described.device.launch_seconds)
        assert found["b"] == found["h"] == found["db"] == 0
        info = info_of(graph, graph.nodes[0])
        assert is_bias_of_rows(info)
        assert not is_bias_of_rows(info_of(graph, graph.nodes[2]))
        if run_by.biases is None:
            assert found["biased"] == 0
        else:
            passes = (2 * ROWS + 8 * 4 * 4) * run_by.biases.value
            seconds = passes / described.device.achieved_bandwidth
            assert found["biased"] == pytest.approx(seconds + described.device.launch_seconds)


def test_what_is_inside_a_kernel_is_not_kept_for_its_gradient():
    graph, run_by = parse(GATED), software("automodel")
    assert run_by is not None
    assert run_by.memory is not None
    sizes = buffers_as_run(graph, run_by).sizes
    # Of `a` and `b` their source `biased` is kept, and `up`, which is an input and lasts.
    assert sizes["a"] + sizes["b"] == pytest.approx(ROWS)
    assert sizes["h"] == ROWS

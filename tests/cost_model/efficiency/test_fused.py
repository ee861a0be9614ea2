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
        moved = 3 * ROWS * run_by.pointwise.value / timed.device.achieved_bandwidth
        assert found["a"] == pytest.approx(moved + described.device.launch_seconds)
        assert found["b"] == found["h"] == found["db"] == 0
        info = info_of(graph, graph.nodes[0])
        assert is_bias_of_rows(info)
        assert not is_bias_of_rows(info_of(graph, graph.nodes[2]))
        if run_by.biases is None:
            assert found["biased"] == 0
        else:
            passes = (2 * ROWS + 8 * 4 * 4) * run_by.biases.value
            seconds = passes / timed.device.achieved_bandwidth
            assert found["biased"] == pytest.approx(seconds + described.device.launch_seconds)


CLAMPED = """\
graph experts {
  input gate: f32[2/8, 16~, 4]
  input dh: f32[2/8, 16~, 4]
  shifted: f32[2/8, 16~, 4] = add_scalar(gate) {value=-7.0} in 'blocks/0'
  over: f32[2/8, 16~, 4] = relu(shifted) in 'blocks/0'
  excess: f32[2/8, 16~, 4] = neg(over) in 'blocks/0'
  h: f32[2/8, 16~, 4] = relu(gate) in 'blocks/0'
  dover: f32[2/8, 16~, 4] = relu_gradient(dh, over) from over as backward
  dbias: f32[8, 1, 1, 4] = reduce_sum(dover) {axis=(1,), keep_dims=True} from shifted as backward
  return excess, h, dbias
}
"""


def test_clamps_and_gradients_of_biases_take_their_traffic_where_software_has_them_apart():
    graph = parse(CLAMPED.replace("f32[8, 1, 1, 4]", "f32[8, 1, 4]"))
    forward, backward = kernels(graph)
    assert forward.clamped == backward.clamped == ("gate",)
    described = cluster("h100-3200g")
    for name in ("megatron-core", "automodel", "torchtitan"):
        run_by = software(name)
        assert run_by is not None
        timed = described.run_by(run_by)
        bandwidth, launch = timed.device.achieved_bandwidth, timed.device.launch_seconds
        found = dict(
            zip(
                graph.producers, seconds_as_run(graph, timed, placements(graph, timed)), strict=True
            )
        )
        clamps = 0.0 if run_by.clamps is None else 2 * ROWS * run_by.clamps.value
        moved = 3 * ROWS * run_by.pointwise.value + clamps
        assert found["shifted"] == pytest.approx(moved / bandwidth + launch)
        if run_by.bias_gradients is None:
            assert found["dbias"] == 0
        else:
            read = (ROWS + 8 * 4 * 4) * run_by.bias_gradients.value
            assert found["dbias"] == pytest.approx(read / bandwidth + launch)


def test_what_is_inside_a_kernel_is_not_kept_for_its_gradient():
    graph, run_by = parse(GATED), software("automodel")
    assert run_by is not None
    assert run_by.memory is not None
    sizes = buffers_as_run(graph, run_by, cluster("h100").device).sizes
    # Of `a` and `b` their source `biased` is kept, and `up`, which is an input and lasts.
    assert sizes["a"] + sizes["b"] == pytest.approx(ROWS)
    assert sizes["h"] == ROWS

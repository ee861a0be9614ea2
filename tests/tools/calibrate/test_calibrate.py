"""Fits of measurements, the logs that are read, and the cluster files that are written."""

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.collectives import KINDS, collective_seconds_array
from shardwright.cost_model.efficiency.attained import COLLECTIVES
from shardwright.cost_model.roofline import operator_work, second_prices
from shardwright.ir.errors import ClusterError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.info import info_of, operator_info
from shardwright.runtime.flat.rank_timeline import Span
from shardwright.tools.calibrate.csv_file import of_csv
from shardwright.tools.calibrate.description import as_text, of_machine
from shardwright.tools.calibrate.fitting import Sample, fitted, rising
from shardwright.tools.calibrate.kernels import Machine, _nodes
from shardwright.tools.calibrate.links import Measured, of_nccl_tests
from shardwright.tools.main import main
from tests.extent import ANY_PLAN

LOG = """\
# nccl-tests version 2.13.8
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1024 maxBytes 16777216 step: 4(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid  1 on node device  0 [0x18] NVIDIA H100
#  Rank  1 Group  0 Pid  1 on node device  1 [0x2a] NVIDIA H100
#  Rank  2 Group  0 Pid  1 on node device  2 [0x3a] NVIDIA H100
#  Rank  3 Group  0 Pid  1 on node device  3 [0x5d] NVIDIA H100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
"""


def log_of(latency, bandwidth):
    """Return a log whose times are those of a ring of four ranks."""
    lines = []
    for size in (1024, 65536, 4194304, 268435456):
        micro = (6 * latency + size * 1.5 / bandwidth) * 1e6
        lines.append(f"  {size} {size // 4} float sum -1 {micro:.4f} 1.0 1.0 0 {micro:.4f} 1 1 0")
    return LOG + "\n".join(lines) + "\n# Avg bus bandwidth    : 1.0\n"


@pytest.mark.parametrize("fixed", [0.0, 2e-6])
@pytest.mark.parametrize("rate", [1e9, 3e12])
def test_a_line_is_found_again(fixed, rate):
    amounts = np.logspace(3, 9, 12)
    line = fitted([Sample(1.0, float(a), fixed + float(a) / rate) for a in amounts])
    assert line.fixed == pytest.approx(fixed, rel=1e-6, abs=1e-15)
    assert line.rate == pytest.approx(rate, rel=1e-6)
    assert line.error < 1e-9


def test_no_coefficient_is_negative_and_the_fit_is_the_best_of_a_grid():
    random = np.random.default_rng(3)
    for _ in range(50):
        amounts, seconds = random.random(6) + 0.1, random.random(6) + 0.1
        samples = [Sample(1.0, float(a), float(s)) for a, s in zip(amounts, seconds, strict=True)]
        line = fitted(samples)
        assert line.fixed >= 0
        assert line.rate > 0

        def error(fixed, slope, amounts=amounts, seconds=seconds):
            return ((fixed + slope * amounts - seconds) ** 2 / seconds).sum()

        least = min(error(f, s) for f in np.linspace(0, 2, 60) for s in np.linspace(0, 2, 60))
        assert error(line.fixed, 1 / line.rate) <= least + 1e-6


def test_one_sample_or_work_that_takes_no_time():
    line = fitted([Sample(1.0, 100.0, 2.0)])
    assert line.fixed + 100 / line.rate == pytest.approx(2.0)
    line = fitted([Sample(1.0, 1.0, 5.0), Sample(1.0, 1e6, 5.0), Sample(1.0, 2e6, 5.0)])
    assert line.fixed + 2e6 / line.rate == pytest.approx(5.0, rel=1e-3)


def test_collectives_are_fitted_to_what_the_cost_model_counts(tmp_path):
    (tmp_path / "log").write_text(log_of(3e-6, 2e11))
    found = of_nccl_tests(tmp_path / "log")
    assert {(item.kind, item.ranks) for item in found} == {("all_reduce", 4)}
    line = fitted([item.sample for item in found])
    assert line.fixed == pytest.approx(3e-6, rel=1e-3)
    assert line.rate == pytest.approx(2e11, rel=1e-3)
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        assert Measured(kind, 4, 1e6, 1.0).sample.amount == pytest.approx(0.75e6)


def test_a_cluster_of_logs_prices_as_was_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    node = yaml.safe_load(Cluster.model_validate(_four()).model_dump_json(exclude_none=True))
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(node))
    (tmp_path / "log").write_text(log_of(3e-6, 2e11))
    (tmp_path / "ops.csv").write_text(
        "operator,amount,seconds,traffic\nmatmul,1e12,0.004,\nmatmul,1e9,6e-6,0\nadd,1e9,0.001,0\n"
    )
    options = ["--cluster", "base.yaml", "--nccl", "log", "--csv", "ops.csv", "--out", "a.yaml"]
    assert main(["calibrate", *options]) == 0
    assert "2 operators measured, links of 200 GB/s and 3 us of latency" in capsys.readouterr().out
    found = Cluster.load("a.yaml")
    assert found.device.efficiency.operators["matmul"].rate.tag == "measured"
    seconds = collective_seconds_array(
        "all_reduce", np.array([4194304.0]), (MeshAxis("x", 4),), found
    )
    assert seconds[0] == pytest.approx(6 * 3e-6 + 4194304 * 1.5 / 2e11, rel=1e-3)
    graph = sw.compile("mlp:batch=64", 1, cluster="a.yaml", mode="stand_alone").plan.program
    node = next(node for node in graph.nodes if node.operator == "matmul")
    info, mesh = info_of(graph, node), Mesh(())
    operands = [Layout.replicated(t.rank) for t in info.operand_types]
    results = [Layout.replicated(t.rank) for t in info.result_types]
    work = operator_work(info, operands, results, mesh)
    own = found.device.efficiency.operators["matmul"]
    priced = second_prices(mesh, found).operator_cost(info, operands, results)
    assert priced == pytest.approx(own.launch.value + work.flops / own.rate.value)
    assert sw.compile("mlp:batch=64", 4, cluster="a.yaml").plan.document.status


def test_products_whose_dimensions_are_no_multiples_of_8_are_slower(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(_four()))
    rows = ["operator,amount,seconds,traffic,alignment"]
    rows += ["matmul,1e12,0.002,0,8", "matmul,1e10,2e-5,0,8"]
    rows += ["matmul,1e12,0.01,0,1", "matmul,1e12,0.005,0,2", "matmul,1e12,0.005,0,4", ""]
    (tmp_path / "ops.csv").write_text("\n".join(rows))
    options = ["--cluster", str(tmp_path / "base.yaml"), "--csv", str(tmp_path / "ops.csv")]
    assert main(["calibrate", *options, "--out", str(tmp_path / "a.yaml")]) == 0
    found, mesh = Cluster.load(str(tmp_path / "a.yaml")), Mesh(())
    assert {figure.value for figure in found.device.efficiency.unaligned.figures} == {0.2, 0.4}
    assert 0.2 in {figure.value for figure in found.device.efficiency.figures}

    def seconds(m, n, k, dtype="bfloat16"):
        operands = (TensorType(dtype, (m, k)), TensorType(dtype, (k, n)))
        info = operator_info("matmul", operands, {})
        layouts = [Layout.replicated(2)] * 3
        return second_prices(mesh, found).operator_cost(info, layouts[:2], layouts[2:])

    whole = seconds(512, 512, 512)
    for size, share in ((509, 0.2), (510, 0.4), (508, 0.4), (520, 1.0)):
        flops = size / 512
        assert seconds(512, size, 512) == pytest.approx(whole * flops / share)
        assert seconds(512, 512, size) == pytest.approx(whole * flops / share)
        assert seconds(size, 512, 512) == pytest.approx(whole * flops)
        assert seconds(512, size, 512, "float32") == pytest.approx(whole * flops)


def _four():
    return {
        "name": "four",
        "device": {
            "name": "a device",
            "peak_flops": {"float32": 6e13},
            "memory_bandwidth": 3e12,
            "memory_bytes": 2**34,
            "launch_seconds": 4e-6,
        },
        "levels": [{"name": "node", "size": 4, "bandwidth": 4.5e11, "latency": 1e-6}],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n", "the first line is `a,b`, expected `operator,amount,seconds` (in {path})"),
        ("", "the first line is ``, expected `operator,amount,seconds` (in {path})"),
        ("operator,amount,seconds\n", "the file has no measurements (in {path})"),
        (
            "operator,amount,seconds\nmatmull,1,1\n",
            "no operator is called `matmull` (in {path}, line 2); did you mean `matmul`?",
        ),
        (
            "operator,amount,seconds\nadd,1,-2\n",
            "`seconds` is `-2`, expected a positive number (in {path}, line 2)",
        ),
        (
            "operator,amount,seconds,traffic\nadd,1,2,-3\n",
            "`traffic` is `-3`, expected a positive number (in {path}, line 2)",
        ),
        (
            "operator,amount,seconds,traffic,alignment\nadd,1,2,3,3\n",
            "`alignment` is `3`, expected 1, 2, 4 or 8 (in {path}, line 2)",
        ),
        (
            "operator,amount,seconds\nadd,1\n",
            "`seconds` is ``, expected a positive number (in {path}, line 2)",
        ),
    ],
)
def test_a_wrong_csv_is_refused_in_one_sentence(tmp_path, text, told):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ClusterError) as error:
        of_csv(path)
    assert str(error.value) == told.format(path=path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "a log of nccl-tests names its collective, this one does not"),
        (
            "# all_reduce_perf\n",
            "a log of nccl-tests has a line for each of 2 ranks or more, and times, found 0 lines "
            "`# Rank` and 0 lines of times",
        ),
    ],
)
def test_a_wrong_log_is_refused_in_one_sentence(tmp_path, text, told):
    (tmp_path / "log").write_text(text)
    with pytest.raises(ClusterError) as error:
        of_nccl_tests(tmp_path / "log")
    assert error.value.what == told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--cluster", "cpu"], "`--cluster` has no effect, this machine is measured; leave it out"),
        (["--csv", "a"], "`--nccl` and `--csv` need the data sheet of the devices; name it with"),
        (["--csv", "a", "--cluster", "cpu", "--fast"], "`--fast` has no effect, nothing is"),
        (["--csv", "a", "--cluster", "cpu"], "cannot read the file `a`: No such file"),
        (["--nccl", "a", "--cluster", "cpu"], "cannot read the log `a`: No such file"),
        (["--steps", "0"], "`--steps` is 0, expected an integer of at least 1"),
    ],
)
def test_wrong_options_are_refused(tmp_path, monkeypatch, capsys, options, told):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "--out", "out.yaml", *options]) == 2
    assert told in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_a_foreign_file_is_not_replaced(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("name: mine")
    assert main(["calibrate", "--out", str(tmp_path / "mine.yaml")]) == 2
    assert "the cluster file cannot be written: a file that is something" in capsys.readouterr().err


@pytest.mark.long
def test_this_machine_is_measured(tmp_path, capsys):
    path = tmp_path / "here.yaml"
    options = ["--model", "mlp:batch=8,inputs=16,hidden=16", "--steps", "2"]
    for _ in range(2):  # it replaces its own
        assert main(["calibrate", "--out", str(path), *options]) == 0
    found = Cluster.load(path)
    measured = found.device.efficiency.operators
    assert {"matmul", "add", "relu", "sgd_update"} <= measured.keys()
    assert found.size == 1
    assert sw.compile("mlp:batch=8", 1, cluster=str(path), mode="stand_alone").plan


def test_traffic_is_found_beside_flops():
    random = np.random.default_rng(1)
    samples = [Sample(1.0, a, 2e-6 + a / 1e9 + b / 3e8, b) for a, b in random.random((9, 2)) * 1e4]
    line = fitted(samples)
    assert (line.fixed, line.rate, line.traffic) == pytest.approx((2e-6, 1e9, 3e8))
    assert line.seconds(samples[0]) == pytest.approx(samples[0].seconds)


@pytest.mark.long
@pytest.mark.parametrize("curved", [False, True])
def test_plans_cost_what_the_search_says_on_a_measured_machine(tmp_path, curved):
    path, rates = tmp_path / "two.yaml", {"matmul": (1e11, 5e-6), "local_slice": (1e10, 2e-6)}
    rates |= {"add": (1e10, 1e-6), "relu": (2e10, 2e-6), "sgd_update": (1e10, 2e-6)}

    def figure(value):
        return {"value": value, "tag": "measured", "source": "a test"}

    content = _four()
    shares = {name: figure(1.0) for name in ("matmul", "attention", "memory")}
    operators = {n: {"rate": figure(r), "launch": figure(s)} for n, (r, s) in rates.items()}
    operators["matmul"]["traffic"] = figure(5e9)
    content["device"]["efficiency"] = {**shares, "operators": operators}
    collectives = {"all_reduce": 1e9, "all_gather": 3e9, "reduce_scatter": 2e9}
    content["levels"][0]["efficiency"] = {
        "bandwidth": figure(1.0),
        "collectives": {
            kind: {"latency": figure(9e-6), "bandwidth": figure(rate)}
            for kind, rate in collectives.items()
        },
    }
    if curved:
        for kind, rate in content["levels"][0]["efficiency"]["collectives"].items():
            points = [[256, 7e-6], [4096, 8e-6], [6144, 2e-5], [10**6, 1e-3]]
            rate["messages"] = {"points": points, "tag": "measured", "source": "a test"}
            if kind != "all_reduce":
                # So little that plans pack, and so much that a price without it is refused.
                rate["packing"] = {"points": [[1e3, 1e-7]], "tag": "measured", "source": "a test"}
    path.write_text(yaml.safe_dump(content))
    for model in ("mlp:batch=32", "lenet5:batch=8"):
        flat = sw.compile(model, 4, cluster=str(path), objective="serial").plan.document
        sw.compile(model, 4, cluster=str(path), **ANY_PLAN)
        passes = {"micro_batches": 2, "objective": "serial"}
        looped = sw.compile(model, 4, cluster=str(path), **passes).plan.document
        assert 0 < flat.predicted_step_seconds < looped.predicted_step_seconds
    found = Cluster.load(path)
    seconds = collective_seconds_array("all_gather", np.array([4e6]), (MeshAxis("x", 4),), found)
    assert seconds[0] == pytest.approx(3 * (1e-3 if curved else 9e-6 + 1e6 / 3e9))
    without = found.without_latencies().levels[0].efficiency.collectives
    assert {rate.latency.value for rate in without.values()} == {0.0}


def test_a_collective_that_is_none_is_refused(tmp_path):
    content = _four()
    figure = {"value": 1.0, "tag": "measured", "source": "a test"}
    rate = {"latency": figure, "bandwidth": figure}
    content["levels"][0]["efficiency"] = {"bandwidth": figure, "collectives": {"gather": rate}}
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ClusterError, match="no collective is called `gather`"):
        Cluster.load(path)


def test_kinds_of_measured_collectives_are_those_of_the_cost_model():
    assert set(COLLECTIVES) == set(KINDS)


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 9.0)), min_size=1, max_size=8))
def test_rising_points_are_the_nearest_that_do_not_fall(points):
    found = rising(points)
    assert [first for first, _ in found] == sorted({first for first, _ in points})
    for first, second in found:  # the formula of minima of maxima of means
        low = [a for a, _ in found if a <= first]
        high = [b for b, _ in found if b >= first]
        means = [[np.mean([y for x, y in points if a <= x <= b]) for b in high] for a in low]
        assert second == pytest.approx(max(min(row) for row in means))


def test_messages_and_packing_are_written_as_measured():
    collectives = [Measured("permute", 2, size, size * 1e-9 + 1e-5) for size in (1000, 3000)]
    for size, first, second in ((2000, 8e-6, 9e-6), (16000, 2e-5, 3e-5)):
        collectives += [Measured("all_gather", 2, size, first)]
        collectives += [Measured("all_gather", 2, size, second, is_packed=True)]
    peaks = Machine({"float32": 1e11}, 1e10, 2**30)
    found = of_machine("two", peaks, {"add": [Sample(1.0, 4096.0, 1e-6)]}, collectives, 2)
    on = Cluster.model_validate(yaml.safe_load(as_text(found, [])))
    rate = on.levels[0].measured("all_gather")
    assert rate.messages.points == ((1000, 8e-6), (8000, 2e-5))
    assert rate.packing.points == ((1000, pytest.approx(1e-6)), (8000, pytest.approx(1e-5)))
    assert on.levels[0].measured("send").messages is None
    assert on.levels[0].measured("permute").packing is None


def test_a_node_takes_what_follows_until_the_next_one():
    step = [Span("compute", "add a", 0.0, 2.0), Span("compute", "mul b", 5.0, 6.0)]
    assert [*_nodes(step, 0.5)] == [("a", 4.5), ("b", 1.0)]


def test_processes_wait_for_each_other_by_a_skew():
    collectives = [Measured(kind, 2, 4096, 1e-5) for kind in ("permute", "all_gather")]
    peaks = Machine({"float32": 1e11}, 1e10, 2**30)
    operators = {"add": [Sample(1.0, 4096.0, 1e-6)]}
    found = of_machine("two", peaks, operators, collectives, 2, 3e-6)
    assert Cluster.model_validate(found).levels[0].skew_seconds == 3e-6

"""Sharding specs of ONNX: read by its checker, and the slices that the plan has."""

from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from shardwright.exports.table import export
from shardwright.ir.errors import OptionError
from shardwright.ir.text import plain_name

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.ir.errors.ShardwrightWarning")
FILE = Path(__file__).parents[1] / "frontends" / "fixtures" / "llama.dynamo-plain.onnx"


@pytest.fixture(scope="module", params=["tensor=2,data=2", "pipeline=2,data=2,micro_batch=1"])
def exported(request):
    onnx = pytest.importorskip("onnx")
    plan = sw.compile(str(FILE), 4, plan=request.param).plan
    content = export(plan, "onnx").files["model.onnx"]
    return plan, onnx.load_from_string(content), onnx


def test_the_checker_of_onnx_reads_the_file(exported):
    _, model, onnx = exported
    onnx.checker.check_model(model)
    assert model.ir_version >= 11
    assert [(one.name, one.num_devices) for one in model.configuration] == [("shardwright", 4)]


def test_every_spec_says_which_device_has_which_slice(exported):
    plan, model, _ = exported
    mesh, specs = plan.mesh.of_ranks, 0
    for node in model.graph.node:
        for own in node.device_configurations:
            for spec in own.sharding_spec:
                value = plan.program.values[plain_name(spec.tensor_name)]
                layout = value.layout.without(plan.mesh.in_time)
                counts = [1] * len(value.type.shape)
                for dim in spec.sharded_dim:
                    (one,) = dim.simple_sharding
                    assert one.dim_value == value.type.shape[dim.axis]
                    counts[dim.axis] = one.num_shards
                groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
                devices = np.empty(len(spec.device), object)
                devices[:] = [groups.get(key, [key]) for key in spec.device]
                for at, ranks in np.ndenumerate(devices.reshape(counts)):
                    for rank in ranks:
                        if layout.stage is not None:
                            assert rank // mesh.size == layout.stage % plan.mesh.stages
                        slices = layout.slices(value.type.shape, mesh, rank % mesh.size)
                        begins = [one.start for one in slices]
                        sizes = np.array(value.type.shape) // counts
                        assert begins == list(np.array(at, int) * sizes)
                everyone = sorted(rank for ranks in devices for rank in ranks)
                assert everyone == sorted(set(everyone))
                specs += 1
    assert specs > 100


def test_a_model_that_is_no_onnx_file_is_refused():
    pytest.importorskip("onnx")
    with pytest.raises(OptionError, match="needs an ONNX file"):
        export(sw.compile("mlp", 2, plan="data=2").plan, "onnx")

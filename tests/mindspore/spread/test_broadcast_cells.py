"""Cells that no search splits: their communication is written by hand."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import Parameter, Tensor, nn
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.nn.wrap.cell_wrapper import _BroadCastCell
from tests.shardwright.scripts.launching import needs_mpi, run

SCRIPT = """
import numpy as np
import shardwright.mindspore as ms
from shardwright.mindspore import Parameter, Tensor, communication
from shardwright.mindspore.nn.wrap.cell_wrapper import _BroadCastCell

communication.init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
own = np.arange(4, dtype="float32") + 10 * communication.get_rank()
cell = _BroadCastCell([Parameter(Tensor(own), name="a"), Tensor(own[:2])])
print([made.asnumpy().tolist() for made in cell()])
"""


@needs_mpi
@pytest.mark.long
def test_every_rank_gets_the_tensors_of_the_first(tmp_path):
    lines = run(SCRIPT, 2, tmp_path).splitlines()
    assert lines == ["[[0.0, 1.0, 2.0, 3.0], [0.0, 1.0]]"] * 2


def test_a_cell_that_is_not_split_is_compiled_by_hand():
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, global_rank=3)
    values = np.arange(6, dtype="float32")
    cell = _BroadCastCell([Parameter(Tensor(values), name="a"), Tensor(values)])
    phase, _ = _cell_graph_executor.compile(cell)
    operators = [node.operator for node in _cell_graph_executor.program(phase).nodes]
    assert "broadcast" in operators
    assert cell.get_flags() == {"skip_auto_parallel_compile": True}
    assert nn.ReLU().get_flags() == {}
    with pytest.raises(ShardwrightError, match="a cell has no flag `skip_all`"):
        cell.add_flags(skip_all=True)

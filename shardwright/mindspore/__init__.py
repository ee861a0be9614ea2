"""MindSpore's names and module paths, for scripts that are written for it.

Put ``shardwright.`` before ``mindspore`` in the imports of a script, and it runs here::

    import shardwright.mindspore as ms
    import shardwright.mindspore.dataset as ds
    from shardwright.mindspore import nn, ops, train
    from shardwright.mindspore.communication import init, get_rank, get_group_size

The names are those of `shardwright` with MindSpore's arguments and defaults. What is not supported
is refused in one sentence; nothing is ignored.
"""

from shardwright.mindspore import (
    amp,
    common,
    communication,
    context,
    dataset,
    nn,
    ops,
    parallel,
    train,
)
from shardwright.mindspore.common import dtype
from shardwright.mindspore.common.dtype import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)
from shardwright.mindspore.common.initializer import initializer
from shardwright.mindspore.context import (
    GRAPH_MODE,
    PYNATIVE_MODE,
    ParallelMode,
    get_auto_parallel_context,
    get_context,
    get_ps_context,
    get_seed,
    reset_auto_parallel_context,
    reset_ps_context,
    set_auto_parallel_context,
    set_context,
    set_deterministic,
    set_device,
    set_ps_context,
    set_seed,
)
from shardwright.mindspore.gradients import grad, value_and_grad

from shardwright.mindspore import mint as mint  # isort: skip
from shardwright.mindspore import runtime as runtime  # isort: skip
from shardwright.mindspore.cells import SplitCells as SplitCells
from shardwright.mindspore.members import add_members
from shardwright.mindspore.methods import add_methods
from shardwright.mindspore.parallel import AutoParallel, Layout, shard
from shardwright.mindspore.parallel import nn as _spread_nn  # noqa: F401
from shardwright.mindspore.parallel.sharding import vmap as vmap
from shardwright.mindspore.paths import make_known
from shardwright.mindspore.pipelines import lazy_inline, sync_pipeline_shared_parameters
from shardwright.mindspore.runtime import set_offload_context
from shardwright.mindspore.steps import ParameterTuple, jit
from shardwright.mindspore.symbols import Symbol
from shardwright.mindspore.train import (
    Model,
    load_checkpoint,
    load_param_into_net,
    restore_group_info_list,
    save_checkpoint,
)
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor

make_known()
add_methods()
add_members()

__all__ = [
    "GRAPH_MODE",
    "PYNATIVE_MODE",
    "AutoParallel",
    "Layout",
    "Model",
    "ParallelMode",
    "Parameter",
    "ParameterTuple",
    "Symbol",
    "Tensor",
    "amp",
    "bfloat16",
    "bool_",
    "common",
    "communication",
    "context",
    "dataset",
    "dtype",
    "float16",
    "float32",
    "float64",
    "get_auto_parallel_context",
    "get_context",
    "get_ps_context",
    "get_seed",
    "grad",
    "initializer",
    "int8",
    "int32",
    "int64",
    "jit",
    "lazy_inline",
    "load_checkpoint",
    "load_param_into_net",
    "mint",
    "nn",
    "ops",
    "parallel",
    "reset_auto_parallel_context",
    "reset_ps_context",
    "restore_group_info_list",
    "runtime",
    "save_checkpoint",
    "set_auto_parallel_context",
    "set_context",
    "set_deterministic",
    "set_device",
    "set_offload_context",
    "set_ps_context",
    "set_seed",
    "shard",
    "sync_pipeline_shared_parameters",
    "train",
    "uint8",
    "value_and_grad",
]

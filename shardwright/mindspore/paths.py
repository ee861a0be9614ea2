"""MindSpore's older and inner module paths: each is a module of this package under another name.

Scripts and tests import `nn.optim.momentum.Momentum` as well as `nn.Momentum`.
"""

import sys

_ROOT = "shardwright.mindspore"
_PATHS = {
    "nn": (
        "nn.cell",
        "nn.layer",
        "nn.layer.activation",
        "nn.layer.basic",
        "nn.layer.conv",
        "nn.layer.normalization",
        "nn.layer.pooling",
        "nn.loss",
        "nn.loss.loss",
        "nn.optim",
        "nn.optim.adafactor",
        "nn.optim.adam",
        "nn.optim.ftrl",
        "nn.optim.momentum",
        "nn.wrap.cell_wrapper",
        "nn.wrap.loss_scale",
    ),
    "common": ("common.parameter", "common.tensor"),
    "communication": ("communication._comm_helper",),
    "ops.operations": (
        "ops.operations.array_ops",
        "ops.operations.comm_ops",
        "ops.operations.math_ops",
        "ops.operations.nn_ops",
    ),
    "train": ("train.loss_scale_manager",),
    "parallel.nn": ("nn.transformer",),
    "parallel.algo_parameters": ("parallel.algo_parameter_config",),
}


def make_known() -> None:
    """Let the paths be imported."""
    for own, others in _PATHS.items():
        for other in others:
            sys.modules.setdefault(f"{_ROOT}.{other}", sys.modules[f"{_ROOT}.{own}"])

"""Processes that train exported packages for ten steps; see `test_optimizers.py`."""

import sys
from pathlib import Path

import numpy as np
import torch.distributed as dist
from exported_optimizers import exported
from processes import on_processes


def trains(folder, name):
    """Write what a package does into a file."""
    losses, parameters = exported(name)
    if dist.get_rank() == 0:
        np.savez(Path(folder) / f"{name}.npz", **parameters, losses=losses)


if __name__ == "__main__":
    on_processes(sys.argv[2:], trains)

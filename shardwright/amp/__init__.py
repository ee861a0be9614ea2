"""Automatic mixed precision in the form of MindSpore's scripts."""

from shardwright.ir.values import wrong_value
from shardwright.nn.cell import Cell
from shardwright.operators.models.precision import precision_of_amp

__all__ = ["auto_mixed_precision"]


def auto_mixed_precision(network: Cell, amp_level: str = "O0", dtype: str = "float16") -> Cell:
    """Return a network that is trained in mixed precision; its parameters stay in float32.

    Parameters
    ----------
    network : Cell
        The whole network.
    amp_level : str
        ``O0``: float32. ``O1``: products, convolutions and attention are computed in `dtype`.
        ``O2``: all but batch normalization and the loss. ``O3``: all but the loss. ``auto``: all
        but losses, softmax, and functions that lose most digits.
    dtype : str
        ``float16`` or ``bfloat16``.

    Raises
    ------
    OptionError
        If an argument is wrong.
    """
    if not isinstance(network, Cell):
        raise wrong_value("network", network, "a cell")
    network.precision = precision_of_amp(amp_level, dtype).name
    return network

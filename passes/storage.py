"""How a parameter can be stored, and what each way costs.

Stored as its reader takes it: nothing moves, and gradients are all-reduced (data and tensor
parallel). Stored finer: gathered for the reader, gradients reduce-scattered, the optimizer's work
and states divided; the gathered copy is kept for the gradient (ZeRO 1 and 2) or gathered again
(ZeRO 3).

References
----------
Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import CostProfile, Port
from shardwright.cost_model.roofline import local_bytes
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.passes.search_space import Storage

Floats = NDArray[np.float64]


def storage_options(
    everywhere: Sequence[Layout],
    used: Sequence[Layout],
    kept: bool,
    *,
    freely: bool,
    scattered: bool,
) -> tuple[Storage, ...]:
    """Return the ways to store a parameter.

    Parameters
    ----------
    everywhere : sequence of Layout
        All layouts that its shape allows.
    used : sequence of Layout
        Those in which its one reader takes it; empty where several readers decide for themselves.
    kept : bool
        Whether the gradient reads it.
    freely : bool
        Whether it may be stored otherwise than it is read.
    scattered : bool
        Whether it must be split as finely as it can be.
    """
    if not used:
        options = [Storage(layout) for layout in everywhere]
    else:
        options = [Storage(layout, layout) for layout in used]
        options += [
            Storage(finer, layout, again)
            for layout in (used if freely else ())
            for finer in everywhere
            if finer != layout and _refines(finer, layout)
            for again in (False, True)[: 1 + kept]
        ]
    return tuple(_finest(options) if scattered else options)


def _refines(finer: Layout, layout: Layout) -> bool:
    """Return whether `finer` splits further what `layout` splits, by axes that it does not use."""
    pairs = zip(finer.splits, layout.splits, strict=True)
    return all(fine[: len(axes)] == axes for fine, axes in pairs)


def _finest(options: Sequence[Storage]) -> list[Storage]:
    """Return for each way to use a parameter the ways to store it that split it most."""
    most: dict[Layout | None, int] = {}
    for option in options:
        axes = len(option.layout.split_axes)
        most[option.used] = max(axes, most.get(option.used, 0))
    return [option for option in options if len(option.layout.split_axes) == most[option.used]]


def storage_costs(
    tensor: TensorType, options: Sequence[Storage], kept: bool, copies: int, profile: CostProfile
) -> tuple[Floats, Floats]:
    """Return the cost of the update and the bytes of each way to store a parameter.

    Parameters
    ----------
    tensor : TensorType
        Its type.
    options : sequence of Storage
        The ways.
    kept : bool
        Whether the gradient reads it.
    copies : int
        The parameter itself, its gradient, and the states of the optimizer.
    profile : CostProfile
        Prices the update.
    """
    cost, usage = np.zeros(len(options)), np.zeros(len(options))
    for i, option in enumerate(options):
        usage[i] = copies * local_bytes(tensor, option.layout, profile.mesh)
        if option.used is not None and option.used != option.layout and kept and not option.again:
            usage[i] += local_bytes(tensor, option.used, profile.mesh)
        if copies > 1:
            cost[i] = profile.update(tensor, option.layout)
    return cost, usage


def storage_edges(
    tensor: TensorType,
    options: Sequence[Storage],
    sources: Sequence[Port],
    targets: Sequence[Port],
    profile: CostProfile,
) -> Floats:
    """Return the cost from each way to store a parameter to each way to read it.

    Infinite where the parameter is gathered for another layout than is read.
    """
    table = profile.edges(tensor, sources, targets)
    taken = [port.layout for port in targets]
    again = np.array([option.again for option in options])
    if again.any():
        stored = [option.layout for option in options]
        table = table + again[:, None] * profile.again(tensor, stored, taken)
    index = {layout: i for i, layout in enumerate(dict.fromkeys(taken))}
    wants = np.array([index[layout] for layout in taken])
    gives = np.array([-1 if option.used is None else index[option.used] for option in options])
    return np.where(gives[:, None] == wants[None, :], table, np.inf)

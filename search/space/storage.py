"""How a parameter can be stored, and what each way costs.

Stored as its reader takes it: nothing moves, and gradients are all-reduced (data and tensor
parallel). Stored finer: gathered for the reader, gradients reduce-scattered, the optimizer's work
and states divided; the gathered copy is kept for the gradient (ZeRO 1 and 2) or gathered again
(ZeRO 3).

References
----------
Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import CostProfile, EdgeLayout
from shardwright.cost_model.redistribution.layout_graph import placements
from shardwright.cost_model.roofline import local_bytes
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.search.space.space import Storage

Floats = NDArray[np.float64]


def storage_options(
    tensor: TensorType,
    used: Sequence[Layout],
    kept: bool,
    profile: CostProfile,
    everywhere: Sequence[Layout],
    scattered: bool,
) -> tuple[Storage, ...]:
    """Return the ways to store a parameter.

    Parameters
    ----------
    tensor : TensorType
        Its type.
    used : sequence of Layout
        Those in which its one reader takes it; empty where several readers decide for themselves.
    kept : bool
        Whether the gradient reads it.
    profile : CostProfile
        Says whether it may be stored otherwise than it is read, and which axes are alike.
    everywhere : sequence of Layout
        All layouts that its shape allows.
    scattered : bool
        Whether it must be split as finely as it can be.
    """
    if not used:
        options = [Storage(layout) for layout in _readable(tensor, everywhere, profile)]
    else:
        options = [Storage(layout, layout) for layout in used]
        options += [
            Storage(finer, layout, again)
            for layout in (used if profile.rules.free_storage else ())
            for finer in _refinements(layout, tensor, profile)
            for again in (False, True)[: 1 + kept]
        ]
    return tuple(_finest(options) if scattered else options)


def _readable(tensor: TensorType, layouts: Sequence[Layout], profile: CostProfile) -> list[Layout]:
    """Return the layouts from which a parameter can be made whole."""
    whole = EdgeLayout(Layout.replicated(tensor.rank), None)
    seconds = profile.edges(tensor, [EdgeLayout(layout, None) for layout in layouts], [whole])
    return [layout for layout, cost in zip(layouts, seconds[:, 0], strict=True) if cost < np.inf]


def _refinements(layout: Layout, tensor: TensorType, profile: CostProfile) -> Iterator[Layout]:
    """Yield the layouts that split further what a layout splits, by axes that it does not use."""
    mesh = profile.mesh
    free = [a.name for a in mesh.axes if a.size > 1 and a.name not in layout.split_axes]
    places = range(tensor.rank + 1)  # a dimension, or replicated
    for choice in placements(free, places, profile.kinds):
        finer = Layout(
            tuple(
                (*axes, *(a for a, c in zip(free, choice, strict=True) if c == dimension))
                for dimension, axes in enumerate(layout.splits)
            )
        )
        pairs = zip(tensor.shape, finer.counts(mesh), strict=True)
        if finer != layout and all(size >= count for size, count in pairs):
            yield finer


def _finest(options: Sequence[Storage]) -> list[Storage]:
    """Return for each way to use a parameter the ways to store it that split it most."""
    most: dict[Layout | None, int] = {}
    for option in options:
        axes = len(option.layout.split_axes)
        most[option.used] = max(axes, most.get(option.used, 0))
    return [option for option in options if len(option.layout.split_axes) == most[option.used]]


def storage_costs(
    tensor: TensorType, options: Sequence[Storage], trained: bool, profile: CostProfile
) -> Floats:
    """Return what the update costs for each way to store a parameter; 0 if it is not trained."""
    if not trained:
        return np.zeros(len(options))
    return np.array([profile.update(tensor, option.layout) for option in options])


@dataclass(frozen=True, eq=False)
class StorageBytes:
    """Bytes of a parameter on a rank, for each way to store it.

    Parameters
    ----------
    stored : array
        The parameter itself.
    gathered : array
        The copy that its reader takes; 0 where that is the parameter itself, or is gathered again.
    regathered : array
        The copy that is gathered again for the gradient; 0 where there is none.
    """

    stored: Floats
    gathered: Floats
    regathered: Floats


def storage_bytes(tensor: TensorType, options: Sequence[Storage], mesh: Mesh) -> StorageBytes:
    """Return the bytes of each way to store a parameter."""
    found = np.zeros((3, len(options)))
    for i, option in enumerate(options):
        found[0, i] = local_bytes(tensor, option.layout, mesh)
        if option.used is not None and option.used != option.layout:
            found[2 if option.regathered else 1, i] = local_bytes(tensor, option.used, mesh)
    return StorageBytes(*found)


def storage_edges(
    tensor: TensorType,
    options: Sequence[Storage],
    sources: Sequence[EdgeLayout],
    targets: Sequence[EdgeLayout],
    taken: Sequence[Layout],
    profile: CostProfile,
) -> Floats:
    """Return the cost from each way to store a parameter to each way to read it.

    Infinite where the parameter is gathered for another layout than is read, or than stands for
    what is read.
    """
    table = profile.edges(tensor, sources, targets)
    regathered = np.array([option.regathered for option in options])
    if regathered.any():
        stored = [EdgeLayout(option.layout, None) for option in options]
        wanted = [EdgeLayout(target.layout, None) for target in targets]
        table = table + regathered[:, None] * profile.edges(tensor, stored, wanted)
    index = {layout: i for i, layout in enumerate(dict.fromkeys(taken))}
    wants = np.array([index[layout] for layout in taken])
    gives = np.array([-1 if option.used is None else index[option.used] for option in options])
    return np.where(gives[:, None] == wants[None, :], table, np.inf)

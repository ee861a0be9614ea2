"""The storage options of a parameter, the sharded optimizer among them; their costs and memory.

Stored in its reader's layout, a parameter is not redistributed, and its gradient is all-reduced
(data and tensor parallel). Stored with a finer split, it is gathered for the reader, its gradient
is reduce-scattered, and the optimizer's work and states are divided; the gathered copy is saved for
backward (ZeRO 1 and 2) or regathered (ZeRO 3).

References
----------
Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import CostProfile, EdgeLayout
from shardwright.cost_model.redistribution.layout_graph import placements
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout, local_bytes
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.search.space.distinct import DistinctLayouts
from shardwright.search.space.gradients import GradientTypes
from shardwright.search.space.sharding import OptimizerSharding
from shardwright.search.space.space import Storage

Floats = NDArray[np.float64]


def storage_options(
    tensor: TensorType,
    used: Sequence[Layout],
    saved: bool,
    profile: CostProfile,
    everywhere: Sequence[Layout],
    sharding: OptimizerSharding | None,
    passes: float = 1,
) -> tuple[Storage, ...]:
    """Return the options to store a parameter.

    Parameters
    ----------
    tensor : TensorType
        Its type.
    used : sequence of Layout
        The layouts that its one reader uses; empty where each of several readers has its own.
    saved : bool
        Whether it is saved for backward.
    profile : CostProfile
        Its rules, and the kinds of axes.
    everywhere : sequence of Layout
        All layouts that its shape allows.
    sharding : OptimizerSharding, optional
        How finely it must be divided.
    passes : float
        How often its one reader runs in a step over micro-batches.
    """
    if not used:
        options = [Storage(layout) for layout in _readable(tensor, everywhere, profile)]
    else:
        options = [Storage(layout, layout) for layout in used]
        options += [
            Storage(finer, layout, *when)
            for layout in (used if profile.rules.free_storage or sharding else ())
            for finer in _refinements(layout, tensor, profile)
            for when in _WHEN[passes > 1, saved]
        ]
    if sharding is None:
        return tuple(options)
    return tuple(sharding.allowed(options, tensor, profile.mesh, passes))


# When a parameter is gathered, and its gradient reduced: `regathered`, `in_passes` and
# `reduced_in_passes`, for a reader that runs once or in every pass, and that saves it or does not.
_WHEN: Mapping[tuple[bool, bool], tuple[tuple[bool, ...], ...]] = {
    (False, False): ((False,),),
    (False, True): ((False,), (True,)),
    (True, False): tuple((False, a, b) for a in (False, True) for b in (False, True)),
    (True, True): tuple(
        (*when, reduced)
        for when in ((False, False), (False, True), (True, True))
        for reduced in (False, True)
    ),
}


def _readable(tensor: TensorType, layouts: Sequence[Layout], profile: CostProfile) -> list[Layout]:
    """Return the layouts from which a parameter can be made whole."""
    whole = EdgeLayout(Layout.replicated(tensor.rank), None)
    costs = profile.edges(tensor, [EdgeLayout(layout, None) for layout in layouts], [whole])
    return [layout for layout, cost in zip(layouts, costs[:, 0], strict=True) if cost < np.inf]


def _refinements(layout: Layout, tensor: TensorType, profile: CostProfile) -> Iterator[Layout]:
    """Yield the refinements of a layout: split further, by axes that it does not use."""
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


def storage_costs(
    parameter: Value,
    copy: GradientTypes,
    options: Sequence[Storage],
    trained: bool,
    profile: CostProfile,
) -> Floats:
    """Return the cost of a parameter by itself for each storage option.

    It is updated where it is stored, and cast there to the type in which operators read it.

    Parameters
    ----------
    parameter : Value
        The parameter.
    copy : GradientTypes
        The type in which operators read it, and those of its gradient.
    options : sequence of Storage
        The options.
    trained : bool
        Whether it is updated.
    profile : CostProfile
        The prices.
    """
    costs, stored, tensor = np.zeros(len(options)), stored_layouts(options), parameter.type
    if trained:
        dtype = copy.reduced.dtype
        costs += stored.each(
            lambda layout: profile.update(replace(parameter, layout=layout), dtype)
        )
    if copy.tensor != tensor:
        prices = profile.in_step(1, of_parameters=True)
        costs += stored.each(lambda layout: prices.cast(tensor, copy.tensor.dtype, layout))
    return costs


def stored_layouts(options: Sequence[Storage]) -> DistinctLayouts:
    """Return the distinct layouts in which a parameter may be stored."""
    return DistinctLayouts([option.layout for option in options])


@dataclass(frozen=True, eq=False)
class StorageBytes:
    """Bytes of a parameter on a rank, for each storage option.

    Parameters
    ----------
    stored : array
        The parameter itself.
    gathered : array
        The copy saved for backward; 0 where the reader uses the parameter itself, or regathers it.
    regathered : array
        The copy that is regathered for the gradient; 0 where there is none.
    lasting : array
        The copy that is gathered once for all passes over micro-batches; 0 where there is none.
    accumulated : array
        The gradient that the passes add up.
    """

    stored: Floats
    gathered: Floats
    regathered: Floats
    lasting: Floats
    accumulated: Floats

    @property
    def cast(self) -> Floats:
        """The copy in lower precision that is saved for backward: gathered, or as stored."""
        return np.where(self.gathered > 0, self.gathered, self.stored)


def storage_bytes(
    tensor: TensorType, options: Sequence[Storage], mesh: Mesh, passes: float = 1
) -> StorageBytes:
    """Return the bytes of a parameter for each storage option."""
    read = DistinctLayouts([option.used or option.layout for option in options])
    stored, used = (
        layouts.each(lambda layout: local_bytes(tensor, layout, mesh))
        for layouts in (stored_layouts(options), read)
    )
    gathers = np.array([option.used not in (None, option.layout) for option in options])
    again = np.array([option.regathered for option in options])
    lasts = ~np.array([option.in_passes or option.regathered for option in options]) & (passes > 1)
    reduced = np.array([option.reduced_in_passes for option in options])
    return StorageBytes(
        stored,
        np.where(gathers & ~again & ~lasts, used, 0.0),
        np.where(gathers & again, used, 0.0),
        np.where(gathers & lasts, used, 0.0),
        np.where(gathers & ~reduced, used, stored),
    )


def gradient_bytes(
    types: GradientTypes, options: Sequence[Storage], mesh: Mesh, passes: float = 1
) -> StorageBytes:
    """Return the bytes of the gradient of a parameter for each storage option."""
    reduced = storage_bytes(types.reduced, options, mesh, passes)
    if types.accumulated == types.reduced:
        return reduced
    wide = storage_bytes(types.accumulated, options, mesh, passes)
    return replace(reduced, accumulated=wide.accumulated)


def storage_edges(
    types: GradientTypes,
    options: Sequence[Storage],
    trained: bool,
    targets: Sequence[EdgeLayout],
    used: Sequence[Layout],
    profile: CostProfile,
    passes: float = 1,
) -> Floats:
    """Return the cost from each storage option of a parameter to each option of its reader.

    Infinite where the parameter is gathered to another layout than the reader uses; `used` are the
    representatives of the reader's layouts.
    """
    if passes > 1:
        table = _in_passes(types, options, trained, targets, profile, passes)
    else:
        table = _in_one_pass(types, options, trained, targets, profile)
    reads = DistinctLayouts(used)
    gives = reads.places([option.used for option in options])
    return np.where(gives[:, None] == reads.place[None, :], table, np.inf)


def _in_one_pass(
    types: GradientTypes,
    options: Sequence[Storage],
    trained: bool,
    targets: Sequence[EdgeLayout],
    profile: CostProfile,
) -> Floats:
    """Return the cost of gathering a parameter once or twice, and of reducing its gradient."""
    stored = stored_layouts(options)
    ends = [EdgeLayout(layout, layout if trained else None) for layout in stored.layouts]
    table = types.edges(profile.in_step(1, of_parameters=True), ends, targets)[stored.place]
    regathered = np.array([option.regathered for option in options])
    if regathered.any():
        ends, wanted = _values(stored.layouts), _values(target.layout for target in targets)
        second = profile.second.edges(types.tensor, ends, wanted)[stored.place]
        table += np.where(regathered[:, None], second, 0.0)
    return table


def _in_passes(
    types: GradientTypes,
    options: Sequence[Storage],
    trained: bool,
    targets: Sequence[EdgeLayout],
    profile: CostProfile,
    passes: float,
) -> Floats:
    """Return the cost of gathering a parameter for all passes, and of adding up its gradient.

    The gradient is accumulated as the reader returns it and reduced once, or reduced in every pass
    and accumulated as it is stored.
    """
    stored = stored_layouts(options)
    ends, wanted = _values(stored.layouts), _values(target.layout for target in targets)
    first, second = (
        np.array([gathers(option, passes) for option in options])[:, None]
        for gathers in (Storage.first_gathers, Storage.second_gathers)
    )
    table = first * _frequent(
        first, profile, lambda p: p.edges(types.tensor, ends, wanted)[stored.place]
    )
    if second.any():
        table += second * profile.second.edges(types.tensor, ends, wanted)[stored.place]
    cotangents = [target.cotangent for target in targets if target.cotangent is not None]
    if len(cotangents) < len(targets) or not trained:
        return table
    returned = _values(cotangents)
    reductions = np.array([option.reductions(passes) for option in options])[:, None]
    table += reductions * _frequent(
        reductions,
        profile,
        lambda p: p.of_gradients.edges(types.reduced, returned, ends).T[stored.place],
    )
    whole, own = (
        layouts.each(lambda at: types.accumulation(profile, at, passes, of_parameters=True))
        for layouts in (DistinctLayouts(cotangents), stored)
    )
    in_passes = np.array([option.reduced_in_passes for option in options])[:, None]
    return table + np.where(in_passes, own[:, None], whole[None, :])


def _values(layouts: Iterable[Layout]) -> list[EdgeLayout]:
    """Return the layouts of values without a gradient."""
    return [EdgeLayout(layout, None) for layout in layouts]


def _frequent(
    times: Floats, profile: CostProfile, costs: Callable[[CostProfile], Floats]
) -> Floats:
    """Return the costs of each storage option by the prices of what it does so often in a step."""
    once = profile.in_step(1, of_parameters=True)
    each = costs(profile)
    return each if once is profile else np.where(times == 1, costs(once), each)

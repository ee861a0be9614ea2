"""Depthwise convolutions: every channel is its own group, and no columns are made.

A matrix product would have one row. Instead, space is stored so that the elements under one tap of
the kernel, over all windows, are one contiguous run: with a stride of s, element i goes to phase i
mod s, position i div s, and samples are consecutive. Each tap is then one product of a run with a
number, over blocks of channels that stay in the cache. Between rows and samples a run crosses a few
elements outside any window; their products are dropped.

Small planes with many channels are stored channels last: each tap is then one product over all
channels, and nothing is dropped.

With numba, compiled loops over single channels are several times faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import prod

import numpy as np

from shardwright.operators.info import Array
from shardwright.operators.rule import Shape
from shardwright.operators.windows import depthwise_loops
from shardwright.operators.windows.depthwise_loops import Places
from shardwright.operators.windows.geometry import Index, Windows

_ELEMENTS_IN_A_RUN = 1 << 12
_ELEMENTS_AT_ONCE = 1 << 16
_FEW_PLACES = 256  # of a plane, up to which channels are stored last
_MANY_CHANNELS = 256  # from which they are; the fewest that are worked on at once
_SHORT_ROW = 10  # places of a row below which each place is a run of its own
_LONG_ROW = 20  # places of a row from which a plane is not copied for each offset


@dataclass(frozen=True)
class _Runs:
    """Samples stored by phases.

    Parameters
    ----------
    windows : Windows
        The windows.
    samples : int
        Number of samples.
    size : tuple of int
        Their space, without padding.
    """

    windows: Windows
    samples: int
    size: Shape

    @cached_property
    def count(self) -> Shape:
        """Windows of each sample along each dimension."""
        return (self.samples, *self.windows.count(self.size))

    @cached_property
    def grid(self) -> Shape:
        """Positions of one phase, of each sample along each dimension."""
        padded = zip(self.windows.padded_size(self.size), self.windows.stride, strict=True)
        return (self.samples, *(-(-n // s) for n, s in padded))

    @cached_property
    def length(self) -> int:
        """The length of a run: from the first window to the last."""
        return int(np.ravel_multi_index(tuple(c - 1 for c in self.count), self.grid)) + 1

    @cached_property
    def taps(self) -> tuple[tuple[int, slice], ...]:
        """The phase of each tap, and its run there."""
        stride, found = self.windows.stride, []
        for offset in self.windows.offsets:
            phase = tuple(o % s for o, s in zip(offset, stride, strict=True))
            place = tuple(o // s for o, s in zip(offset, stride, strict=True))
            start = int(np.ravel_multi_index((0, *place), self.grid))
            run = slice(start, start + self.length)
            found.append((int(np.ravel_multi_index(phase, stride)), run))
        return tuple(found)

    @property
    def _phases(self) -> Iterator[Index]:
        """Yield the elements of each phase, as an index of the space."""
        stride = self.windows.stride
        for begin in product(*map(range, stride)):
            yield (..., *(slice(b, None, s) for b, s in zip(begin, stride, strict=True)))

    def _whole(self, channels: int, x: Array) -> Array:
        """Return an empty padded space that all phases fill evenly."""
        sizes = (g * s for g, s in zip(self.grid[1:], self.windows.stride, strict=True))
        return np.zeros((channels, self.samples, *sizes), x.dtype)

    def split(self, x: Array) -> Array:
        """Return samples ``[n, c, *space]`` as ``[phase, c, position]``."""
        x = np.swapaxes(x, 0, 1)
        whole = self._whole(len(x), x)
        whole[self.windows.interior(self.size)] = x
        phases = [whole[index] for index in self._phases]
        return (
            np.stack(phases).reshape(len(phases), len(x), -1)
            if len(phases) > 1
            else (whole.reshape(1, len(x), -1))
        )

    def join(self, phases: Array) -> Array:
        """Return the samples from the form of `split`."""
        whole = self._whole(phases.shape[1], phases)
        for index, phase in zip(self._phases, phases, strict=True):
            whole[index] = phase.reshape(-1, *self.grid)
        return np.swapaxes(whole[self.windows.interior(self.size)], 0, 1)

    def zeros(self, channels: Shape, x: Array) -> Array:
        """Return runs ``[*channels, place]`` of zeros."""
        return np.zeros((*channels, prod(self.grid)), x.dtype)

    def windows_of(self, runs: Array) -> Array:
        """Return a view of runs ``[c, m, place]`` as windows ``[n, c, m, *count]``."""
        index: Index = (..., *(slice(0, c) for c in self.count))
        return np.moveaxis(runs.reshape(*runs.shape[:-1], *self.grid)[index], 2, 0)

    def spread(self, y: Array) -> Array:
        """Return windows ``[n, c, m, *count]`` as runs, zero where no window is."""
        result = self.zeros(y.shape[1:3], y)
        self.windows_of(result)[...] = y
        return result[..., : self.length]


@cache
def _places(windows: Windows, size: Shape) -> Places:
    """Return the positions of the elements and windows of one plane in its runs."""
    runs = _Runs(windows, 1, size)
    phases = np.arange(prod(windows.stride) * prod(runs.grid))
    elements = runs.join(phases.reshape(prod(windows.stride), 1, -1))
    found = runs.windows_of(np.arange(prod(runs.grid)).reshape(1, 1, -1))
    starts = [phase * prod(runs.grid) + run.start for phase, run in runs.taps]
    nothing = np.empty(0, np.int32)
    rows = (*_rows(elements), nothing, 1, *_rows(found))
    return Places(*rows, np.array(starts), runs.length, len(phases))


@cache
def _places_in_a_row(windows: Windows, size: Shape) -> Places:
    """Return positions where all windows of a plane are one run, without gaps between rows.

    For each offset in the last dimensions there is a copy of the plane without the elements beyond
    their ends. This pays for short rows with a window at every element.
    """
    if size[-1] >= _LONG_ROW or set(windows.stride) != {1} or windows.count(size) != size:
        return _places(windows, size)
    indices = np.indices(size).reshape(len(size), -1)
    before = np.array([a for a, _ in windows.padding])
    offsets = np.array(windows.offsets) - before
    length, inner = prod(size), np.array([prod(size[i + 1 :]) for i in range(len(size))])
    beside, copy = np.unique(offsets[:, 1:], axis=0, return_inverse=True)
    ends = np.array(size[1:])[:, None]
    met = indices[None, 1:] - beside[:, :, None]
    lost, places = np.nonzero(((met < 0) | (met >= ends)).any(axis=1))
    shifts = offsets @ inner
    margin = int(abs(shifts).max())
    elements = margin + np.arange(len(beside)) * (length + 2 * margin)
    starts = elements[copy.ravel()] + shifts
    buffer = len(beside) * (length + 2 * margin)
    dropped = (elements[lost] + places).astype(np.int32)
    rows = elements.astype(np.int32), length, dropped, len(beside)
    return Places(*rows, np.zeros(1, np.int32), length, starts, length, buffer)


def _rows(places: Array) -> tuple[Array, int]:
    """Return the first positions of rows, and their length.

    If rows are not contiguous, or too short to pay, each position is a row.
    """
    rows = places.reshape(-1, places.shape[-1]).astype(np.int32)
    if rows.shape[1] >= _SHORT_ROW and (np.diff(rows, axis=1) == 1).all():
        return np.ascontiguousarray(rows[:, 0]), rows.shape[1]
    return rows.ravel(), 1


def _loops(x: Array) -> bool:
    """Return whether the compiled loops support an array."""
    return depthwise_loops.COMPILED and x.dtype in (np.float32, np.float64)


def _planes(x: Array, *shape: int) -> Array:
    """Return an array with its space in one dimension."""
    return np.ascontiguousarray(x).reshape(*shape, -1)


def _blocks(
    x: Shape, windows: Windows, several: int
) -> Iterator[tuple[tuple[slice, slice], _Runs]]:
    """Yield blocks of the samples and channels of a shape, with the runs of the samples."""
    samples, channels, *size = x
    places = prod(windows.padded_size(size)) // prod(windows.stride) + 1
    step = max(1, _ELEMENTS_IN_A_RUN // places)
    for start in range(0, samples, step):
        chosen = slice(start, min(start + step, samples))
        runs = _Runs(windows, chosen.stop - start, tuple(size))
        width = max(1, _ELEMENTS_AT_ONCE // (several * places * runs.samples))
        for first in range(0, channels, width):
            yield (chosen, slice(first, min(first + width, channels))), runs


@cache
def _meetings(windows: Windows, size: Shape) -> tuple[tuple[Index, Index], ...]:
    """Return for each tap the windows in which it reads an element, and these elements."""
    found = []
    for offset in windows.offsets:
        counts, elements = [], []
        sides = zip(offset, windows.padding, windows.stride, size, windows.count(size), strict=True)
        for o, (before, _), stride, n, count in sides:
            at = o - before  # the position of the tap in the first window
            first = max(0, -(at // stride))
            last = min(count - 1, (n - 1 - at) // stride)
            counts.append(slice(first, last + 1))
            elements.append(slice(at + first * stride, max(0, at + last * stride + 1), stride))
        found.append((tuple(counts), tuple(elements)))
    return tuple(found)


def _channels_last(x: Array, several: int) -> bool:
    """Return whether planes are small and channels many."""
    few = prod(x.shape[2:]) <= _FEW_PLACES
    return few and several == 1 and x.shape[1] >= _MANY_CHANNELS


def _samples(x: Array) -> Iterator[tuple[int, slice]]:
    """Yield the samples, and blocks of their channels."""
    width = max(_MANY_CHANNELS, _ELEMENTS_AT_ONCE // prod(x.shape[2:]))
    for sample in range(len(x)):
        for first in range(0, x.shape[1], width):
            yield sample, slice(first, min(first + width, x.shape[1]))


def _turned(x: Array) -> Array:
    """Return ``[c, *space]`` as ``[*space, c]``."""
    return np.ascontiguousarray(np.moveaxis(x, 0, -1))


def _forward_channels_last(x: Array, weight: Array, windows: Windows, result: Array) -> None:
    """Write the convolution of ``[n, c, *space]`` by ``[tap, c]``."""
    for sample, block in _samples(x):
        elements = _turned(x[sample, block])
        total = np.zeros((*result.shape[2:], elements.shape[-1]), x.dtype)
        made = np.empty_like(total)
        for tap, (at, met) in enumerate(_meetings(windows, x.shape[2:])):
            product = np.multiply(elements[met], weight[tap, block], out=made[at])
            total[at] += product
        result[sample, block] = np.moveaxis(total, -1, 0)


def _weight_gradient_channels_last(x: Array, y: Array, windows: Windows) -> Array:
    """Return the gradient of `forward` by its weight, ``[c, tap]``."""
    total = np.zeros((windows.taps, x.shape[1]), y.dtype)
    channel, rank = x.ndim - 2, x.ndim - 1
    for sample, block in _samples(x):
        elements, cotangents = _turned(x[sample, block]), _turned(y[sample, block])
        for tap, (at, met) in enumerate(_meetings(windows, x.shape[2:])):
            a, b = elements[met], cotangents[at]
            total[tap, block] += np.einsum(a, range(rank), b, range(rank), [channel])
    return total.T


def forward(x: Array, w: Array, windows: Windows) -> Array:
    """Return the convolution of ``[n, c, *space]`` by ``[c m, 1, *kernel]``."""
    samples, channels, *size = x.shape
    weight = w.reshape(channels, -1, windows.taps, 1)
    several = weight.shape[1]
    result = np.empty((samples, channels, several, *windows.count(size)), x.dtype)
    if _loops(x):
        out = result.reshape(samples, channels, several, -1)
        given = _planes(x, samples, channels), _planes(weight, channels, several)
        depthwise_loops.forward(*given, out, _places_in_a_row(windows, tuple(size)))
        return result.reshape(samples, channels * several, *result.shape[3:])
    if _channels_last(x, several):
        turned = np.ascontiguousarray(weight.reshape(channels, -1).T)
        _forward_channels_last(x, turned, windows, result[:, :, 0])
        return result[:, :, 0]
    for block, runs in _blocks(x.shape, windows, several):
        phases, factors = runs.split(x[block])[:, :, None], weight[block[1]]
        total = runs.zeros(factors.shape[:2], x)
        sums = total[..., : runs.length]
        made = np.empty_like(sums)
        for tap, (phase, run) in enumerate(runs.taps):
            np.multiply(phases[phase, ..., run], factors[:, :, tap], out=made)
            sums += made
        result[block] = runs.windows_of(total)
    return result.reshape(samples, channels * several, *result.shape[3:])


def transposed(y: Array, w: Array, windows: Windows, shape: Shape) -> Array:
    """Return the transpose of `forward`: from results to samples of `shape`, ``[n, c, *space]``."""
    samples, channels, *size = shape
    weight = w.reshape(channels, -1, windows.taps, 1)
    several, around = weight.shape[1], windows.transposed(tuple(size), y.shape[2:])
    if several == 1 and around is not None:
        return forward(y, weight[:, :, ::-1], around)
    cotangents = y.reshape(samples, channels, several, *y.shape[2:])
    result = np.empty(shape, y.dtype)
    if _loops(y):
        out = result.reshape(samples, channels, -1)
        given = _planes(y, samples, channels, several), _planes(weight, channels, several)
        depthwise_loops.transposed(*given, out, _places(windows, shape[2:]))
        return result
    for block, runs in _blocks(shape, windows, several):
        spread, factors = runs.spread(cotangents[block]), weight[block[1]]
        phases = runs.zeros((prod(windows.stride), len(factors)), y)
        made = np.empty((len(factors), runs.length), y.dtype)
        for tap, (phase, run) in enumerate(runs.taps):
            for i in range(several):
                np.multiply(spread[:, i], factors[:, i, tap], out=made)
                phases[phase, :, run] += made
        result[block] = runs.join(phases)
    return result


def weight_gradient(x: Array, y: Array, windows: Windows) -> Array:
    """Return the gradient of `forward` by its weight, ``[c, m, tap]``."""
    samples, channels = x.shape[:2]
    cotangents = y.reshape(samples, channels, -1, *y.shape[2:])
    several = cotangents.shape[2]
    total = np.zeros((channels, several, windows.taps), y.dtype)
    if _loops(y):
        given = _planes(x, samples, channels), _planes(y, samples, channels, several)
        depthwise_loops.weight_gradient(*given, total, _places_in_a_row(windows, x.shape[2:]))
        return total
    if _channels_last(x, several):
        total[:, 0] = _weight_gradient_channels_last(x, y, windows)
        return total
    for block, runs in _blocks(x.shape, windows, several):
        spread, phases = runs.spread(cotangents[block]), runs.split(x[block])
        for tap, (phase, run) in enumerate(runs.taps):
            total[block[1], :, tap] += np.einsum("cml,cl->cm", spread, phases[phase, :, run])
    return total

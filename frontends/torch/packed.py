"""Packed sequences, in sizes that are known.

How many sequences of a batch have a step decides the sizes of what is packed, so their lengths must
be known. What is packed is the sequences' own steps, first those of the first step. A recurrent
network runs on it in stretches of steps that the same sequences have, as in PyTorch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from shardwright.frontends.torch.private import ByTensor

_NETWORKS = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_OF_PACKED = {"_pad_packed_sequence", "__getitem__", *_NETWORKS}
States = tuple[Tensor, ...]


@contextmanager
def traced_packing() -> Iterator[None]:
    """Let packed sequences be traced, and recurrent networks on them."""
    with _Packing():
        yield


class _Packing(TorchFunctionMode):  # type: ignore[misc]
    """Traces packed sequences.

    Attributes
    ----------
    sizes : mapping
        By the tensor that a packed sequence has of them, how many sequences have each step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes = ByTensor()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if torch.compiler.is_dynamo_compiling():  # a branch, in which no sequence is packed
            return func(*args, **kwargs)
        if name == "_pack_padded_sequence":
            return self._pack(*args, **kwargs)
        if name not in _OF_PACKED or not any(self._knows(one) for one in args[:2]):
            return func(*args, **kwargs)
        if name == "_pad_packed_sequence":
            return self._pad(*args, **kwargs)
        if name in _NETWORKS:
            return self._run(func, *args, **kwargs)
        if isinstance(args[1], int):
            return self.sizes[args[0]][args[1]]
        return func(*args, **kwargs)

    def _knows(self, item: Any) -> bool:
        return isinstance(item, Tensor) and item in self.sizes

    def _pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        counts = lengths.tolist()
        x = x.transpose(0, 1) if batch_first else x
        sizes = [sum(count > step for count in counts) for step in range(counts[0])]
        found = torch.tensor(sizes)
        self.sizes[found] = sizes
        return torch.cat([x[step, :size] for step, size in enumerate(sizes)]), found

    def _pad(
        self,
        data: Tensor,
        batch_sizes: Tensor,
        batch_first: bool,
        padding_value: float,
        total_length: int,
    ) -> tuple[Tensor, Tensor]:
        sizes = self.sizes[batch_sizes]
        behind = [0] * max(total_length - len(sizes), 0)
        steps = [_padded(part, sizes[0], padding_value) for part in data.split([*sizes, *behind])]
        counts = [sum(size > at for size in sizes) for at in range(sizes[0])]
        return torch.stack(steps, 1 if batch_first else 0), torch.tensor(counts)

    def _run(
        self,
        func: Callable[..., Any],
        data: Tensor,
        batch_sizes: Tensor,
        hx: Tensor | Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Tensor, ...]:
        states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        stretches, ways = _stretches(self.sizes[batch_sizes]), 2 if bidirectional else 1
        each, last = len(params) // (num_layers * ways), []
        for layer in range(num_layers):
            made = []
            for way in range(ways):
                at = layer * ways + way
                network = _Layer(func, params[at * each : (at + 1) * each], has_biases, way == 1)
                begin = tuple(state[at : at + 1] for state in states)
                output, end = network.run(data, stretches, begin)
                made.append(output)
                last.append(end)
            data = torch.cat(made, 1)
            if train and dropout and layer + 1 < num_layers:
                data = F.dropout(data, dropout)
        return data, *(torch.cat(parts) for parts in zip(*last, strict=True))


class _Layer:
    """A layer of a recurrent network in one direction.

    Parameters
    ----------
    function : callable
        The network, as a function of whole sequences.
    params : sequence of Tensor
        Its parameters.
    has_biases, reverse : bool
        Whether biases are among them, and whether it begins at the last step.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        params: Sequence[Tensor],
        has_biases: bool,
        reverse: bool,
    ) -> None:
        self.function, self.params = function, params
        self.has_biases, self.reverse = has_biases, reverse

    def run(
        self, data: Tensor, stretches: Sequence[tuple[int, int]], begin: States
    ) -> tuple[Tensor, States]:
        """Return the outputs of all steps, and the last state of every sequence."""
        parts = data.split([steps * size for steps, size in stretches])
        order = range(len(stretches))
        outputs: dict[int, Tensor] = {}
        states, ended = tuple(state[:, :0] for state in begin), []
        for at in reversed(order) if self.reverse else order:
            steps, size = stretches[at]
            held = states[0].shape[1]
            if at == 0 and not self.reverse:
                states = begin
            elif size > held:  # sequences that begin here
                pairs = zip(states, begin, strict=True)
                states = tuple(torch.cat([old, new[:, held:size]], 1) for old, new in pairs)
            else:  # others ended before
                ended.append(tuple(state[:, size:] for state in states))
                states = tuple(state[:, :size] for state in states)
            found, states = self._stretch(parts[at].reshape(steps, size, -1), states)
            outputs[at] = found.reshape(steps * size, -1)
        groups = zip(states, *reversed(ended), strict=True)
        return torch.cat([outputs[at] for at in order]), tuple(torch.cat(g, 1) for g in groups)

    def _stretch(self, x: Tensor, states: States) -> tuple[Tensor, States]:
        x = x.flip(0) if self.reverse else x
        states = tuple(state.contiguous() for state in states)
        given = states if len(states) > 1 else states[0]
        how = (self.has_biases, 1, 0.0, False, False, False)
        found, *last = self.function(x, given, self.params, *how)
        return found.flip(0) if self.reverse else found, tuple(last)


def _stretches(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return how many steps in turn as many sequences have, and how many."""
    return [(sizes.count(size), size) for size in dict.fromkeys(sizes)]


def _padded(part: Tensor, size: int, value: float) -> Tensor:
    rest = part.new_full((size - part.shape[0], *part.shape[1:]), value)
    return torch.cat([part, rest])

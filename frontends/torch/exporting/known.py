"""Values of tensors that are known while a module is traced: constants and example inputs.

An export knows the shapes of tensors and not their elements, so it stops where a module reads them:
grids of images, lengths of sequences, positions of kinds of tokens. Traced again, functions of
tensors with known elements are computed as well, and a module that reads elements gets them. The
program then holds for the example's elements of the inputs that were read; those are held constant.

Elements of other inputs, such as images and tokens, differ in every batch. Where the user assumes
that what is read of them does not, the program checks it: see `ASSUMED`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from shardwright.frontends.torch.places import line_of_call
from shardwright.frontends.torch.private import (
    ByTensor,
    memory_of,
    tree_leaves,
    tree_map_only,
    without_functions,
    without_modes,
)

# Begins the message of an assertion that a program keeps: what is read of its inputs is as in the
# example. The line of the module follows.
ASSUMED = "assumed: "
# Most elements of a tensor whose values are followed, and where floating-point inputs are, too.
_MOST_ELEMENTS, _MOST_ASSUMED = 2**20, 2**26
# Functions that return elements as numbers of Python.
_READS = {
    "item",
    "tolist",
    "numpy",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__contains__",
    "is_nonzero",
    "equal",
    "allclose",
}
# Functions whose results have sizes that depend on elements.
_SIZED = {
    "nonzero",
    "argwhere",
    "masked_select",
    "unique",
    "unique_consecutive",
    "bincount",
    "_unique2",
    "combinations",
}
# Functions that take numbers, for which a tensor of one element may stand.
_COUNTED = {
    "arange",
    "linspace",
    "full",
    "zeros",
    "ones",
    "new_zeros",
    "new_ones",
    "new_full",
    "narrow",
}
# Functions of a tensor and such numbers.
_COUNTED_OF_TENSOR = {
    "expand",
    "interpolate",
    "pad",
    "repeat",
    "reshape",
    "roll",
    "split",
    "split_with_sizes",
    "tile",
    "unflatten",
    "view",
}
_RANDOM = {
    "alpha_dropout", "bernoulli", "bernoulli_", "cauchy_", "dropout", "dropout_", "empty",
    "empty_like", "empty_strided", "exponential_", "feature_alpha_dropout", "feature_dropout",
    "geometric_", "gumbel_softmax", "log_normal_", "multinomial", "new_empty", "normal",
    "normal_", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like",
    "random_", "randperm", "rrelu", "uniform_",
}  # fmt: skip


Source = int | str  # the position of an input, the name of a buffer


@dataclass
class Known:
    """Elements of tensors that are traced, by the tensor, and the inputs that they depend on.

    Parameters
    ----------
    read : dict
        The line that read elements first, by the position of the input or the name of the buffer.
    assumes : bool
        Whether elements of every input are known, and the trace asserts what is read of them.
    """

    assumes: bool = False
    read: dict[Source, str | None] = field(default_factory=dict)
    values: Any = field(default_factory=ByTensor)
    asserted: Any = field(default_factory=ByTensor)

    @property
    def most(self) -> int:
        """Most elements of a tensor that is followed."""
        return _MOST_ASSUMED if self.assumes else _MOST_ELEMENTS

    def learn(self, tensor: Tensor, elements: Tensor, inputs: frozenset[Source]) -> None:
        """Note the elements of a tensor."""
        if elements.numel() <= self.most and tuple(tensor.shape) == tuple(elements.shape):
            self.values[tensor] = (elements, inputs)

    def forget(self, tensor: Tensor) -> None:
        """Forget a tensor that is written to, and all that share its memory."""
        for one in self._sharing(tensor):
            del self.values[one]

    def depend(self, tensor: Tensor, sources: frozenset[Source]) -> None:
        """Let a tensor that is written to, and all that share its memory, depend on more."""
        for one in self._sharing(tensor):
            elements, before = self.values[one]
            self.values[one] = (elements, before | sources)

    def _sharing(self, tensor: Tensor) -> list[Tensor]:
        memory = memory_of(tensor)
        return [one for one in list(self.values) if memory_of(one) == memory]

    def note(self, sources: frozenset[Source]) -> None:
        """Note that elements are read that depend on inputs or buffers."""
        new = sources.difference(self.read)
        if new:
            self.read |= dict.fromkeys(new, line_of_call())

    def read_from(self, tensor: Tensor) -> Tensor:
        """Return the elements of a tensor, which decide a size or a branch from here on."""
        elements: Tensor
        elements, sources = self.values[tensor]
        self.note(sources)
        if self.assumes and sources and tensor not in self.asserted:
            self.asserted[tensor] = True
            with without_modes(), without_functions():
                numbers = elements.tolist()
            example = torch.tensor(numbers, dtype=elements.dtype)
            is_same = (tensor == example.reshape(elements.shape)).all()
            torch._assert_async(is_same, f"{ASSUMED}{line_of_call() or 'in the module'}")
        return elements

    def inputs_of(self, tensors: Sequence[Tensor]) -> frozenset[Source] | None:
        """Return the inputs that tensors depend on, None where one is not known."""
        found: set[Source] = set()
        for one in tensors:
            if one not in self.values:
                return None
            found |= self.values[one][1]
        return frozenset(found)


class _Following(TorchFunctionMode):  # type: ignore[misc]
    """Computes functions of known tensors as well, and answers what reads their elements."""

    def __init__(self, known: Known) -> None:
        super().__init__()
        self.known = known

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function, with the elements of its arguments where they are known."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        inputs = self.known.inputs_of(tensors)
        if self._answers(name, tensors, args, kwargs):
            for one in () if _is_checked() else tensors:
                self.known.read_from(one)
            found = self._computed(func, args, kwargs)
            return tree_map_only(Tensor, self._constant, found)
        args, kwargs = self._with_numbers(name, args, kwargs)
        result = func(*args, **kwargs)
        is_known = inputs is not None and name not in _RANDOM
        if _writes(name, kwargs):
            self._written(func, args, kwargs, inputs if is_known else None)
        elif is_known and _has_tensor(result):
            self._learn_result(result, func, args, kwargs, inputs or frozenset())
        return result

    def _answers(self, name: str, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> bool:
        """Return whether a function reads elements that are known."""
        if not tensors or not (name in _READS or _is_sized(name, args, kwargs)):
            return False
        return all(self._is_known(one) for one in tensors)

    def _learn_result(
        self, result: Any, func: Any, args: Any, kwargs: Any, inputs: frozenset[Source]
    ) -> None:
        if sum(t.numel() for t in _tensors(result)) > self.known.most:
            return
        try:
            elements = _tensors(self._computed(func, args, kwargs))
        except (RuntimeError, TypeError, ValueError):
            return
        made = _tensors(result)
        if len(made) == len(elements):
            for tensor, one in zip(made, elements, strict=True):
                self.known.learn(tensor, one, inputs)

    def _written(self, func: Any, args: Any, kwargs: Any, read: frozenset[Source] | None) -> None:
        """Write to the known elements of a tensor, too, or forget all that share its memory."""
        for one in _tensors(kwargs.get("out", args[0] if args else None)):
            if read is None:
                self.known.forget(one)
            else:
                self._computed(func, args, kwargs)
                self.known.depend(one, read)

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        plain = tree_map_only(Tensor, lambda t: self.known.values[t][0], (args, kwargs))
        with without_modes(), without_functions(), torch.no_grad():
            return func(*plain[0], **plain[1])

    def _constant(self, elements: Tensor) -> Tensor:
        """Return a tensor of the trace with known elements."""
        made = torch.tensor(elements.tolist(), dtype=elements.dtype).reshape(elements.shape)
        self.known.learn(made, elements, frozenset())
        return made

    def _with_numbers(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Replace known tensors by numbers and positions where they decide sizes."""
        is_list = bool(args) and isinstance(args[0], (list, tuple))
        if name in _COUNTED or (name in ("tensor", "as_tensor") and is_list):
            return tree_map_only(Tensor, self._number, (tuple(args), kwargs))
        if name in _COUNTED_OF_TENSOR:
            rest, kwargs = tree_map_only(Tensor, self._number, (tuple(args[1:]), kwargs))
            return (*args[:1], *rest), kwargs
        if name == "__getitem__" or (name == "__setitem__" and not self._is_masked(args)):
            return (args[0], self._index(args[1]), *args[2:]), kwargs
        if name == "repeat_interleave" and len(args) > 1 and self._is_known(args[1]):
            return self._repeats(args, kwargs)
        return args, kwargs

    def _is_masked(self, args: Any) -> bool:
        """Return whether one row is written wherever a mask is true, which needs no positions."""
        if not self.known.assumes:
            return False
        tensor, index, value = args
        rest = tensor.dim() - index.dim() if isinstance(index, Tensor) else -1
        is_mask = isinstance(index, Tensor) and index.dtype == torch.bool
        return is_mask and (not isinstance(value, Tensor) or value.dim() <= rest)

    def _repeats(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        total = int(self._elements(args[1]).sum())
        return args, {**kwargs, "output_size": total}

    def _number(self, tensor: Tensor) -> Any:
        return (
            self._elements(tensor).item() if self._is_known(tensor) and not tensor.shape else tensor
        )

    def _index(self, index: Any) -> Any:
        """Return an index with positions for known masks, and numbers for known ends of slices."""
        if isinstance(index, tuple):
            parts: list[Any] = []
            for part in index:
                found = self._index(part)
                parts += found if isinstance(found, tuple) else [found]
            return tuple(parts)
        if isinstance(index, slice):
            ends = (index.start, index.stop, index.step)
            return slice(*(self._number(e) if isinstance(e, Tensor) else e for e in ends))
        if isinstance(index, Tensor) and index.dtype == torch.bool and self._is_known(index):
            elements = self._elements(index)
            with without_modes(), without_functions():
                found = elements.nonzero(as_tuple=True)
            return tuple(self._constant(one) for one in found)
        return index

    def _is_known(self, item: Any) -> bool:
        """Return whether elements may be read: assumed numbers would differ in every batch."""
        if not isinstance(item, Tensor) or item not in self.known.values:
            return False
        sources = self.known.values[item][1]
        return not (self.known.assumes and sources and item.is_floating_point())

    def _elements(self, tensor: Tensor) -> Tensor:
        return self.known.read_from(tensor)


def _is_checked() -> bool:
    """Return whether elements are read by a check of PyTorch, of which nothing is imported."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name.startswith("_check") and frame.f_globals["__name__"] == "torch":
            return True
        frame = frame.f_back
    return False


def _is_sized(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether the sizes of results depend on elements of arguments."""
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "repeat_interleave":
        return any(isinstance(a, Tensor) for a in (*args[1:], *kwargs.values()))
    if name == "one_hot":
        return len(args) + len(kwargs) == 1 or -1 in (*args[1:], *kwargs.values())
    return name in _SIZED


def _writes(name: str, kwargs: Mapping[str, Any]) -> bool:
    if "out" in kwargs or name in ("__setitem__", "__set__"):
        return True
    if name.startswith("__i") and name not in ("__invert__", "__index__", "__int__"):
        return True
    return name.endswith("_") and not name.endswith("__")


def _tensors(item: Any) -> list[Tensor]:
    return [t for t in tree_leaves(item) if isinstance(t, Tensor)]


def _has_tensor(item: Any) -> bool:
    return bool(_tensors(item))


@contextmanager
def known_values(module: torch.nn.Module, inputs: Any, assumes: bool = False) -> Iterator[Known]:
    """Follow the elements of whole numbers among inputs, and of buffers, until the end.

    Parameters
    ----------
    module : Module
        The module that is traced in the context.
    inputs : tuple
        Its positional and named example inputs.
    assumes : bool
        Whether to follow floating-point inputs, too, and to assert what is read.
    """
    known = Known(assumes)
    real = [t.clone() if _is_followed(t, assumes) else None for t in tree_leaves(inputs)]
    buffers = {n: b.detach().clone() for n, b in module.named_buffers() if b.device.type != "meta"}

    def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        leaves = tree_leaves((args, kwargs))
        for position, (tensor, elements) in enumerate(zip(leaves, real, strict=True)):
            if elements is not None:
                known.learn(tensor, elements, frozenset({position}))
        for name, tensor in module.named_buffers():
            if name in buffers:
                known.learn(tensor, buffers[name], frozenset({name}))

    handle = module.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with _Following(known):
            yield known
    finally:
        handle.remove()


def _is_followed(item: Any, assumes: bool) -> bool:
    if not assumes:
        return is_whole(item)
    return isinstance(item, Tensor) and item.device.type != "meta"


def is_whole(item: Any) -> bool:
    """Return whether an input is a tensor of whole numbers or truth values."""
    return isinstance(item, Tensor) and not (item.is_floating_point() or item.is_complex())

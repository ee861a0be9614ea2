"""Tokens that chose an expert, traced in sizes that are known.

How many tokens an expert has depends on data, which no export can trace. A mask of the tokens that
chose it is known to follow from a choice of the `k` greatest. What a module selects by such a mask
is traced as the rows of all tokens, `picked`, of which those that the mask does not have are read
by nothing; what it writes back is `put`, zeros where the mask has nothing.
`frontends.common.mixtures` makes rows of experts of it, or refuses.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from shardwright.frontends.torch.private import ByTensor, tree_leaves

torch.library.define("shardwright::picked", "(Tensor rows, Tensor mask) -> Tensor")
torch.library.define("shardwright::put", "(Tensor rows, Tensor mask) -> Tensor")
torch.library.define("shardwright::places", "(Tensor mask, int dim) -> Tensor")
torch.library.define(
    "shardwright::product_of_groups", "(Tensor rows, Tensor matrices, Tensor ends) -> Tensor"
)


def _picked(rows: Tensor, mask: Tensor) -> Tensor:
    return rows.clone()


def _put(rows: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.reshape(-1, *(1,) * (rows.dim() - 1)), rows, 0)


def _product_of_groups(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    found = rows.new_zeros(rows.shape[0], matrices.shape[2])
    begin = 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        found[begin:end] = rows[begin:end] @ matrix
        begin = end
    return found


for _name, _function in (
    ("picked", _picked),
    ("put", _put),
    ("product_of_groups", _product_of_groups),
):
    torch.library.impl(f"shardwright::{_name}", "CompositeExplicitAutograd", _function)
torch.library.register_fake("shardwright::picked", lambda rows, mask: torch.empty_like(rows))
torch.library.register_fake("shardwright::put", lambda rows, mask: torch.empty_like(rows))
torch.library.register_fake(
    "shardwright::places", lambda mask, dim: mask.new_empty(mask.numel(), dtype=torch.int64)
)
torch.library.register_fake(
    "shardwright::product_of_groups",
    lambda rows, matrices, ends: rows.new_empty(rows.shape[0], matrices.shape[2]),
)

COMPUTED = ("shardwright.picked.", "shardwright.put.", "shardwright.product_of_groups.")
"""Operators of ours that PyTorch can run."""
PLACES = "shardwright.places."
"""The operator of places, which nothing reads in what can be imported."""

# Functions of scores whose integer results are choices.
_CHOOSING = {"topk", "argmax", "max"}
_SAME = {"to", "long", "int", "contiguous", "detach", "clone"}
_ALL = (slice(None), Ellipsis)


@contextmanager
def grouped_products() -> Iterator[None]:
    """Trace grouped products in every element type."""
    with _Grouped():
        yield


@contextmanager
def choices_in_rows() -> Iterator[None]:
    """Trace what is selected by choices in sizes that are known."""
    with _Choices():
        yield


class _Grouped(TorchFunctionMode):  # type: ignore[misc]
    """Traces products of groups, which PyTorch traces for 16 bits alone."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "_grouped_mm":
            found = self._product(*args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)

    def _product(
        self,
        x: Tensor,
        y: Tensor,
        offs: Tensor | None = None,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor | None:
        if offs is None or bias is not None or (x.dim(), y.dim()) != (2, 3):
            return None
        found: Tensor = torch.ops.shardwright.product_of_groups(x, y, offs)
        return found if out_dtype is None else found.to(out_dtype)


class _Choices(TorchFunctionMode):  # type: ignore[misc]
    """Traces tokens that chose an expert.

    Attributes
    ----------
    chosen : mapping
        Tensors of integers and masks that follow from choices alone.
    places : mapping
        By the places of what a mask has, the mask and its dimension; None for all dimensions.
    numbers : mapping
        Numbers that are known: of experts, and whether an expert has tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.chosen, self.places, self.numbers = ByTensor(), ByTensor(), ByTensor()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function, or trace what it selects."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        args = self._with_numbers(name, args)
        plain = name[2:-2] if name.startswith("__") else name
        own = getattr(self, f"_call_{plain}", None)
        found = NotImplemented if own is None else own(args, kwargs)
        if found is NotImplemented and name in _SAME and self._is(self.places, args[0]):
            found = args[0]
        if found is NotImplemented:
            found = func(*args, **kwargs)
            self._follow(name, args, kwargs, found)
        return found

    def _is(self, of: Any, item: Any) -> bool:
        return isinstance(item, Tensor) and item in of

    def _with_numbers(self, name: str, args: Any) -> Any:
        """Replace experts that are known by their numbers, where they are positions."""
        if name not in ("__getitem__", "select", "index_select") or len(args) < 2:
            return args
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not any(self._is(self.numbers, part) for part in index):
            return args
        plain = tuple(self._position(part) for part in index)
        return (args[0], plain if isinstance(args[1], tuple) else plain[0], *args[2:])

    def _position(self, part: Any) -> Any:
        if not self._is(self.numbers, part):
            return part
        number = self.numbers[part]
        return slice(number, number + 1) if part.dim() else number

    def _follow(self, name: str, args: Any, kwargs: Any, found: Any) -> None:
        """Note results that follow from choices."""
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        marked = [self._is(self.chosen, one) for one in tensors]
        chooses = name in _CHOOSING and all(one.is_floating_point() for one in tensors)
        for one in tree_leaves(found):
            if not isinstance(one, Tensor) or not (any(marked) or chooses):
                continue
            if not one.is_floating_point() or (marked and all(marked)):
                self.chosen[one] = True

    # What has sizes that depend on data

    def _call_where(self, args: Any, kwargs: Any) -> Any:
        if len(args) + len(kwargs) != 1:
            return NotImplemented
        return self._call_nonzero((*args, *kwargs.values()), {"as_tuple": True})

    def _call_argwhere(self, args: Any, kwargs: Any) -> Any:
        return self._call_nonzero(args, {})

    def _call_nonzero(self, args: Any, kwargs: Any) -> Any:
        mask = args[0]
        if not self._is(self.chosen, mask):
            return NotImplemented
        mask = self._as_mask(mask)
        if kwargs.get("as_tuple"):
            return tuple(self._place(mask, d) for d in range(mask.dim()))
        columns = [self._place(mask, d) for d in range(mask.dim())]
        found = torch.stack(columns, 1)
        self.places[found] = (mask, None)
        return found

    def _as_mask(self, x: Tensor) -> Tensor:
        mask = x if x.dtype == torch.bool else x != 0
        self.chosen[mask] = True
        return mask

    def _place(self, mask: Tensor, dim: int) -> Tensor:
        place: Tensor = torch.ops.shardwright.places(mask, dim)
        self.places[place] = (mask, dim)
        return place

    def _call_bincount(self, args: Any, kwargs: Any) -> Any:
        least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        weights = kwargs.get("weights", args[1] if len(args) > 1 else None)
        if weights is not None or not least or not self._is(self.chosen, args[0]):
            return NotImplemented
        of = torch.arange(least, dtype=args[0].dtype, device=args[0].device)
        found = (args[0].reshape(-1, 1) == of).sum(0)
        self.chosen[found] = True
        return found

    # What reads numbers

    def _call_any(self, args: Any, kwargs: Any) -> Any:
        if len(args) + len(kwargs) > 1 or not self._is(self.chosen, args[0]):
            return NotImplemented
        return self._known(torch.tensor(True), True)

    def _call_sum(self, args: Any, kwargs: Any) -> Any:
        if len(args) + len(kwargs) > 1 or not self._is(self.chosen, args[0]):
            return NotImplemented
        return self._known(args[0].to(torch.int64).reshape(-1).sum(0), args[0].numel())

    def _call_bool(self, args: Any, kwargs: Any) -> Any:
        return bool(self.numbers[args[0]]) if self._is(self.numbers, args[0]) else NotImplemented

    def _call_item(self, args: Any, kwargs: Any) -> Any:
        return self.numbers[args[0]] if self._is(self.numbers, args[0]) else NotImplemented

    _call_index = _call_int = _call_item

    def _compared(self, args: Any, how: Callable[[Any, Any], Any]) -> Any:
        """Compare the tokens of an expert with zero: there are some."""
        if not self._is(self.numbers, args[0]) or args[1] != 0:
            return NotImplemented
        return self._known(torch.tensor(True), how(self.numbers[args[0]], args[1]))

    def _call_eq(self, args: Any, kwargs: Any) -> Any:
        return self._compared(args, operator.eq)

    def _call_ne(self, args: Any, kwargs: Any) -> Any:
        return self._compared(args, operator.ne)

    def _call_gt(self, args: Any, kwargs: Any) -> Any:
        return self._compared(args, operator.gt)

    def _known(self, tensor: Tensor, number: Any) -> Tensor:
        self.numbers[tensor] = number
        self.chosen[tensor] = True
        return tensor

    def _call_unbind(self, args: Any, kwargs: Any) -> Any:
        """Return the experts that have tokens, each by its number: all of them."""
        if not self._is(self.places, args[0]) or self.places[args[0]][0].dim() != 1:
            return NotImplemented
        shape = args[0].shape[1:]
        return tuple(
            self._known(torch.full(shape, number, dtype=torch.int64), number)
            for number in range(args[0].shape[0])
        )

    def _call_tolist(self, args: Any, kwargs: Any) -> Any:
        is_list = self._is(self.places, args[0]) and self.places[args[0]][0].dim() == 1
        return [*range(args[0].shape[0])] if is_list and args[0].dim() == 1 else NotImplemented

    def _call_squeeze(self, args: Any, kwargs: Any) -> Any:
        if self._is(self.numbers, args[0]):
            return self._known(torch.tensor(self.numbers[args[0]]), self.numbers[args[0]])
        if not self._is(self.places, args[0]) or self.places[args[0]][0].dim() != 1:
            return NotImplemented
        return self._place(self.places[args[0]][0], 0)

    _call_flatten = _call_view = _call_reshape = _call_squeeze

    # What selects and writes

    def _call_getitem(self, args: Any, kwargs: Any) -> Any:
        x, index = args
        if self._is(self.numbers, x):
            return self._known(torch.tensor(self.numbers[x]), self.numbers[x])
        parts = index if isinstance(index, tuple) else (index,)
        if self._is(self.places, x):
            mask, dim = self.places[x]
            if dim is None and len(parts) == 2 and parts[0] in _ALL and isinstance(parts[1], int):
                return self._place(mask, parts[1] % mask.dim())
            return NotImplemented
        found = self._selection(parts, x.dim())
        if found is None:
            return NotImplemented
        mask, dims, before, behind = found
        rows = self._rows(x, mask, dims)
        for _ in range(before):
            rows = rows.unsqueeze(0)
        for _ in range(behind):
            rows = rows.unsqueeze(-1)
        return rows

    def _selection(
        self, parts: Sequence[Any], rank: int
    ) -> tuple[Tensor, tuple[int, ...], int, int] | None:
        """Return a mask, its dimensions that select, and new dimensions before and behind."""
        marked = [self._mask_of(part) for part in parts]
        at = [i for i, one in enumerate(marked) if one is not None]
        if not at or at != list(range(at[0], at[-1] + 1)):
            return None
        before, behind = parts[: at[0]], [p for p in parts[at[-1] + 1 :] if p not in _ALL]
        found = [one for one in marked if one is not None]
        mask, dims = found[0][0], tuple(d for one in found for d in one[1])
        same = all(one[0] is mask for one in found) and len({*dims}) == len(dims)
        if not same or any(p is not None for p in (*before, *behind)):
            return None
        if behind and len(dims) < rank:
            return None
        return mask, dims, len(before), len(behind)

    def _mask_of(self, part: Any) -> tuple[Tensor, tuple[int, ...]] | None:
        if self._is(self.places, part):
            mask, dim = self.places[part]
            return None if dim is None else (mask, (dim,))
        if self._is(self.chosen, part) and part.dtype == torch.bool:
            return part, tuple(range(part.dim()))
        return None

    def _rows(self, x: Tensor, mask: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Return the rows of a tensor, for all entries of a mask."""
        rest = x.shape[len(dims) :]
        order = sorted(range(len(dims)), key=lambda i: dims[i])
        x = x.permute(*order, *range(len(dims), x.dim()))
        shape = [mask.shape[d] if d in dims else 1 for d in range(mask.dim())]
        wide = x.reshape(*shape, *rest).expand(*mask.shape, *rest)
        rows: Tensor = torch.ops.shardwright.picked(wide.reshape(-1, *rest), mask)
        return rows

    def _sums(self, rows: Tensor, mask: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Return the sums of rows at their places, zeros elsewhere."""
        rest = rows.shape[1:]
        found: Tensor = torch.ops.shardwright.put(rows, mask)
        found = found.reshape(*mask.shape, *rest)
        others = tuple(d for d in range(mask.dim()) if d not in dims)
        found = found.sum(others) if others else found
        order = sorted(range(len(dims)), key=lambda i: dims[i])
        back = [order.index(i) for i in range(len(dims))]
        return found.permute(*back, *range(len(dims), found.dim()))

    def _call_index_add_(self, args: Any, kwargs: Any) -> Any:
        found = self._call_index_add(args, kwargs)
        return found if found is NotImplemented else args[0].copy_(found)

    def _call_index_add(self, args: Any, kwargs: Any) -> Any:
        given = dict(zip(("x", "dim", "index", "source"), args, strict=False)) | kwargs
        index = given.get("index")
        if given["dim"] != 0 or not self._is(self.places, index):
            return NotImplemented
        mask, dim = self.places[index]
        if dim is None:
            return NotImplemented
        sums = self._sums(given["source"], mask, (dim,)) * given.get("alpha", 1)
        return given["x"] + sums

    def _call_setitem(self, args: Any, kwargs: Any) -> Any:
        x, index, value = args
        parts = index if isinstance(index, tuple) else (index,)
        found = self._selection(parts, x.dim())
        if found is None or found[2] or found[3]:
            return NotImplemented
        mask, dims = found[:2]
        rest = x.shape[len(dims) :]
        rows = torch.as_tensor(value, dtype=x.dtype).expand(prod(mask.shape), *rest)
        others = tuple(d for d in range(mask.dim()) if d not in dims)
        hit = mask.any(others) if others else mask
        hit = hit.reshape(*hit.shape, *(1,) * len(rest))
        x.copy_(torch.where(hit, self._sums(rows, mask, dims), x))
        return None

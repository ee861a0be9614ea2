"""Exchanges with neighbors, whose arguments have the types that MindSpore asks for."""

from collections.abc import Sequence
from typing import Any

from shardwright import ops as own
from shardwright.ir.errors import OptionError
from shardwright.ir.types import DTYPES
from shardwright.ir.values import check_type, of_type, wrong_value
from shardwright.tensor import Tensor


class NeighborExchange(own.NeighborExchange):
    """Send a tensor to each of some ranks, and receive one from each; see `ops.NeighborExchange`.

    Parameters
    ----------
    send_rank_ids, recv_rank_ids : list of int
        The ranks.
    recv_shapes, send_shapes : tuple of list of int
        The shapes of results and tensors.
    recv_type : str
        The element type of the results.
    group : str
        The group of the ranks.
    """

    def __init__(
        self,
        send_rank_ids: list[Any],
        recv_rank_ids: list[Any],
        recv_shapes: tuple[list[int], ...],
        send_shapes: tuple[list[int], ...],
        recv_type: str,
        group: str = own.collective.WORLD_GROUP,
    ) -> None:
        # As in MindSpore, arguments are checked where the primitive is applied.
        shapes = (recv_shapes, send_shapes)
        self._arguments = (send_rank_ids, recv_rank_ids, *shapes, recv_type, group)

    def _begin(self) -> None:
        send_rank_ids, recv_rank_ids, recv_shapes, send_shapes, recv_type, group = self._arguments
        _check_ranks("send_rank_ids", send_rank_ids)
        _check_ranks("recv_rank_ids", recv_rank_ids)
        for name, shapes in (("recv_shapes", recv_shapes), ("send_shapes", send_shapes)):
            if not isinstance(shapes, tuple) or not all(isinstance(s, list) for s in shapes):
                raise of_type(wrong_value(name, shapes, "a tuple with a list for each shape"))
        if recv_type not in DTYPES:
            raise of_type(wrong_value("recv_type", recv_type, "an element type of MindSpore"))
        check_type("group", group, str)
        super().__init__(*self._arguments)

    def __call__(self, x: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Exchange the tensors; none are given where none are sent."""
        self._begin()
        return super().__call__(x)


class NeighborExchangeV2(own.NeighborExchangeV2):
    """Exchange the edges of images in a grid of ranks; see `ops.NeighborExchangeV2`.

    Parameters
    ----------
    send_rank_ids, recv_rank_ids : list of 8 int
        The neighbors, -1 for none; each at one place.
    send_lens, recv_lens : list of 4 int
        Rows or columns.
    data_format : str
        ``NCHW``.
    group : str
        The group of the ranks.
    """

    def __init__(
        self,
        send_rank_ids: list[Any],
        send_lens: list[int],
        recv_rank_ids: list[Any],
        recv_lens: list[int],
        data_format: str,
        group: str = own.collective.WORLD_GROUP,
    ) -> None:
        # As in MindSpore, arguments are checked where the primitive is applied.
        lengths = (recv_rank_ids, recv_lens)
        self._arguments = (send_rank_ids, send_lens, *lengths, data_format, group)

    def _begin(self) -> None:
        send_rank_ids, send_lens, recv_rank_ids, recv_lens, _, group = self._arguments
        for name, ranks in (("send_rank_ids", send_rank_ids), ("recv_rank_ids", recv_rank_ids)):
            _check_ranks(name, ranks)
            known = [rank for rank in ranks if isinstance(rank, int) and rank != -1]
            if any(rank < 0 for rank in known) or len(set(known)) != len(known):
                expected = "ranks, each at one place, and -1 where there is none"
                raise wrong_value(name, ranks, expected)
        for name, lengths in (("send_lens", send_lens), ("recv_lens", recv_lens)):
            if not isinstance(lengths, list) or any(type(one) is not int for one in lengths):
                raise of_type(wrong_value(name, lengths, "a list of integers"))
            if any(length < 0 for length in lengths):
                raise wrong_value(name, lengths, "numbers of rows and columns, none below 0")
        check_type("group", group, str)
        super().__init__(*self._arguments)

    def __call__(self, x: Tensor, *others: Tensor) -> Tensor:
        """Return the image with what the neighbors send round it."""
        self._begin()
        if others:
            raise OptionError(f"`NeighborExchangeV2` takes one image, {1 + len(others)} are given")
        return super().__call__(x)


class AlltoAll(own.AlltoAll):
    """Cut a dimension, send the pieces to the ranks, and put those received behind each other.

    Parameters
    ----------
    split_count : int
        Number of pieces: of ranks in the group.
    split_dim, concat_dim : int
        The dimension that is cut, and that along which pieces are put together.
    group : str
        The group of the ranks.
    """

    def __init__(
        self,
        split_count: int,
        split_dim: int,
        concat_dim: int,
        group: str = own.collective.WORLD_GROUP,
    ) -> None:
        for name, value in (
            ("split_count", split_count),
            ("split_dim", split_dim),
            ("concat_dim", concat_dim),
        ):
            check_type(name, value, int)
        check_type("group", group, str)
        self._dimensions = {"split_dim": split_dim, "concat_dim": concat_dim}
        super().__init__(split_count, split_dim, concat_dim, group)

    def __call__(self, x: Tensor) -> Tensor:
        """Exchange the pieces of a tensor.

        Raises
        ------
        OptionError
            If it has no such dimension; the error is an `IndexError` where MindSpore's is.
        """
        for name, dimension in self._dimensions.items():
            if not -x.ndim <= dimension < x.ndim:
                error = wrong_value(name, dimension, f"a dimension of the shape {x.shape}")
                error.as_python = IndexError
                raise error
        return super().__call__(x)


def _check_ranks(name: str, ranks: object) -> None:
    """Refuse what is no list of ranks, or numbers made of them."""
    if not isinstance(ranks, list) or any(isinstance(r, float | bool | str) for r in ranks):
        raise of_type(wrong_value(name, ranks, "a list of ranks"))


__all__ = ["AlltoAll", "NeighborExchange", "NeighborExchangeV2"]

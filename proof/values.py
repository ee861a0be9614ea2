"""The meaning of values without layouts and communication."""

from dataclasses import dataclass

from shardwright.ir.attributes import Attribute
from shardwright.ir.types import TensorType
from shardwright.proof.terms import Term

Splits = tuple[tuple[str, ...], ...]
Move = tuple[tuple[str, Attribute], ...]  # the attributes of an exchange of halos


@dataclass(frozen=True)
class Bundle:
    """A flat buffer: the concatenated slices of some tensors.

    Parameters
    ----------
    terms : tuple of Term
        The tensors.
    shapes : tuple of tuple of int
        Their whole shapes.
    splits : tuple
        For each tensor the axes that split each dimension.
    """

    terms: tuple[Term, ...]
    shapes: tuple[tuple[int, ...], ...]
    splits: tuple[Splits, ...]


@dataclass(frozen=True)
class Runs:
    """A tensor in the form of the runs of elements that windows read.

    Parameters
    ----------
    term : Term
        The tensor.
    kind : TensorType
        Its type, without runs.
    moves : tuple
        The halo exchanges that produced the runs, or for `made` the pending sums.
    made : bool
        Whether runs are pending sums; else they are copies.
    """

    term: Term
    kind: TensorType
    moves: tuple[Move, ...]
    made: bool


Held = Term | Bundle | Runs

"""What a value stands for when layouts and communication are left out."""

from dataclasses import dataclass

from shardwright.ir.graph import Attribute
from shardwright.ir.types import TensorType
from shardwright.proof.terms import Term

Splits = tuple[tuple[str, ...], ...]
Move = tuple[tuple[str, Attribute], ...]  # the attributes of an exchange of halos


@dataclass(frozen=True)
class Bundle:
    """A flat buffer: the slices of some tensors, one after the other.

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
    """A tensor as the runs of elements that windows read.

    Parameters
    ----------
    term : Term
        The tensor.
    kind : TensorType
        Its type, without runs.
    moves : tuple
        The exchanges of halos that lead to the runs, or for `made` the sums that are due.
    made : bool
        Whether runs are still to be added up; else they are copies.
    """

    term: Term
    kind: TensorType
    moves: tuple[Move, ...]
    made: bool


Held = Term | Bundle | Runs

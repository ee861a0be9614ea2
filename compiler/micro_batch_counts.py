"""The search for the number of micro-batches: every candidate is compiled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from shardwright.dataflow.micro_batches import samples_of
from shardwright.ir.errors import (
    InfeasibleError,
    NoPlanError,
    OptionError,
    ShardwrightError,
    combined,
)
from shardwright.ir.graph import Graph

T = TypeVar("T")


def candidate_counts(graph: Graph) -> tuple[int, ...]:
    """Return the numbers of micro-batches that are tried: the powers of two that divide the batch.

    Examples
    --------
    A batch of 24 samples can be divided into 1, 2, 4 or 8 micro-batches.
    """
    batch = samples_of(graph) or 1
    return tuple(2**i for i in range(batch.bit_length()) if batch % 2**i == 0)


@dataclass(frozen=True)
class CompiledCounts(Generic[T]):
    """The compilations for some numbers of micro-batches.

    Parameters
    ----------
    found : mapping of int to T
        The compilations, by number.
    tried : tuple of int
        The numbers for which a plan was found, or is proven not to fit.
    """

    found: dict[int, T]
    tried: tuple[int, ...]


def compile_each(compile_one: Callable[[int], T], counts: Sequence[int]) -> CompiledCounts[T]:
    """Compile for each number of micro-batches.

    Numbers for which the program has no form are left out, and so are those for which no plan was
    found that fits.

    Raises
    ------
    ShardwrightError
        If there is no plan for any of them.
    """
    found: dict[int, T] = {}
    errors: list[ShardwrightError] = []
    tried: list[int] = []
    for count in counts:
        try:
            found[count] = compile_one(count)
        except NoPlanError as error:
            place = "" if error.where is None else f"{error.where} in "
            error.where = place + ("one micro-batch" if count == 1 else f"{count} micro-batches")
            errors.append(error)
            if not isinstance(error, InfeasibleError):
                continue
        except OptionError as error:
            if count == 1:
                raise
            errors.append(error)
            break  # more micro-batches are refused for the same reason
        tried.append(count)
    if not found:
        raise combined(errors)
    return CompiledCounts(found, tuple(tried))

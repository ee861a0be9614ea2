"""What an export is: files, and what a person must know of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.emission.writing import Code


@dataclass(frozen=True)
class Exported:
    """What an export writes and says.

    Parameters
    ----------
    files : mapping of str to code or bytes
        Content by name; all files are in one folder.
    notes : tuple of str
        What a person must know: how to run it, and what of the plan it cannot say. A sentence each.
    instead : Plan, optional
        The nearest plan, where the files have that one; not every export gives it.
    """

    files: Mapping[str, Code | bytes]
    notes: tuple[str, ...] = ()
    instead: Plan | None = None

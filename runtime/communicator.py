"""Communicators: how the ranks of a program exchange values.

A communicator hosts some of the ranks of a mesh. `LocalCommunicator` hosts all and is the
reference; every other gives the same values.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from shardwright.ir.errors import ExecutionError
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import Turns, run_ring
from shardwright.operators.info import Array

Parts = Mapping[int, Array]  # the slice of each hosted rank
ONE_DEVICE = Mesh(())


class Communicator(Protocol):
    """Exchanges values between the ranks of a mesh.

    Attributes
    ----------
    mesh : Mesh
        The mesh of all ranks.
    ranks : tuple of int
        The ranks in this process, ascending.
    """

    @property
    def mesh(self) -> Mesh:
        """The mesh of all ranks."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of this process."""

    def exchange(
        self, operator: Communication, axes: tuple[str, ...], parts: Parts
    ) -> dict[int, Array]:
        """Run one communication operator in every group along `axes`.

        Parameters
        ----------
        operator : Communication
            The operator.
        axes : tuple of str
            Mesh axes of the groups, major to minor.
        parts : mapping of int to array
            The operand of each hosted rank.

        Returns
        -------
        dict of int to array
            The result of each hosted rank.
        """

    def take_turns(
        self, axes: tuple[str, ...], members: Mapping[int, Turns]
    ) -> dict[int, tuple[Array, ...]]:
        """Run an operator whose ranks compute and send in turns, in every group along `axes`.

        Parameters
        ----------
        axes : tuple of str
            Mesh axes of the groups, major to minor.
        members : mapping of int to Turns
            The work of each hosted rank.

        Returns
        -------
        dict of int to tuple of array
            The results of each hosted rank.
        """

    def collect(self, parts: Parts) -> dict[int, Array]:
        """Return the slices of all ranks that hold a value, in every process."""

    def send(self, tag: int, pairs: Sequence[tuple[int, int]], parts: Parts) -> None:
        """Start to send slices from hosted ranks to others; does not wait for them.

        Parameters
        ----------
        tag : int
            Tells the messages between two ranks apart.
        pairs : sequence of (int, int)
            The ranks, from and to.
        parts : mapping of int to array
            The slice of each sender.
        """

    def receive(
        self,
        tag: int,
        pairs: Sequence[tuple[int, int]],
        shapes: Mapping[int, tuple[int, ...]],
        dtype: "np.dtype[np.generic]",
    ) -> dict[int, Array]:
        """Return the slices that hosted ranks receive; waits for them.

        Parameters
        ----------
        tag, pairs
            Those of `send`.
        shapes : mapping of int to (tuple of int)
            The shape of each receiver's slice.
        dtype : dtype
            Their element type.
        """

    def complete_sends(self) -> None:
        """Wait until everything that was sent has left."""


def any_process(answer: bool, communicator: Communicator) -> bool:
    """Return whether a condition holds in any process; a collective call."""
    answers = communicator.collect({rank: np.array(answer) for rank in communicator.ranks})
    return any(bool(found) for found in answers.values())


class LocalCommunicator:
    """All ranks in one process, in lockstep.

    Parameters
    ----------
    mesh : Mesh, optional
        The mesh; one device if not given.
    """

    def __init__(self, mesh: Mesh | None = None) -> None:
        self.mesh = mesh or ONE_DEVICE
        self.ranks = tuple(range(self.mesh.size))
        self._groups: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
        self._messages: dict[tuple[int, int, int], Array] = {}

    def exchange(
        self, operator: Communication, axes: tuple[str, ...], parts: Parts
    ) -> dict[int, Array]:
        """Run one communication operator in every group along `axes`."""
        after: dict[int, Array] = {}
        for members in operator.groups or self._groups_of(axes):
            _, extents = operator.place(members[0], axes, self.mesh)
            if members[0] not in parts:  # of another pipeline stage
                continue
            # As messages arrive: a sum of a transposed part has other bits.
            own = [np.asarray(parts[member], order="C") for member in members]
            moved = operator.exchange(own, extents)
            after.update(zip(members, moved, strict=True))
        return {rank: after[rank] for rank in sorted(after)}

    def take_turns(
        self, axes: tuple[str, ...], members: Mapping[int, Turns]
    ) -> dict[int, tuple[Array, ...]]:
        """Run an operator whose ranks compute and send in turns, group by group."""
        found: dict[int, tuple[Array, ...]] = {}
        for group in self._groups_of(axes):
            if group[0] not in members:  # of another pipeline stage
                continue
            results = run_ring([members[rank] for rank in group])
            found.update(zip(group, results, strict=True))
        return found

    def _groups_of(self, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        if axes not in self._groups:
            self._groups[axes] = self.mesh.groups(axes)
        return self._groups[axes]

    def collect(self, parts: Parts) -> dict[int, Array]:
        """Return the parts: this process has all ranks."""
        return dict(parts)

    def send(self, tag: int, pairs: Sequence[tuple[int, int]], parts: Parts) -> None:
        """Copy the slices; ranks whose senders share an array share the copy."""
        copies: dict[tuple[int, int], Array] = {}
        for source, target in pairs:
            key = (id(parts[source]), self.mesh.device_group(target))
            if key not in copies:
                copies[key] = parts[source].copy()
            self._messages[source, target, tag] = copies[key]

    def receive(
        self,
        tag: int,
        pairs: Sequence[tuple[int, int]],
        shapes: Mapping[int, tuple[int, ...]],
        dtype: "np.dtype[np.generic]",
    ) -> dict[int, Array]:
        """Return the slices that were sent.

        Raises
        ------
        ExecutionError
            If one was not, or is not what the receiver expects.
        """
        return {
            target: expected(self._messages.pop((source, target, tag), None), target, shapes, dtype)
            for source, target in pairs
        }

    def complete_sends(self) -> None:
        """Do nothing: what was sent has arrived."""


def expected(
    part: Array | None,
    rank: int,
    shapes: Mapping[int, tuple[int, ...]],
    dtype: "np.dtype[np.generic]",
) -> Array:
    """Return a message if it is what its receiver expects.

    Raises
    ------
    ExecutionError
        If not, or nothing was sent.
    """
    if part is None:
        raise ExecutionError(f"rank {rank} receives what no rank has sent")
    if part.shape != shapes[rank] or part.dtype != dtype:
        raise ExecutionError(
            f"rank {rank} received {part.dtype}{list(part.shape)}, expected "
            f"{dtype}{list(shapes[rank])}"
        )
    return part

"""Communicators: how the ranks of a program exchange values.

A communicator hosts some of the ranks of a mesh. `LocalCommunicator` hosts them all and is the
meaning of a program; any other gives the same values.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array

Parts = Mapping[int, Array]  # what each hosted rank holds of one tensor
ONE_DEVICE = Mesh(())


class Communicator(Protocol):
    """Exchanges values between the ranks of a mesh.

    Attributes
    ----------
    mesh : Mesh
        The mesh of all ranks.
    ranks : tuple of int
        The ranks that live in this process, in ascending order.
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
            Says what moves.
        axes : tuple of str
            Mesh axes of the groups, major to minor.
        parts : mapping of int to array
            What each hosted rank holds before.

        Returns
        -------
        dict of int to array
            What each hosted rank holds afterwards.
        """

    def collect(self, parts: Parts) -> dict[int, Array]:
        """Return what every rank of the mesh holds, in every process."""


def any_process(answer: bool, communicator: Communicator) -> bool:
    """Return whether the answer is yes in any of the processes; all must ask."""
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

    def exchange(
        self, operator: Communication, axes: tuple[str, ...], parts: Parts
    ) -> dict[int, Array]:
        """Run one communication operator in every group along `axes`."""
        groups = self._groups.get(axes)
        if groups is None:
            groups = self._groups[axes] = self.mesh.groups(axes)
        extents = tuple(self.mesh.sizes[axis] for axis in axes)
        after: dict[int, Array] = {}
        for members in groups:
            moved = operator.exchange([parts[member] for member in members], extents)
            after.update(zip(members, moved, strict=True))
        return after

    def collect(self, parts: Parts) -> dict[int, Array]:
        """Return the parts: this process has them all."""
        return dict(parts)

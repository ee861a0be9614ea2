"""Communicators: how the ranks of a program exchange values.

A communicator hosts some of the ranks of a mesh. `LocalCommunicator` hosts all and is the
reference; every other gives the same values.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
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

    def collect(self, parts: Parts) -> dict[int, Array]:
        """Return the slices of all ranks of the mesh, in every process."""


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
        """Return the parts: this process has all ranks."""
        return dict(parts)

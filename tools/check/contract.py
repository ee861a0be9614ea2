"""What a file that is checked offers, and its layouts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

from shardwright.ir.errors import ModelError

Layout = Mapping[str, int] | Callable[[Any, Mapping[str, int]], Any]


@dataclass(frozen=True)
class Contract:
    """What a program file says; see docs/check.md.

    Attributes
    ----------
    mesh : Mapping[str, int]
        Ranks along each axis.
    layouts : Mapping[str, Layout]
        Layouts of parameters by name. What is not named is whole on every rank.
    inputs : tuple[Layout, ...]
        Layouts of the inputs.
    loss : Mapping[str, str]
        Axes over which the losses of the ranks are to be summed or averaged to give the whole one.
    names : Mapping[str, str]
        Names of parameters of ranks, and of the same in the reference where it differs.
    """

    mesh: Mapping[str, int]
    layouts: Mapping[str, Layout]
    inputs: tuple[Layout, ...]
    loss: Mapping[str, str]
    names: Mapping[str, str]

    @staticmethod
    def read(module: ModuleType, path: Path) -> "Contract":
        """Read and check what a file says.

        Raises
        ------
        ModelError
            If something is missing or is not what is expected.
        """
        for name in ("reference", "inputs", "parallel"):
            if not callable(getattr(module, name, None)):
                raise ModelError(f"it has no function `{name}`", str(path), "see docs/check.md")
        mesh = getattr(module, "MESH", None)
        if not isinstance(mesh, dict) or not mesh:
            raise ModelError(f"`MESH`: expected ranks by axis, got {mesh!r}", str(path))
        if any(type(size) is not int or size < 1 for size in mesh.values()):
            raise ModelError(f"`MESH`: expected positive numbers of ranks, got {mesh}", str(path))
        contract = Contract(
            mesh,
            getattr(module, "LAYOUTS", {}),
            tuple(getattr(module, "INPUTS", ())),
            getattr(module, "LOSS", {}),
            getattr(module, "NAMES", {}),
        )
        for layout in (*contract.layouts.values(), *contract.inputs, contract.loss):
            unknown = [] if callable(layout) else [axis for axis in layout if axis not in mesh]
            if unknown:
                raise ModelError(f"the mesh {mesh} has no axis `{unknown[0]}`", str(path))
        for how in contract.loss.values():
            if how not in ("sum", "mean"):
                raise ModelError(f"`LOSS`: expected `sum` or `mean`, got {how!r}", str(path))
        return contract

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(self.mesh.values())

    def known(self, name: str) -> str:
        """Name in the reference of a parameter of the ranks."""
        return self.names.get(name, name)

    def layout(self, name: str) -> Layout:
        """Layout of a parameter of the ranks; by its name in the reference, if not by its own."""
        return self.layouts.get(name, self.layouts.get(self.known(name), {}))

    def place(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank."""
        return place(self.mesh, rank)

    def local(self, whole: Any, layout: Layout, place: Mapping[str, int]) -> Any:
        """Cut a tensor to the part of the rank at a place.

        Raises
        ------
        ModelError
            If it cannot be cut in equal parts.
        """
        if callable(layout):
            return layout(whole, place)
        for axis, dimension in layout.items():
            parts = self.mesh[axis]
            if whole.shape[dimension] % parts:
                text = f"dimension {dimension} of {tuple(whole.shape)} has no {parts} equal parts"
                raise ModelError(text, hint="give a function `(whole, place) -> part` as layout")
            whole = whole.chunk(parts, dimension)[place[axis]]
        return whole


def place(mesh: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return the coordinates of a rank on a mesh, whose last axis runs fastest."""
    coordinates: dict[str, int] = {}
    for axis in reversed(list(mesh)):
        rank, coordinates[axis] = divmod(rank, mesh[axis])
    return coordinates

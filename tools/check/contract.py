"""What a file that is checked offers, and its layouts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

from shardwright.ir.errors import ModelError
from shardwright.ir.values import suggestion

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
        if not _are_texts(mesh):
            raise ModelError(f"`MESH`: expected names of axes, got {mesh}", str(path))
        inputs = getattr(module, "INPUTS", ())
        if not isinstance(inputs, tuple | list):
            text = "`INPUTS`: expected a layout for each input, in a tuple"
            raise ModelError(f"{text}, got {inputs!r}", str(path))
        own = {name: getattr(module, name, {}) for name in ("LAYOUTS", "LOSS", "NAMES")}
        for name, value in own.items():
            if not isinstance(value, Mapping) or not _are_texts(value):
                text = f"`{name}`: expected a dictionary with names as keys"
                raise ModelError(f"{text}, got {value!r}", str(path))
        if not _are_texts(own["NAMES"].values()):
            text = f"`NAMES`: expected names of parameters, got {own['NAMES']}"
            raise ModelError(text, str(path))
        contract = Contract(mesh, own["LAYOUTS"], tuple(inputs), own["LOSS"], own["NAMES"])
        for layout in (*contract.layouts.values(), *contract.inputs):
            _check_layout(layout, path)
        for split in (*contract.layouts.values(), *contract.inputs, contract.loss):
            unknown = [] if callable(split) else [axis for axis in split if axis not in mesh]
            if unknown:
                raise ModelError(f"the mesh {mesh} has no axis `{unknown[0]}`", str(path))
        for how in contract.loss.values():
            if how not in ("sum", "mean"):
                raise ModelError(f"`LOSS`: expected `sum` or `mean`, got {how!r}", str(path))
        return contract

    def check_used(self, parameters: Iterable[str], inputs: int, path: Path) -> None:
        """Check that every layout and name is of something that the reference has.

        Raises
        ------
        ModelError
            If one is not: a wrong name would be ignored.
        """
        known = set(parameters)
        for name in self.layouts:
            if name not in known and name not in self.names:
                text = f"`LAYOUTS` has `{name}`, which is no parameter of the reference"
                raise ModelError(text, str(path), suggestion(name, known))
        for own, name in self.names.items():
            if name not in known:
                text = f"`NAMES` calls `{own}` `{name}`, which is no parameter of the reference"
                raise ModelError(text, str(path), suggestion(name, known))
        if len(self.inputs) > inputs:
            text = f"`INPUTS` has {len(self.inputs)} layouts, `inputs` gives {inputs} tensors"
            raise ModelError(text, str(path))

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
            if not -whole.dim() <= dimension < whole.dim():
                raise ModelError(
                    f"a tensor of shape {tuple(whole.shape)} has no dimension {dimension}"
                )
            if whole.shape[dimension] % parts:
                text = f"dimension {dimension} of {tuple(whole.shape)} has no {parts} equal parts"
                raise ModelError(text, hint="give a function `(whole, place) -> part` as layout")
            whole = whole.chunk(parts, dimension)[place[axis]]
        return whole


def _are_texts(names: Iterable[object]) -> bool:
    return all(isinstance(name, str) for name in names)


def _check_layout(layout: object, path: Path) -> None:
    """Refuse what is neither the dimension that each axis splits, nor a function."""
    if callable(layout):
        return
    if not isinstance(layout, Mapping) or any(type(d) is not int for d in layout.values()):
        text = "a layout: expected the dimension that each axis splits, as `{'tp': 0}`, or a "
        raise ModelError(f"{text}function `(whole, place) -> part`, got {layout!r}", str(path))


def place(mesh: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return the coordinates of a rank on a mesh, whose last axis runs fastest."""
    coordinates: dict[str, int] = {}
    for axis in reversed(list(mesh)):
        rank, coordinates[axis] = divmod(rank, mesh[axis])
    return coordinates

"""What a search decides and the passes carry out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh


@dataclass(frozen=True)
class SharedLayout:
    """Where the readers of one tensor meet.

    Parameters
    ----------
    layout : Layout
        The tensor is brought to this layout once; readers that want another start from it.
    gradient : tuple of str
        The axes over which its cotangents are partial when they are added up.
    saved : bool
        Whether the first reader that saves the tensor for backward saves it in this layout; for
        the account of memory only.
    """

    layout: Layout
    gradient: tuple[str, ...] = ()
    saved: bool = False

    @property
    def cotangent(self) -> Layout:
        """The layout in which cotangents are added up."""
        return self.layout.with_partial(self.gradient)

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "SharedLayout":
        """Return the same with other axes in the place of these."""
        gradient = mesh.ordered(names[axis] for axis in self.gradient)
        return SharedLayout(self.layout.renamed(names, mesh), gradient, self.saved)


@dataclass(frozen=True)
class Decisions:
    """What a search decides.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    strategies : mapping of str to Strategy
        For every node.
    stored : mapping of str to Layout
        For every input and parameter, the layout in which it arrives or is kept.
    shared_layouts : mapping of str to SharedLayout
        For every tensor with several readers.
    regathered : frozenset of str
        Parameters whose gathered copy is not kept for the gradient but gathered again.
    """

    mesh: Mesh
    strategies: Mapping[str, Strategy]
    stored: Mapping[str, Layout]
    shared_layouts: Mapping[str, SharedLayout] = field(default_factory=dict)
    regathered: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return (
            f"<Decisions on {self.mesh}: {len(self.strategies)} strategies, {len(self.stored)} "
            f"stored tensors, {len(self.shared_layouts)} shared layouts>"
        )

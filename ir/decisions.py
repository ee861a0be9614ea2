"""The decisions of a search, which the passes carry out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from shardwright.ir.layout import Layout, SharedLayout, Strategy
from shardwright.ir.mesh import Mesh

T = TypeVar("T")


@dataclass(frozen=True)
class Decisions:
    """The decisions of a search.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    strategies : mapping of str to Strategy
        For every node.
    stored : mapping of str to Layout
        For every input and parameter, the layout in which it is fed or stored.
    shared_layouts : mapping of str to SharedLayout
        For every tensor with several readers.
    regathered : frozenset of str
        Parameters that are gathered a second time for the gradient, not saved for backward; and
        operators whose result is saved as they leave it and redistributed a second time.
    recomputed : frozenset of str
        Operators that are computed a second time for the gradient; their results are not saved.
    offloaded : frozenset of str
        Operators whose result is saved for backward in host memory, as they leave it.
    gathered_in_passes : frozenset of str
        Parameters that are gathered in every pass of a loop over micro-batches, not once before it.
    reduced_in_passes : frozenset of str
        Parameters whose gradient is reduced in every pass, before it is accumulated.
    stages : mapping of str to int
        The pipeline stage of every operator, ascending in program order; empty without stages. The
        device groups are those of `mesh`.
    schedule : str
        The schedule of the pipeline; empty for the order of the program.
    """

    mesh: Mesh
    strategies: Mapping[str, Strategy]
    stored: Mapping[str, Layout]
    shared_layouts: Mapping[str, SharedLayout] = field(default_factory=dict)
    regathered: frozenset[str] = frozenset()
    recomputed: frozenset[str] = frozenset()
    gathered_in_passes: frozenset[str] = frozenset()
    reduced_in_passes: frozenset[str] = frozenset()
    stages: Mapping[str, int] = field(default_factory=dict)
    schedule: str = ""
    offloaded: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return (
            f"<Decisions on {self.mesh}: {len(self.strategies)} strategies, {len(self.stored)} "
            f"stored tensors, {len(self.shared_layouts)} shared layouts>"
        )

    def about(self, names: Callable[[str], Iterable[str]]) -> "Decisions":
        """Return decisions about the values that stand for each value.

        Parameters
        ----------
        names : callable
            Returns the names of these values, which may be none or several.
        """

        def of_each(mapping: Mapping[str, T]) -> dict[str, T]:
            return {name: item for one, item in mapping.items() for name in names(one)}

        def of_all(some: frozenset[str]) -> frozenset[str]:
            return frozenset(name for one in some for name in names(one))

        return replace(
            self,
            strategies=of_each(self.strategies),
            stored=of_each(self.stored),
            shared_layouts=of_each(self.shared_layouts),
            stages=of_each(self.stages),
            regathered=of_all(self.regathered),
            recomputed=of_all(self.recomputed),
            offloaded=of_all(self.offloaded),
            gathered_in_passes=of_all(self.gathered_in_passes),
            reduced_in_passes=of_all(self.reduced_in_passes),
        )

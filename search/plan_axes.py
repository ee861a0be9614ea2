"""The axes of the mesh of a named plan, by what they divide."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from shardwright.cost_model.cluster import Cluster
from shardwright.ir.errors import OptionError
from shardwright.ir.mesh import Mesh

NAMES = {
    ("tensor", "within"): "tensor",
    ("tensor", "expert"): "tensor_expert",
    ("tensor", "copies"): "tensor_copies",
    ("context", "within"): "context_tensor",
    ("context", "expert"): "context_expert",
    ("context", "copies"): "context",
    ("shard", "within"): "shard_tensor",
    ("shard", "expert"): "expert",
    ("shard", "copies"): "shard",
    ("data", "within"): "data_tensor",
    ("data", "expert"): "expert",
    ("data", "copies"): "data",
}
"""Names of ranks by what they share elsewhere, and by whether they share the weights of an expert,
divide experts, or have copies of them."""
_PARTS = {name: parts for parts, name in NAMES.items()}


@dataclass(frozen=True)
class PlanAxes:
    """The axes of the mesh of a named plan, by what they divide.

    Parameters
    ----------
    data : tuple of str
        The batch.
    expert, tensor, context : tuple of str
        Experts; weights; sequences. Those of experts are among the others.
    within : tuple of str or None
        Weights of an expert; None for those of all weights.
    outside : tuple of str
        Axes of the batch over which ZeRO divides nothing.
    """

    data: tuple[str, ...]
    expert: tuple[str, ...]
    tensor: tuple[str, ...]
    context: tuple[str, ...] = ()
    within: tuple[str, ...] | None = None
    outside: tuple[str, ...] = ()

    @property
    def of_experts(self) -> tuple[str, ...]:
        """The axes over which the weights of an expert are divided."""
        return self.tensor if self.within is None else self.within

    @property
    def storage(self) -> tuple[str, ...]:
        """The axes over which ZeRO divides: those with copies of the weights, or some of them."""
        return (*(axis for axis in self.data if axis not in self.outside), *self.context)

    @property
    def expert_storage(self) -> tuple[str, ...]:
        """The same of experts: their own data ranks, which may share other weights."""
        apart = {*self.expert, *self.of_experts, *self.outside}
        return tuple(a for a in (*self.data, *self.context, *self.tensor) if a not in apart)

    @staticmethod
    def of(mesh: Mesh) -> "PlanAxes":
        """Return the axes of a mesh made by `NamedPlan.mesh`."""
        parts = {name: _parts_of(name) for name in mesh.names}

        def of(place: int, *wanted: str) -> tuple[str, ...]:
            return tuple(name for name in mesh.names if parts[name][place] in wanted)

        batch = of(0, "data", "shard")
        shards = {name for name in batch if parts[name][0] == "shard" or parts[name][1] == "expert"}
        some = any(parts[name][0] == "shard" for name in batch)
        return PlanAxes(
            data=batch,
            expert=of(1, "expert"),
            tensor=of(0, "tensor"),
            context=of(0, "context"),
            within=of(1, "within"),
            outside=tuple(name for name in batch if some and name not in shards),
        )


def is_of_batch(name: str) -> bool:
    """Return whether the ranks of a name share the batch."""
    return _PARTS.get(name, ("", ""))[0] in ("data", "shard")


def has_copies(name: str) -> bool:
    """Return whether the ranks of a name have copies of the same experts."""
    return _PARTS.get(name, ("", ""))[1] == "copies"


def on_levels(
    name: str, degree: int, left: list[int], cluster: Cluster
) -> Iterator[tuple[int, int]]:
    """Yield (size, level) for the levels that a degree takes, innermost first; reduce `left`.

    Raises
    ------
    OptionError
        If the ranks that are left of a level cannot be divided so.
    """
    rest, level = degree, 0
    while rest > 1:
        while left[level] == 1:
            level += 1
        size = gcd(rest, left[level])
        if size == 1:
            group, free = cluster.levels[level].name, left[level]
            raise OptionError(
                f"`{name}={degree}` does not fit the `{group}` of {cluster.name}: {rest} of it are "
                f"to be divided between {free}",
                hint=f"use a degree that divides {free}, or that {free} divides",
            )
        yield size, level
        rest //= size
        left[level] //= size
        if left[level] == 1:
            level += 1


def _parts_of(axis: str) -> tuple[str, str]:
    """Return what the ranks of an axis share elsewhere and at experts; a level may be the last."""
    fitting = [name for name in _PARTS if axis == name or axis.startswith(f"{name}_")]
    return _PARTS[max(fitting, key=len)] if fitting else ("", "")

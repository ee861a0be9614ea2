"""The rule by which MindSpore divides parameters among ranks that hold copies: by their rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.search.space.sharding import EVERY_COPY, OptimizerSharding
from shardwright.search.space.space import Storage


@dataclass(frozen=True)
class ShardedRows(OptimizerSharding):
    """Divides the first dimension evenly among all ranks with a copy, or among `shard_size`.

    A parameter whose first dimension they do not divide stays as its reader has it.
    """

    def allowed(
        self, options: Sequence[Storage], tensor: TensorType, mesh: Mesh, passes: float
    ) -> list[Storage]:
        """Return the storage options of a parameter that the rule allows."""
        by_rows = [option for option in options if self._is_by_rows(option, tensor, mesh)]
        return super().allowed(by_rows or options, tensor, mesh, passes)

    def _is_by_rows(self, option: Storage, tensor: TensorType, mesh: Mesh) -> bool:
        """Return whether an option divides rows alone, or nothing, or has readers of its own."""
        stored, used = option.layout, option.used
        if used is None or stored == used:
            return True
        idle = {axis.name for axis in mesh.axes if axis.size > 1} - {*stored.split_axes}
        rows, *others = stored.splits
        if self.shard_size == EVERY_COPY and idle:
            return False
        return (*others,) == used.splits[1:] and tensor.shape[0] % mesh.extent(rows) == 0

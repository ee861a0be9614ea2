"""The profile that minimises the seconds of a step on a cluster."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.program_profile import ProgramProfile
from shardwright.cost_model.redistribution.seconds import move_seconds, packing_seconds
from shardwright.cost_model.roofline import SecondPrices, second_prices
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import OperatorInfo

Floats = NDArray[np.float64]


class TimeProfile(ProgramProfile):
    """Seconds of the emitted program on a cluster, without any overlap."""

    name = "time"
    _known: tuple[Mesh, SecondPrices] | None = None

    @property
    def _seconds(self) -> SecondPrices:
        """The seconds on the mesh; `_on` changes it.

        They may be those of an equal mesh, of another compilation.
        """
        if self._known is None or self._known[0] is not self.mesh:
            self._known = self.mesh, second_prices(self.mesh, self.cluster)
        return self._known[1]

    def __init_subclass__(cls, **options: object) -> None:
        """Take no seconds of packing in a subclass that has other prices of moves."""
        super().__init_subclass__(**options)
        if "move_costs" in vars(cls) and "packing_costs" not in vars(cls):
            cls.packing_costs = ProgramProfile.packing_costs  # type: ignore[method-assign]

    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        """Return the seconds of a computing operator, by the roofline."""
        return self._seconds.operator_cost(info, operands, results)

    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the seconds of a communication operator, for operands of several sizes."""
        return move_seconds(operator, axes, local_bytes, self.mesh, self.cluster)

    def packing_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the further seconds of an operator whose parts are copied."""
        return packing_seconds(operator, axes, local_bytes, self.mesh, self.cluster)

"""Groups of equal operators of repeated layers that a plan does not save on the device."""

from dataclasses import dataclass

from shardwright.ir.graph import Node
from shardwright.ir.units import pattern


@dataclass
class Group:
    """Equal operators of repeated layers, with what is done instead of saving their results.

    Parameters
    ----------
    operator : str
        Their scope and kind, with ``*`` for the number of the layer, and maybe a remark.
    count : int
        Number of operators.
    seconds : float
        Predicted time of a step that is spent instead.
    bytes : float
        Bytes of the tensors that a device would otherwise save for backward.
    """

    operator: str
    count: int = 0
    seconds: float = 0.0
    bytes: float = 0.0


class Groups:
    """The groups so far, in the order of the model."""

    def __init__(self) -> None:
        self._found: dict[str, Group] = {}

    def of(self, operator: Node, remark: str = "") -> Group:
        """Return the group of an operator, a new one if there is none yet."""
        label = f"{operator.scope}/{operator.operator}" if operator.scope else operator.operator
        label = pattern(label + remark)
        return self._found.setdefault(label, Group(label))

    def all(self) -> list[Group]:
        """Return the groups."""
        return list(self._found.values())

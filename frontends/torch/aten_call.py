"""One node of an exported graph, as its converter sees it."""

from dataclasses import dataclass, field

from shardwright.frontends.common.call import Emitting
from shardwright.frontends.common.emission import Emission
from shardwright.frontends.common.items import Constant, Item
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType


@dataclass(frozen=True)
class Selected:
    """The elements that a mask selects, of a shape that depends on data.

    Few converters take it: those whose results do not depend on where the elements stand.

    Parameters
    ----------
    values, mask : Value
        The elements that are selected from, and the mask, of one shape.
    """

    values: Value
    mask: Value


Chosen = Item | Selected  # how a parameter of a converter is annotated that takes selections


@dataclass
class Notes:
    """What converters remember of the nodes before.

    Parameters
    ----------
    views : dict of str to Value
        The tensors that reshaped ones are made of.
    causal : dict of int to (Constant, bool)
        Masks that were compared with the causal one, by their identity.
    differentiates : bool
        Whether the module computes gradients itself, which may be differentiated again.
    """

    views: dict[str, Value] = field(default_factory=dict)
    causal: dict[int, tuple[Constant, bool]] = field(default_factory=dict)
    differentiates: bool = False


class Call(Emitting):
    """An application of an ATen operator.

    Parameters
    ----------
    emission : Emission
        The graph that grows.
    operator : str
        The operator, such as ``aten.add.Tensor``.
    results : tuple of TensorType
        Types of its results in PyTorch.
    notes : Notes
        What is remembered of the nodes before.

    Attributes
    ----------
    is_complex : bool
        Whether its result is complex.
    complex_arguments : frozenset of str
        Names of the arguments that are complex.
    memory : tuple of (tuple of int, int)
        Strides of the first argument in PyTorch, and where it begins in its memory, in elements.
    """

    def __init__(
        self,
        emission: Emission,
        operator: str,
        results: tuple[TensorType, ...],
        notes: Notes,
    ) -> None:
        super().__init__(emission, results, notes.views)
        self.notes = notes
        self.operator = operator
        self.is_complex = False
        self.complex_arguments: frozenset[str] = frozenset()
        self.memory: tuple[tuple[int, ...], int] = ((), 0)

    def is_trained(self, value: Value) -> bool:
        """Return whether a trained parameter has a gradient through a value."""
        reached = {value.name}
        for node in reversed(self.build.nodes):
            if node.operator != "stop_gradient" and any(
                result.name in reached for result in node.results
            ):
                reached.update(node.operands)
        return any(p.name in reached and p.trainable for p in self.build.parameters)

"""The axes of a plan by what they divide, and what processes with samples of their own may not do.

`fully_shard` averages gradients of ranks that have different samples. So the forward pass may
communicate over these ranks for parameters, and for scalars of the loss, which is a mean.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.degrees.readings import forward_nodes, weights_of
from shardwright.ir.errors import PlanError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class

_RENAMED: Final = ("cast", "reshape", "scale", "identity")


_OTHERS: Final = "export `torch`, which writes the program of the plan, an operator a line"


def refused(what: str, hint: str = _OTHERS) -> PlanError:
    """Return the error of a plan that has no such form."""
    return PlanError(what, hint=hint)


@dataclass(frozen=True)
class Axes:
    """The mesh axes of a plan.

    Parameters
    ----------
    replicate, shard : tuple of str
        Axes whose ranks have samples of their own: those that divide no parameter, and those that
        do.
    tensor : tuple of str
        The others, whose ranks share the samples.
    """

    replicate: tuple[str, ...]
    shard: tuple[str, ...]
    tensor: tuple[str, ...]

    @property
    def data(self) -> tuple[str, ...]:
        """The axes whose ranks have samples of their own."""
        return (*self.replicate, *self.shard)

    @staticmethod
    def of(plan: Plan) -> "Axes":
        """Return the axes of a plan.

        Raises
        ------
        PlanError
            If an input is divided in another dimension than its samples, or parameters are divided
            over different axes.
        """
        program, mesh = plan.program, plan.mesh.of_ranks
        data = mesh.ordered({a for value in program.inputs for a in _axes_of_input(value, plan)})
        divided = {
            name: mesh.ordered({*(program.value(name).known_layout.split_axes)} & {*data})
            for name in weights_of(program)
        }
        shard = mesh.ordered({axis for axes in divided.values() for axis in axes})
        for name, axes in divided.items():
            if axes and axes != shard:
                raise refused(
                    f"`{name}` is divided over {_text(axes)} and other parameters over "
                    f"{_text(shard)}, `fully_shard` has one mesh"
                )
        rest = [axis for axis in mesh.names if axis not in data]
        return Axes(mesh.ordered({*data} - {*shard}), shard, mesh.ordered(rest))


def _axes_of_input(value: Value, plan: Plan) -> tuple[str, ...]:
    layout = value.known_layout.without(plan.mesh.in_time)
    if any(layout.splits[1:]):
        raise refused(f"the input `{value.name}` is divided in another dimension than its samples")
    if not value.known_layout.is_even(value.type.shape, plan.mesh):
        raise refused(f"the ranks have different numbers of samples of `{value.name}`")
    return layout.split_axes


def _text(axes: tuple[str, ...]) -> str:
    return " and ".join(f"`{axis}`" for axis in axes)


@dataclass(frozen=True)
class DataRanks:
    """What ranks with samples of their own exchange in the forward pass.

    Parameters
    ----------
    program, model : Graph
        The program of a rank, and the model.
    data : tuple of str
        The axes whose ranks have samples of their own.
    """

    program: Graph
    model: Graph
    data: tuple[str, ...]

    def check(self) -> None:
        """Refuse what modules that run for themselves do not exchange.

        Raises
        ------
        PlanError
            If the loss is no mean, or anything but parameters and scalars of it is exchanged.
        """
        if not self.data:
            return
        self.check_mean()
        summed = set[str]()
        for node in forward_nodes(self.program):
            if not all(result.type.shape == () for result in node.results):
                self._check(node, summed)
            elif exchanges(node, self.data) or summed & {*node.operands}:
                summed |= {result.name for result in node.results}

    def check_mean(self) -> None:
        """Refuse a loss that is no mean: gradients of different samples are averaged.

        Raises
        ------
        PlanError
            If the loss ends in something else.
        """
        loss = self.model.outputs[0]
        if not self._is_mean(loss):
            ending = self.model.producers.get(loss)
            raise refused(
                f"the loss `{loss}` ends in `{ending.operator if ending else loss}`, and gradients "
                "of different samples are averaged, which is right for a mean of samples"
            )

    def _check(self, node: Node, summed: set[str]) -> None:
        """Check a node whose results are no scalars."""
        where = f"`{node.scope or node.name}`"
        if exchanges(node, self.data) and not self._is_own_part(node):
            raise refused(
                f"{where} needs the {node.operator} of `{node.operands[0]}` between ranks with "
                "samples of their own, and `fully_shard` exchanges parameters alone"
            )
        if summed & {*node.operands}:
            raise refused(
                f"`{node.operator}` in {where} reads a scalar of the samples of all ranks, which a "
                "rank with samples of its own does not have"
            )

    def _is_own_part(self, node: Node) -> bool:
        """Whether an exchange gathers a parameter, or takes the samples of a rank."""
        taken = node.operator == "local_slice" and node.attributes["dimension"] == 0
        return node.operands[0] in self.constants or (
            taken and node.operands[0] in {value.name for value in self.program.inputs}
        )

    @cached_property
    def constants(self) -> frozenset[str]:
        """The values that follow from parameters alone."""
        return frozenset(_from_parameters(self.program))

    def _is_mean(self, name: str) -> bool:
        """Whether a scalar of the model is a mean, or a sum of means."""
        node = self.model.producers.get(name)
        if node is None:
            return False
        if node.operator in _RENAMED:
            return self._is_mean(node.operands[0])
        if node.operator in ("add", "sub"):
            return all(map(self._is_mean, node.operands))
        if node.operator == "div":
            return self._is_sum(node.operands[0]) and self._is_sum(node.operands[1], of_truths=True)
        return node.operator == "reduce_mean"

    def _is_sum(self, name: str, of_truths: bool = False) -> bool:
        """Whether a scalar of the model is a sum; a count, if it is to be one of truth values."""
        node = self.model.producers.get(name)
        if node is not None and node.operator in _RENAMED:
            return self._is_sum(node.operands[0], of_truths)
        if node is None or node.operator != "reduce_sum":
            return False
        return not of_truths or self._is_truth(node.operands[0])

    def _is_truth(self, name: str) -> bool:
        """Whether a value has truth values, perhaps in another type."""
        node = self.model.producers.get(name)
        if node is not None and node.operator in _RENAMED:
            return self._is_truth(node.operands[0])
        return self.model.value(name).type.dtype == "bool"


def _from_parameters(program: Graph) -> Iterator[str]:
    found = {parameter.name for parameter in program.parameters}
    for node in forward_nodes(program):
        if {*node.operands} <= found:
            found |= {result.name for result in node.results}
    yield from found


def exchanges(node: Node, axes: tuple[str, ...]) -> bool:
    """Return whether a node communicates over some of the axes."""
    attributes: Mapping[str, object] = node.attributes
    over = attributes.get("axes", ())
    assert isinstance(over, tuple)
    return bool({*over} & {*axes}) and issubclass(operator_class(node.operator), Communication)

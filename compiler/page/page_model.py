"""The model on the page: its operators with strategies, and the layouts of what they read."""

from collections.abc import Mapping
from typing import Any

from shardwright.compiler.page.folding import Numbering, OperatorBox, Read, document, folded
from shardwright.compiler.plans.accounting import OperatorCost, operator_costs
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.ir.graph import Graph, Node, Value


def model_document(
    compiled: Compiled, cluster: AnyCluster, lines: Mapping[str, str]
) -> dict[str, Any]:
    """Return the model, folded by scope.

    Parameters
    ----------
    compiled : Compiled
        The compiled model.
    cluster : Cluster or MixedCluster
        The devices that times are predicted for.
    lines : mapping of str to str
        The line of the model's own code that applies each operator, by name.
    """
    costs = operator_costs(compiled, cluster)
    boxes = folded(_Boxes(compiled).all(costs))
    numbering = Numbering(boxes)

    def write(box: OperatorBox) -> dict[str, Any]:
        return {
            "id": numbering.of_operator[box.positions[0]],
            "operator": box.operator,
            "name": box.name,
            "scope": box.scope,
            "line": lines.get(box.name, ""),
            "count": len(box.positions),
            "strategy": box.strategy,
            "split_counts": box.split_counts,
            "seconds": box.seconds,
            "stages": sorted(box.stages),
            "reads": [_read(read, numbering.of_operator) for read in box.reads],
            "makes": [{"tensor": n, "type": t, "layout": where} for n, t, where in box.makes],
        }

    return {
        "boxes": document(boxes, write),
        "operators": len(compiled.source),
        "drawn": 1 + max(numbering.of_operator.values(), default=-1),
        "other_seconds": costs[-1].seconds,
    }


def _read(read: Read, number: Mapping[int, int]) -> dict[str, Any]:
    return {
        "tensor": read.tensor,
        "type": read.type,
        "made": read.made,
        "taken": read.taken,
        "from": None if read.position is None else number[read.position],
        "kind": read.kind,
    }


class _Boxes:
    """Makes the boxes of the operators of a model."""

    def __init__(self, compiled: Compiled) -> None:
        self.source, self.program = compiled.source, compiled.program
        self.emitted = {node.name: node for node in self.program.nodes}
        self.position = {r.name: i for i, n in enumerate(self.source) for r in n.results}
        self.parameters = {parameter.name for parameter in self.source.parameters}

    def all(self, costs: list[OperatorCost]) -> list[OperatorBox]:
        """Return a box for every operator."""
        pairs = zip(self.source.nodes, costs, strict=False)  # the last is the optimizer
        return [self._box(node, cost, i) for i, (node, cost) in enumerate(pairs)]

    def _box(self, node: Node, cost: OperatorCost, position: int) -> OperatorBox:
        counts = ("x".join(map(str, item)) or "1" for item in cost.split_counts)
        emitted = self.emitted.get(node.name)
        stage = None if emitted is None else self.program.stage_of(emitted)
        return OperatorBox(
            node.name,
            node.operator,
            node.scope,
            str(cost.strategy or ""),
            " ".join(counts),
            cost.seconds,
            tuple(self._read(node, name, i) for i, name in enumerate(node.operands)),
            tuple((r.name, str(r.type), self._layout(r.name)) for r in node.results),
            (position,),
            frozenset() if stage is None else frozenset({stage}),
        )

    def _read(self, node: Node, name: str, index: int) -> Read:
        value, made = self.source.values[name], self._layout(name)
        kind = "tensor" if name in self.position else "input"
        return Read(
            name,
            str(value.type),
            made,
            self._taken(node, name, index) or made,
            self.position.get(name),
            "parameter" if name in self.parameters else kind,
        )

    def _taken(self, node: Node, name: str, index: int) -> str:
        """Return the layout in which an operator takes an operand."""
        emitted = self.emitted.get(node.name)
        if emitted is None:
            return ""
        given = emitted.operands[index : index + 1] + emitted.operands
        for operand in given:
            if self.program.copied_tensor(operand) == name:
                return self._layout(operand)
        return ""

    def _layout(self, name: str) -> str:
        value = self.program.values.get(name)
        return "" if value is None else layout_text(value)


def layout_text(value: Value) -> str:
    """Return the layout of a value within its pipeline stage; empty for none."""
    return "" if value.layout is None else str(value.layout.at(None))


def scopes(source: Graph) -> dict[str, str]:
    """Return the scope of every operator of a model, by the names of its results."""
    return {result.name: node.scope for node in source.nodes for result in node.results}

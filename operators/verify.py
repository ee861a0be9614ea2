"""The rules that operators put on a graph: known names, inferred types, agreeing layouts."""

from shardwright.ir.errors import IRError, ShardwrightError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.text import node_text, type_text
from shardwright.ir.verify import verify_structure
from shardwright.operators.info import operator_info


def verify(graph: Graph, known: set[tuple[int, ...]] | None = None) -> None:
    """Check that a graph is well formed: structure, types, and layouts where they are decided.

    Parameters
    ----------
    graph : Graph
        The graph.
    known : set, optional
        Keys of nodes that are well formed with their operands on their mesh; those of the graph are
        added. The keys are identities, so the caller keeps the graphs that they are of.

    Raises
    ------
    IRError
        At the first broken rule; names the node, the value found and the value expected.
    """
    verify_structure(graph)
    known = set() if known is None else known
    for node in graph.nodes:
        operands = graph.operand_values(node)
        key = id(graph.mesh), id(node), *map(id, operands)
        if key in known:
            continue
        known.add(key)
        try:
            _verify_node(node, operands, graph)
        except IRError as error:
            raise IRError(error.what, node_text(node), error.hint) from None
        except ShardwrightError as error:
            types = ", ".join(f"{value.name}: {type_text(value)}" for value in operands)
            where = f"{node_text(node)} with {types}"
            raise IRError(f"`{node.name}`: {error.what}", where, error.hint) from None


def _verify_node(node: Node, operands: tuple[Value, ...], graph: Graph) -> None:
    info = operator_info(node.operator, [value.type for value in operands], node.attributes)
    types = tuple(result.type for result in node.results)
    if types != info.result_types:
        expected = ", ".join(map(str, info.result_types))
        raise IRError(f"the results are {', '.join(map(str, types))}, expected {expected}")
    layouts = [value.layout for value in (*operands, *node.results)]
    if graph.mesh is None or all(layout is None for layout in layouts):
        return
    if node.strategy is not None and all(result.layout is None for result in node.results):
        info.check_strategy(node.strategy, graph.mesh)  # decided, and not partitioned yet
        return
    known = [layout for layout in layouts if layout is not None]
    if len(known) != len(layouts):
        raise IRError("some of the operands and results have a layout and some have none")
    taken, left = known[: len(operands)], known[len(operands) :]
    wanted = [layout.reduced() for layout in left] if node.operator != "redistribute" else left
    _, expected_layouts = info.infer_layouts(taken, graph.mesh, wanted)
    for result, layout in zip(node.results, expected_layouts, strict=True):
        if result.layout != layout:
            raise IRError(
                f"`{result.name}` has the layout {result.layout}, its operator leaves {layout}"
            )

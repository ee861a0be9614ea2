"""What a software keeps that quantizes a tensor once for all products which read it.

That is Transformer Engine's way: of an activation that products alone read again for the gradient,
the quantized copy for it is saved in its place; of a weight, a copy for the forward product and one
for the gradient stay beside it, for all micro-batches. One serves both where a scale is of the
whole tensor and the device multiplies along either dimension. Not measured: by its rules alone
(`is_non_tn_fp8_gemm_supported` in Transformer Engine's `pytorch/utils.py`).
"""

from collections.abc import Iterator, Mapping

from shardwright.ir.graph import Graph, Node, value_bytes
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.operators.info import info_of
from shardwright.operators.linear.quantized import QUANTIZED, QuantizedProduct


def quantized_sizes(
    graph: Graph, sizes: Mapping[str, float], roots: Mapping[str, str], layouts: str
) -> dict[str, float]:
    """Return the sizes of the activations and weights that quantized products read.

    Parameters
    ----------
    graph : Graph
        The program.
    sizes : mapping of str to float
        Bytes of every buffer.
    roots : mapping of str to str
        The buffer of each value that has none of its own.
    layouts : str
        Which layouts of operands products of the device take: `Device.float8_layouts`.
    """
    found: dict[str, float] = {}
    mesh, again = graph.mesh or Mesh(()), _read_again(graph, roots)
    for node, info in _forward(graph):
        rows, weight = (roots.get(name, name) for name in node.operands)
        item = item_bytes(info.operand_types[0].dtype)
        if again.get(rows, False):
            found[rows] = sizes[rows] * min(info.scalings[0].bytes_each / item, 1.0)
        elements, scaling = (
            value_bytes(graph.values[node.operands[1]], mesh) / item,
            info.scalings[1],
        )
        copies = 1 if scaling.is_of_tensor and layouts == "any" else 2
        found[weight] = sizes[weight] + copies * elements * scaling.bytes_each
    return found


def _forward(graph: Graph) -> Iterator[tuple[Node, QuantizedProduct]]:
    """Yield the quantized products of the forward pass."""
    for node in graph.nodes:
        if node.operator in QUANTIZED.values() and node.provenance.phase == "forward":
            info = info_of(graph, node)
            assert isinstance(info, QuantizedProduct)
            yield node, info


def _read_again(graph: Graph, roots: Mapping[str, str]) -> dict[str, bool]:
    """Return of each buffer that backward operators read whether those are quantized products."""
    found: dict[str, bool] = {}
    for node in graph.nodes:
        if node.provenance.phase == "backward":
            is_quantized = node.operator.startswith("quantized_")
            for name in node.operands:
                root = roots.get(name, name)
                found[root] = found.get(root, True) and is_quantized
    return found

"""Model flops: the work of a training step that its model asks for, and the share that devices do.

Hardware flops add the products that are computed again for the gradient. (The scores that a fused
attention computes again inside its gradient, and the logits that a loss in chunks does, are part of
that operator, and not counted.)

Counted are the matrix products (convolutions and attention too) of the whole forward program, three
times: once forward, twice backward, for the gradients by both operands. The gradient by an operand
that follows from frozen parameters is not counted: nothing asks for it. Element-wise operators are
not counted, nor is work that a plan repeats: recomputation, and what several ranks compute alike.
Attention counts every pair of a query and a key, whatever a causal mask hides. Experts count the
rows of the choices of tokens.

References
----------
Narayanan et al., "Efficient large-scale language model training on GPU clusters", 2021, eq. 3;
Chowdhery et al., "PaLM", 2022, appendix B (model flops utilization).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.cost_model.cluster import Device
from shardwright.cost_model.efficiency.unread import unread_recomputation
from shardwright.dataflow.cotangents import cotangent_flow, differentiable_operands
from shardwright.dataflow.samples import samples_of
from shardwright.ir.graph import Graph
from shardwright.operators.attention.scaled_dot_product import Attention
from shardwright.operators.info import OperatorInfo, info_of
from shardwright.operators.linear.quantized import QuantizedProduct
from shardwright.operators.products import type_of_products
from shardwright.operators.reduction.softmax import Softmax


@dataclass(frozen=True)
class ModelFlops:
    """The work of one training step.

    Parameters
    ----------
    by_dtype : mapping of str to float
        Floating-point operations by the element type of the products.
    forward : float
        Those of the forward pass: a third, or more where parameters are frozen.
    rate : str
        The peak rate of the products that a recipe of low precision quantizes; empty without one.
        Utilization is of the peak of 16 bits all the same, so that it compares what trains alike.
    """

    by_dtype: Mapping[str, float]
    forward: float = 0.0
    rate: str = ""

    @property
    def total(self) -> float:
        """Floating-point operations of a step."""
        return sum(self.by_dtype.values())

    def utilization(self, device: Device, devices: int, step_seconds: float) -> float:
        """Return the share of the peak rate that a step attains.

        The seconds that `devices` need at the peak of the type of each product, over those of the
        step.
        """
        ideal = sum(flops / device.flops_per_second(t) for t, flops in self.by_dtype.items())
        return ideal / (devices * step_seconds) if step_seconds > 0 else 0.0


def model_flops(graph: Graph) -> ModelFlops:
    """Return the model flops of a training step.

    Parameters
    ----------
    graph : Graph
        The whole forward program.
    """
    by_dtype: dict[str, float] = {}
    forward: dict[str, float] = {}
    flow = cotangent_flow(graph).operands
    follows = {p.name for p in graph.parameters}  # and what follows from them, frozen or not
    for node in graph.nodes:
        info = info_of(graph, node)
        if info.product_flops:
            pairs = zip(node.operands, differentiable_operands(info), flow[node.name], strict=True)
            asked = [flag or name not in follows for name, has_one, flag in pairs if has_one]
            _count(forward, info, 1)
            # It has two backward products of its size, if both operands have gradients.
            _count(by_dtype, info, 1 + 2 * sum(asked) / max(len(asked), 1))
        if not follows.isdisjoint(node.operands):
            follows.update(result.name for result in node.results)
    products = (info_of(graph, node) for node in graph.nodes)
    rates = (info.recipe.rate for info in products if isinstance(info, QuantizedProduct))
    return ModelFlops(by_dtype, sum(forward.values()), next(rates, ""))


def _count(by_dtype: dict[str, float], info: OperatorInfo, times: float) -> None:
    """Add the products of an operator, on the rows that experts have."""
    if flops := info.product_flops:
        dtype = type_of_products(info)
        by_dtype[dtype] = by_dtype.get(dtype, 0.0) + times * flops * filled_share(info)


def filled_share(info: OperatorInfo) -> float:
    """Return the share of the work of a whole operator that is on filled entries."""
    shares = (t.filled_elements(t.shape) / t.elements for t in info.operand_types if t.ragged)
    return next(shares, 1.0)


def hardware_flops(graph: Graph, program: Graph, *, blocks: bool = False) -> ModelFlops:
    """Return the model flops, and those of products that are computed again.

    Parameters
    ----------
    graph : Graph
        The whole forward program.
    program : Graph
        The emitted program of the step.
    blocks : bool
        Whether whole blocks are computed again, as training software does, also what no gradient
        reads.
    """
    model = model_flops(graph)
    by_dtype = dict(model.by_dtype)
    again = [node for node in program.nodes if node.provenance.role == "recompute"]
    if blocks:
        unread = unread_recomputation(program).values()
        again += [program.nodes[position] for positions in unread for position in positions]
    for node in again:
        _count(by_dtype, info_of(program, node), 1)
    return ModelFlops(by_dtype, model.forward, model.rate)


@dataclass(frozen=True)
class BatchSize:
    """The size of a batch.

    Parameters
    ----------
    samples : int
        Samples; 1 where the model has no input with a batch dimension.
    tokens : int or None
        Positions of all sequences; None where the model reads no sequences of tokens.
    """

    samples: int
    tokens: int | None


def batch_size(graph: Graph) -> BatchSize:
    """Return the size of the batch that a program reads.

    A model reads sequences of tokens where an input of integers ``[batch, position]`` meets
    attention between these positions.
    """
    samples = samples_of(graph) or 1
    attended = {length for node in graph.nodes for length in _attended(info_of(graph, node))}
    for value in graph.inputs:
        shape = value.type.shape
        if len(shape) == 2 and not value.type.is_float and shape[1] in attended:
            return BatchSize(samples, shape[0] * shape[1])
    return BatchSize(samples, None)


def _attended(info: OperatorInfo) -> tuple[int, ...]:
    """Return the number of positions between which an operator attends, if it does."""
    if isinstance(info, Attention):
        return (info.rule.sizes["s"],)
    shape = info.operand_types[0].shape if isinstance(info, Softmax) else ()
    return (shape[-1],) if len(shape) > 2 and shape[-1] == shape[-2] else ()

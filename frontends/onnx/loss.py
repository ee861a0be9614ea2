"""Losses that are appended to an imported model, so that it can be trained."""

from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.loss import emit_cross_entropy

_LOSSES = ("auto", "none", "cross_entropy", "mse", "mean")


def append_loss(build: Builder, outputs: tuple[Value, ...], loss: str) -> tuple[Value, ...]:
    """Append a loss to the first output and return it alone, or the outputs where there is none.

    Parameters
    ----------
    build : Builder
        Holds the model.
    outputs : tuple of Value
        What the model returns.
    loss : str
        ``cross_entropy`` of scores ``[..., class]`` with an input ``label`` of classes, where a
        softmax at the end is taken off; ``mse``, the mean square of the distance to an input
        ``label``; ``mean`` of the output; ``none``. With ``auto`` it is none where the first output
        is a real scalar, cross entropy where it has several numbers for each sample, else ``mse``.

    Raises
    ------
    ModelError
        If there is no such loss, or the output does not fit it.
    """
    output = outputs[0]
    kind = output.type
    if loss == "auto":
        loss = _suiting(kind)
    if loss == "none":
        return outputs
    if loss not in _LOSSES:
        raise ModelError(f"no loss is called `{loss}`", hint=f"use one of {_LOSSES}")
    if not kind.is_float or (loss == "cross_entropy" and kind.rank < 2):
        raise ModelError(
            f"the output `{output.name}` is {kind}, which has no loss `{loss}`",
            hint=f"use another of {_LOSSES}",
        )
    build.scope = "loss"
    if loss == "mean":
        return (build.emit("reduce_mean", output, name="loss"),)
    label = build.unique_name("label")
    if loss == "mse":
        target = build.input(Value(label, kind))
        distance = build.emit("squared_difference", output, target)
        return (build.emit("reduce_mean", distance, name="loss"),)
    scores = _scores(build, output)
    classes = build.input(Value(label, TensorType("int32", kind.shape[:-1])))
    losses = emit_cross_entropy(build, scores, classes, sparse=True)
    return (build.emit("reduce_mean", losses, name="loss"),)


def _suiting(kind: TensorType) -> str:
    if kind.is_float and not kind.shape:
        return "none"
    return "cross_entropy" if kind.rank > 1 and kind.shape[-1] > 1 else "mse"


def _scores(build: Builder, output: Value) -> Value:
    """Return what goes into a softmax at the end of a model; the output itself without one."""
    graph = build.graph("model", (output.name,))
    node = graph.producers.get(output.name)
    last = (-1, output.type.rank - 1)
    if node is None or node.operator not in ("softmax", "log_softmax"):
        return output
    return graph.values[node.operands[0]] if node.attributes["axis"] in last else output

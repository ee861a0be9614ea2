"""Losses that are appended to an imported model, so that it can be trained."""

from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Node, Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.models.loss import emit_cross_entropy

_LOSSES = ("auto", "none", "cross_entropy", "mse", "mean")


def with_loss(
    build: Builder, outputs: tuple[Value, ...], loss: str, class_axis: int | None = None
) -> tuple[Value, ...]:
    """Return the outputs, behind the loss where one is appended; see `append_loss`."""
    found = append_loss(build, outputs, loss, class_axis)
    return found if found == outputs else (*found, *outputs)


def append_loss(
    build: Builder, outputs: tuple[Value, ...], loss: str, class_axis: int | None = None
) -> tuple[Value, ...]:
    """Append a loss to the first output and return the loss; without a loss, the outputs.

    Parameters
    ----------
    build : Builder
        Holds the model.
    outputs : tuple of Value
        The outputs of the model.
    loss : str
        ``cross_entropy`` of scores with an input ``label`` of classes, without a final softmax;
        ``mse``, the mean squared error to an input ``label``; ``mean`` of the output; ``none``.
        ``auto`` means none if the first output is a floating-point scalar, cross entropy if it has
        several classes, else ``mse``.
    class_axis : int, optional
        Position of the classes among the dimensions of the scores. By default the dimension of the
        final softmax; without a softmax, the second of scores with at least four dimensions
        (``[sample, class, row, column]``), else the last.

    Raises
    ------
    ModelError
        If there is no such loss, or the output does not fit it.
    """
    output = outputs[0]
    kind = output.type
    if loss == "auto":
        loss = _suiting(kind, _class_axis(build, output, class_axis))
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
    axis = _class_axis(build, output, class_axis)
    order = (*(i for i in range(kind.rank) if i != axis), axis)
    scores = _scores(build, output, axis)
    if axis != kind.rank - 1:
        scores = build.emit("transpose", scores, permutation=order)
    classes = build.input(Value(label, TensorType("int32", scores.type.shape[:-1])))
    losses = emit_cross_entropy(build, scores, classes, sparse=True)
    return (build.emit("reduce_mean", losses, name="loss"),)


def _suiting(kind: TensorType, class_axis: int) -> str:
    if kind.is_float and not kind.shape:
        return "none"
    return "cross_entropy" if kind.rank > 1 and kind.shape[class_axis] > 1 else "mse"


def _class_axis(build: Builder, output: Value, given: int | None) -> int:
    """Return the dimension of the classes in the output, counted from the front.

    Raises
    ------
    ModelError
        If the output has no such dimension.
    """
    rank = output.type.rank
    if given is not None:
        if rank < 2 or not -rank <= given < rank:
            raise ModelError(
                f"the output `{output.name}` is {output.type}, which has no dimension {given} of "
                "classes",
                hint="`class_axis` is the position of the classes among its dimensions, from 0",
            )
        return given % rank
    softmax = _softmax(build, output)
    if softmax is not None:
        axis = softmax.attributes["axis"]
        assert isinstance(axis, int)
        return axis % rank
    # Scores of pixels are [sample, class, row, column].
    return 1 if rank >= 4 else max(rank - 1, 0)


def _softmax(build: Builder, output: Value) -> Node | None:
    """Return the softmax that produces the output; None for another operator."""
    node = build.graph("model", (output.name,)).producers.get(output.name)
    return node if node and node.operator in ("softmax", "log_softmax") else None


def _scores(build: Builder, output: Value, axis: int) -> Value:
    """Return the operand of the final softmax; the output itself without a softmax."""
    node = _softmax(build, output)
    if node is None or node.attributes["axis"] not in (axis, axis - output.type.rank):
        return output
    return build.graph("model", (output.name,)).values[node.operands[0]]

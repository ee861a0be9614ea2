"""Names: those of a training step, which a model cannot use, and those of inputs in options."""

from collections.abc import Iterable

from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph
from shardwright.ir.values import check_names
from shardwright.operators.models.loss_scale import (
    GOOD_STEPS,
    LOSS_SCALE,
    DynamicLossScale,
    LossScale,
)
from shardwright.operators.models.optimizer import STEP, Optimizer


def check_input_layouts(graph: Graph, names: Iterable[str]) -> None:
    """Check that layouts are given for inputs of a model alone: others would have no effect.

    Raises
    ------
    OptionError
        If one is given for something else.
    """
    check_names("`input_layouts` has no input", names, [value.name for value in graph.inputs])


def check_tensor_names(graph: Graph, optimizer: Optimizer, scale: LossScale = 1.0) -> None:
    """Check that no tensor of a model has the name of a gradient or an optimizer state.

    Checkpoints, plans and `verify` find them by name, so they are not renamed.

    Raises
    ------
    PassError
        If one has.
    """
    trained = [p.name for p in graph.parameters if p.trainable and p.value.type.is_float]
    taken = {gradient_name(name): f"the gradient of `{name}`" for name in trained}
    for name in trained:
        taken |= {f"{name}.{s}": f"the state `{s}` of `{name}`" for s in optimizer.states_of(name)}
    if optimizer.counts_steps:
        taken[STEP] = "the number of the step"
    if isinstance(scale, DynamicLossScale):
        taken |= {LOSS_SCALE: "the loss scale", GOOD_STEPS: "the steps of the loss scale"}
    for name in graph.values:
        if name in taken:
            raise PassError(
                f"a tensor of the model is called `{name}`, the name of {taken[name]} in training",
                f"graph {graph.name}",
                "give it another name",
            )

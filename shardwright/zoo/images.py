"""Shared parts of classifiers of images."""

from shardwright import nn
from shardwright.ir.types import TensorType
from shardwright.tracing import Definition, InputSpec, trace


def classifier(
    network: nn.Cell, name: str, batch: int, image: tuple[int, ...], classes: int, dtype: str
) -> Definition:
    """Trace a network from images to the scores of classes, with their cross entropy.

    Parameters
    ----------
    network : Cell
        The network.
    name : str
        Name of the graph.
    batch : int
        Number of images.
    image : tuple of int
        Shape of one: channel, height, width.
    classes : int
        Number of classes.
    dtype : str
        Element type of images and parameters.
    """
    specs = (
        InputSpec("image", TensorType(dtype, (batch, *image))),
        InputSpec("label", TensorType("int32", (batch,)), classes),
    )
    return trace(network, specs, loss_fn=nn.CrossEntropyLoss(), name=name)

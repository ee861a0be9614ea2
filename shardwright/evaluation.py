"""Evaluation: a network's loss and outputs, with the present values of its parameters."""

from collections.abc import Mapping

from shardwright.communication import world
from shardwright.ir.errors import ModelError
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.tracing import InputSpec, Network, trace


class Evaluation:
    """A network on one device, for inputs of some shapes, outside of a training step.

    Parameters
    ----------
    network : Cell or function
        The network.
    batch : mapping of str to array
        Inputs of these shapes, and the labels if there is a loss.
    loss_fn : Cell or function, optional
        Takes what the network returns, and the last input.
    seed : int
        Seed of the parameters that have no value yet.
    """

    def __init__(
        self,
        network: Network,
        batch: Mapping[str, Array],
        loss_fn: Network | None = None,
        seed: int = 0,
    ) -> None:
        specs = [
            InputSpec(name, TensorType(array.dtype.name, array.shape))
            for name, array in batch.items()
        ]
        with world(1):
            definition = trace(network, specs, loss_fn=loss_fn, training=False)
        if definition.optimizer is not None:
            raise ModelError(
                "a training step is evaluated", hint="evaluate the network that it trains"
            )
        self.has_loss = loss_fn is not None
        self.graph = definition.graph
        communicator = LocalCommunicator()
        self._executor = Executor(self.graph, communicator)
        known = {n: p.asnumpy() for n, p in definition.holders.items() if p.has_value}
        initial = {**definition.initial, **known}
        self._state = initialize(self.graph, seed, communicator, initial)

    def __call__(self, batch: Mapping[str, Array]) -> tuple[Array | None, list[Array]]:
        """Return the loss, if there is one, and the outputs of the network."""
        found = self._executor.step(batch, dict(self._state)).outputs
        arrays = [found[name][0] for name in self.graph.outputs]
        return (arrays[0], arrays[1:]) if self.has_loss else (None, arrays)

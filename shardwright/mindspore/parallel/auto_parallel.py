"""The parallel options of a network."""

from dataclasses import replace
from typing import Any

from shardwright import parallel
from shardwright.feeding import ByShape
from shardwright.mindspore.context import get_context, get_seed
from shardwright.mindspore.parallel._cost_model_context import cost_options
from shardwright.mindspore.parallel.algo_parameters import get_algo_parameters
from shardwright.mindspore.parallel.propagation import OnlyPropagated
from shardwright.mindspore.parallel.rows import ShardedRows
from shardwright.mindspore.running import Running, as_arrays
from shardwright.nn.cell import Cell
from shardwright.search.heuristics.propagation import ShardingPropagation
from shardwright.tracer import is_tracing
from shardwright.tracing import Network


class AutoParallel(parallel.AutoParallel):
    """A network with its parallel mode and options; see `shardwright.parallel.AutoParallel`.

    The seed of its initial values is that of `set_seed`; reductions over processes add in the order
    of the ranks if the context says so. The constants of the cost model are those of
    `set_cost_model_context`. With `set_algo_parameters(fully_use_devices=False)` the search
    ``sharding_propagation`` splits operators no further than their neighbours are split.
    Of a data set strategy with fewer parts than ranks these have the
    parts in turn, unless the network's `_VirtualDataset` has ``repeat_dim_direct``.

    Parameters
    ----------
    network : Cell or function
        The network, or a training step.
    parallel_mode : str
        ``semi_auto``, ``sharding_propagation``, ``recursive_programming``, or another of
        `shardwright.parallel.AutoParallel`.
    **options
        The options of `shardwright.parallel.AutoParallel`.
    """

    def __init__(self, network: Network, parallel_mode: str = "semi_auto", **options: Any) -> None:
        options = {**cost_options(parallel_mode), **options}
        options.setdefault("seed", get_seed() or 0)
        options.setdefault("deterministic", get_context("deterministic") == "ON")
        super().__init__(network, parallel_mode, **options)
        alone = not get_algo_parameters("fully_use_devices")
        if parallel_mode == ShardingPropagation.name and alone:
            self._compile_with(search=OnlyPropagated.name)
        self.options = replace(self.options, in_turn=not _repeats_right(network))
        self._running: ByShape[Running] = ByShape()

    def hsdp(
        self, shard_size: int = -1, threshold: int = 64, optimizer_level: str = "level1"
    ) -> None:
        """Divide parameters by their rows; see `shardwright.parallel.AutoParallel.hsdp`."""
        super().hsdp(shard_size, threshold, optimizer_level)
        self._compile_with(optimizer_parallel=ShardedRows(shard_size, threshold, optimizer_level))

    def __call__(self, *inputs: Any) -> Any:
        """Run the network or the training step on a batch, and return what it returns."""
        if is_tracing():
            return self.network(*inputs)
        arrays = as_arrays(inputs)
        running = self._running.session(
            arrays, lambda: Running(self.network, arrays, self.options, self.seed)
        )
        if running.session is not self.session:
            self.note(running.session)
        return running(arrays)


def _repeats_right(network: Network) -> bool:
    """Return whether a cell has an operator after which neighbours have the same inputs."""
    cells = [cell for _, cell in network.cells_and_names()] if isinstance(network, Cell) else []
    held = (item for cell in cells for item in vars(cell).values())
    return any(getattr(item, "repeat_dim_direct", "") == "right" for item in held)


__all__ = ["AutoParallel"]

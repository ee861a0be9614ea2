"""Models that are run as the context says."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright import train
from shardwright.communication import processes
from shardwright.dataset.dataset import Dataset
from shardwright.evaluation import Evaluation
from shardwright.ir.errors import OptionError
from shardwright.ir.values import check_choice, check_flag, wrong_value
from shardwright.mindspore.context import (
    ParallelMode,
    check_ranks,
    get_auto_parallel_context,
    get_context,
    get_seed,
    has_parallel_setting,
)
from shardwright.mindspore.nn.steps import TrainOneStepCell
from shardwright.mindspore.parallel.auto_parallel import AutoParallel
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.info import Array
from shardwright.parallel import AutoParallel as OwnAutoParallel
from shardwright.session import ParallelOptions, Session, check_together
from shardwright.tensor import Tensor
from shardwright.tracing import Network
from shardwright.train.callbacks import RunArguments

_SIZES = {"optimizer_weight_shard_size": "shard_size", "parallel_optimizer_threshold": "threshold"}
_CONFIGURED = (*_SIZES, "optimizer_level", "gradient_accumulation_shard")


class Model(train.Model):
    """A network with its loss and optimizer; see `shardwright.train.Model`.

    A network without `AutoParallel` is run in the parallel mode of the context. Without an
    optimizer nothing is trained: the network is run, with its loss if there is one.

    Parameters
    ----------
    network : Cell, function or AutoParallel
        The network.
    loss_fn : Cell or function, optional
        Takes what the network returns and the last column of the data set.
    optimizer : Optimizer, optional
        The update rule of the parameters.
    metrics : sequence of str or mapping of str to Metric, optional
        What `eval` returns.
    eval_network, eval_indexes : None
        Must be left out: the network itself is evaluated.
    amp_level : str
        Level of mixed precision.
    boost_level : str
        Must be ``O0``.
    loss_scale_manager : FixedLossScaleManager or DynamicLossScaleManager, optional
        A factor on the loss.
    keep_batchnorm_fp32 : bool, optional
        Must be left out: the level of mixed precision decides it.
    """

    def __init__(
        self,
        network: Network | OwnAutoParallel,
        loss_fn: Network | None = None,
        optimizer: Optimizer | None = None,
        metrics: Any = None,
        eval_network: None = None,
        eval_indexes: None = None,
        amp_level: str = "O0",
        boost_level: str = "O0",
        *,
        loss_scale_manager: Any = None,
        keep_batchnorm_fp32: None = None,
    ) -> None:
        refused = {
            "eval_network": eval_network,
            "eval_indexes": eval_indexes,
            "keep_batchnorm_fp32": keep_batchnorm_fp32,
        }
        for name, value in refused.items():
            if value is not None:
                raise wrong_value(name, value, "none")
        check_choice("boost_level", boost_level, ("O0",))
        super().__init__(
            network,
            loss_fn,
            optimizer,
            metrics,
            amp_level=amp_level,
            loss_scale_manager=loss_scale_manager,
            seed=get_seed() or 0,
        )
        self._by_context: AutoParallel | None = None
        self._forward: dict[tuple[tuple[int, ...], ...], Evaluation] = {}

    def _spread(self) -> OwnAutoParallel | None:
        """Return the network with its parallel options: its own, or those of the context."""
        check_ranks()
        mode = get_auto_parallel_context("parallel_mode")
        if isinstance(self._network, OwnAutoParallel):
            return self._network
        if mode in (ParallelMode.STAND_ALONE, ParallelMode.HYBRID_PARALLEL):
            return None
        if self._by_context is None:
            self._by_context = from_context(self._network, mode)
        return self._by_context

    def _options(self) -> ParallelOptions:
        options = super()._options()
        deterministic = get_context("deterministic") == "ON" or options.deterministic
        if not isinstance(self._network, OwnAutoParallel):
            deterministic = get_context("deterministic") == "ON"
        how = options.how
        if how.mode == "hybrid_parallel" and get_auto_parallel_context("gradients_mean"):
            how = replace(how, gradients_mean=True)
        return replace(options, how=how, deterministic=deterministic)

    def _begin(self, batch: Mapping[str, Array], dataset: Dataset) -> Session:
        spread = self._spread()
        if spread is self._by_context and spread is not None:
            _check_mean(spread)
        return super()._begin(batch, dataset)

    def _step(self, batch: Mapping[str, Array], dataset: Dataset, run: RunArguments) -> float:
        if self._optimizer is not None or isinstance(self.network, TrainOneStepCell):
            return super()._step(batch, dataset, run)
        if processes() is not None:
            check_together(self._options())
        key = tuple(array.shape for array in batch.values())
        if key not in self._forward:
            self._forward[key] = Evaluation(self.network, batch, self._loss_fn, self._seed)
        loss, outputs = self._forward[key](batch)
        first = outputs[0] if loss is None else loss
        run.net_outputs = Tensor(first)
        return float(first) if first.ndim == 0 else float("nan")


def _check_mean(spread: AutoParallel) -> None:
    """Refuse sums of gradients over ranks, where the compiler takes means.

    Raises
    ------
    OptionError
        If the context asks for sums.
    """
    options = spread.options
    mean = get_auto_parallel_context("gradients_mean")
    if options.how.mode == "data_parallel" and options.devices > 1 and not mean:
        raise OptionError(
            "`gradients_mean` is False, expected True in `DATA_PARALLEL`: gradients are those of "
            "the mean loss of all ranks",
            hint="write `set_auto_parallel_context(gradients_mean=True)`, or multiply the learning "
            "rate",
        )


def from_context(network: Network, mode: str) -> AutoParallel:
    """Return a network with the parallel options of the context."""
    get = get_auto_parallel_context
    chosen = get("search_mode") if mode == ParallelMode.AUTO_PARALLEL else mode
    spread = AutoParallel(network, chosen)
    if mode != ParallelMode.DATA_PARALLEL:
        if get("full_batch"):
            spread.dataset_strategy("full_batch")
        elif has_parallel_setting("dataset_strategy"):
            spread.dataset_strategy(get("dataset_strategy"))
    if get("enable_parallel_optimizer"):
        config = get("parallel_optimizer_config")
        for name in config:
            check_choice("parallel_optimizer_config", name, _CONFIGURED)
        check_flag("gradient_accumulation_shard", config.get("gradient_accumulation_shard", False))
        given = {own: config[name] for name, own in _SIZES.items() if name in config}
        spread.hsdp(**given, optimizer_level=_level(config))
    if get("comm_fusion"):
        spread.comm_fusion(get("comm_fusion"))
    _set_pipeline(spread)
    if get("strategy_ckpt_load_file"):
        spread.load_operator_strategy_file(get("strategy_ckpt_load_file"))
    if get("strategy_ckpt_save_file"):
        spread.save_operator_strategy_file(get("strategy_ckpt_save_file"))
    return spread


def _level(config: Mapping[str, Any]) -> str:
    """Return the level of optimizer parallelism; divided accumulation is the second."""
    level = config.get("optimizer_level", "level1")
    if config.get("gradient_accumulation_shard") and level == "level1":
        return "level2"
    return str(level)


def _set_pipeline(spread: AutoParallel) -> None:
    stages = get_auto_parallel_context("pipeline_stages")
    config = get_auto_parallel_context("pipeline_config")
    for name in config:
        check_choice("pipeline_config", name, ("pipeline_interleave", "pipeline_scheduler"))
    if stages > 1 or config:
        interleave = config.get("pipeline_interleave", False)
        check_flag("pipeline_interleave", interleave)
        spread.pipeline(stages, False, interleave, config.get("pipeline_scheduler", "1f1b"))

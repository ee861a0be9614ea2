"""Models that are run as the context says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwright import train
from shardwright.communication import processes
from shardwright.dataset.dataset import Dataset
from shardwright.evaluation import Evaluation
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.values import POSITIVE_INTEGER, check_choice, check_flag, wrong_value
from shardwright.mindspore.common.api import _cell_graph_executor, compile_alone
from shardwright.mindspore.common.listings import parameter_layouts
from shardwright.mindspore.context import (
    ParallelMode,
    check_ranks,
    get_auto_parallel_context,
    get_context,
    get_seed,
)
from shardwright.mindspore.errors import as_mindspore
from shardwright.mindspore.nn.steps import TrainOneStepCell, WithLossCell
from shardwright.mindspore.parallel.auto_parallel import AutoParallel
from shardwright.mindspore.pipelines import check_pipeline
from shardwright.mindspore.runtime import check_memory
from shardwright.mindspore.simulation import is_simulated, whole_batch
from shardwright.mindspore.spread import from_context, options_alone
from shardwright.mindspore.train.metrics import metrics_of
from shardwright.nn.cell import Cell
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.info import Array
from shardwright.operators.models.precision import one_precision
from shardwright.parallel import AutoParallel as OwnAutoParallel
from shardwright.planner.options import DEFAULTS
from shardwright.session import ParallelOptions, Session, check_together
from shardwright.tensor import Tensor, apply
from shardwright.tracing import Network
from shardwright.train.callbacks import RunArguments
from shardwright.train.model import Callbacks


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
            metrics_of(metrics),
            amp_level=amp_level,
            loss_scale_manager=loss_scale_manager,
            seed=get_seed() or 0,
        )
        self._by_context: AutoParallel | None = None
        self._forward: dict[tuple[tuple[int, ...], ...], Evaluation] = {}

    def train(
        self,
        epoch: int,
        train_dataset: Any,
        callbacks: Callbacks = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
    ) -> list[float]:
        """Train for some epochs and return the loss of each step; see `shardwright.train.Model`.

        With ``MS_SIMULATION_LEVEL=0`` in the environment the model is compiled for the ranks of the
        context, of which none is started, and no step is computed: no loss is returned, and no
        callback called.

        Parameters
        ----------
        epoch, train_dataset, callbacks, dataset_sink_mode
            As there; a simulated run takes any iterable of batches of a rank.
        sink_size, initial_epoch : int
            Must be left out: epochs are whole, and counted from the first.

        Raises
        ------
        RuntimeError
            If a simulated run cannot be compiled; the error is a `ShardwrightError` too.
        """
        for name, value, only in (
            ("sink_size", sink_size, -1),
            ("initial_epoch", initial_epoch, 0),
        ):
            if value != only:
                raise wrong_value(name, value, str(only), "leave it out")
        if isinstance(self.network, TrainOneStepCell):
            self.network.set_train()
        if not is_simulated():
            return super().train(epoch, train_dataset, callbacks, dataset_sink_mode)
        POSITIVE_INTEGER.check("epoch", epoch)
        check_flag("dataset_sink_mode", dataset_sink_mode)
        with as_mindspore():
            self._compile(whole_batch(train_dataset))
        return []

    def predict(self, *predict_data: Any) -> Any:
        """Return what the network returns for some inputs; see `shardwright.train.Model`.

        In a simulated run the network is compiled for the ranks of the context first, so that what
        they cannot run is refused.

        Parameters
        ----------
        *predict_data
            Tensors or arrays.

        Raises
        ------
        RuntimeError
            If a simulated run cannot be compiled; the error is a `ShardwrightError` too.
        """
        if is_simulated():
            self.infer_predict_layout(*predict_data)
        return super().predict(*predict_data)

    def infer_predict_layout(self, *predict_data: Any) -> Mapping[str, Any]:
        """Compile the network alone for the ranks of the context; return layouts of parameters.

        Parameters
        ----------
        *predict_data
            Tensors or arrays: whole inputs.

        Raises
        ------
        RuntimeError
            If it cannot be compiled; the error is a `ShardwrightError` too.
        ModelError
            If the network is a function.
        """
        if not isinstance(self.network, Cell):
            raise ModelError("a function has no layouts of parameters, expected a cell")
        _cell_graph_executor.compile(self.network, *predict_data)
        return self.network.parameter_layout_dict

    def _compile(self, batch: Sequence[Tensor]) -> None:
        """Compile for the ranks of the context, without starting them."""
        self._check_pipeline(all_stages=False)
        network: Network = self.network
        if self._loss_fn is not None:
            network = WithLossCell(network, self._loss_fn)
        options = options_alone(network)
        if self._precision != DEFAULTS["precision"]:
            how = options.how
            precision = one_precision(self._precision, how.precision)
            options = replace(options, how=replace(how, precision=precision))
        found = compile_alone(network, batch, options, self._optimizer, self._loss_scale)
        if isinstance(network, Cell):
            _cell_graph_executor.keep(network, found)
        self._train_network = network

    def _check_pipeline(self, all_stages: bool) -> None:
        """Refuse to train in the stages of the context what is not made for it."""
        stages, network = get_auto_parallel_context("pipeline_stages"), self.network
        if stages > 1 and self._optimizer is not None and isinstance(network, Cell):
            check_pipeline(network, self._optimizer.parameters, all_stages)

    def _spread(self) -> OwnAutoParallel | None:
        """Return the network with its parallel options: its own, or those of the context."""
        check_ranks()
        mode = get_auto_parallel_context("parallel_mode")
        if isinstance(self._network, OwnAutoParallel):
            return self._network
        if mode in (ParallelMode.STAND_ALONE, ParallelMode.HYBRID_PARALLEL):
            return None
        if self._by_context is None:
            self._check_pipeline(all_stages=True)
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
        session = super()._begin(batch, dataset)
        check_memory(session.agreed.peak_bytes)
        return session

    def _trained_loss(self) -> Network | None:
        loss = super()._trained_loss()
        return None if loss is None else _Summed(loss)

    def infer_train_layout(
        self, train_dataset: Dataset, dataset_sink_mode: bool = True, sink_size: int = -1
    ) -> Mapping[str, Any]:
        """Compile the training step for the ranks of this script; return layouts of parameters.

        Parameters
        ----------
        train_dataset : Dataset
            The data; the step is compiled for its first batch.
        dataset_sink_mode, sink_size
            Have no effect.
        """
        agreed = self._session_of(next(iter(train_dataset.samples(0))), train_dataset).agreed
        return parameter_layouts(agreed.program, agreed.mesh)

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


class _Summed(Cell):
    """A loss that is told as the mean of those of samples, and trained as their sum."""

    _auto_prefix = False

    def __init__(self, loss: Network) -> None:
        self.loss = loss

    def construct(self, *inputs: Any) -> Any:
        """Return the loss; one that is no scalar has the gradient of its sum, as in MindSpore."""
        made = self.loss(*inputs)
        if not isinstance(made, Tensor) or not made.ndim:
            return made
        return apply("with_gradient_of", made.mean(), made.sum())


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

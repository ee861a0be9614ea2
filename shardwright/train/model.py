"""Models: a network with its loss and optimizer, to train, evaluate and predict with."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shardwright.dataset.dataset import Dataset
from shardwright.evaluation import Evaluation
from shardwright.feeding import ByShape
from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, SEED, check_flag, wrong_value
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.info import Array
from shardwright.operators.models.loss_scale import LossScale
from shardwright.operators.models.precision import one_precision, precision_of_amp
from shardwright.parallel import AutoParallel
from shardwright.planner.options import DEFAULTS
from shardwright.runtime.checkpoints import Checkpoint
from shardwright.server import session as served
from shardwright.server import take_part
from shardwright.session import ParallelOptions, Session, begin
from shardwright.tensor import Tensor
from shardwright.tracing import Network
from shardwright.train.callbacks import Callback, RunArguments, RunContext, as_callbacks, tell
from shardwright.train.loss_scale import DynamicLossScaleManager, FixedLossScaleManager
from shardwright.train.metrics import Loss, metrics_of
from shardwright.train.runs import Checkpoints, rest_of_epoch, restore, resumption

Callbacks = Callback | Sequence[Callback] | None


class Model:
    """A network with its loss and optimizer.

    Parameters
    ----------
    network : Cell, function or AutoParallel
        The network, with parallel options if it is an `AutoParallel`. Without them, the script is
        a hand-written parallel program if the world has several ranks.
    loss_fn : Cell or function, optional
        Takes what the network returns and the last column of the data set.
    optimizer : Optimizer, optional
        The update rule of the parameters.
    metrics : sequence of str or mapping of str to Metric, optional
        What `eval` returns.
    amp_level : str
        Level of mixed precision in float16; see `shardwright.amp.auto_mixed_precision`, which the
        network may have instead.
    loss_scale_manager : FixedLossScaleManager or DynamicLossScaleManager, optional
        A factor on the loss.
    seed : int
        Seed of the initial values.
    """

    def __init__(
        self,
        network: Network | AutoParallel,
        loss_fn: Network | None = None,
        optimizer: Optimizer | None = None,
        metrics: Any = None,
        *,
        amp_level: str = "O0",
        loss_scale_manager: FixedLossScaleManager | DynamicLossScaleManager | None = None,
        seed: int = 0,
    ) -> None:
        SEED.check("seed", seed)
        if loss_fn is not None and not callable(loss_fn):
            raise wrong_value("loss_fn", loss_fn, "a cell or a function")
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise wrong_value("optimizer", optimizer, "an optimizer of `nn`")
        scale = loss_scale_manager
        managers = (FixedLossScaleManager, DynamicLossScaleManager)
        if scale is not None and not isinstance(scale, managers):
            expected = "a `FixedLossScaleManager` or `DynamicLossScaleManager`"
            raise wrong_value("loss_scale_manager", scale, expected)
        self._precision = precision_of_amp(amp_level).name
        self._network = network
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._metrics = metrics_of(metrics)
        self._loss_scale: LossScale = 1.0 if scale is None else scale.rule
        self._seed = seed
        self.session: Session | None = None
        self._sessions: ByShape[Session] = ByShape()
        self._continued: Checkpoint | None = None

    def __repr__(self) -> str:
        state = "compiled" if self.session else "not compiled yet"
        return f"<Model of {self._network!r}, {state}>"

    @property
    def network(self) -> Network:
        """The network, without parallel options."""
        spread = self._network
        return spread.network if isinstance(spread, AutoParallel) else spread

    def train(
        self,
        epoch: int,
        train_dataset: Dataset,
        callbacks: Callbacks = None,
        dataset_sink_mode: bool = False,
    ) -> list[float]:
        """Train for some epochs and return the loss of each step.

        The first call compiles the model for the shapes of the first batch.

        Parameters
        ----------
        epoch : int
            Number of passes over the data set.
        train_dataset : Dataset
            Batches; columns are the inputs, the last one the labels.
        callbacks : Callback or sequence of Callback, optional
            Observers.
        dataset_sink_mode : bool
            Has no effect: losses are the same either way, and callbacks are called every step.
        """
        POSITIVE_INTEGER.check("epoch", epoch)
        check_flag("dataset_sink_mode", dataset_sink_mode)
        followers = as_callbacks(callbacks)
        if served.is_on():
            take_part()
            _check_callbacks(followers)
        run = RunContext(arguments=self._arguments("train", followers, train_dataset))
        run.arguments.epoch_num, run.arguments.dataset_sink_mode = epoch, dataset_sink_mode
        self._continued = resumption(followers, train_dataset)
        if self._continued is not None:
            progress = self._continued.manifest.progress
            run.epoch, run.step, run.total_steps = progress.epoch, progress.batch, progress.step
        with ExitStack() as stack:
            for follower in followers:
                stack.enter_context(follower)
            return self._train(run, train_dataset, followers)

    def _train(
        self, run: RunContext, dataset: Dataset, followers: Sequence[Callback]
    ) -> list[float]:
        losses: list[float] = []
        tell(followers, "on_train_begin", run)
        for number in range(max(1, run.epoch), run.arguments.epoch_num + 1):
            if number != run.epoch:
                run.epoch, run.step = number, 0
            run.arguments.cur_epoch_num = number
            self._train_epoch(run, dataset, followers, losses)
            if run.get_stop_requested():
                break
        if self._continued is not None:  # no step was left
            self._session_of(next(iter(dataset.samples(0))), dataset)
        tell(followers, "on_train_end", run)
        return losses

    def _train_epoch(
        self,
        run: RunContext,
        dataset: Dataset,
        followers: Sequence[Callback],
        losses: list[float],
    ) -> None:
        """Train for an epoch, or for the rest of one; a callback may end it."""
        arguments, before = run.arguments, run.step
        tell(followers, "on_train_epoch_begin", run)
        batches = rest_of_epoch(dataset, run.epoch - 1, before, self._continued)
        for step, batch in enumerate(batches, before + 1):
            tell(followers, "on_train_step_begin", run)
            losses.append(self._step(batch, dataset, arguments))
            run.step, run.total_steps, run.loss = step, run.total_steps + 1, losses[-1]
            arguments.cur_step_num, arguments.session = run.total_steps, self.session
            tell(followers, "on_train_step_end", run)
            if run.get_stop_requested():
                break
        tell(followers, "on_train_epoch_end", run)

    def _session_of(self, batch: Mapping[str, Array], dataset: Dataset) -> Session:
        """Return the session for a batch, with the state of the checkpoint that is continued."""
        arrays = tuple(batch.values())
        self.session = self._sessions.session(arrays, lambda: self._begin(batch, dataset))
        if self._continued is not None:
            restore(self._continued, self.session)
            self._continued = None
        return self.session

    def _step(self, batch: Mapping[str, Array], dataset: Dataset, run: RunArguments) -> float:
        loss = self._session_of(batch, dataset).step(tuple(batch.values()))
        run.net_outputs = Tensor(np.float32(loss))
        return loss

    def eval(
        self,
        valid_dataset: Dataset,
        callbacks: Callbacks = None,
        dataset_sink_mode: bool = False,
    ) -> dict[str, Any]:
        """Return the metrics of the network on a data set.

        The network runs on one device, with the present values of its parameters; in several
        processes each evaluates its own data set.

        Parameters
        ----------
        valid_dataset : Dataset
            Batches; columns are the inputs, the last one the labels.
        callbacks : Callback or sequence of Callback, optional
            Observers.
        dataset_sink_mode : bool
            Has no effect.

        Raises
        ------
        ModelError
            If the model has no metrics, or the metric `Loss` without a loss.
        """
        check_flag("dataset_sink_mode", dataset_sink_mode)
        if not self._metrics:
            hint = 'write `Model(network, loss_fn, metrics=["accuracy"])`'
            raise ModelError("the model has no metrics to evaluate", hint=hint)
        followers = as_callbacks(callbacks)
        run = RunContext(1, arguments=self._arguments("eval", followers, valid_dataset))
        for metric in self._metrics.values():
            metric.clear()
        tell(followers, "on_eval_begin", run)
        tell(followers, "on_eval_epoch_begin", run)
        found: dict[tuple[tuple[int, ...], ...], Evaluation] = {}
        for step, batch in enumerate(valid_dataset.samples(0), 1):
            tell(followers, "on_eval_step_begin", run)
            inputs, labels = self._split(batch)
            key = tuple(array.shape for array in inputs.values())
            if key not in found:
                found[key] = Evaluation(self.network, inputs, self._loss_fn, self._seed)
            loss, outputs = found[key](inputs)
            self._update(loss, outputs, labels)
            run.step = run.total_steps = run.arguments.cur_step_num = step
            run.arguments.net_outputs = (loss, *outputs)
            tell(followers, "on_eval_step_end", run)
        tell(followers, "on_eval_epoch_end", run)
        tell(followers, "on_eval_end", run)
        return {name: metric.eval() for name, metric in self._metrics.items()}

    def _split(self, batch: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
        """Return the inputs of an evaluation, labels only where there is a loss, and the labels."""
        *names, last = batch
        inputs = dict(batch) if self._loss_fn else {name: batch[name] for name in names}
        return inputs, batch[last]

    def _update(self, loss: Array | None, outputs: Sequence[Array], labels: Array) -> None:
        for metric in self._metrics.values():
            if not isinstance(metric, Loss):
                metric.update(outputs[0], labels)
            elif loss is None:
                raise ModelError("the metric `Loss` needs a loss, the model has none")
            else:
                metric.update(loss)

    def predict(self, *predict_data: Any) -> Any:
        """Return what the network returns for some inputs, on one device: a tensor, or a tuple.

        Parameters
        ----------
        *predict_data
            Tensors or arrays.
        """
        data = [item.asnumpy() if isinstance(item, Tensor) else item for item in predict_data]
        batch = {f"input{i}": np.asarray(item) for i, item in enumerate(data)}
        _, outputs = Evaluation(self.network, batch, None, self._seed)(batch)
        tensors = tuple(Tensor(array) for array in outputs)
        return tensors[0] if len(tensors) == 1 else tensors

    def _arguments(
        self, mode: str, followers: Sequence[Callback], dataset: Dataset
    ) -> RunArguments:
        if not isinstance(dataset, Dataset):
            raise wrong_value("dataset", dataset, "a data set of `shardwright.dataset`")
        options = self._options()
        return RunArguments(
            mode,
            network=self.network,
            train_network=self.network,
            loss_fn=self._loss_fn,
            optimizer=self._optimizer,
            metrics=self._metrics,
            train_dataset=dataset,
            batch_num=dataset.get_dataset_size(),
            device_number=options.devices,
            parallel_mode=options.how.mode,
            list_callback=followers,
        )

    def _spread(self) -> AutoParallel | None:
        """Return the network with its parallel options, if it has any."""
        return self._network if isinstance(self._network, AutoParallel) else None

    def _options(self) -> ParallelOptions:
        spread = self._spread()
        options = spread.options if spread else ParallelOptions.of_this_world()
        if self._precision != DEFAULTS["precision"]:
            precision = one_precision(self._precision, options.how.precision)
            options = replace(options, how=replace(options.how, precision=precision))
        return options

    def _trained_loss(self) -> Network | None:
        """Return the loss that is trained on."""
        return self._loss_fn

    def _begin(self, batch: Mapping[str, Array], dataset: Dataset) -> Session:
        """Begin a session: of this model's devices, or one whose parameters are on servers."""
        start: Callable[..., Session] = served.begin
        if not served.is_on():
            start = partial(begin, ranks=dataset.ranks, apart=dataset.apart)
        session = start(
            self.network,
            batch,
            self._options(),
            loss_fn=self._trained_loss(),
            optimizer=self._optimizer,
            loss_scale=self._loss_scale,
            seed=self._seed,
        )
        spread = self._spread()
        if spread:
            spread.note(session)
        return session


def _check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuse to save a run whose parameters are on servers.

    Raises
    ------
    ModelError
        If a callback does.
    """
    if any(isinstance(callback, Checkpoints) for callback in callbacks):
        raise ModelError(
            "the callback `Checkpoints` saves what is in this process, and parameters are on "
            "servers",
            hint="write `set_ps_context(checkpoint_dir=...)`; `ModelCheckpoint` saves parameters",
        )

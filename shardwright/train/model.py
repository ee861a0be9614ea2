"""Training: a network, its loss and its optimizer on a data set."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.compiler.options import DEFAULTS
from shardwright.dataset.dataset import Dataset
from shardwright.ir.values import POSITIVE_INTEGER, SEED, check_flag, wrong_value
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.info import Array
from shardwright.operators.models.loss_scale import LossScale
from shardwright.operators.models.precision import precision_of_amp
from shardwright.parallel import AutoParallel
from shardwright.session import ParallelOptions, Session, begin, one_precision
from shardwright.tracing import Network
from shardwright.train.callbacks import Callback, RunContext
from shardwright.train.loss_scale import DynamicLossScaleManager, FixedLossScaleManager


class Model:
    """A network with its loss and optimizer, ready to train.

    Parameters
    ----------
    network : Cell, function or AutoParallel
        The network, with parallel options if it is an `AutoParallel`. Without them, the script is
        a hand-written parallel program if the world has several ranks.
    loss_fn : Cell or function, optional
        Takes what the network returns and the last column of the data set.
    optimizer : Optimizer, optional
        The update rule of the parameters.
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
        self._loss_scale: LossScale = 1.0 if scale is None else scale.rule
        self._seed = seed
        self.session: Session | None = None

    def __repr__(self) -> str:
        state = "compiled" if self.session else "not compiled yet"
        return f"<Model of {self._network!r}, {state}>"

    def train(
        self,
        epoch: int,
        train_dataset: Dataset,
        callbacks: Callback | Sequence[Callback] = (),
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
        callbacks : Callback or sequence of Callback
            Observers, called after every step.
        dataset_sink_mode : bool
            Has no effect: losses are the same either way.
        """
        POSITIVE_INTEGER.check("epoch", epoch)
        check_flag("dataset_sink_mode", dataset_sink_mode)
        followers = (callbacks,) if isinstance(callbacks, Callback) else callbacks
        losses: list[float] = []
        for number in range(1, epoch + 1):
            batches = train_dataset.create_dict_iterator(number - 1)
            for step, batch in enumerate(batches, 1):
                self.session = self.session or self._begin(batch, train_dataset)
                losses.append(self.session.step(tuple(batch.values())))
                for follower in followers:
                    follower.step_end(RunContext(number, step, len(losses), losses[-1]))
        return losses

    def _begin(self, batch: Mapping[str, Array], dataset: Dataset) -> Session:
        spread = self._network if isinstance(self._network, AutoParallel) else None
        options = spread.options if spread else ParallelOptions.of_this_world()
        if self._precision != DEFAULTS["precision"]:
            precision = one_precision(self._precision, options.how.precision)
            options = replace(options, how=replace(options.how, precision=precision))
        session = begin(
            spread.network if spread else self._network,
            batch,
            options,
            loss_fn=self._loss_fn,
            optimizer=self._optimizer,
            loss_scale=self._loss_scale,
            seed=self._seed,
            ranks=dataset.ranks,
            apart=dataset.apart,
        )
        if spread:
            spread.note(session)
        return session

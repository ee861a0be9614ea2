"""Parallel modes and layouts in the form of MindSpore's scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.communication import get_group_size, is_deterministic
from shardwright.compiler.plans.strategies_file import (
    is_strategies_file,
    read_strategies,
    strategies_text,
)
from shardwright.dataflow.orders import SCHEDULES
from shardwright.feeding import ByShape
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.files.writing import check_file, write_file
from shardwright.ir.mesh import Mesh
from shardwright.ir.values import (
    POSITIVE,
    POSITIVE_INTEGER,
    SEED,
    check_choice,
    check_fields,
    check_flag,
    check_names,
    check_type,
    checked,
    wrong_value,
)
from shardwright.operators.info import Array, SplitCounts
from shardwright.passes.fuse_all_reduces import check_index
from shardwright.planner.option_checks import (
    GatherFusion,
    check_exact_only,
    check_recompute_of_plan,
)
from shardwright.planner.options import (
    OPTION_NAMES,
    CompileOptions,
    Mode,
)
from shardwright.search.space.sharding import LEVELS, OptimizerSharding
from shardwright.session import ParallelOptions, Session, begin
from shardwright.tensor import Tensor
from shardwright.tracing import Network

# MindSpore's names: the mode and the search of each.
_MODES: dict[str, tuple[Mode, str]] = {
    "stand_alone": ("stand_alone", "exact"),
    "data_parallel": ("data_parallel", "exact"),
    "semi_auto": ("semi_auto_parallel", "exact"),
    "semi_auto_parallel": ("semi_auto_parallel", "exact"),
    "auto": ("auto_parallel", "exact"),
    "auto_parallel": ("auto_parallel", "exact"),
    "sharding_propagation": ("auto_parallel", "sharding_propagation"),
    "recursive_programming": ("auto_parallel", "recursive_programming"),
    "dynamic_programming": ("auto_parallel", "dynamic_programming"),
    "hybrid_parallel": ("hybrid_parallel", "exact"),
}
# The others are said by the model, or by `parallel_mode`.
_OPTIONS = [n for n in OPTION_NAMES if n not in ("mode", "search", "optimizer", "loss_scale")]
_STRATEGIES = "the strategies"
FUSION_MEGABYTES = 64.0  # MindSpore's default where fusion is on


@dataclass(frozen=True)
class TensorLayout:
    """The layout of one tensor.

    Parameters
    ----------
    layout : Layout
        The devices and their axes.
    axes : tuple of tuple of str
        The axes that split each dimension.
    """

    layout: "Layout"
    axes: tuple[tuple[str, ...], ...]

    @property
    def split_counts(self) -> tuple[int, ...]:
        """Number of slices of each dimension."""
        sizes = dict(zip(self.layout.alias_name, self.layout.device_matrix, strict=True))
        return tuple(prod(sizes[axis] for axis in axes) for axes in self.axes)

    @property
    def tensor_map(self) -> tuple[int | tuple[int, ...], ...]:
        """MindSpore's tensor map: axes counted from the right, -1 where not split."""
        names = self.layout.alias_name
        places = [tuple(len(names) - 1 - names.index(a) for a in axes) for axes in self.axes]
        return tuple(-1 if not p else p[0] if len(p) == 1 else p for p in places)


@dataclass(frozen=True)
class Layout:
    """Devices along named axes; a call with an axis for each dimension returns a tensor's layout.

    The compiler keeps the numbers of slices, and chooses the axes of its own mesh for them.

    Parameters
    ----------
    device_matrix : tuple of int
        Sizes of the axes.
    alias_name : tuple of str
        Their names.

    Examples
    --------
    >>> Layout((2, 2, 2), ("dp", "sp", "mp"))(("dp", "sp"), "None", "mp").split_counts
    (4, 1, 2)
    """

    device_matrix: tuple[int, ...]
    alias_name: tuple[str, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        names = self.alias_name
        if len(names) != len(self.device_matrix) or len(set(names)) != len(names):
            raise ModelError(
                f"the device matrix {self.device_matrix} has the axis names {names}, expected a "
                f"different name for each axis"
            )

    def __call__(self, *axes: str | tuple[str, ...]) -> TensorLayout:
        """Return the layout of a tensor whose dimensions are split along these axes.

        Raises
        ------
        ModelError
            If an axis is unknown, or splits two dimensions.
        """
        cut = tuple(
            () if item == "None" else (item,) if isinstance(item, str) else tuple(item)
            for item in axes
        )
        used = [axis for names in cut for axis in names]
        for axis in used:
            if axis not in self.alias_name or used.count(axis) > 1:
                raise ModelError(
                    f"a layout uses the axis `{axis}` {used.count(axis)} times, expected each of "
                    f"{self.alias_name} at most once"
                )
        return TensorLayout(self, cut)


def _is_fusion(item: tuple[str, Any]) -> bool:
    """Return whether the setting of a collective has a mode, and what the mode takes."""
    collective, entry = item
    if not isinstance(entry, Mapping) or not set(entry) <= {"mode", "config"}:
        return False
    mode, given = entry.get("mode"), entry.get("config")
    if mode == "auto":
        return given is None
    return (mode == "size" and given is not None) or (mode == "index" and collective == "allreduce")


def _fusion_of(entry: Mapping[str, Any]) -> Any:
    """Return the value of the option: megabytes, or numbers of parameters."""
    if entry["mode"] == "index":
        begins = entry.get("config")
        if not isinstance(begins, Sequence) or isinstance(begins, str):
            raise wrong_value("config", begins, "rising numbers of parameters, such as [20, 35]")
        check_index("config", begins)
        return tuple(begins)
    megabytes = entry["config"] if entry["mode"] == "size" else FUSION_MEGABYTES
    POSITIVE.check("config", megabytes)
    return float(megabytes)


class AutoParallel:
    """A network with its parallel mode and options.

    Parameters
    ----------
    network : Cell or function
        The network; or a training step, which can then be called with batches.
    parallel_mode : str
        ``semi_auto``, ``auto``, ``data_parallel``, ``stand_alone``, ``hybrid_parallel``, or a
        search of MindSpore's: ``sharding_propagation``, ``recursive_programming``,
        ``dynamic_programming``.
    devices : int, optional
        Number of ranks; the size of the world if not given.
    cluster : str
        Name or file of the cluster.
    mesh : str or Mesh, optional
        Shape of the mesh: ``2x4`` or ``data=2,model=4``; ``search`` for the best of several; the
        cluster's default if not given.
    seed : int
        Seed of the initial values of a training step; `Model` has its own.
    deterministic : bool, optional
        Whether reductions over processes add in the order of the ranks, as in one process; they do
        if not given, unless `shardwright launch --fast` has started the processes.
    **options
        Options of `CompileOptions`: ``memory_limit``, ``gap``, ``effort``, ``cost_model``,
        ``pins``, ... Optimizer and loss scale are the model's own.

    Raises
    ------
    OptionError
        If an option is unknown, has a wrong value, or has no effect in the mode.
    """

    def __init__(
        self,
        network: Network,
        parallel_mode: str = "semi_auto",
        *,
        devices: int | None = None,
        cluster: str = ParallelOptions.cluster,
        mesh: str | Mesh | None = None,
        seed: int = 0,
        deterministic: bool | None = None,
        **options: Any,
    ) -> None:
        if not callable(network):
            raise wrong_value("network", network, "a cell or a function")
        check_choice("parallel_mode", parallel_mode, _MODES)
        check_names("`AutoParallel` has no option", options, _OPTIONS)
        mode, search = _MODES[parallel_mode]
        if devices is None:
            devices = 1 if mode == "stand_alone" else get_group_size()
        SEED.check("seed", seed)
        if deterministic is None:
            deterministic = is_deterministic()
        check_flag("deterministic", deterministic)
        self.network = network
        self.seed = seed
        check_recompute_of_plan(options)
        how = CompileOptions(mode=mode, search=search, **options)
        check_exact_only(how.changed, how.mode, how.search, how.plan, how.cost_model)
        self.options = ParallelOptions(
            how,
            devices,
            cluster,
            mesh=mesh,
            deterministic=deterministic,
            given=frozenset(options),
        )
        self.session: Session | None = None
        self._sessions: ByShape[Session] = ByShape()
        self._strategy_file: Path | None = None

    def __repr__(self) -> str:
        network = getattr(self.network, "__name__", type(self.network).__name__)
        options = self.options
        return (
            f"<AutoParallel {network}: {options.how.mode} on {options.devices} devices of "
            f"{options.cluster}>"
        )

    def _compile_with(self, **options: Any) -> None:
        """Change options of the compilation."""
        how, given = replace(self.options.how, **options), self.options.given.union(options)
        self.options = replace(self.options, how=how, given=given)

    def hsdp(
        self, shard_size: int = -1, threshold: int = 64, optimizer_level: str = "level1"
    ) -> None:
        """Divide parameters and optimizer states among ranks that hold copies.

        Parameters
        ----------
        shard_size : int
            Number of ranks that a parameter is divided among; -1 for as many as there are. Groups
            of so many ranks hold a copy each.
        threshold : int
            Size in KiB from which on a parameter is divided: that of the whole parameter.
        optimizer_level : str
            ``level1``: parameters are gathered once in a step, and saved for backward. ``level2``:
            moreover gradients are reduced and divided in every micro-batch. ``level3``: moreover
            parameters are regathered in backward.

        Raises
        ------
        OptionError
            If a value is not allowed.
        """
        check_choice("optimizer_level", optimizer_level, LEVELS)
        rule = OptimizerSharding(shard_size, threshold, optimizer_level)
        self._compile_with(optimizer_parallel=rule)

    def dataset_strategy(self, config: str | Sequence[TensorLayout | Sequence[int]]) -> None:
        """Set the layouts of the inputs.

        Parameters
        ----------
        config : str or sequence
            ``data_parallel``, ``full_batch``, or for each input a layout or the slices of each
            dimension.
        """
        if isinstance(config, str):
            check_choice("config", config, ("data_parallel", "full_batch"))
        elif not isinstance(config, Sequence):
            raise wrong_value("config", config, "`data_parallel`, `full_batch`, or a sequence")
        else:
            check_type("config", config, Sequence[TensorLayout | Sequence[int]])
        if isinstance(config, str):
            self.options = replace(self.options, dataset_strategy=config)
            return
        counts = tuple(
            item.split_counts if isinstance(item, TensorLayout) else tuple(item) for item in config
        )
        self.options = replace(self.options, dataset_strategy=counts)

    @checked
    def comm_fusion(self, config: Mapping[str, Any]) -> None:
        """Fuse the all-reduces of gradients, the all-gathers of parameters, and reduce-scatters.

        The numbers of `Cell.set_comm_fusion` override it.

        Parameters
        ----------
        config : mapping
            For ``allreduce``, ``allgather`` and ``reducescatter`` a mapping ``{"mode": mode,
            "config": value}``: ``auto`` fuses up to 64 megabytes, ``size`` up to so many;
            ``index``, of ``allreduce`` alone, has the numbers of the parameters that begin a new
            group. With ``openstate`` False the call has no effect.

        Raises
        ------
        ModelError
            If another collective or another mode is asked for.
        """
        known = ("openstate", "allreduce", "allgather", "reducescatter")
        entries = {key: value for key, value in config.items() if key != "openstate"}
        if not set(config) <= set(known) or not all(map(_is_fusion, entries.items())):
            raise ModelError(
                f"fusion is asked for as {dict(config)}",
                hint='write `{"allreduce": {"mode": "size", "config": 32}}`',
            )
        check_flag("openstate", config.get("openstate", True))
        if not config.get("openstate", True):
            return
        sizes = {key: _fusion_of(entry) for key, entry in entries.items()}
        if "allreduce" in sizes:
            self._compile_with(fusion=sizes.pop("allreduce"))
        if sizes:
            self._compile_with(gather_fusion=GatherFusion(**sizes))

    def pipeline(
        self,
        stages: int = 1,
        output_broadcast: bool = False,
        interleave: bool = False,
        scheduler: str = "1f1b",
    ) -> None:
        """Run the stages of the network on groups of devices, one behind the other.

        The stages are those of its cells (``cell.pipeline_stage``); without any, the mode ``auto``
        cuts the network. Micro-batches are those of `nn.PipelineCell`.

        Parameters
        ----------
        stages : int
            Number of device groups.
        output_broadcast : bool
            Must be False: outputs are read from the stage that has them.
        interleave : bool
            Whether a group has several stages; cells name them.
        scheduler : str
            The order of the micro-batches: ``gpipe``, ``1f1b`` or ``zero_bubble``.

        Raises
        ------
        OptionError
            If an argument has another value.
        """
        POSITIVE_INTEGER.check("stages", stages)
        check_flag("interleave", interleave)
        schedulers = [name for name in SCHEDULES if not SCHEDULES[name].has_chunks]
        check_choice("scheduler", scheduler, schedulers)
        if output_broadcast is not False:
            hint = "leave it out: outputs are read from their stage"
            raise wrong_value("output_broadcast", output_broadcast, "False", hint)
        if interleave and scheduler != "1f1b":
            raise OptionError(
                f"`scheduler` is `{scheduler}`, expected `1f1b` where `interleave` is True",
                hint="leave one of them out",
            )
        schedule = None if stages == 1 or interleave else scheduler
        self._compile_with(stages=stages, schedule=schedule)

    def enable_gradients_mean(self) -> None:
        """Train a hand-written parallel program on the mean of the losses of all ranks.

        Each rank may have the loss of its own part of the batch. A loss that is equal on all ranks
        is trained on as it is. In ``data_parallel`` this has no effect: the loss is already the
        mean of the whole batch.

        Raises
        ------
        OptionError
            In other modes.
        """
        if self.options.how.mode != "data_parallel":
            self._compile_with(gradients_mean=True)

    @checked
    def load_operator_strategy_file(self, file_path: str | Path) -> None:
        """Pin the strategies in a file."""
        strategies: Mapping[str, SplitCounts] = read_strategies(Path(file_path))
        self._compile_with(pins=strategies)

    @checked
    def save_operator_strategy_file(self, file_path: str | Path) -> None:
        """Write the strategies to a file after the compilation.

        Raises
        ------
        OutputError
            If the file cannot be written, or another kind of file has its name.
        """
        check_file(Path(file_path), _STRATEGIES, is_strategies_file)
        self._strategy_file = Path(file_path)

    def note(self, session: Session) -> None:
        """Keep the session, and write the strategies if asked for."""
        self.session = session
        if self._strategy_file is not None:
            content = strategies_text(session.agreed.strategies).encode()
            write_file(self._strategy_file, content, _STRATEGIES, is_strategies_file)

    def __call__(self, *inputs: Any) -> np.floating[Any]:
        """Train one step on a batch, and return the loss before it.

        Raises
        ------
        ModelError
            If the network is not a training step that applies its optimizer.
        """
        arrays = [
            item.asnumpy() if isinstance(item, Tensor) else np.asarray(item) for item in inputs
        ]
        session = self._sessions.session(arrays, lambda: self._begin(arrays))
        if session is not self.session:
            self.note(session)
        return np.float32(session.step(arrays))

    def _begin(self, arrays: Sequence[Array]) -> Session:
        """Compile the training step for batches of some shapes.

        Raises
        ------
        ModelError
            If it applies no optimizer.
        """
        batch = {f"input{i}": array for i, array in enumerate(arrays)}
        session = begin(self.network, batch, self.options, seed=self.seed)
        if session.definition.optimizer is None:
            raise ModelError(
                "the network applies no optimizer",
                hint="call a training step, or give the network to `Model`",
            )
        return session

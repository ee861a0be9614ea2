"""How a program is compiled: one class of options, checked where it is made.

The command line, `shardwright.compile` and `AutoParallel` all end here, so a wrong value gets the
same sentence from each of them.
"""

import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Literal, get_args

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.mindspore.allreduce_fusion import FusionSettings
from shardwright.ir.errors import OptionError, ShardwrightWarning
from shardwright.ir.layout import Layout
from shardwright.ir.values import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Range,
    check_choice,
    check_flag,
    wrong_value,
)
from shardwright.operators.info import SplitCounts
from shardwright.passes.optimizer import Optimizer
from shardwright.search.driver import SEARCHES

Mode = Literal[
    "auto_parallel", "semi_auto_parallel", "data_parallel", "hybrid_parallel", "stand_alone"
]
CostModel = Literal["time", "mindspore"]
MODES: tuple[Mode, ...] = get_args(Mode)
COST_MODELS: tuple[CostModel, ...] = get_args(CostModel)
_MEMORY = Range(above=0, infinite=True)
# Options that say something about the partition, which these modes do not make.
UNPARTITIONED: tuple[Mode, ...] = ("hybrid_parallel", "stand_alone")
_OF_THE_PARTITION = (
    "cost_model",
    "pins",
    "result_pins",
    "input_layouts",
    "fusion",
    "optimizer_parallel",
)


@dataclass(frozen=True)
class CompileOptions:
    """How to compile.

    Parameters
    ----------
    mode : str
        One of ``MODES``.
    search : str
        How strategies are chosen in ``auto_parallel``.
    cost_model : str
        ``time`` minimises seconds; ``mindspore`` what MindSpore's search minimises.
    optimizer : Optimizer
        The update of the parameters.
    pins : mapping of str to split counts
        Strategies that a person has fixed, by operator.
    result_pins : mapping of str to split counts
        Splits of results that a person has fixed.
    input_layouts : mapping of str to Layout
        Inputs whose layout is given.
    memory_limit : float, optional
        Bytes that a rank may hold; the device's memory if not given.
    fusion : FusionSettings or float
        Which gradients share one all-reduce: by MindSpore's cost-based algorithms, or up to so many
        megabytes. What the model itself asks for goes before.
    optimizer_parallel : bool
        Store every parameter and optimizer state as finely split as it can be.
    loss_scale : float
        Factor that gradients carry until they are used.
    gradients_mean : bool
        In ``hybrid_parallel``: average the gradients of the ranks instead of adding them.
    time_limit : float
        Seconds that a search may take, and as many that laying it out may take.
    gap : float
        How near to the lower bound a plan must come, relatively, for the exact search to stop.

    Raises
    ------
    OptionError
        If a value is not allowed, or has no effect in the mode.
    """

    mode: Mode = "auto_parallel"
    search: str = "exact"
    cost_model: CostModel = "time"
    optimizer: Optimizer = field(default_factory=Optimizer)
    pins: Mapping[str, SplitCounts] = field(default_factory=dict)
    result_pins: Mapping[str, SplitCounts] = field(default_factory=dict)
    input_layouts: Mapping[str, Layout] = field(default_factory=dict)
    memory_limit: float | None = None
    fusion: FusionSettings | float = field(default_factory=FusionSettings)
    optimizer_parallel: bool = False
    loss_scale: float = 1.0
    gradients_mean: bool = False
    time_limit: float = 60.0
    gap: float = 1e-3

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, MODES)
        check_choice("search", self.search, tuple(SEARCHES))
        check_choice("cost_model", self.cost_model, COST_MODELS)
        check_flag("optimizer_parallel", self.optimizer_parallel)
        check_flag("gradients_mean", self.gradients_mean)
        for name, allowed in _RANGES.items():
            allowed.check(name, getattr(self, name))
        self._check_kinds()
        self._check_used()

    def memory_on(self, cluster: Cluster) -> float:
        """Return the bytes that a rank may hold on a cluster."""
        if self.memory_limit is None:
            return float(cluster.device.memory_bytes)
        return float(self.memory_limit)

    def _check_kinds(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            hint = 'write `optimizer="adam"`, or a `shardwright.passes.optimizer.Optimizer`'
            raise wrong_value("optimizer", self.optimizer, "the rule of an update", hint)
        if self.memory_limit is not None:
            _MEMORY.check("memory_limit", self.memory_limit)
        if not isinstance(self.fusion, FusionSettings):
            NOT_NEGATIVE.check("fusion", self.fusion)
        for name in ("pins", "result_pins", "input_layouts"):
            if not isinstance(getattr(self, name), Mapping):
                raise wrong_value(name, getattr(self, name), "a mapping from names")
        for name in ("pins", "result_pins"):
            for operator, counts in getattr(self, name).items():
                check_split_counts(operator, counts)

    def _check_used(self) -> None:
        """Refuse options that have no effect in the mode."""
        used = {"hybrid_parallel": {"gradients_mean"}, "auto_parallel": {"search"}}
        allowed = used.get(self.mode, set())
        if self.mode not in UNPARTITIONED:
            allowed = allowed | set(_OF_THE_PARTITION)
        for name in sorted({"gradients_mean", "search", *_OF_THE_PARTITION} - allowed):
            if getattr(self, name) != _default(name):
                raise no_effect(name, self.mode)


def no_effect(name: str, mode: Mode) -> OptionError:
    """Return the error of an option that has no effect in a mode."""
    hints = {
        "gradients_mean": "leave it out: gradients are those of the loss of the whole batch",
        "search": "leave it out, or use the mode `auto_parallel`",
    }
    otherwise = "leave it out, or use a mode in which the compiler splits the model"
    return OptionError(
        f"`{name}` has no effect in the mode `{mode}`", hint=hints.get(name, otherwise)
    )


def warn_of_idle_devices(mode: Mode, devices: int) -> None:
    """Warn where several devices are asked for in the mode that uses one."""
    if mode == "stand_alone" and devices != 1:
        warnings.warn(
            f"the mode `stand_alone` uses one of the {devices} devices",
            ShardwrightWarning,
            stacklevel=3,
        )


_RANGES = {
    "loss_scale": POSITIVE,
    "time_limit": POSITIVE,
    "gap": SHARE,
}
_SLICES = Range(whole=True, least=1)
OPTION_NAMES = tuple(item.name for item in fields(CompileOptions))


def _default(name: str) -> object:
    item = next(item for item in fields(CompileOptions) if item.name == name)
    return item.default if item.default_factory is MISSING else item.default_factory()


def check_split_counts(operator: str, counts: object) -> None:
    """Refuse what is not a number of slices for each dimension of each tensor.

    Raises
    ------
    OptionError
        If it is something else.
    """
    if isinstance(counts, tuple | list) and all(isinstance(c, tuple | list) for c in counts):
        slices = [count for tensor in counts for count in tensor]
        if all(count in _SLICES for count in slices):
            return
    expected = "a number of slices for each dimension of each tensor"
    raise wrong_value(f"strategy of {operator}", counts, expected, "write `((2, 4), (4, 1))`")

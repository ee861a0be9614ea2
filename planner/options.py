"""The options of a compilation: one class, declared once, validated when it is created.

The command line, `shardwright.compile` and `AutoParallel` all create a `CompileOptions`. Names,
defaults, help and the sentence about a wrong value come from the declarations of its fields, so
they are the same from each entrance.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from textwrap import fill, indent
from typing import Any, Literal, get_args

import shardwright.planner.option_checks as checks
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.mindspore.allreduce_fusion import Fusion, FusionSettings
from shardwright.cost_model.mindspore.costs import MindSporeCosts
from shardwright.cost_model.profiles import PROFILES
from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.schedules import check_options
from shardwright.ir.errors import OptionError
from shardwright.ir.layout import Layout
from shardwright.ir.units import shortened
from shardwright.ir.values import POSITIVE, POSITIVE_INTEGER, SHARE, Range, check_flag
from shardwright.operators.info import SplitCounts
from shardwright.operators.models.loss_scale import LossScale, loss_scale
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.optimizer_text import NAMES
from shardwright.operators.models.precision import MASTER, PRECISIONS, GradientType
from shardwright.passes.expect_imbalance import IMBALANCE
from shardwright.passes.pipeline import Pipeline, parse_pipeline
from shardwright.planner.executor_names import PROCESSES, check_executor, check_workers
from shardwright.planner.option_checks import (
    SEARCHED,
    GatherFusion,
    Option,
    decided_by_plan,
    no_effect,
)
from shardwright.search.driver import SEARCHES
from shardwright.search.named_plan import NamedPlan
from shardwright.search.space.sharding import OptimizerSharding

Mode = Literal[
    "auto_parallel", "semi_auto_parallel", "data_parallel", "hybrid_parallel", "stand_alone"
]
MODES: tuple[Mode, ...] = get_args(Mode)
# Modes in which the compiler does not partition the model.
UNPARTITIONED: tuple[Mode, ...] = ("hybrid_parallel", "stand_alone")
_MEMORY = Range(above=0, infinite=True)
_WORKERS = Range(least=0, whole=True)
_MAY_BE_NONE = ("imbalance", "memory_limit", "schedule", "time_limit")
# Options that a named plan decides itself.
_DECIDED_BY_PLAN = ("search", "pins", "result_pins", "input_layouts", "optimizer_parallel")


def _about(text: str, **declaration: Any) -> Mapping[str, Option]:
    """Return the metadata of a field of `CompileOptions`."""
    return {"option": Option(text, **declaration)}


@dataclass(frozen=True)
class CompileOptions:
    """The options of a compilation.

    Raises
    ------
    OptionError
        If a value is not allowed, or has no effect in the mode.
    """

    mode: Mode = field(
        default=MODES[0],
        metadata=_about("who decides the strategies", choices=MODES),
    )
    search: str = field(
        default="exact",
        metadata=_about("how the mode auto_parallel chooses strategies", choices=SEARCHES),
    )
    plan: NamedPlan | str | None = field(
        default=None,
        metadata=_about(
            "build this plan without a search: `tensor=8,data=4,zero=1,sequence_parallel`",
            validate=checks.check_plan,
            partition=True,
        ),
    )
    cost_model: str = field(
        default="time",
        metadata=_about(
            "cost profile that the search minimizes",
            choices=PROFILES,
            partition=True,
        ),
    )
    optimizer: Optimizer = field(
        default_factory=Optimizer,
        metadata=_about(
            f"update rule: {', '.join(NAMES)}; with settings `adamw:weight_decay=0.1`",
            validate=checks.check_optimizer,
            default="the model's, or sgd",
        ),
    )
    precision: str = field(
        default=MASTER,
        metadata=_about(
            "types in which a step is computed",
            choices=PRECISIONS,
            default="float32; bfloat16 for a preset of a large language model",
        ),
    )
    reduce_type: GradientType = field(
        default="lower",
        metadata=_about(
            "type in which gradients are reduced over ranks, and accumulated: the lower type of "
            "the precision, or float32",
            choices=get_args(GradientType),
            partition=True,
        ),
    )
    accumulate_type: GradientType = field(
        default="lower",
        metadata=_about(
            "type in which gradients are accumulated over micro-batches: the lower type of the "
            "precision, or float32",
            choices=get_args(GradientType),
        ),
    )
    pins: Mapping[str, SplitCounts] = field(
        default_factory=dict,
        metadata=_about(
            "strategies pinned by the user, by operator", validate=checks.check_pins, partition=True
        ),
    )
    result_pins: Mapping[str, SplitCounts] = field(
        default_factory=dict,
        metadata=_about(
            "splits of results pinned by the user, by operator",
            validate=checks.check_pins,
            partition=True,
        ),
    )
    input_layouts: Mapping[str, Layout] = field(
        default_factory=dict,
        metadata=_about(
            "layouts of inputs, by input", validate=checks.check_layouts, partition=True
        ),
    )
    memory_limit: float | None = field(
        default=None,
        metadata=_about(
            "memory limit of a device, in bytes",
            allowed=_MEMORY,
            default="the device's memory less its reserve",
        ),
    )
    objective: Literal["overlapped", "serial"] = field(
        default="overlapped",
        metadata=_about(
            "what the exact search minimizes, by the cost model `time`: the step with "
            "communication concurrent with computation, and gradients in the fastest buckets, "
            "or the sum of all seconds",
            choices=("overlapped", "serial"),
            partition=True,
        ),
    )
    cost_weights: MindSporeCosts = field(
        default_factory=MindSporeCosts,
        metadata=_about(
            "weights of the cost model `mindspore`: `alpha=1,beta=400,gamma=0.001`",
            validate=checks.check_cost_weights,
            default="MindSpore's",
            partition=True,
        ),
    )
    fusion: Fusion = field(
        default_factory=FusionSettings,
        metadata=_about(
            "fuse all-reduces of gradients, up to so many megabytes each, or by an algorithm of "
            "MindSpore's: `algorithm=1,times=2,tail_percent=0.5`",
            validate=checks.check_fusion,
            default="each gradient alone",
            partition=True,
        ),
    )
    gather_fusion: GatherFusion = field(
        default_factory=GatherFusion,
        metadata=_about(
            "fuse gathers of parameters and scatters of gradients: `allgather=64,reducescatter=32`",
            validate=checks.check_gather_fusion,
            default="each alone",
            partition=True,
        ),
    )
    micro_batches: int | str = field(
        default=1,
        metadata=_about(
            "micro-batches of a step, one after the other, whose gradients are accumulated; "
            "`search` for the best number of them",
            validate=checks.check_micro_batches,
        ),
    )
    stages: int | str = field(
        default=1,
        metadata=_about(
            "device groups of a pipeline, each with other stages of the model; the mesh is that of "
            "one group; `search` for the best number of them",
            validate=checks.check_stages,
            partition=True,
        ),
    )
    chunks: int = field(
        default=1,
        metadata=_about(
            "stages of each device group of a pipeline", allowed=POSITIVE_INTEGER, partition=True
        ),
    )
    schedule: str | None = field(
        default=None,
        metadata=_about(
            "order of the micro-batches in a pipeline",
            choices=SCHEDULES,
            default="1f1b, or interleaved with several chunks",
            partition=True,
        ),
    )
    optimizer_parallel: OptimizerSharding | bool = field(
        default=False,
        metadata=_about(
            "store every parameter and optimizer state split as finely as possible, or by "
            "`shard_size=4,threshold=64,level=level2`: MindSpore's; PyTorch's is `--plan shard=8`",
            validate=checks.check_sharding,
            default="the search chooses",
            partition=True,
        ),
    )
    recompute: str = field(
        default="search",
        metadata=_about(
            "what is computed again for the gradient instead of saved: none, selective, operators, "
            "full, search, or parts of blocks by Megatron's names: layernorm+moe_act",
            validate=checks.check_recompute,
        ),
    )
    offload: str = field(
        default="none",
        metadata=_about(
            "what is saved for the gradient in host memory, in addition to marked cells; `search` "
            "decides that where memory is short",
            choices=("none", "search"),
            partition=True,
        ),
    )
    loss_chunks: int = field(
        default=1,
        metadata=_about(
            "chunks of a rank's tokens, of which a loss makes the logits one after another",
            allowed=POSITIVE_INTEGER,
        ),
    )
    loss_scale: LossScale = field(
        default=1.0,
        metadata=_about(
            "factor on the loss, and so on the gradients; `dynamic` for one that follows overflows",
            validate=checks.check_loss_scale,
            default="the model's",
        ),
    )
    imbalance: float | None = field(
        default=None,
        metadata=_about(
            "tokens of the expert rank that has most, over the mean of the ranks",
            allowed=IMBALANCE,
            default="1.04",
        ),
    )
    gradients_mean: bool = field(
        default=False,
        metadata=_about(
            "train a hand-written parallel program on the mean of the losses of all ranks",
            validate=check_flag,
        ),
    )
    effort: float = field(
        default=1.0,
        metadata=_about("how much is searched: 1 is about a minute of two cores", allowed=POSITIVE),
    )
    time_limit: float | None = field(
        default=None,
        metadata=_about(
            "seconds after which the search stops with its best plan so far, which then says so",
            allowed=POSITIVE,
            default="none",
        ),
    )
    gap: float = field(
        default=1e-3,
        metadata=_about(
            "relative gap to the lower bound at which the exact search stops", allowed=SHARE
        ),
    )
    explain_search: bool = field(
        default=False,
        metadata=_about(
            "tell what was tried and why it was cut, ten plans, and the price of memory",
            validate=check_flag,
            partition=True,
        ),
    )
    workers: int = field(
        default=0,
        metadata=_about(
            "processes that search; 0 for as many as cores and free memory allow",
            allowed=_WORKERS,
        ),
    )
    executor: str = field(
        default=PROCESSES,
        metadata=_about(
            "who runs the tasks of a search: `processes` of this machine, `mpi`, or `dask://HOST:PORT`",
            validate=check_executor,
        ),
    )
    cache: bool = field(
        default=True,
        metadata=_about(
            "keep what searches of blocks find for later ones, in `$SHARDWRIGHT_CACHE`",
            validate=check_flag,
        ),
    )
    extra_passes: Pipeline | str = field(
        default=(),
        metadata=_about(
            "passes that run after those of the mode, or their text", validate=checks.check_passes
        ),
    )

    def __post_init__(self) -> None:
        for name, read in {**checks.WRITTEN, "extra_passes": parse_pipeline}.items():
            if isinstance(text := getattr(self, name), str):
                object.__setattr__(self, name, read(text))
        if isinstance(self.plan, NamedPlan) and self.recompute == DEFAULTS["recompute"]:
            object.__setattr__(self, "recompute", self.plan.recompute)
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                option.check(name, value)
        object.__setattr__(self, "loss_scale", loss_scale(self.loss_scale))
        self._check_used()
        self._check_stages()

    def __repr__(self) -> str:
        items = (f"{n}={shortened(repr(value), 40)}" for n, value in self.changed.items())
        return f"CompileOptions({', '.join(items)})"

    @property
    def changed(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        return {n: v for n in OPTIONS if (v := getattr(self, n)) != DEFAULTS[n]}

    @property
    def passes(self) -> int:
        """The number of micro-batches, where it is given or has been chosen.

        Raises
        ------
        OptionError
            If the compiler is still to choose it.
        """
        if isinstance(self.micro_batches, str):
            raise OptionError("the number of micro-batches is to be searched, expected a number")
        return self.micro_batches

    @property
    def groups(self) -> int:
        """The number of device groups, where it is given or has been chosen: see `passes`."""
        if isinstance(self.stages, str):
            raise OptionError("the number of stages is to be searched, expected a number")
        return self.stages

    @property
    def order(self) -> str:
        """The schedule of a pipeline."""
        return self.schedule or ("1f1b" if self.chunks == 1 else "interleaved")

    @property
    def rewrites_programs(self) -> bool:
        """Whether passes after the search change the step, which its bounds do not cover."""
        return bool(self.extra_passes) or self.gather_fusion != DEFAULTS["gather_fusion"]

    @property
    def sharding(self) -> OptimizerSharding | None:
        """The option `optimizer_parallel`; None where the search chooses."""
        if isinstance(self.optimizer_parallel, OptimizerSharding):
            return self.optimizer_parallel
        return OptimizerSharding() if self.optimizer_parallel else None

    @property
    def named_plan(self) -> NamedPlan | None:
        """The option `plan`, parsed."""
        assert not isinstance(self.plan, str)
        return self.plan

    def in_one_stage(self) -> "CompileOptions":
        """Return the options without a pipeline."""
        return replace(self, stages=1, chunks=1, schedule=None)

    def memory_on(self, cluster: Cluster) -> float:
        """Return the memory limit of a device of a cluster, in bytes."""
        if self.memory_limit is None:
            return cluster.device.usable_bytes
        return float(self.memory_limit)

    def _check_stages(self) -> None:
        """Refuse options of a pipeline that contradict each other."""
        if self.stages == 1:
            for name in ("chunks", "schedule"):
                if getattr(self, name) != DEFAULTS[name]:
                    raise OptionError(
                        f"`{name}` has no effect without a pipeline", hint="give `stages` too"
                    )
            return
        if self.plan is not None:
            raise decided_by_plan("stages")
        groups = 1 if self.stages == SEARCHED else self.groups
        passes = None if SEARCHED in (self.stages, self.micro_batches) else self.passes
        check_options(self.order, groups, self.chunks, passes)

    def _check_used(self) -> None:
        """Refuse options that have no effect in the mode."""
        is_whole = self.mode in UNPARTITIONED
        unused = {name for name, option in OPTIONS.items() if option.partition and is_whole}
        unused |= {"search", "plan"} if self.mode != "auto_parallel" else set()
        if self.mode == "hybrid_parallel":
            checks.check_constant(self.loss_scale)
            unused |= {"micro_batches", "accumulate_type"}
        else:
            unused.add("gradients_mean")
        checks.check_priced(self.cost_model, self.micro_batches, self.reduce_type)
        for name in sorted(unused):
            if getattr(self, name) != DEFAULTS[name]:
                raise no_effect(name, self.mode)
        check_workers(self.executor, self.workers)
        weighted = self.cost_weights != DEFAULTS["cost_weights"]
        checks.check_weighted(self.cost_model, weighted=weighted)
        if self.plan is not None and self.micro_batches == SEARCHED:
            raise decided_by_plan("micro_batches")
        for name in _DECIDED_BY_PLAN if self.plan is not None else ():
            if getattr(self, name) != DEFAULTS[name]:
                raise decided_by_plan(name)
        if self.named_plan is not None and self.recompute != self.named_plan.recompute:
            raise decided_by_plan("recompute")
        checks.check_recompute_of_stages(self.recompute, self.named_plan is not None)


OPTIONS: dict[str, Option] = {item.name: item.metadata["option"] for item in fields(CompileOptions)}
OPTION_NAMES = tuple(OPTIONS)
DEFAULTS: dict[str, Any] = {
    item.name: item.default if item.default_factory is MISSING else item.default_factory()
    for item in fields(CompileOptions)
}


def option_help(name: str, text: str | None = None) -> str:
    """Return the sentence about an option: what it sets, its choices, and its default.

    Parameters
    ----------
    name : str
        The option.
    text : str, optional
        What it sets, where that is another unit on the command line.

    Examples
    --------
    >>> option_help("gap")
    'relative gap to the lower bound at which the exact search stops (default 0.001)'
    """
    option, default = OPTIONS[name], DEFAULTS[name]
    text = text or option.text
    if option.choices:
        text = f"{text}: {', '.join(option.choices)}"
    if isinstance(default, bool):
        return text
    number = isinstance(default, int | float)
    shown = f"{default:g}" if number else str(default or "none")
    return f"{text} (default {option.default or shown})"


def _parameters_section() -> str:
    """Return the section `Parameters` of the class, in the style of numpydoc."""
    lines = ["    Parameters", "    ----------"]
    for name in OPTIONS:
        sentence = f"{option_help(name)}."
        lines += [f"    {name}", indent(fill(sentence[:1].upper() + sentence[1:], 84), " " * 8)]
    return "\n".join(lines)


CompileOptions.__doc__ = (CompileOptions.__doc__ or "").replace(
    "    Raises\n", f"{_parameters_section()}\n\n    Raises\n", 1
)

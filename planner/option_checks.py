"""The declaration of an option, and checks of values that are neither numbers nor names."""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from shardwright.cost_model.mindspore.allreduce_fusion import FusionSettings
from shardwright.cost_model.mindspore.costs import MindSporeCosts
from shardwright.cost_model.profiles import PROFILES
from shardwright.dataflow.recompute_rules import RULES, has_number, rule_in
from shardwright.ir.errors import OptionError, PassError, ShardwrightWarning
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.values import (
    NOT_NEGATIVE,
    POSITIVE_INTEGER,
    Range,
    check_choice,
    check_flag,
    check_names,
    check_split_counts,
    wrong_value,
)
from shardwright.operators.models.loss_scale import DynamicLossScale, loss_scale
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.base import Pass
from shardwright.passes.fuse_all_reduces import check_index
from shardwright.planner.executor_names import PROCESSES
from shardwright.search.named_plan import NamedPlan
from shardwright.search.space.sharding import OptimizerSharding

SEARCHED = "search"
"""The value of an option that leaves the choice to the compiler."""


@dataclass(frozen=True)
class Option:
    """Declaration of an option.

    Parameters
    ----------
    text : str
        What the option sets, for help and documentation.
    allowed : Range, optional
        The numbers that it may be.
    choices : collection of str
        The names that it may be; a registry can grow.
    validate : callable, optional
        Raises an `OptionError` for a wrong value that is neither number nor name.
    default : str
        The default in words, where the default value itself does not tell.
    partition : bool
        Whether it has an effect only where the compiler partitions the model.
    """

    text: str
    allowed: Range | None = None
    choices: Collection[str] = ()
    validate: Callable[[str, object], None] | None = None
    default: str = ""
    partition: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise an `OptionError` if the option may not have this value."""
        if self.choices:
            check_choice(name, value, self.choices)
        if self.allowed is not None:
            self.allowed.check(name, value)
        if self.validate is not None:
            self.validate(name, value)


def check_optimizer(name: str, value: object) -> None:
    """Refuse what is no update rule."""
    if not isinstance(value, Optimizer):
        hint = 'write `optimizer="adam"`, or a `shardwright.operators.models.optimizer.Optimizer`'
        raise wrong_value(name, value, "the rule of an update", hint)


def check_fusion(name: str, value: object) -> None:
    """Refuse what is neither settings, a size nor numbers of parameters."""
    if isinstance(value, tuple):
        check_index(name, value)
    elif not isinstance(value, FusionSettings):
        NOT_NEGATIVE.check(name, value)


@dataclass(frozen=True)
class GatherFusion:
    """How gathers of parameters, and scatters of their gradients, are fused.

    Parameters
    ----------
    allgather, reducescatter : float
        Megabytes up to which they are fused by size; 0 for none.
    by_layer : bool
        Whether parameters have numbers of their own, by which they are.
    """

    allgather: float = 0.0
    reducescatter: float = 0.0
    by_layer: bool = False


def check_gather_fusion(name: str, value: object) -> None:
    """Refuse what is no pair of sizes."""
    if not isinstance(value, GatherFusion):
        raise wrong_value(name, value, "sizes, such as `allgather=64,reducescatter=32`")
    for item in ("allgather", "reducescatter"):
        NOT_NEGATIVE.check(item, getattr(value, item), of=f"of `{name}`")


def _read_gathers(text: str) -> GatherFusion:
    return GatherFusion(**read_settings("gather_fusion", text, ("allgather", "reducescatter")))


def check_cost_weights(name: str, value: object) -> None:
    """Refuse what is no set of weights."""
    if not isinstance(value, MindSporeCosts):
        raise wrong_value(name, value, "weights, such as `alpha=1,beta=400,gamma=0.001`")
    for item in _WEIGHTS:
        NOT_NEGATIVE.check(item, getattr(value, item), of="of `cost_weights`")


def read_fusion(text: str, name: str = "fusion") -> FusionSettings:
    """Return the settings in a text such as ``algorithm=1,times=2``.

    Raises
    ------
    OptionError
        If they are none.
    """
    settings = read_settings(name, text, [field.name for field in fields(FusionSettings)])
    try:
        return FusionSettings(**settings)
    except PassError as error:
        raise OptionError(error.what, hint=error.hint) from None


def _read_weights(text: str) -> MindSporeCosts:
    return MindSporeCosts(**read_settings("cost_weights", text, _WEIGHTS))


def read_settings(name: str, text: str, known: Sequence[str]) -> dict[str, Any]:
    """Return the numbers in a text such as ``alpha=1,beta=400``.

    Raises
    ------
    OptionError
        If a setting is unknown or no number.
    """
    settings: dict[str, Any] = {}
    for item in text.replace(" ", "").split(","):
        key, equals, value = item.partition("=")
        if not equals:
            raise wrong_value(name, text, f"settings such as `{known[0]}=1`")
        check_names(f"`{name}` has no setting", [key], known)
        if key in settings:
            raise OptionError(f"`{name}` gives `{key}` twice", hint="give it once")
        try:
            settings[key] = int(value) if value.lstrip("-").isdecimal() else float(value)
        except ValueError:
            raise wrong_value(key, value, "a number", of=f"of `{name}`") from None
    return settings


RECOMPUTED = ("none", *RULES, "search")
_WEIGHTS = ("alpha", "beta", "gamma", "threshold", "constant", "bias")
WRITTEN: Mapping[str, Callable[[str], object]] = {
    "cost_weights": _read_weights,
    "fusion": read_fusion,
    "gather_fusion": _read_gathers,
    "optimizer_parallel": OptimizerSharding.parse,
    "plan": NamedPlan.parse,
    "recompute": lambda text: rule_in("recompute", text, RECOMPUTED),
}
"""Options that may be texts, and how each is read; passes aside, which the options read."""


def check_recompute(name: str, value: object) -> None:
    """Refuse what is no rule of recomputation, and no part of blocks."""
    rule_in(name, value, RECOMPUTED)


def check_loss_scale(name: str, value: object) -> None:
    """Refuse what is no loss scale."""
    loss_scale(value, name)


def check_micro_batches(name: str, value: object) -> None:
    """Refuse what is neither a number of micro-batches nor their search."""
    if value != SEARCHED and value not in POSITIVE_INTEGER:
        raise wrong_value(name, value, f"{POSITIVE_INTEGER.expected}, or `{SEARCHED}`")


def check_stages(name: str, value: object) -> None:
    """Refuse what is neither a number of device groups nor their search."""
    if value != SEARCHED and value not in POSITIVE_INTEGER:
        raise wrong_value(name, value, f"{POSITIVE_INTEGER.expected}, or `{SEARCHED}`")


def check_layouts(name: str, value: object) -> None:
    """Refuse what is no mapping from inputs to layouts."""
    if not isinstance(value, Mapping):
        raise wrong_value(name, value, "a mapping from names")
    for key, layout in value.items():
        if not isinstance(layout, Layout):
            raise wrong_value(str(key), layout, "a `Layout`", of=f"of `{name}`")


def check_pins(name: str, value: object) -> None:
    """Refuse what is no mapping from operators to split counts."""
    if not isinstance(value, Mapping):
        raise wrong_value(name, value, "a mapping from names")
    for operator, counts in value.items():
        check_split_counts(operator, counts)


def check_passes(name: str, value: object) -> None:
    """Refuse what is no pipeline."""
    if not isinstance(value, tuple) or not all(isinstance(item, Pass) for item in value):
        raise wrong_value(name, value, "a tuple of passes, or a text such as `clean_up`")


def check_sharding(name: str, value: object) -> None:
    """Refuse what is neither a rule nor True or False."""
    if not isinstance(value, OptimizerSharding):
        check_flag(name, value)


def check_constant(scale: object) -> None:
    """Refuse a loss scale that changes, in the mode of hand-written parallel programs."""
    if isinstance(scale, DynamicLossScale):
        raise OptionError(
            "a dynamic loss scale is not supported in the mode `hybrid_parallel`: each rank "
            "would skip steps by itself",
            hint="use a constant loss scale",
        )


def check_values(what: str, needed: Mapping[str, str], values: Mapping[str, object]) -> None:
    """Refuse what is not supported unless some options have the values that it needs."""
    for name, value in needed.items():
        if values[name] != value:
            raise OptionError(
                f"{what}, which is not supported with `{name}` {values[name]}",
                hint="leave one of them out",
            )


def check_weighted(cost_model: str, *, weighted: bool) -> None:
    """Refuse weights of costs that the cost model does not have."""
    if weighted and cost_model != "mindspore":
        raise OptionError(
            f"`cost_weights` has no effect with the cost model `{cost_model}`",
            hint="give `cost_model` `mindspore` too",
        )


def check_plan(name: str, value: object) -> None:
    """Refuse what is no named plan."""
    if value is not None and not isinstance(value, NamedPlan):
        raise wrong_value(name, value, "a named plan", "write `tensor=8,data=4,zero=1`")


def no_effect(name: str, mode: str) -> OptionError:
    """Return the error of an option that has no effect in a mode."""
    hints = {
        "gradients_mean": "leave it out: gradients are those of the loss of the whole batch",
        "search": "leave it out, or use the mode `auto_parallel`",
        "gap": "leave it out, or use the mode `auto_parallel`",
        "objective": "leave it out, or use the mode `auto_parallel`",
        "micro_batches": "accumulate gradients in the program, or use another mode",
    }
    otherwise = "leave it out, or use a mode in which the compiler splits the model"
    return OptionError(
        f"`{name}` has no effect in the mode `{mode}`", hint=hints.get(name, otherwise)
    )


def decided_by_plan(name: str) -> OptionError:
    """Return the error of an option or argument that a named plan leaves nothing to."""
    keys = {"optimizer_parallel": "zero=1", "recompute": "recompute=full", "stages": "pipeline=2"}
    hint = f"write `{keys[name]}` in the plan" if name in keys else "leave one of them out"
    return OptionError(f"`{name}` has no effect with `plan`, which decides it", hint=hint)


def check_exact_only(
    changed: Iterable[str], mode: str, search: str, plan: object | None, cost_model: str
) -> None:
    """Refuse options of the exact search that the user changed where they have no effect.

    Options that one compilation hands to another, such as those of a draft, are not refused: they
    are no wishes of the user.

    Parameters
    ----------
    changed : iterable of str
        Names of options that are not at their defaults.
    mode, search, plan, cost_model
        Those options.

    Raises
    ------
    OptionError
        If one of them has no effect.
    """
    if plan is None and (mode, search) == ("auto_parallel", "exact"):
        if "objective" in changed and cost_model != "time":
            raise OptionError(
                f"`objective` has no effect with the cost model `{cost_model}`",
                hint="leave it out, or use the cost model `time`",
            )
        return
    # The buckets of a named plan are chosen by the objective.
    unused = {"gap", "workers", "executor"} if plan is not None else {"gap", "objective"}
    for name in sorted(unused.intersection(changed)):
        if plan is not None:
            raise decided_by_plan(name)
        if mode != "auto_parallel":
            raise no_effect(name, mode)
        raise OptionError(
            f"`{name}` has no effect with the search `{search}`",
            hint="leave it out, or use the search `exact`",
        )


def warn_of_idle_devices(mode: str, devices: int) -> None:
    """Warn where several devices are asked for in the mode that uses one."""
    if mode == "stand_alone" and devices != 1:
        warnings.warn(
            f"the mode `stand_alone` uses one of the {devices} devices",
            ShardwrightWarning,
            stacklevel=3,
        )


def warn_of_idle_executor(executor: str) -> None:
    """Warn where one configuration is searched, which is not divided into tasks."""
    if executor != PROCESSES:
        warnings.warn(
            f"one configuration is searched, in this process: the executor `{executor}` has no "
            "task; `--mesh search` and `--stages search` have tasks for it",
            ShardwrightWarning,
            stacklevel=3,
        )


def warn_of_repeated_work(mode: str, program: Graph) -> None:
    """Warn where data parallelism splits the batch over some of the ranks only."""
    mesh = program.mesh
    if mode != "data_parallel" or mesh is None:
        return
    ranks = {axis.name for axis in mesh.axes if not axis.in_time and not axis.of_stages}
    layouts = [value.layout for value in program.inputs if value.layout is not None]
    splits = [mesh.extent(ranks.intersection(x.splits[0])) for x in layouts if x.splits]
    parts, all_ranks = max(splits, default=1), mesh.extent(ranks)
    if splits and parts < all_ranks:
        warnings.warn(
            f"the batch is split over {parts} of {all_ranks} ranks, and the others repeat their "
            f"work: its size divides by no more",
            ShardwrightWarning,
            stacklevel=4,
        )


def check_priced(cost_model: str, micro_batches: int | str, reduce_type: str) -> None:
    """Refuse what a cost model does not price.

    Raises
    ------
    OptionError
        If it prices no micro-batches, or no gradients in another type, and there are some.
    """
    prices = PROFILES[cost_model]
    if micro_batches != 1 and not prices.prices_passes:
        raise OptionError(
            f"the cost model `{cost_model}` prices no micro-batches, `micro_batches` is "
            f"{micro_batches}",
            hint="micro-batches are priced by the cost model `time`",
        )
    if reduce_type != "lower" and not prices.prices_conversions:
        raise OptionError(
            f"the cost model `{cost_model}` prices no gradients in another type than "
            f"their operators return, `reduce_type` is {reduce_type}",
            hint="they are priced by the cost model `time`",
        )


def check_recompute_of_stages(recompute: str, is_named: bool) -> None:
    """Refuse a number of blocks of each pipeline stage where no named plan says the stages."""
    if has_number(recompute) and not is_named:
        raise OptionError(
            f"`recompute` is `{recompute}`, which counts the blocks of each pipeline stage, and no "
            "named plan says the stages",
            hint=f"give `plan`, with the word `recompute={recompute}`",
        )


def check_recompute_of_plan(options: Mapping[str, object]) -> None:
    """Refuse the search for what is recomputed, asked for beside a named plan.

    It is the default of the option: the options themselves do not tell that the user wrote it.

    Raises
    ------
    OptionError
        If both are given.
    """
    if options.get("plan") is not None and options.get("recompute") == SEARCHED:
        raise decided_by_plan("recompute")

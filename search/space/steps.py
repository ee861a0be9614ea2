"""The steps in which a search space is built: each adds an operator, a tensor, a parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shardwright.dataflow.micro_batches import MicroBatches
from shardwright.ir.layout import Layout
from shardwright.operators.info import SplitCounts
from shardwright.operators.models.optimizer import Optimizer
from shardwright.search.space.context import StagePart
from shardwright.search.space.saved.recomputation import Recomputable
from shardwright.search.space.saved.regathering import Positions
from shardwright.search.space.sharding import OptimizerSharding
from shardwright.search.space.space import SearchSpace


class Step(NamedTuple):
    """What one step adds.

    Parameters
    ----------
    adds : str
        The choice of an ``operator``; an ``output``; the ``ends`` of the program, or of a stage; a
        ``parameter`` with its edge; or the edges of a ``result``.
    name : str
        The operator, value or parameter; empty for the ends.
    position : int
        Of the result, among those of its operator.
    """

    adds: Literal["operator", "output", "ends", "parameter", "result"]
    name: str = ""
    position: int = 0


@dataclass(frozen=True)
class Arguments:
    """What a space is built for, beside the program and its prices; see `build_search_space`."""

    optimizer: Optimizer | None = None
    pins: Mapping[str, SplitCounts] = field(default_factory=dict)
    result_pins: Mapping[str, SplitCounts] = field(default_factory=dict)
    input_layouts: Mapping[str, Layout] = field(default_factory=dict)
    sharding: OptimizerSharding | None = None
    recompute: bool = False
    regather: bool = False


@dataclass(frozen=True, eq=False)
class Built:
    """How a space was built, as far as prices do not matter.

    Parameters
    ----------
    arguments : Arguments
        What it was built for.
    micro : MicroBatches, optional
        The micro-batches of a step.
    part : StagePart, optional
        The part of a program that the space is of.
    seconds : float
        Of work that building it took.
    steps : sequence of Step
        The steps, in order.
    sizes : sequence of (int, int)
        How many choices and priced pairs the space had after each step.
    recomputable : Recomputable
        What may be recomputed.
    regathered : mapping of str to positions
        The strategies of each operator whose result may be regathered.
    counted : mapping of str to str
        Of values that share a buffer, the one that is counted.
    """

    arguments: Arguments
    micro: MicroBatches | None
    part: StagePart | None
    seconds: float
    steps: Sequence[Step]
    sizes: Sequence[tuple[int, int]]
    recomputable: Recomputable
    regathered: Mapping[str, Positions]
    counted: Mapping[str, str]


@dataclass(frozen=True, eq=False, kw_only=True)
class RepriceableSpace(SearchSpace):
    """A space that other prices can take as it was built."""

    built: Built

"""Training software: what a step takes beside the devices and links, by profile.

The default, `IDEAL`, is no profile: the host takes no time, and the timeline overlaps communication
as far as the program allows. A profile times the same program as that software runs it. Its figures
are fitted to published steps; each is one number for all models and plans. A profile has options,
each of which changes some of its figures: ``torchtitan+eager+async_tensor``.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import yaml
from pydantic import Field, field_validator, model_validator

from shardwright.cost_model.efficiency.figures import (
    Curve,
    Description,
    Figure,
    Library,
    Rate,
)
from shardwright.cost_model.redistribution.exchange import Gate, Sent
from shardwright.dataflow.orders import SCHEDULES
from shardwright.ir.errors import ClusterError
from shardwright.ir.values import in_words
from shardwright.operators.models.recipes import RECIPES, Casts

IDEAL = "ideal"
_PRESETS = files("shardwright.cost_model") / "software"


class SoftwareMemory(Description):
    """How a training software keeps the tensors of a program, and what it takes beside them.

    Parameters
    ----------
    activations : Figure
        Bytes of activations of repeated blocks over those of the program.
    gathered : str
        What is gathered over tensor ranks is ``saved`` for backward, or gathered ``again``.
    logits : Figure
        Most bytes for each logit at the loss.
    scores : Figure
        Bytes that separate attention saves for each score.
    accumulation : str
        Over micro-batches, the gradient of a weight is added to its sum ``in_products``, or
        ``apart``.
    gradients : str
        Gradients are all kept in float32 from step to step, ``whole``; each rank keeps those of its
        parts of the parameters until the step, which makes one of them flat and then float32,
        ``parts``; or ``as_needed``.
    workspace : Figure
        Bytes beside tensors and the workspaces of libraries.
    reserved : Figure
        Bytes that the allocator reserves over those that are allocated, where reserved bytes are
        what is measured; 1 where allocated ones are.
    libraries : mapping of str to int
        How many workspaces each library has: one for each stream that runs its kernels. Their sizes
        are of the device (`Device.workspaces`).
    score_buffer : Figure, optional
        Bytes for each score of one separate attention, in a buffer that lasts.
    """

    activations: Figure
    gathered: Literal["saved", "again"]
    logits: Figure
    scores: Figure
    accumulation: Literal["in_products", "apart"]
    gradients: Literal["whole", "parts", "as_needed"]
    workspace: Figure
    reserved: Figure
    libraries: dict[Library, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    score_buffer: Figure | None = None

    def __hash__(self) -> int:
        # Explicit, because a dictionary has no hash.
        return hash(self.figures)


class HeadWidths(Curve):
    """What attention attains of its rate by the width of queries and keys of a head.

    Between two widths the line counts, beyond them the last.
    """

    along = "widths"

    def share(self, width: float) -> float:
        """Return the share of a width."""
        widths, shares = zip(*self.points, strict=True)
        return float(np.interp(width, widths, shares))


class Software(Description):
    """What a training software adds to the operators of a program, and what it hides.

    Parameters
    ----------
    name : str
        Name of the profile.
    pointwise, copies : Figure
        Memory traffic of element-wise operators, normalizations and reductions, and that of copies
        and casts, over the traffic of the same operators one by one: less than 1 where fused.
    updates : Figure
        The same of the updates of parameters.
    attention : str
        ``fused`` is one kernel, ``separate`` is two products with the scores in memory.
    scores : Figure
        Bytes that are read and written for each score of separate attention.
    softmax : Figure
        Further operators that the host launches for separate attention whose matrices of scores
        are no multiple of four, for which fused kernels of masks and softmax do not apply.
    recompute : str
        Where blocks are recomputed: ``blocks`` computes them whole, ``reads`` what gradients read.
    host : Figure
        Seconds in which the host launches one operator.
    collective : Figure
        Further seconds of the host for each collective that computation waits for.
    skew : Figure
        Seconds by which two ranks begin a collective at different times, in place of those of the
        cluster file; a group of n ranks waits log2(n) times as long.
    exposed_parameters, exposed_activations : Rate
        Share of the communication of parameters and their gradients, and of that of activations,
        by which computation is longer: it waits, or kernels beside communication are slower.
    transfers : str
        Where ranks of a stage send the same tensor to the next stage: ``whole`` sends it from each,
        ``scattered`` a part from each, and gathers the parts there.
    stages : str
        Device groups of a pipeline go on ``apart``, or those that exchange something wait for each
        other after each of their segments, ``in_step``.
    transfer : Figure
        Seconds of a transfer between stages beside those of its bytes.
    step : Figure
        Seconds once in a step.
    kernel : str, optional
        The kernel of its fused attention, where the device has it among its own; then neither
        `kernels` nor `widths` counts.
    kernels : Figure, optional
        Rate of its fused attention over that of the cluster file.
    widths : HeadWidths, optional
        What its fused attention attains of that rate by the width of a head; without it all.
    exposed_transfers : Rate, optional
        Share of transfers between stages for which the next stage waits; all of them by default.
    biases, bias_gradients : Figure, optional
        Where biases of experts are added apart from the product, the memory traffic of that over
        reading and writing the rows once, and of their gradient over reading them once; without
        them both are inside the products.
    clamps : Figure, optional
        Where rows of experts are clamped apart from their activation, the memory traffic of that
        over reading and writing them once, of either direction; without it nothing.
    schedules : tuple of str, optional
        Orders of the passes of a pipeline that it has, by their names in `SCHEDULES`; without it
        all. A plan of another one can be priced, as if it had it.
    pairs : str
        Where a schedule has pairs of a forward and a backward pass (`Step`), one runs
        ``beside`` the other, or they run ``apart``, one after the other.
    exchange : str
        Where ranks divide experts, a token is sent for each of its ``choices``, or once to each of
        the ``ranks`` that have some of them, and once to each node.
    gate : str
        Which experts a token chooses: all ``alike``, or ``neighbours``, as the gate of a benchmark
        that balances loads.
    casts : str
        Under a recipe of low precision each product quantizes what it reads by itself, ``each``;
        products that read equal copies have them ``shared``, as a compiler finds them; or a tensor
        is quantized once for all of its products, and the copies are ``kept``.
    recipes : mapping of str to Rate
        Rate of its products by a recipe of low precision over that of the device; 1 of recipes
        that are not listed.
    memory : SoftwareMemory, optional
        How it keeps tensors; without it as the program.
    """

    name: str
    pointwise: Figure
    copies: Figure
    updates: Figure
    attention: Literal["fused", "separate"]
    scores: Figure
    softmax: Figure
    recompute: Literal["blocks", "reads"]
    host: Figure
    collective: Figure
    skew: Figure
    exposed_parameters: Rate
    exposed_activations: Rate
    transfers: Literal["whole", "scattered"]
    transfer: Figure
    step: Figure
    kernel: str | None = None
    kernels: Figure | None = None
    widths: HeadWidths | None = None
    exposed_transfers: Rate | None = None
    biases: Figure | None = None
    bias_gradients: Figure | None = None
    clamps: Figure | None = None
    stages: Literal["apart", "in_step"] = "apart"
    schedules: tuple[str, ...] | None = None
    pairs: Literal["apart", "beside"] = "apart"
    exchange: Sent = "choices"
    gate: Gate = "alike"
    casts: Casts = "each"
    recipes: dict[str, Rate] = Field(default_factory=dict)
    memory: SoftwareMemory | None = None

    def __hash__(self) -> int:
        # Explicit, because a dictionary has no hash.
        return hash((self.name, self.figures))

    @model_validator(mode="after")
    def _pairs_have_an_effect(self) -> Self:
        if self.pairs == "beside" and self.stages == "in_step":
            raise ValueError("`pairs: beside` has no effect with `stages: in_step`")
        return self

    @field_validator("schedules")
    @classmethod
    def _schedules_are_known(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name not in SCHEDULES:
                raise ValueError(f"`{name}` is no schedule; there are {', '.join(SCHEDULES)}")
        return names

    @field_validator("recipes")
    @classmethod
    def _recipes_are_known(cls, recipes: dict[str, Rate]) -> dict[str, Rate]:
        if unknown := sorted(set(recipes) - set(RECIPES)):
            raise ValueError(
                f"no recipe is called `{unknown[0]}`, expected {in_words(tuple(RECIPES))}"
            )
        return recipes

    def recipe_share(self, recipe: str) -> float:
        """Return the rate of products by a recipe over that of the device; empty: by none."""
        return self.recipes[recipe].value if recipe in self.recipes else 1.0

    def attention_of(self, width: float) -> float:
        """Return the rate of fused attention over that of the cluster file, by a head's width."""
        rate = 1.0 if self.kernels is None else self.kernels.value
        return rate * (1.0 if self.widths is None else self.widths.share(width))


def software_names() -> tuple[str, ...]:
    """Return the names of all profiles, the default first."""
    found = (Path(entry.name) for entry in _PRESETS.iterdir())
    return (IDEAL, *sorted(path.stem for path in found if path.suffix == ".yaml"))


def software_options(name: str) -> tuple[str, ...]:
    """Return the options of a profile."""
    return () if name == IDEAL else tuple(_file(name).get("options", ()))


def software(text: str) -> Software | None:
    """Return a profile by name and options, ``torchtitan+eager``; None for `IDEAL`.

    Raises
    ------
    ClusterError
        If there is no such profile, or it has no such option, or has it twice.
    """
    name, *chosen = text.split("+")
    names = software_names()
    if name not in names:
        close = get_close_matches(name, names, n=1)
        meant = f"did you mean `{close[0]}`? " if close else ""
        raise ClusterError(
            f"no software profile is called `{name}`", hint=f"{meant}there are {', '.join(names)}"
        )
    options = software_options(name)
    for i, option in enumerate(chosen):
        if option not in options:
            known = f"there are {', '.join(options)}" if options else "it has no options"
            if option.startswith("float8"):
                known = "say the type of products as `--precision fp8-current` or `fp8-rowwise`"
            raise ClusterError(f"software `{name}` has no option `{option}`", hint=known)
        if option in chosen[:i]:
            raise ClusterError(f"software `{text}` gives `{option}` twice", hint="give it once")
    changed = [key for option in chosen for key in _keys(_file(name)["options"][option])]
    for i, key in enumerate(changed):
        if key in changed[:i]:
            raise ClusterError(
                f"software `{text}` has two options that change `{key}`", hint="leave one out"
            )
    return None if name == IDEAL else _preset(text)


@cache
def _preset(text: str) -> Software:
    name, *chosen = text.split("+")
    content = {key: value for key, value in _file(name).items() if key != "options"}
    for option in chosen:
        content = _merged(content, _file(name)["options"][option])
    return Software.model_validate(content | {"name": text})


def _is_group(value: Any) -> bool:
    """Return whether a value of a file is no figure, but has figures."""
    return isinstance(value, dict) and "value" not in value


def _keys(changes: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the keys of what an option changes, those of groups with their group."""
    for key, value in changes.items():
        if _is_group(value):
            yield from _keys(value, f"{before}{key}.")
        else:
            yield before + key


def _merged(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file with changes, those of groups within them."""
    groups = {k: _merged(content.get(k, {}), v) for k, v in changes.items() if _is_group(v)}
    return {**content, **changes, **groups}


@cache
def _file(name: str) -> dict[str, Any]:
    found = yaml.safe_load((_PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found

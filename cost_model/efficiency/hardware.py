"""A device, and the links of a level of a cluster, with what they attain."""

from math import ceil, floor
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from shardwright.cost_model.efficiency.attained import (
    CollectiveRate,
    DeviceEfficiency,
    LinkEfficiency,
    Protocol,
)
from shardwright.cost_model.efficiency.figures import (
    LIBRARIES,
    Bytes,
    Description,
    Figure,
    Name,
    NotNegative,
    Positive,
)
from shardwright.cost_model.efficiency.kernels import Kernels
from shardwright.ir.errors import ClusterError
from shardwright.ir.types import DTYPES, TF32
from shardwright.ir.values import in_words
from shardwright.operators.models.precision import PRECISIONS
from shardwright.operators.models.recipes import RATES, RECIPES

HOST_LINKS = ("to_host", "from_host")
"""The two directions of the link to host memory, called as the operators that use them."""
_TAKEN = {
    "compute": "the stream of computation",
    "overlap": "an error of `--errors`",
    **dict.fromkeys(HOST_LINKS, "a link of the host"),
}
"""Names that levels are told apart from by their own."""


class Device(Description):
    """One accelerator (or one core) and its memory.

    Parameters
    ----------
    name : str
        Product name.
    peak_flops : dict of str to float
        Peak rate of dense matrix products for each element type, in flop/s. ``float32`` is
        required: it is the default for other element types. ``float8`` and ``float4`` are those of
        products by a recipe of low precision, ``tf32`` that of products of float32 in TF32.
    memory_bandwidth : float
        Bytes read or written per second.
    memory_bytes : int
        Size of the memory.
    launch_seconds : float
        Minimum time of one operator.
    memory_reserve : float
        Fraction of the memory that no tensor can have: the runtime's context, the buffers of the
        communication library, and what fragmentation loses. The default is the 6 % by which plans
        that are tuned on real devices stay below their memory.
    efficiency : DeviceEfficiency, optional
        What operators attain of the peaks; without it they attain all.
    kernels : Kernels, optional
        Its kernels that were measured one by one, in the place of the shares of `efficiency`; it
        has that too, for what is not among them.
    recipes : mapping of str to Figure
        The recipes of low precision whose products it has, each with the share of their peak that
        those attain over the share that products of 16 bits attain of theirs. A recipe with the
        same products as another one (`Recipe.products_of`) has its figure by default.
    tf32 : Figure, optional
        The share of their peak that products in TF32 attain, over the share that products of 16
        bits attain of theirs; by default 1.
    float8_layouts : str
        Products of low precision take operands along ``any`` dimension, or need both along the
        ``contracted`` one, as Hopper's: then a gradient needs a transposed copy.
    workspaces : mapping of str to Figure
        Bytes of one workspace of each library on this device; training software has some of each
        (`SoftwareMemory.libraries`). Libraries that are not listed take none.
    """

    name: Name
    peak_flops: dict[str, Positive]
    memory_bandwidth: Positive
    memory_bytes: Bytes
    launch_seconds: NotNegative
    memory_reserve: Annotated[float, Field(ge=0, lt=1)] = 0.06
    efficiency: DeviceEfficiency | None = None
    kernels: Kernels | None = None
    recipes: dict[str, Figure] = Field(default_factory=dict)
    tf32: Figure | None = None
    float8_layouts: Literal["contracted", "any"] = "contracted"
    workspaces: dict[str, Figure] = Field(default_factory=dict)

    @property
    def achieved_bandwidth(self) -> float:
        """Bytes per second that operators attain."""
        share = 1.0 if self.efficiency is None else self.efficiency.memory.value
        return self.memory_bandwidth * share

    @property
    def usable_bytes(self) -> float:
        """Bytes of the memory that tensors can have: all but the reserve."""
        return float(floor(self.memory_bytes * (1 - self.memory_reserve)))

    @field_validator("peak_flops")
    @classmethod
    def _known_dtypes(cls, peak_flops: dict[str, float]) -> dict[str, float]:
        if unknown := sorted(set(peak_flops) - {*DTYPES, *RATES, TF32}):
            raise ValueError(f"no element type is called `{unknown[0]}`")
        if "float32" not in peak_flops:
            raise ValueError("`float32` is missing")
        return peak_flops

    @field_validator("recipes")
    @classmethod
    def _same_products(cls, recipes: dict[str, Figure]) -> dict[str, Figure]:
        """Add the recipes whose products are those of a given one."""
        alike = {name: one.products_of for name, one in RECIPES.items() if name not in recipes}
        return recipes | {name: recipes[own] for name, own in alike.items() if own in recipes}

    @field_validator("workspaces")
    @classmethod
    def _known_libraries(cls, workspaces: dict[str, Figure]) -> dict[str, Figure]:
        if unknown := sorted(set(workspaces) - set(LIBRARIES)):
            raise ValueError(f"no library is called `{unknown[0]}`, expected {in_words(LIBRARIES)}")
        return workspaces

    @model_validator(mode="after")
    def _recipes_have_rates(self) -> Self:
        for name in self.recipes:
            if name not in RECIPES:
                raise ValueError(
                    f"no recipe is called `{name}`, expected {in_words(tuple(RECIPES))}"
                )
            if RECIPES[name].rate not in self.peak_flops:
                raise ValueError(f"`{RECIPES[name].rate}` of the recipe `{name}` is missing")
        return self

    @model_validator(mode="after")
    def _tf32_has_a_rate(self) -> Self:
        if self.tf32 is not None and TF32 not in self.peak_flops:
            raise ValueError("`tf32` of `peak_flops` is missing")
        return self

    @model_validator(mode="after")
    def _kernels_have_others_beside(self) -> Self:
        if self.kernels is not None and self.efficiency is None:
            raise ValueError("`kernels` has no effect without `efficiency`")
        return self

    def __hash__(self) -> int:
        # Explicit, because a dictionary has no hash.
        return hash((self.name, frozenset(self.peak_flops.items())))

    def under_software(self, kernel: str | None) -> Self:
        """Return the device for steps that a training software runs.

        `kernel`: that of attention which the software names.
        """
        if self.efficiency is None:
            return self
        if self.efficiency.profiled is None:  # then all of its figures count
            kernels = self.kernels and self.kernels.with_attention(kernel)
            return self.model_copy(update={"kernels": kernels})
        kernels = self.kernels and self.kernels.with_attention_alone(kernel)
        own = {"efficiency": self.efficiency.under_software(), "kernels": kernels}
        return self.model_copy(update=own)

    def flops_per_second(self, dtype: str) -> float:
        """Return the peak rate for an element type; by default float32's.

        Raises
        ------
        ClusterError
            If it is that of products in TF32, and the device has none.
        """
        if dtype == TF32 and dtype not in self.peak_flops:
            raise ClusterError(
                f"{self.name} has no rate of products in TF32",
                hint=f"it has {in_words(tuple(self.peak_flops))}; use `float32`",
            )
        return self.peak_flops.get(dtype, self.peak_flops["float32"])

    def over_short(self, dtype: str, recipe: str = "") -> float:
        """Return what TF32, or a recipe, attains of its peak over what 16 bits attain of theirs."""
        if recipe:
            return self.recipes[recipe].value
        is_own = dtype == TF32 and self.efficiency is not None
        return self.tf32.value if is_own and self.tf32 is not None else 1.0

    def check_products(self, precision: str) -> None:
        """Refuse a precision whose products the device does not have.

        Raises
        ------
        ClusterError
            If it has not.
        """
        policy = PRECISIONS[precision]
        if policy.recipe is not None:
            self.recipe_flops_per_second(policy.recipe.name)
        self.flops_per_second(policy.products)

    def recipe_flops_per_second(self, recipe: str) -> float:
        """Return the peak rate of the products of a recipe of low precision.

        Raises
        ------
        ClusterError
            If the device has none.
        """
        if recipe not in self.recipes:
            raise ClusterError(
                f"{self.name} has no rate of products by the recipe `{recipe}`",
                hint=f"it has {in_words(tuple(self.recipes))}"
                if self.recipes
                else "it has none of low precision; use `bfloat16`",
            )
        return self.peak_flops[RECIPES[recipe].rate]


class Level(Description):
    """Links between devices, or between groups of devices of the level below.

    Parameters
    ----------
    name : str
        Name of the group that the links connect: node, rack, pod.
    size : int
        Fan-out: number of members of the level below (devices, for the innermost).
    bandwidth : float
        Bytes per second that *each device* can send over these links while all devices send. For a
        node with 8 devices and 4 network ports of 12.5 GB/s that is 4 x 12.5 / 8 = 6.25 GB/s. Links
        are full duplex.
    latency : float, optional
        Seconds from sending an empty message to receiving it; None where protocols have their own.
    shared_by : int
        How many devices of the level below send through one card, `bandwidth` each. Where fewer of
        them are in use, each has more: one alone has the rate of the card.
    efficiency : LinkEfficiency, optional
        What collectives attain of the bandwidth, and how ranks differ; without it they attain all.
    """

    name: Name
    size: Annotated[int, Field(ge=1)]
    bandwidth: Positive
    latency: NotNegative | None = None
    shared_by: Annotated[int, Field(ge=1)] = 1
    efficiency: LinkEfficiency | None = None

    @field_validator("name")
    @classmethod
    def _is_no_other(cls, name: str) -> str:
        if name in _TAKEN:
            raise ValueError(f"no level can be called `{name}`, the name of {_TAKEN[name]}")
        return name

    @model_validator(mode="after")
    def _has_one_latency(self) -> Self:
        if self.latency is None and not self._protocols:
            raise ValueError("`latency` is missing")
        if self.latency is not None and self._protocols:
            raise ValueError(
                "`latency` has no effect, because `protocols` have their own: leave it out"
            )
        return self

    @property
    def _protocols(self) -> tuple[Protocol, ...]:
        return () if self.efficiency is None else self.efficiency.protocols

    @property
    def achieved_bandwidth(self) -> float:
        """Bytes per second of a device that collectives attain."""
        share = 1.0 if self.efficiency is None else self.efficiency.bandwidth.value
        return self.bandwidth * share

    @property
    def ways(self) -> tuple[tuple[float, float], ...]:
        """Seconds of an empty message, and seconds per byte, of each way to send."""
        rate = self.achieved_bandwidth
        sent = ((p.latency.value, 1 / (rate * p.bandwidth.value)) for p in self._protocols)
        return tuple(sent) or ((self.latency or 0.0, 1 / rate),)

    def send_seconds(self, nbytes: float) -> float:
        """Return the seconds of one message from a device to another."""
        return min(latency + nbytes * slope for latency, slope in self.ways)

    def ways_of(self, kind: str, *, several: bool = False) -> tuple[tuple[float, float], ...]:
        """Return the ways to send of a kind of collective: its own, where that was measured.

        `several`: of a group of several devices of each member, but not all.
        """
        own = self.measured(kind)
        if own is not None:
            return ((own.latency.value, 1 / own.bandwidth.value),)
        share = self.efficiency.several if several and self.efficiency is not None else None
        if share is None:
            return self.ways
        return tuple((latency, slope / share.value) for latency, slope in self.ways)

    def measured(self, kind: str) -> CollectiveRate | None:
        """Return what a kind of collective attains, where that was measured."""
        return None if self.efficiency is None else self.efficiency.collectives.get(kind)

    @property
    def skew_seconds(self) -> float:
        """Seconds of a collective of two ranks in which the first waits for the last."""
        found = None if self.efficiency is None else self.efficiency.skew
        return 0.0 if found is None else found.value

    def sharing(self, inside: int, used: int) -> int:
        """Return how many of some used devices of a member share its fullest card, lying evenly."""
        cards = ceil(inside / self.shared_by)
        return ceil(used / cards)

    def of_members(self, size: int, inside: int, used: int) -> Self:
        """Return the links where some of their members are in use.

        Parameters
        ----------
        size : int
            How many members are in use.
        inside, used : int
            The devices of a member, and how many of them are in use, evenly behind its cards.
        """
        sharing = self.sharing(inside, used)
        rate = self.bandwidth * self.shared_by / sharing
        own = {"size": size, "bandwidth": rate, "shared_by": sharing}
        return self.model_copy(update=own)

    def slower_by(self, factor: float) -> Self:
        """Return the links on which a message takes a factor of its seconds."""
        own = {
            "bandwidth": self.bandwidth / factor,
            "latency": self.latency and self.latency * factor,
            "efficiency": self.efficiency and self.efficiency.slower_by(factor),
        }
        return self.model_copy(update=own)

    def with_rings_alike(self) -> Self:
        """Return the links where rings of several devices of a member attain what others do."""
        if self.efficiency is None or self.efficiency.several is None:
            return self
        links = self.efficiency.model_copy(update={"several": None})
        return self.model_copy(update={"efficiency": links})

    def with_skew(self, skew: Figure) -> Self:
        """Return the links with ranks that differ by a skew; links of no efficiency as they are."""
        if self.efficiency is None:
            return self
        links = self.efficiency.model_copy(update={"skew": skew})
        return self.model_copy(update={"efficiency": links})

    def without_latency(self) -> Self:
        """Return the links without latency and skew, for messages of any size alike."""
        links = self.efficiency and self.efficiency.without_latency()
        return self.model_copy(update={"latency": 0.0, "efficiency": links})

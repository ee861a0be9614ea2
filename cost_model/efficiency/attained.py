"""What a device, and the links of a level, attain of their peaks."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from shardwright.cost_model.efficiency.figures import (
    Count,
    Description,
    Figure,
    MessageTimes,
    Name,
    PerSecond,
    Rate,
)
from shardwright.cost_model.redistribution.moves import PACKED
from shardwright.ir.values import suggestion
from shardwright.operators.communication.collectives import Communication, priced_as
from shardwright.operators.info import operator_class, operator_names

COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "all_to_all",
    "permute",
    "send",
)
"""The kinds of collectives."""
ALIGNED = 8
"""Numbers of 16 bits that a tensor core reads at once."""


class OperatorRate(Description):
    """What a device attains in one kind of operator, where that was measured by itself.

    An operator takes `launch` seconds, its work by `rate`: flops of matrix products, attention
    and convolutions, bytes that it reads and writes of all others; and, where flops do not explain
    its times alone, the bytes that it moves by `traffic`. Of operators whose ranks pass parts round
    `launch` counts in every round, and what is sent is counted in these figures.

    Parameters
    ----------
    rate : PerSecond
        Flops or bytes per second.
    launch : Figure
        Seconds without any work.
    traffic : PerSecond, optional
        Bytes per second of products, attention and convolutions: of operands and results, scores,
        and windows that are copied.
    """

    rate: PerSecond
    launch: Figure
    traffic: PerSecond | None = None

    def seconds(self, amount: float, moved: float) -> float:
        """Return the seconds of some work, and of the bytes that it moves besides."""
        seconds = self.launch.value + amount / self.rate.value
        return seconds if self.traffic is None else seconds + moved / self.traffic.value


class Unaligned(Description):
    """What matrix products of 16-bit numbers keep of their rate where tensors are not aligned.

    Tensor cores read 16 bytes at once, so the last dimensions of operands and result should be
    multiples of 8.

    Parameters
    ----------
    even : Rate, optional
        Where all of them are even, and one is no multiple of 8.
    odd : Rate, optional
        Where one is odd; by default as where one is even.
    """

    even: Rate | None = None
    odd: Rate | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.even is None and self.odd is None:
            raise ValueError("neither `even` nor `odd` is given")
        return self

    def share(self, alignment: int) -> float:
        """Return the share of the rate for the greatest of 1, 2, 4, 8 that divides all of them."""
        if alignment == ALIGNED:
            return 1.0
        found = self.odd if alignment == 1 and self.odd is not None else self.even
        return 1.0 if found is None else found.value


class ProfiledShares(Description):
    """The shares that profiles of training software were fitted with, in their place.

    Parameters
    ----------
    matmul, attention, memory : Rate
        As of `DeviceEfficiency`.
    """

    matmul: Rate
    attention: Rate
    memory: Rate


class DeviceEfficiency(Description):
    """What a device attains of its peaks, by class of operator.

    Parameters
    ----------
    matmul : Rate
        Share of the peak of large matrix products.
    attention : Rate
        Share of the peak of the products inside a fused attention.
    memory : Rate
        Share of the memory bandwidth.
    best_attention : Rate, optional
        The same as `attention` of the fastest kernel that is published for the device: half of it
        doubles the least step that `estimate` tells where attention takes most of a step. No step
        is timed by it.
    convolution : Rate, optional
        Share of the peak of convolutions; by default that of matrix products.
    multiprocessors : Count, optional
        Multiprocessors, over which the tiles of a product are dealt out in waves; without them
        products have no tiles.
    tile : Count, optional
        Rows and columns of a tile of a product; 128 by default.
    depth : Figure, optional
        Contracted length k at which a product attains half of its rate: k / (k + depth).
    unaligned : Unaligned, optional
        What products of 16-bit numbers keep where dimensions are no multiples of 8; else all.
    operators : mapping of str to OperatorRate
        Operators that were measured by themselves, by name; they take none of the shares above.
    profiled : ProfiledShares, optional
        The shares of a step that a training software runs, where its profile was fitted with
        others: the waits of real runs are partly in the profile and partly in these.
    """

    matmul: Rate
    attention: Rate
    memory: Rate
    best_attention: Rate | None = None
    convolution: Rate | None = None
    multiprocessors: Count | None = None
    tile: Count | None = None
    depth: Figure | None = None
    unaligned: Unaligned | None = None
    operators: dict[str, OperatorRate] = Field(default_factory=dict)
    profiled: ProfiledShares | None = None

    @field_validator("operators")
    @classmethod
    def _take_time(cls, operators: dict[str, OperatorRate]) -> dict[str, OperatorRate]:
        for name in operators:
            check_measured(name)
        return operators

    @model_validator(mode="after")
    def _tiles_are_dealt_out(self) -> Self:
        if self.tile is not None and self.multiprocessors is None:
            raise ValueError("`tile` has no effect without `multiprocessors`")
        return self

    def __hash__(self) -> int:
        # Explicit, because a dictionary has no hash.
        return hash((self.matmul, self.attention, self.memory, *self.operators))

    def under_software(self) -> Self:
        """Return what is attained in steps that a training software runs."""
        if self.profiled is None:
            return self
        own = {name: getattr(self.profiled, name) for name in ProfiledShares.model_fields}
        return self.model_copy(update={**own, "profiled": None})

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Its own figures, and those of operators."""
        parts = [*self.operators.values(), *([self.unaligned] if self.unaligned else [])]
        return (*super().figures, *(figure for part in parts for figure in part.figures))


def check_measured(name: str) -> None:
    """Refuse the figures of an operator that no program takes.

    Raises
    ------
    ValueError
        If it is no operator, communicates, or takes no time.
    """
    if name == "local_copy":  # what the cost model calls a copy on a rank
        return
    if name not in operator_names():
        near = suggestion(name, operator_names())
        raise ValueError(f"no operator is called `{name}`" + (f"; {near}" if near else ""))
    kind = operator_class(name)
    if issubclass(kind, Communication) and not kind.is_free and priced_as(name) != "local_copy":
        raise ValueError(f"`{name}` communicates, and is measured under `collectives` of a level")
    if kind.is_view or (issubclass(kind, Communication) and kind.is_free):
        raise ValueError(f"`{name}` takes no time")


class CollectiveRate(Description):
    """What one kind of collective attains of the links of a level, measured by itself.

    Parameters
    ----------
    latency : Figure
        Seconds of an empty message, all that starting the collective takes included.
    bandwidth : PerSecond
        Bytes per second of a device.
    messages : MessageTimes, optional
        Seconds by the bytes of a message, where a latency and a bandwidth do not describe them.
        They hold for groups of this level; groups of several levels take latency and bandwidth.
    packing : MessageTimes, optional
        Further seconds where the parts of an all-gather or a reduce-scatter are split along another
        dimension than the first, since they are copied there.
    """

    latency: Figure
    bandwidth: PerSecond
    messages: MessageTimes | None = None
    packing: MessageTimes | None = None

    def slower_by(self, factor: float) -> Self:
        """Return the rate of messages that take a factor of their seconds; packing is not sent."""
        own = {
            "latency": self.latency.with_value(self.latency.value * factor),
            "bandwidth": self.bandwidth.with_value(self.bandwidth.value / factor),
            "messages": self.messages and self.messages.slower_by(factor),
        }
        return self.model_copy(update=own)

    def without_latency(self) -> Self:
        """Return a rate by which no message takes longer than by this one, linear in its bytes."""
        bandwidth = self.bandwidth
        if self.messages is not None:
            fastest = max(bandwidth.value, 1 / self.messages.least_per_byte)
            bandwidth = bandwidth.with_value(fastest)
        empty = self.latency.with_value(0.0)
        none = {"messages": None, "packing": None}
        return self.model_copy(update={"latency": empty, "bandwidth": bandwidth, **none})


class Protocol(Description):
    """One way of a communication library to send over links.

    A library sends short messages in ways of less latency, which carry less of the bandwidth; every
    message takes the fastest. So the bandwidth that is attained rises with the bytes.

    Parameters
    ----------
    name : str
        Its name.
    bandwidth : Rate
        Share of the bandwidth that collectives attain.
    latency : Figure
        Seconds of an empty message.
    """

    name: Name
    bandwidth: Rate
    latency: Figure


class LinkEfficiency(Description):
    """What collectives attain of the links of a level.

    Parameters
    ----------
    bandwidth : Rate
        Share of the bandwidth.
    several : Rate, optional
        Share of that bandwidth, for groups of several devices of a member of the level, but not all
        of them: where their ring leaves a member by another device than it came in by, the one may
        be far from the network card of the other.
    skew : Figure, optional
        Seconds by which the ranks of a pair begin a collective at different times; a group of n
        waits log2(n) times as long, since more ranks have a later last one.
    protocols : tuple of Protocol
        Ways to send; without them there is one, of the whole share and the latency of the level,
        which has none beside them.
    collectives : mapping of str to CollectiveRate
        Collectives that were measured by themselves, by kind; they take neither the figures of the
        level nor the device's launch.
    """

    bandwidth: Rate
    several: Rate | None = None
    skew: Figure | None = None
    protocols: tuple[Protocol, ...] = ()
    collectives: dict[str, CollectiveRate] = Field(default_factory=dict)

    @field_validator("collectives")
    @classmethod
    def _known_kinds(cls, collectives: dict[str, CollectiveRate]) -> dict[str, CollectiveRate]:
        if unknown := sorted(set(collectives) - set(COLLECTIVES)):
            raise ValueError(f"no collective is called `{unknown[0]}`")
        for kind, rate in collectives.items():
            if rate.packing is not None and kind not in PACKED:
                raise ValueError(f"`{kind}` has `packing`, which {' and '.join(PACKED)} alone have")
        if "send" in collectives and collectives["send"].messages is not None:
            raise ValueError("`send` has `messages`, but it takes a latency and a bandwidth alone")
        return collectives

    def __hash__(self) -> int:
        # Explicit, because a dictionary has no hash.
        return hash((self.bandwidth, self.several, self.skew, self.protocols, *self.collectives))

    def slower_by(self, factor: float) -> Self:
        """Return what is attained where a message takes a factor of its seconds.

        Protocols have a share of the bandwidth of the links, which is slower already.
        """
        latencies = ((p, p.latency.with_value(p.latency.value * factor)) for p in self.protocols)
        protocols = (p.model_copy(update={"latency": latency}) for p, latency in latencies)
        own = {kind: rate.slower_by(factor) for kind, rate in self.collectives.items()}
        return self.model_copy(update={"protocols": tuple(protocols), "collectives": own})

    def without_latency(self) -> Self:
        """Return what is attained of the bandwidth by messages of any size alike: no latencies."""
        collectives = {kind: rate.without_latency() for kind, rate in self.collectives.items()}
        none = {"skew": None, "protocols": ()}
        return self.model_copy(update={**none, "collectives": collectives})

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Its own figures, and those of protocols and collectives."""
        parts = (*self.protocols, *self.collectives.values())
        return (*super().figures, *(figure for part in parts for figure in part.figures))

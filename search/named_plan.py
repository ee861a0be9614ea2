"""Named plans: parallel degrees as a person writes them for Megatron.

    tensor=8,data=16,zero=1,sequence_parallel

`heuristics.named_plan` builds the plan; here is the value, its text, and its mesh.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import prod

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster
from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.recompute_rules import RULES, rule_in
from shardwright.dataflow.schedules import check_options
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Value
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.values import (
    POSITIVE_INTEGER,
    check_choice,
    check_flag,
    check_names,
    in_words,
    wrong_value,
)
from shardwright.search.plan_axes import NAMES, on_levels
from shardwright.search.plan_dimensions import (
    DIMENSIONS,
    ZERO_STAGES,
    Held,
    Words,
    differing,
    held_by,
    tried_words,
    word_text,
)

RECOMPUTE = ("none", *RULES)
ZERO = tuple(range(len(ZERO_STAGES)))
_OF = "of the plan"
_HINT = "write `tensor=8,data=4,zero=1,sequence_parallel`"


@dataclass(frozen=True)
class NamedPlan:
    """A plan by its degrees; what is left out is 1, none or off.

    Parameters
    ----------
    tensor : int
        Ranks that share every weight of a product.
    pipeline : int
        Device groups that run different stages: numbers of the model's repeated blocks that differ
        by one at most, what comes before them in the first stage, what comes after them in the
        last. The last stage, then the first, has the fewest.
    data : int or None
        Ranks that share the batch; None for the ranks that the other degrees leave.
    context : int
        Ranks that share a sequence: attention splits its queries over them.
    ring : bool
        Whether keys and values pass round the context ranks; else they are gathered.
    expert : int
        Ranks between which experts are divided: out of all of a stage, the nearest ones behind
        those of `expert_tensor`, whatever they share elsewhere (Megatron-Core folds them so).
    expert_tensor : int or None
        Ranks that share the weights of an expert; None for as many as `tensor`.
    micro_batch : int or None
        Samples of one micro-batch on one data rank; None for all of its samples.
    chunks : int
        Stages of each device group.
    schedule : str or None
        Order of the micro-batches in a pipeline; by default ``1f1b``, interleaved with several
        chunks.
    recompute : str
        What is recomputed: a word of `RECOMPUTE`, or parts of blocks, ``layernorm+moe_act``.
    zero : int
        ZeRO stage: what is divided over the data ranks.
    shard : int
        Of the ranks that share the batch, how many divide what the ZeRO stage divides; groups of so
        many have copies (PyTorch's HSDP). 1 for all of them; with more, ``zero`` is 3 if it is 0.
    sequence_parallel : bool
        Whether activations between tensor-parallel products are split by position.
    more : tuple of (str, value)
        Words of further dimensions (`plan_dimensions`).

    Raises
    ------
    OptionError
        If a value is not allowed, or two contradict each other.

    Examples
    --------
    >>> NamedPlan.parse("data=2, tensor=4, sequence_parallel").text
    'tensor=4,data=2,sequence_parallel'
    """

    tensor: int = 1
    pipeline: int = 1
    data: int | None = None
    context: int = 1
    ring: bool = False
    expert: int = 1
    expert_tensor: int | None = None
    micro_batch: int | None = None
    chunks: int = 1
    schedule: str | None = None
    recompute: str = RECOMPUTE[0]
    zero: int = 0
    shard: int = 1
    sequence_parallel: bool = False
    more: Words = ()

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) is not None:
                POSITIVE_INTEGER.check(name, getattr(self, name), _OF)
        if self.schedule is not None:
            check_choice("schedule", self.schedule, SCHEDULES, _OF)
        object.__setattr__(self, "recompute", rule_in("recompute", self.recompute, RECOMPUTE, _OF))
        if type(self.zero) is not int or self.zero not in ZERO:  # neither a truth value nor 1.0
            raise wrong_value("zero", self.zero, "0, 1, 2 or 3", of=_OF)
        for name in _FLAGS:
            check_flag(name, getattr(self, name), _OF)
        if self.shard > 1 and not self.zero:
            object.__setattr__(self, "zero", ZERO[-1])
        if self.expert_tensor == self.tensor:
            object.__setattr__(self, "expert_tensor", None)
        object.__setattr__(self, "more", differing(self.more))
        self._check_combination()
        for name, value in self.more:
            if refusal := DIMENSIONS[name].refusal(value, dict(vars(self))):
                raise OptionError(
                    f"`{word_text(name, value)}` of the plan {refusal}", hint=f"leave `{name}` out"
                )

    def _check_combination(self) -> None:
        """Refuse a value that has no effect beside the others."""
        if self.sequence_parallel and self.tensor == 1:
            raise OptionError(
                "`sequence_parallel` splits activations over tensor ranks, and the plan has one",
                hint="leave it out, or write `tensor=2` or more",
            )
        if self.ring and self.context == 1:
            raise OptionError(
                "`ring` passes keys round the context ranks, and the plan has one",
                hint="leave it out, or write `context=2` or more",
            )
        if self.chunks > 1 and self.pipeline == 1:
            raise OptionError(
                f"`chunks={self.chunks}` interleaves stages, and the plan has one stage",
                hint="leave `chunks` out",
            )
        if self.schedule is not None and self.pipeline == 1:
            raise OptionError(
                f"`schedule={self.schedule}` orders the stages of a pipeline, and the plan has one "
                "stage",
                hint="leave `schedule` out",
            )
        if self.pipeline > 1:
            check_options(self.order, self.pipeline, self.chunks)
        self._check_shard()
        self._check_experts()
        if self.zero and self.data == self.context == 1 == self.expert_data:
            raise OptionError(
                f"`zero={self.zero}` divides over the data ranks, and the plan has one",
                hint="leave `zero` out",
            )

    def _check_experts(self) -> None:
        """Refuse ranks of experts that do not fold onto those of the rest of the model."""
        if self.expert_tensor is not None and self.tensor > 1 and not self.sequence_parallel:
            raise OptionError(
                f"`expert_tensor={self.expert_tensor}` of the plan divides tokens between tensor "
                "ranks, which all hold the same without `sequence_parallel`",
                hint="add `sequence_parallel`",
            )
        if not self.folds:
            return
        own = self._written("expert_tensor", "expert")
        if self.data is not None:
            ranks, others = self.ranks_of_stage, self._written("tensor", "context", "data")
            if ranks % (self.of_experts * self.expert):
                raise OptionError(
                    f"{own} of the plan does not divide the {ranks} ranks of a stage, {others}",
                    hint=f"use degrees whose product divides {ranks}",
                )
        ends = sorted(set(self._ends.values()))
        for near, far in pairwise(ends):
            if far % near:
                raise OptionError(
                    f"{own} of the plan does not fold onto {self._written('tensor', 'context')}: "
                    f"groups of {near} and of {far} ranks would overlap in part",
                    hint="use degrees of which products divide each other, such as powers of two",
                )

    def _written(self, *names: str) -> str:
        """Return degrees as they are written, those above 1, else the first."""
        degrees = {name: getattr(self, name) for name in names}
        if "expert_tensor" in degrees:
            degrees["expert_tensor"] = self.of_experts
        shown = [f"`{name}={n}`" for name, n in degrees.items() if n > 1]
        return " * ".join(shown) or f"`{names[0]}=1`"

    def _check_shard(self) -> None:
        """Refuse groups of ranks that divide parameters, and are no groups of data ranks."""
        if self.shard == 1:
            return
        if self.data is not None and self.data % self.shard:
            raise OptionError(
                f"`shard={self.shard}` does not divide `data={self.data}`: groups of ranks that "
                "share the batch divide the parameters",
                hint=f"use a divisor of {self.data}",
            )
        group, experts = self.tensor * self.context * self.shard, self.of_experts * self.expert
        if self.folds and (group % experts or group == experts):
            raise OptionError(
                f"`shard={self.shard}` makes groups of {group} ranks, no larger multiple of "
                f"{self._written('expert_tensor', 'expert')}: groups of expert ranks divide the "
                "parameters",
                hint=f"use a larger multiple of {experts} ranks, or leave `shard` out",
            )

    @classmethod
    def parse(cls, text: str) -> "NamedPlan":
        """Return the plan that a text names.

        Raises
        ------
        OptionError
            If a key is unknown or given twice, or a value is wrong.
        """
        values: dict[str, object] = {}
        for item in text.split(","):
            key, value = _item(item.strip(), text)
            if key in values:
                raise OptionError(f"the plan gives `{key}` twice", hint="give it once")
            values[key] = value
        if values.get("zero") == 0 and values.get("shard", 1) != 1:
            raise OptionError(
                "`shard` of the plan says how many ranks `zero` divides over, and `zero` is 0",
                hint="leave `zero=0` out, or `shard`",
            )
        more = tuple((name, values.pop(name)) for name in [*values] if name not in _KEYS)
        return cls(**values, more=more)  # type: ignore[arg-type]  # checked by the constructor

    @property
    def text(self) -> str:
        """The text that `parse` reads: what differs from the defaults, in a fixed order."""
        defaults = {item.name: item.default for item in fields(self)}
        shown = ((n, getattr(self, n)) for n in _KEYS if getattr(self, n) != defaults[n])
        return ",".join(word_text(*word) for word in (*shown, *self.more)) or "tensor=1"

    def __str__(self) -> str:
        return self.text

    @property
    def hint(self) -> str:
        """What to change in a plan that does not fit: what it does not use yet."""
        unused = {
            "a larger `tensor`": True,
            "`zero=3`": self.zero < ZERO[-1] and self.data != 1,
            "`recompute=full`": self.recompute != RECOMPUTE[-1],
            "a smaller `micro_batch`": self.micro_batch != 1,
        }
        ways = in_words([way for way, is_left in unused.items() if is_left])
        return f"try {ways}, or leave the plan out and search"

    @property
    def order(self) -> str:
        """The schedule of a pipeline."""
        return self.schedule or ("interleaved" if self.chunks > 1 else "1f1b")

    # Parameters

    @property
    def zero_stage(self) -> Held:
        """How a parameter is held for which no other word of the plan says more."""
        return ZERO_STAGES[self.zero]

    def held(self, parameter: Value) -> Held:
        """Return how a parameter is held."""
        return held_by(self.zero, self.more, parameter)

    # Experts

    @property
    def folds(self) -> bool:
        """Whether experts have degrees of their own."""
        return self.expert > 1 or self.expert_tensor is not None

    @property
    def of_experts(self) -> int:
        """Ranks that share the weights of an expert."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def ranks_of_stage(self) -> int:
        """Ranks of a stage; without `data`, those of one data rank."""
        return self.tensor * self.context * (self.data or 1)

    @property
    def expert_data(self) -> int:
        """Ranks that have copies of the same experts: data ranks of experts."""
        return max(self.ranks_of_stage // (self.of_experts * self.expert), 1)

    @property
    def _ends(self) -> dict[str, int]:
        """After how many ranks, from the nearest on, each degree of a stage ends."""
        tensor, context = self.tensor, self.tensor * self.context
        found = {"tensor": tensor, "context": context}
        if self.folds:
            within = self.of_experts
            found |= {"within": within, "expert": within * self.expert}
        if self.shard > 1:
            found["shard"] = context * self.shard
        return found if self.data is None else {**found, "data": self.ranks_of_stage}

    # On devices

    def on(self, devices: int) -> "NamedPlan":
        """Return the plan with its data ranks, for a number of devices.

        Raises
        ------
        OptionError
            If the product of the degrees is another number.
        """
        others = {name: getattr(self, name) for name in ("tensor", "context", "pipeline")}
        each = prod(others.values())
        if self.data is None and devices % each == 0:
            return replace(self, data=devices // each)
        degrees = {**others, "data": self.data}
        written = " * ".join(f"{n}={v}" for n, v in degrees.items() if v not in (None, 1))
        if self.data is None:
            what = f"does not divide the {devices} devices"
        elif each * self.data == devices:
            return self
        else:
            what = f"is {each * self.data}, there are {devices} devices"
        raise OptionError(
            f"the product of the plan's degrees {written or '1'} {what}",
            hint="leave `data` out, and it takes the devices that the others leave",
        )

    def passes(self, batch: int, devices: int) -> int:
        """Return the number of micro-batches of a batch.

        Raises
        ------
        OptionError
            If the batch cannot be divided so.
        """
        data = self.on(devices).data or 1
        if batch % data:
            raise OptionError(
                f"the batch of {batch} cannot be split over `data={data}` of the plan",
                hint=f"use a batch that {data} divides",
            )
        if self.micro_batch is None:
            return 1
        if batch % (data * self.micro_batch):
            raise OptionError(
                f"`micro_batch={self.micro_batch}` does not divide the {batch // data} samples of "
                f"each data rank",
                hint=f"use a divisor of {batch // data}",
            )
        return batch // (data * self.micro_batch)

    def mesh(self, cluster: AnyCluster, devices: int) -> Mesh:
        """Return the mesh of a stage: tensor ranks nearest, context, experts, shards, data.

        A degree that spans levels of the cluster has an axis on each.

        Raises
        ------
        ShardwrightError
            If the degrees do not fit the devices, or the levels of the cluster.
        """
        if isinstance(cluster, MixedCluster):
            return self._mesh_of_parts(cluster, devices)
        axes: list[MeshAxis] = []
        for name, parts in self.parts(cluster, devices).items():
            for size, level in parts if name != "pipeline" else ():
                suffix = f"_{cluster.levels[level].name}" if len(parts) > 1 else ""
                axes.append(MeshAxis(name + suffix, size, level))
        return Mesh(tuple(reversed(axes)))

    def _mesh_of_parts(self, cluster: MixedCluster, devices: int) -> Mesh:
        """Return the mesh of a stage, which lies alike in every part."""
        plan, groups = self.on(devices), cluster.in_groups(devices, self.pipeline)
        meshes = []
        for number, part in groups.by_part.items():
            count = groups.parts.count(number)
            own = replace(plan, pipeline=count, chunks=1, schedule=None)
            meshes.append(own.mesh(part, count * devices // plan.pipeline))
        shapes = [[(axis.size, axis.level) for axis in mesh.axes] for mesh in meshes]
        if any(shape != shapes[0] for shape in shapes):
            texts = " and ".join(str(mesh) for mesh in meshes)
            raise OptionError(
                f"the ranks of the plan lie otherwise in each part of `{cluster.name}`: {texts}",
                hint="use degrees that lie alike, or another number of stages",
            )
        return meshes[0]

    def stage_level(self, cluster: AnyCluster, devices: int) -> int:
        """Return the level of the cluster whose links the stages use: the outermost."""
        if isinstance(cluster, MixedCluster):
            return cluster.in_groups(devices, self.pipeline).level
        return max((level for _, level in self.parts(cluster, devices)["pipeline"]), default=0)

    def parts(self, cluster: Cluster, devices: int) -> dict[str, list[tuple[int, int]]]:
        """Return for each degree its (size, level), innermost first.

        Ranks that have one part elsewhere and another at the experts are apart: `tensor_expert` is
        of tensor ranks that divide experts, `tensor_copies` of those that have copies of them.

        Raises
        ------
        ShardwrightError
            If the degrees do not fit the devices, or the levels of the cluster.
        """
        plan = self.on(devices)
        degrees = dict(plan._segments())
        for name in (*_ORDER, "expert"):
            degrees.setdefault(name, 1)
        degrees["pipeline"] = plan.pipeline
        left = [*cluster.for_devices(devices)]
        return {n: list(on_levels(n, degree, left, cluster)) for n, degree in degrees.items()}

    def _segments(self) -> Iterator[tuple[str, int]]:
        """Yield the ranks of a stage by what they share elsewhere and at experts, nearest first."""
        ends = self._ends
        within = ends["within"] if self.folds else ends["tensor"]
        for near, far in pairwise(sorted({1, *ends.values()})):
            elsewhere = next(name for name in _ORDER if near < ends.get(name, 1))
            divides = "expert" if near < ends.get("expert", 1) else "copies"
            yield NAMES[elsewhere, "within" if near < within else divides], far // near


_ORDER = ("tensor", "context", "shard", "data")  # degrees by their ranks, neighbours first
_KEYS = tuple(item.name for item in fields(NamedPlan) if item.name != "more")
_FLAGS = ("ring", "sequence_parallel")
_COUNTS = (
    *("tensor", "pipeline", "data", "context", "expert", "expert_tensor", "micro_batch", "chunks"),
    "shard",
)


def _item(item: str, text: str) -> tuple[str, object]:
    """Return the key and the value of one item of a plan."""
    key, equals, value = (part.strip() for part in item.partition("="))
    if not key:
        raise OptionError(f"the plan `{text}` has an empty item", hint=_HINT)
    check_names("a named plan has no", [key], (*_KEYS, *DIMENSIONS))
    if key in _FLAGS or (key in DIMENSIONS and DIMENSIONS[key].default is False):
        if equals:
            raise OptionError(
                f"`{key}` of the plan has the value `{value}`, expected the word alone"
            )
        return key, True
    if not value:
        raise OptionError(f"`{key}` of the plan has no value", hint=f"write `{key}=...`")
    return key, _number(value) if key in (*_COUNTS, "zero", *DIMENSIONS) else value


def _number(text: str) -> float | str:
    """Return the number that a text is; the text itself if it is none."""
    if re.fullmatch(r"-?[0-9]{1,15}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?[0-9]{1,15}\.[0-9]{1,15}", text) else text


def with_words(plan: NamedPlan) -> Iterator[NamedPlan]:
    """Yield a plan with the values of further dimensions that are tried, first as it is."""
    for words in tried_words():
        with suppress(OptionError):  # a word that has no effect in the plan
            yield replace(plan, more=differing((*plan.more, *words)))


def copies_and_shards(plan: NamedPlan) -> tuple[int, int]:
    """Return how many groups of data ranks have copies, and how many ranks divide parameters.

    Examples
    --------
    >>> copies_and_shards(NamedPlan(data=16, shard=8)), copies_and_shards(NamedPlan(data=4))
    ((2, 8), (4, 1))
    """
    data = plan.data or 1
    shards = (plan.shard if plan.shard > 1 else data) if plan.zero else 1
    return data // shards, shards


def divisors(number: int) -> list[int]:
    """Return the divisors of a number: the degrees that it can be divided into."""
    return [n for n in range(1, number + 1) if number % n == 0]

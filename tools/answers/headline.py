"""The first lines of an answer: a plan and its figures in an engineer's words."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwright.compiler.plans.document import PlanDocument
from shardwright.compiler.plans.parallelism import (
    COPIES,
    DATA,
    SEQUENCE,
    TENSOR,
    Parallelism,
    Recomputed,
)
from shardwright.compiler.plans.plan import Plan
from shardwright.compiler.plans.rates import Rates
from shardwright.cost_model.efficiency.intervals import Interval
from shardwright.cost_model.model_flops import batch_size
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster
from shardwright.cost_model.pipelines.step import MemoryLimit, least_limit
from shardwright.ir.graph import Graph
from shardwright.ir.units import bytes_text, gap_text, seconds_text
from shardwright.operators.models.precision import MASTER
from shardwright.tools.answers.kept import Kept
from shardwright.tools.console.arguments import width
from shardwright.tools.console.tables import styled

_GIB = 2**30
_INDENT = "  "  # of lines that go on


@dataclass(frozen=True)
class Headline:
    """What the first lines tell.

    Parameters
    ----------
    plan : Plan
        The plan.
    step_seconds : float
        Its overlapped step.
    rates : Rates
        How fast it trains.
    limit : float or tuple of float
        Memory limit of a device in bytes, or of those of each device group.
    run_by : str
        The training software that the step is of; empty for the program itself.
    chosen : str
        Why the batch is the one it is; empty where the user gave it.
    compared : str
        How good the plan is among others, in the place of its bound; empty for the bound.
    kept : Kept or None
        What the software keeps in memory; None where that is not known.
    interval : Interval or None
        What runs like it take; None where no published step tells.
    """

    plan: Plan
    step_seconds: float
    rates: Rates
    limit: MemoryLimit
    run_by: str = ""
    chosen: str = ""
    compared: str = ""
    kept: Kept | None = None
    interval: Interval | None = None

    @property
    def sentences(self) -> Iterator[str]:
        """The lines: how work is divided, what that takes, what is trained, what it is near."""
        document, parallelism = self.plan.document, Parallelism.of(self.plan)
        where = f"{document.devices} {device_name(document.cluster)}"
        yield f"{where}: {', '.join(divided(parallelism, document.devices))}"
        yield f"{self._figures}; {self.compared or self._certificate}"
        yield self._trained
        if near := near_text(document, parallelism):
            yield near

    @property
    def _figures(self) -> str:
        speed, memory = self.rates, self.plan.document.memory
        how = f" as {self.run_by} runs it" if self.run_by else ""
        tokens = speed.tokens_per_second_per_device
        rate = f"{rate_text(speed.samples_per_second)} samples/s"
        if tokens is not None:
            rate = f"{rate_text(tokens)} tokens/s a device"
        share = f"{speed.utilization:.0%} MFU"
        kept = _of(memory.peak_bytes, least_limit(self.limit))
        fits = "" if memory.fits(self.limit) else ", which does not fit"
        if self.kept is not None and self.kept.report.peak_bytes > memory.peak_bytes:
            kept = f"{_of(self.kept.report.peak_bytes, self.kept.limit)} as it keeps tensors"
            fits = fits if self.kept.fits else ", which does not fit"
        step = seconds_text(self.step_seconds)
        ends = "" if self.interval is None else f" ({interval_text(self.interval)})"
        return f"{step} a step{how}{ends}, {rate}, {share}, {kept}{fits}"

    @property
    def _certificate(self) -> str:
        document = self.plan.document
        if document.lower_bound <= 0:
            return "no bound says how far it is from the best"
        where = document.bound_covers
        what = "" if document.objective_is == "overlapped step" else "by its serial step "
        if document.cost_model != "time":
            what = "by its cost "
        if document.status == "optimal":
            return f"{what}the best possible {where}"
        return f"{what}at most {gap_text(document.gap)} from the best possible {where}"

    @property
    def _trained(self) -> str:
        document = self.plan.document
        batch = batch_size(self.plan.model)
        words = [_precision(document.precision, self.plan.model), document.optimizer.kind]
        each = "" if batch.tokens is None else f" of {batch.tokens // batch.samples:,} tokens"
        chosen = f" ({self.chosen})" if self.chosen else ""
        return f"trained in {', '.join(words)}, batch {batch.samples:,}{each}{chosen}"


def _precision(policy: str, model: Graph) -> str:
    """Return the type in which a step is computed, or in which a model keeps all parameters."""
    kinds = {p.value.type.dtype for p in model.parameters if p.trainable and p.value.type.is_float}
    if policy != MASTER or kinds <= {MASTER} or len(kinds) > 1:
        return policy
    return f"{kinds.pop()}, parameters and states too"


def print_sentences(sentences: Sequence[str]) -> None:
    """Print the first lines of an answer, the first of them bold."""
    for number, sentence in enumerate(sentences):
        style = "" if number else "bold"
        lines = textwrap.wrap(sentence, max(40, width() - len(_INDENT)), break_on_hyphens=False)
        for i, line in enumerate(lines):
            print(styled(f"{_INDENT if i else ''}{line}", style))
    print()


def device_name(cluster: AnyCluster) -> str:
    """Return the name of the devices; of several kinds, that of the cluster."""
    return f"of {cluster.name}" if isinstance(cluster, MixedCluster) else cluster.device.name


def interval_text(found: Interval) -> str:
    """Return the ends of an interval.

    Examples
    --------
    >>> interval_text(Interval(0.87, 1.02, "fitted", "11 published steps"))
    '870 ms to 1.02 s'
    >>> interval_text(Interval(1.1, 1.6, "program", "11 published steps"))
    '1.1 s to 1.6 s as training software runs it'
    """
    how = " as training software runs it" if found.known_by == "program" else ""
    return f"{seconds_text(found.low)} to {seconds_text(found.high)}{how}"


def rate_text(number: float) -> str:
    """Return a rate to at least three digits.

    Examples
    --------
    >>> rate_text(88751.4), rate_text(3.14159)
    ('88,751', '3.14')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _of(taken: float, limit: float) -> str:
    """Return bytes out of a limit, in one unit where both are large."""
    if taken >= _GIB and limit < 1024 * _GIB:
        return f"{taken / _GIB:.1f} of {limit / _GIB:.1f} GiB"
    return f"{bytes_text(taken)} of {bytes_text(limit)}"


def divided(found: Parallelism, devices: int) -> list[str]:
    """Return how the work of a step is divided, in phrases."""
    phrases = [*_degrees(found, devices)] or ["one device does all"]
    if found.passes > 1:
        each = found.samples // (found.passes * found.ranks[DATA])
        of = f" of {each} sample{'s' * (each > 1)}" if found.samples > 1 else ""
        phrases.append(f"{found.passes} micro-batches{of}")
    phrases.append(recomputation(found.recomputed))
    if found.loss_chunks > 1:
        phrases.append(f"the loss in {found.loss_chunks} chunks")
    return phrases


def _degrees(found: Parallelism, devices: int) -> Iterator[str]:
    if found.groups > 1:
        each = f", {found.chunks} stages each" if found.chunks > 1 else ""
        yield f"a pipeline of {found.groups} device groups ({found.schedule}{each})"
    if found.ranks[TENSOR] > 1:
        scattered = " with sequence parallelism" if found.scattered else ""
        yield f"tensor parallel over {_number(found.ranks[TENSOR], devices)}{scattered}"
    if found.ranks[SEQUENCE] > 1:
        heads = " (attention by heads)" if found.by_heads else ""
        yield f"context parallel over {_number(found.ranks[SEQUENCE], devices)}{heads}"
    if found.expert > 1:
        yield f"expert parallel over {_number(found.expert, devices)}"
    if found.expert_tensor not in (None, found.ranks[TENSOR]):
        yield f"each expert over {_number(found.expert_tensor or 1, devices)}"
    yield from _sharing(found, devices)
    if found.ranks[COPIES] > 1:
        yield f"{_number(found.ranks[COPIES], devices)} ranks compute the same"


def _sharing(found: Parallelism, devices: int) -> Iterator[str]:
    """Yield the phrases on the ranks that have samples of their own, and what they store."""
    data, part = found.ranks[DATA], found.divided
    if found.zero == 3:
        if data > 1 and data != part:
            yield f"data parallel over {_number(data, devices)}"
        copies = found.sharing // part
        kind = f"FSDP over {_number(part, devices)}"
        yield kind if copies == 1 else f"HSDP: {kind}, {copies} copies"
        return
    over = ""
    if found.zero:
        some = "" if part == data else f" over {_number(part, devices)}"
        over = f" with ZeRO-{found.zero}{some}"
    if data > 1:
        yield f"data parallel over {_number(data, devices)}{over}"
    elif over:
        yield f"parameters divided{over.removeprefix(' with')}"


def _number(count: int, devices: int) -> str:
    return f"all {count}" if count == devices else str(count)


def recomputation(found: Recomputed) -> str:
    """Return what is computed again for the gradient, in a phrase."""
    layers = found.layers
    if found.whole:
        some = f"all {layers}" if found.whole == layers else f"{found.whole} of {layers}"
        rest = found.with_products + found.others
        return f"full recomputation of {some} layers" + f", in part of {rest}" * (rest > 0)
    if found.with_products:
        return f"recomputation of some products of {found.with_products} of {layers} layers"
    if found.others:
        return f"recomputation of small operators in {found.others} of {layers} layers"
    return "some recomputation" if found.elsewhere else "no recomputation"


def near_text(document: PlanDocument, found: Parallelism) -> str:
    """Return the named plan that a searched one is near, and how it differs; empty of no search."""
    if document.search == "named_plan" or found.ranks[COPIES] == document.devices:
        return ""
    plan = found.named
    if plan is None:
        return "near no named plan: the work is divided in ways that have no one name"
    if not found.differences:
        return f"near the named plan `{plan}`, in what degrees tell"
    return f"near the named plan `{plan}`; here {'; '.join(found.differences)}"

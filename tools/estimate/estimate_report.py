"""What `estimate` prints for people."""

from collections.abc import Sequence

from shardwright.cost_model.events import Timeline
from shardwright.cost_model.pipelines.mixed import AnyCluster, mean_device
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.tools.answers.experts import experts_text
from shardwright.tools.answers.headline import print_sentences
from shardwright.tools.answers.kept import NOT_COUNTED
from shardwright.tools.console.tables import print_line, print_table
from shardwright.tools.estimate.estimate_document import Estimated, folded_layers, tagged
from shardwright.tools.estimate.exposed import parts_of_step
from shardwright.tools.reports.origins import attained_text, figures_line
from shardwright.tools.reports.report import (
    groups_text,
    memory_of_groups,
    stages_text,
    training_text,
)

_TOLD = 1024  # bytes of a row of layers: the number of the step is not told


def print_estimate(found: Estimated, first: Sequence[str] = (), verbose: bool = False) -> None:
    """Print the figures of a plan.

    Parameters
    ----------
    found : Estimated
        The plan.
    first : sequence of str
        What is said first; see `Headline`.
    verbose : bool
        Whether to print all figures, not only the parts of the step and of the memory.
    """
    document = found.planned.plan.document
    part = document.cluster.part_text(document.devices)
    devices = f"{document.devices} device{'s' if document.devices > 1 else ''}"
    title = f"{document.model} on {devices} of {document.cluster.name}{part}: {document.how}"
    print(title)
    print_sentences(first)
    _print_parts(found)
    if verbose:
        _print_figures(found)
        _print_doubts(found)
        _print_peaks(found)
        return
    _print_memory(found)
    _print_doubts(found)
    if figures := figures_line(found.cluster):
        print_line("figures", figures)
    print_line("more", "`--verbose` tells the rest, `--html` writes a page to look at")


def _print_parts(found: Estimated) -> None:
    """Print what the step consists of."""
    step = found.timeline.step_seconds
    rows = [
        (name, seconds_text(seconds), f"{seconds / step:.1%}")
        for name, seconds in parts_of_step(found.timeline, found.exposed).items()
    ]
    print_table("", ("part of the step", "time", "share"), rows, right=(1, 2))


def _print_figures(found: Estimated) -> None:
    document, timeline, run_by = found.planned.plan.document, found.timeline, found.cluster.software
    serial = seconds_text(document.predicted_step_seconds)
    how, alone = "overlapped", ""
    if run_by is not None:
        how, alone = f"as {run_by.name} runs it", " without it"
    step = f"{seconds_text(timeline.step_seconds)} {how}, {serial} serial{alone}"
    fits = document.memory.fits(found.limit)
    print_line("step", step if fits else f"{step}, with memory enough")
    training = training_text(document)
    if training is not None:
        print_line("training", training)
    if document.micro_batches > 1:
        print_line("batch", f"{document.micro_batches} micro-batches, gradients accumulated")
    _print_rates(found)
    print_line("network", _network(found))
    if document.device_by_group:
        print_line("stages", stages_text(found.planned))
    print_line("bubble", _bubble(found.planned.plan.program.stages, timeline))
    _print_memory(found)
    print_line(
        "figures",
        f"rates, bandwidths and latencies of {document.cluster.name} are those of its cluster "
        f"file, from data sheets{_adjusted(found.cluster)}{attained_text(found.cluster)}",
    )


def _print_doubts(found: Estimated) -> None:
    """Print what one figure or one buffer decides."""
    for number, doubt in enumerate(found.doubts):
        print_line("" if number else "doubts", doubt)


def _print_rates(found: Estimated) -> None:
    """Print samples and tokens per second, and the shares of the peak rate."""
    speed, device = found.rates, mean_device(found.cluster)
    tokens = speed.tokens_per_second_per_device
    each = "" if tokens is None else f"{_rate(tokens)} tokens/s on each device, "
    print_line("rate", f"{each}{_rate(speed.samples_per_second)} samples/s on all")
    peaks = ", ".join(
        f"{device.flops_per_second(dtype) / 1e12:.4g} Tflop/s ({dtype})"
        for dtype in speed.flops.by_dtype
    )
    forward = speed.flops.forward
    times = f"{speed.flops.total / forward:.3g}" if forward else "no"
    times = "three" if times == "3" else times
    work = (
        f"{speed.flops.total:.3g} flops of matrix products in a step, {times} times the forward "
        "pass"
    )
    print_line("MFU", f"{speed.utilization:.1%} of {peaks or 'nothing'}: {work}")
    print_line("HFU", f"{found.hardware_utilization:.1%}: {_more_work(found)}")


def _more_work(found: Estimated) -> str:
    """Return what devices compute beside the model flops."""
    flops, work = found.rates.flops.total, found.work.total
    if work <= flops:
        return "no product is computed again"
    whole = " in whole blocks" if found.recomputes_blocks else ""
    return f"{(work - flops) / flops:.1%} more are computed again{whole}"


def _network(found: Estimated) -> str:
    """Return the seconds of communication, and which of them are exposed."""
    exposed, pipeline = found.exposed, found.planned.plan.program.stages
    total = sum(exposed.by_kind.values())
    text = f"{seconds_text(found.timeline.communication_seconds)}, of which "
    text += f"{seconds_text(total)} exposed" if total else "none exposed"
    if total:
        parts = (f"{kind} {seconds_text(one)}" for kind, one in exposed.by_kind.items())
        text += f": {', '.join(parts)}"
    if exposed.waiting:
        other = " and transfers between stages" if pipeline else ""
        text += f"; {seconds_text(exposed.waiting)} wait for the host{other}"
    return text


def _print_memory(found: Estimated) -> None:
    document, limit = found.planned.plan.document, found.limit
    memory = document.memory
    kinds = ", ".join(
        f"{k} {bytes_text(size)}" for k, size in memory.by_kind.items() if round(size)
    )
    alone = "fits" if found.kept is None else "for the program alone"
    verdict = alone if memory.fits(limit) else "does not fit"
    if isinstance(limit, tuple):
        print_line("memory", f"{memory_of_groups(document, limit)}, {verdict}: {kinds}")
    else:
        peak = f"{bytes_text(memory.peak_bytes)} of {bytes_text(limit)}"
        print_line("memory", f"{peak}, {verdict}: {kinds}{groups_text(memory)}")
    print_line("kept", f"not counted: {NOT_COUNTED}" if found.kept is None else found.kept.text)
    if experts := experts_text(found.planned.plan.program):
        print_line("experts", experts)


def _print_peaks(found: Estimated) -> None:
    """Print the memory of each device group at its peak, by layer and kind."""
    kinds = [k for k, n in found.planned.plan.document.memory.by_kind.items() if round(n)]
    rows = []
    for group, peak in enumerate(found.peaks):
        folded = folded_layers(peak["layers"], kinds)
        told = [row for row in folded if row[1][-1] >= _TOLD]
        for number, (layers, sizes) in enumerate(told):
            cells = (bytes_text(size) if round(size) else "" for size in sizes)
            rows.append(("" if number else str(group), layers, *cells))
    title, headings = "memory at the peak, by layer", ("group", "layers", *kinds, "all")
    if len(found.peaks) > 1:
        title = "memory of each device group at its peak, by layer"
    else:
        headings, rows = headings[1:], [row[1:] for row in rows]
    print()
    print_table(title, headings, rows, right=range(len(headings) - len(kinds) - 1, len(headings)))


def _adjusted(cluster: AnyCluster) -> str:
    """Return which figures are not of data sheets: their names, by their tags."""
    by_tag: dict[str, list[str]] = {}
    for name, figure in tagged(cluster):
        if figure.tag != "datasheet":
            by_tag.setdefault(figure.tag, []).append(name)
    found = [f"{tag}: {', '.join(names)}" for tag, names in sorted(by_tag.items())]
    return f"; {'; '.join(found)}" if found else ""


def _bubble(stages: int, timeline: Timeline) -> str:
    """Return how long a device group of a pipeline waits for others in a step."""
    if not stages:
        return "none: the plan has one stage"
    share = timeline.bubble_seconds / timeline.step_seconds
    return f"{seconds_text(timeline.bubble_seconds)}, {share:.1%} of the step, in {stages} stages"


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"

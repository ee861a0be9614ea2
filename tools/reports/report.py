"""The report of ``shardwright compile``: strategies, layouts, costs, and the certificate."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from math import inf, isfinite
from operator import itemgetter
from pathlib import Path

from shardwright.compilation import Compilation
from shardwright.compiler.outer.account import account_tables, cost_text_of, outcomes_text
from shardwright.compiler.plans.accounting import OperatorCost, operator_costs
from shardwright.compiler.plans.document import MemoryDocument, PlanDocument
from shardwright.compiler.plans.files import written_files
from shardwright.compiler.reasons import Collective, collectives
from shardwright.compiler.saved.groups import Group
from shardwright.compiler.saved.offloaded import offloaded
from shardwright.compiler.saved.recomputed import recomputed
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.pipelines.mixed import MixedCluster
from shardwright.dataflow.segments import blocks_by_stage
from shardwright.frontends.configs import is_model
from shardwright.ir.graph import Graph
from shardwright.ir.liveness import times_run
from shardwright.ir.units import MOST_NAMES, bytes_text, gap_text, pattern, seconds_text
from shardwright.operators.info import operator_class
from shardwright.operators.models.precision import MASTER
from shardwright.tools.answers.experts import experts_text
from shardwright.tools.answers.headline import print_sentences
from shardwright.tools.console.arguments import width
from shardwright.tools.console.tables import print_line, print_table
from shardwright.tools.reports.origins import figures_line
from shardwright.zoo import assumed_precision


@dataclass(frozen=True)
class Extent:
    """How many rows each table has; the most expensive ones are shown.

    Operators whose share of the step is below `least` are only counted. Without `details` there is
    the first table alone, and a short summary.
    """

    operators: int
    parameters: int
    moves: int
    least: float = 0.005
    details: bool = True


SCREEN = Extent(8, 0, 0, details=False)
VERBOSE = Extent(30, 20, 12)
FULL = Extent(10**9, 10**9, 10**9, 0.0)


def print_compilation(
    compilation: Compilation,
    timeline: Timeline,
    directory: Path,
    extent: Extent = SCREEN,
    first: Sequence[str] = (),
) -> None:
    """Print the report on a compiled model.

    Parameters
    ----------
    compilation : Compilation
        The model.
    timeline : Timeline
        The overlapped step: communication runs concurrently with computation.
    directory : Path
        The folder of its plan.
    extent : Extent
        How many rows each table has.
    first : sequence of str
        What is said first; see `Headline`.
    """
    print(_title(compilation))
    print_sentences(first)
    _print_strategies(compilation, extent)
    if extent.details:
        _print_parameters(compilation, extent)
        _print_collectives(compilation, extent)
    trace = compilation.search_trace
    if trace is not None and trace.plans:  # they are asked for
        cost_text = cost_text_of(compilation.plan.document.cost_model)
        for table in account_tables(trace, cost_text, in_full=extent is FULL):
            print_table(table.title, table.headings, table.rows, table.right)
    _print_summary(compilation, timeline, directory, extent.details)


def _title(compilation: Compilation) -> str:
    """Return what was compiled, for which devices, and how."""
    document = compilation.plan.document
    axes = document.device_mesh.of_ranks.axes
    mesh = " ".join(f"{axis.name}={axis.size}" for axis in axes)
    passes = document.micro_batches
    stages = compilation.plan.program.stages
    parts = f", {stages} stages ({compilation.plan.program.schedule})" if stages else ""
    parts += f", {passes} micro-batches" if passes > 1 else ""
    search = "" if document.search == "none" else f", search {document.search}"
    devices = f"{document.devices} device{'s' if document.devices > 1 else ''}"
    lines = [
        document.model,
        f"on {devices} of {document.cluster.name}"
        f"{document.cluster.part_text(document.devices)}, "
        f"mesh {mesh or '1'}{parts}: {document.mode}{search}",
    ]
    one = " ".join(lines)
    return one if len(one) <= width() else "\n".join(lines)


@dataclass
class _Fold:
    """The operators that one row stands for: those of repeated layers."""

    first: OperatorCost
    count: int = 0
    seconds: float = 0.0

    def add(self, cost: OperatorCost) -> None:
        self.count += 1
        self.seconds += cost.seconds


def _print_strategies(compilation: Compilation, extent: Extent) -> None:
    folds: dict[object, _Fold] = {}
    for cost in operator_costs(compilation.compiled, compilation.cluster):
        if cost.seconds or cost.communication:
            folds.setdefault(_key(compilation, cost), _Fold(cost)).add(cost)
    total = sum(fold.seconds for fold in folds.values())
    hidden = _hidden(folds.values(), total, extent)
    left_out = {id(fold) for fold in hidden}
    rows = [_strategy_row(fold, total) for fold in folds.values() if id(fold) not in left_out]
    if hidden:
        seconds = sum(fold.seconds for fold in hidden)
        most = max(fold.seconds for fold in hidden) / total
        rest = f"{sum(fold.count for fold in hidden)} more, each row at most {most:.1%}"
        rows.append((rest, "", "", "", seconds_text(seconds), f"{seconds / total:.1%}"))
    headings: tuple[str, ...] = ("operator", "", "split counts", "over axes", "time", "share")
    title = "strategies: slices of each operand; time of forward, backward and communication"
    if not compilation.plan.document.strategies:
        rows = [(*row[:2], *row[4:]) for row in rows]
        headings = (*headings[:2], *headings[4:])
        title = "operators: time of forward, backward and communication"
    last = len(headings) - 1
    print_table(title, headings, rows, right=(1, last - 1, last), shortened=0)


def _hidden(folds: Iterable[_Fold], total: float, extent: Extent) -> list[_Fold]:
    """Return the rows that are only counted: small shares, and all but the most expensive."""
    ordered = sorted(folds, key=lambda fold: -fold.seconds)
    small = [fold for fold in ordered if fold.seconds < extent.least * total]
    hidden = ordered[min(extent.operators, len(ordered) - len(small)) :]
    return hidden if len(hidden) > 1 else []


def _key(compilation: Compilation, cost: OperatorCost) -> object:
    """Return the key of a row: equal for the same operator of repeated layers."""
    if cost.node is None:
        return "optimizer"
    types = [value.type for value in compilation.compiled.source.operand_values(cost.node)]
    counts = tuple(sorted((kind, volume.count) for kind, volume in cost.communication.items()))
    scope = pattern(cost.node.scope)
    return cost.node.operator, scope, tuple(types), cost.split_counts, counts


def _strategy_row(fold: _Fold, total: float) -> tuple[str, ...]:
    node = fold.first.node
    path = "optimizer" if node is None else f"{node.scope}/{node.operator}".lstrip("/")
    counts = " ".join("x".join(map(str, counts)) or "1" for counts in fold.first.split_counts)
    return (
        path if fold.count == 1 else pattern(path),
        _times(fold.count),
        counts,
        str(fold.first.strategy or ""),
        seconds_text(fold.seconds),
        f"{fold.seconds / total:.1%}",
    )


def _times(count: int) -> str:
    return f"{count}x" if count > 1 else ""


def _print_parameters(compilation: Compilation, extent: Extent) -> None:
    if not extent.parameters:
        return
    folds: dict[tuple[str, str, str, tuple[int, ...]], list[str]] = {}
    program = compilation.plan.program
    for name, item in compilation.plan.document.parameters.items():
        if program.parameter(name).role != "state":  # states have the layouts of their weights
            key = (pattern(name), item.type, item.layout, item.slice_shape)
            folds.setdefault(key, []).append(name)
    rows = [
        (
            names[0] if len(names) == 1 else path,
            _times(len(names)),
            kind,
            layout,
            "x".join(map(str, shape)) or "1",
        )
        for (path, kind, layout, shape), names in folds.items()
    ]
    if len(rows) > extent.parameters:
        rest = (f"{len(rows) - extent.parameters} more rows", "", "", "", "")
        rows = [*rows[: extent.parameters], rest]
    headings = ("parameter", "", "whole", "split over", "slice")
    title = "parameters; gradients and optimizer states have the same layouts"
    print_table(title, headings, rows, right=(1,), shortened=0)


def _print_collectives(compilation: Compilation, extent: Extent) -> None:
    moves: dict[str, list[Collective]] = {}
    program = compilation.plan.program
    times = dict(zip((n.name for n in program.nodes), times_run(program), strict=True))
    for item in collectives(compilation.compiled, compilation.cluster):
        runs = times[item.node.name]
        in_step = replace(item, nbytes=runs * item.nbytes, seconds=runs * item.seconds)
        moves.setdefault(item.move, []).append(in_step)
    folds: dict[tuple[object, ...], list[list[Collective]]] = {}
    for steps in moves.values():
        folds.setdefault((_steps_text(steps), pattern(steps[0].reason)), []).append(steps)
    if not folds:
        return
    by_seconds = sorted(folds.values(), key=lambda fold: -_seconds(chain(*fold)))
    shown = {id(fold) for fold in by_seconds[: extent.moves]}
    rows = [_moves_row(fold) for fold in folds.values() if id(fold) in shown]
    rest = [item for fold in by_seconds if id(fold) not in shown for item in chain(*fold)]
    if rest:
        more = "1 more collective, cheaper than these"
        if len(rest) > 1:
            more = f"{len(rest)} more collectives, each cheaper"
        rows.append((*_volume(rest), more))
    headings = ("sends", "time", "collectives over axes, and reasons")
    title = "communication: bytes that a device sends in a step"
    if compilation.plan.document.memory.by_group:
        title += ", added up over the device groups"
    print_table(title, headings, rows, right=(0, 1))


def _steps_text(steps: Sequence[Collective]) -> str:
    return ", ".join(f"{item.node.operator} over {' '.join(item.axes)}" for item in steps)


def _moves_row(fold: Sequence[Sequence[Collective]]) -> tuple[str, ...]:
    """Return the row of the same redistribution in repeated layers."""
    reason = fold[0][0].reason
    text = f"{_times(len(fold))} {_steps_text(fold[0])}".strip()
    return (*_volume(chain(*fold)), f"{text}\n{reason if len(fold) == 1 else pattern(reason)}")


def _volume(items: Iterable[Collective]) -> tuple[str, str]:
    items = list(items)
    return bytes_text(sum(item.nbytes for item in items)), seconds_text(_seconds(items))


def _seconds(items: Iterable[Collective]) -> float:
    return sum(item.seconds for item in items)


# The summary


def _print_summary(
    compilation: Compilation, timeline: Timeline, directory: Path, details: bool
) -> None:
    document, compiled = compilation.plan.document, compilation.compiled
    memory = document.memory
    parts = ", ".join(
        f"{kind} {bytes_text(size)}" for kind, size in memory.by_kind.items() if round(size)
    )
    print_line(
        "step",
        f"serial {seconds_text(document.predicted_step_seconds)}, overlapped "
        f"{seconds_text(timeline.step_seconds)} (communication concurrent with computation)",
    )
    if document.memory.by_group:
        print_line("bubble", bubble_text(timeline))
    if document.device_by_group:
        print_line("stages", stages_text(compilation))
    by_group = "" if document.device_by_group else groups_text(memory)
    print_line("memory", f"{_memory_text(document)}: {parts}{by_group}")
    if document.micro_batch_statistics:
        said = _statistics_text(compilation.plan.model, document.micro_batch_statistics)
        print_line("per part", said)
    if experts := experts_text(compilation.plan.program):
        print_line("experts", experts)
    if details:
        _print_details(compilation)
    style = "green" if document.status == "optimal" else "yellow"
    print_line("plan", _quality_text(document), style)
    for name, price in document.pin_prices.items():
        print_line("pin", f"`{name}` costs {_cost_text(price, document)}")
    if details:
        _print_searched(compilation)
        searched = compiled.result
        of_search = searched and f", of which the search {seconds_text(searched.seconds)}"
        print_line("took", seconds_text(compiled.seconds) + (of_search or ""))
    if figures := figures_line(compilation.cluster):
        print_line("figures", figures)
    print_line("written", f"{directory}: {_files_text(directory)}")
    if not details:
        print_line("more", "`--verbose` tells the rest, `--html` writes a page to look at")


def _print_details(compilation: Compilation) -> None:
    """Print what is made again or saved elsewhere, what is sent, and how it is trained."""
    document, compiled = compilation.plan.document, compilation.compiled
    again = recomputed(compiled, compilation.cluster)
    if again:
        print_line("again", _recomputed_text(again))
    hosted = offloaded(compiled, compilation.cluster)
    if hosted:
        print_line("host", _offloaded_text(hosted))
    print_line("network", _traffic_text(document))
    training = training_text(document)
    if training is not None:
        print_line("training", training)


def _print_searched(compilation: Compilation) -> None:
    """Print what a search found on each mesh, and what became of its configurations."""
    document = compilation.plan.document
    if compilation.objectives:
        costs = [
            f"{shape} {_cost_text(cost, document)} "
            f"(at least {_cost_text(compilation.lower_bounds[shape], document)})"
            for shape, cost in compilation.objectives.items()
        ]
        print_line("meshes", ", ".join(costs))
    if compilation.search_trace is not None:
        print_line("searched", outcomes_text(compilation.search_trace))


def _memory_text(document: PlanDocument) -> str:
    """Return the peak memory and the limit; where that is not the device's memory, both."""
    limit, cluster = document.memory.limit, document.cluster
    if isinstance(cluster, MixedCluster):
        none = (inf,) * len(document.device_by_group)
        return memory_of_groups(document, document.memory.limit_by_group or none)
    device = cluster.device.memory_bytes
    peak, has = bytes_text(document.memory.peak_bytes), bytes_text(device)
    if limit is None:
        return f"{peak} on each device without a limit; a device has {has}"
    if limit == cluster.device.usable_bytes:
        share = 100 * cluster.device.memory_reserve
        reserve = f" ({share:g} % in reserve)" if share else ""
        return f"{peak} of {has}{reserve} on each device"
    only = "only " if limit > device else ""
    return f"{peak} of {bytes_text(limit)} allowed on each device; a device has {only}{has}"


def memory_of_groups(document: PlanDocument, limits: Sequence[float]) -> str:
    """Return the peak memory and the limit of device groups of several kinds of devices."""
    memory, names = document.memory, document.device_by_group
    kinds = groupby(zip(names, limits, memory.by_group, strict=True), key=itemgetter(0, 1))
    found = []
    for (name, limit), groups in kinds:
        taken = ", ".join(bytes_text(peak) for _, _, peak in groups)
        found.append(
            f"{taken} of {bytes_text(limit) if isfinite(limit) else 'any memory'} on {name}"
        )
    return f"by device group {'; '.join(found)}"


def stages_text(compilation: Compilation) -> str:
    """Return which stages run on which devices, with their repeated blocks; of one kind, none."""
    names = compilation.plan.document.device_by_group
    blocks, where = blocks_by_stage(compilation.plan.program), compilation.plan.mesh.stage_map
    found = []
    for name in dict.fromkeys(names):
        own = [stage for stage in range(len(blocks)) if names[where.group(stage)] == name]
        counts = ", ".join(str(blocks[stage]) for stage in own)
        word = "stage" if len(own) == 1 else "stages"
        numbers = ", ".join(map(str, own))
        found.append(f"{word} {numbers} on {name} (repeated blocks {counts})")
    return "; ".join(found)


def bubble_text(timeline: Timeline) -> str:
    """Return how long a device group of a pipeline waits for the others."""
    share = timeline.bubble_seconds / timeline.step_seconds if timeline.step_seconds else 0.0
    waits = seconds_text(timeline.bubble_seconds)
    return f"{share:.1%} of the step: a device group waits {waits} for others, on average"


def groups_text(memory: MemoryDocument) -> str:
    """Return the memory of each device group of a pipeline, after that of the fullest."""
    if not memory.by_group:
        return ""
    sizes = ", ".join(bytes_text(size) for size in memory.by_group)
    return f"; by device group {sizes}"


def training_text(document: PlanDocument) -> str | None:
    """Return precision and optimizer; None for the usual ones.

    A precision that comes with the model, a preset or a file of another system, is marked.
    """
    assumed = assumed_precision(document.model)
    rules = document.optimizer.optimizer
    if document.precision == MASTER and assumed is None and len(rules.kinds) == 1:
        return None
    text = f"precision {document.precision}"
    if document.precision != MASTER:
        narrow = f" in {MASTER} and optimizer states in 8 bits"
        wide_states = f" and optimizer states in {MASTER}"
        text += " with parameters" + (narrow if rules.kind == "adam8bit" else wide_states)
    if document.precision == assumed:
        from_file = is_model(document.model.partition(":")[0])
        text += ", the file's" if from_file else ", the default of language models"
    sums = {"reduced": document.reduce_type, "accumulated": document.accumulate_type}
    wide = [done for done, dtype in sums.items() if MASTER in (dtype, document.reduce_type)]
    if wide and document.precision != MASTER:
        text += f"; gradients {' and '.join(wide)} in {MASTER}"
    scale = "" if document.loss_scale == 1 else f", loss scale {document.loss_scale}"
    others = sum(rules.kind_of(name) != rules.kind for name in rules.overrides)
    of_others = f", of {others} parameters {rules.title_of_others}" if others else ""
    return f"{text}; optimizer {rules.title}{of_others}{scale}"


def _statistics_text(model: Graph, names: Sequence[str]) -> str:
    """Return which statistics are those of a micro-batch."""
    made = (model.producers[name].operator for name in names)
    counts = Counter(operator for operator in made if not operator_class(operator).is_identity)
    kinds = ", ".join(f"{count}x {operator}" for operator, count in counts.items())
    return (
        f"each micro-batch has its own statistics ({kinds}), as if it were the batch; with another "
        "number of micro-batches the step differs"
    )


def _recomputed_text(groups: Sequence[Group]) -> str:
    """Return what is computed again for the gradient, most bytes first."""
    count, seconds = sum(g.count for g in groups), sum(g.seconds for g in groups)
    return (
        f"{count} operators are recomputed for the gradient in {seconds_text(seconds)} instead of "
        f"saving {_largest_text(groups)}"
    )


def _offloaded_text(groups: Sequence[Group]) -> str:
    """Return what is saved in host memory, most bytes first."""
    count, seconds = sum(g.count for g in groups), sum(g.seconds for g in groups)
    return (
        f"the results of {count} operators are saved in host memory; the copies, concurrent with "
        f"computation, take {seconds_text(seconds)}; saved there are {_largest_text(groups)}"
    )


def _largest_text(groups: Sequence[Group]) -> str:
    """Return the bytes of all groups, and the largest of them."""
    total = bytes_text(sum(group.bytes for group in groups))
    largest = sorted(groups, key=lambda group: -group.bytes)[:MOST_NAMES]
    parts = [f"{g.count}x {g.operator} {bytes_text(g.bytes)}" for g in largest if g.bytes]
    return total + (f": {', '.join(parts)}" if parts else "")


def _traffic_text(document: PlanDocument) -> str:
    kinds = document.communication
    if not kinds:
        return "no communication"
    total = bytes_text(sum(volume.bytes for volume in kinds.values()))
    counts = ", ".join(f"{volume.count} {kind}" for kind, volume in kinds.items())
    return f"a device sends {total} in a step: {counts}; gradients: {document.buckets}"


def _files_text(directory: Path) -> str:
    names = written_files(directory)
    ranks = [name for name in names if name.startswith("rank_")]
    others = [name for name in names if name not in ranks]
    listings = ranks if len(ranks) < 3 else [f"{ranks[0]} to {ranks[-1]}"]
    return ", ".join([*others, *listings])


def _quality_text(document: PlanDocument) -> str:
    claim = f"{document.status} {document.bound_covers}"
    if document.lower_bound <= 0:
        return f"{claim}, no lower bound ({document.how})"
    cost, bound = (_cost_text(x, document) for x in (document.objective, document.lower_bound))
    gap = gap_text(document.gap)
    return (
        f"{claim}: {document.objective_is} {cost}, lower bound {bound}, gap {gap} ({document.how})"
    )


def _cost_text(cost: float, document: PlanDocument) -> str:
    return seconds_text(cost) if document.cost_model == "time" else f"{cost:.6g}"

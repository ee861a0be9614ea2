"""Small models of equal and unequal blocks, and what is answered of them, before the referee."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import simulate
from shardwright.ir.errors import (
    InfeasibleError,
    NotFoundError,
    OptionError,
    ShardwrightError,
    StrategyError,
)
from shardwright.ir.graph import Graph, Value
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import SplitCounts
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.verify import verify
from shardwright.passes.canonicalize import Canonicalize
from shardwright.planner.options import CompileOptions
from tests.random_graphs import random_graph
from tests.referee import (
    EXACT,
    SCALARS,
    Built,
    Form,
    Objective,
    TooManyError,
    all_plans,
    allocated,
    faults,
    foretold_alike,
)

SEQUENCES = ("b", "aa", "aaa", "ab", "aab", "aba", "cc", "ac", "cac", "aaaa", "bb", "bcb", "abab")
SCHEDULES = ("1f1b", "zero_bubble", "interleaved", "gpipe")
_SHARES = (0.0, 0.3, 0.7)  # of the plans, by memory, that a limit lets through


@dataclass(frozen=True)
class Asked:
    """A model on a cluster, and the forms of which the best plan is asked for."""

    name: str
    graph: Graph
    cluster: Cluster
    devices: int
    forms: tuple[Form, ...]
    options: CompileOptions


@dataclass(frozen=True)
class Verdict:
    """What was answered within one limit, and the best of all plans.

    `wrong` names the claims of the answer that the plans refute.
    """

    name: str
    plans: int
    limit: float
    best: float
    answer: float
    bound: float
    status: str
    wrong: tuple[str, ...]

    @property
    def is_best(self) -> bool:
        """Whether no plan is faster than the answer."""
        return self.answer <= self.best * EXACT


def blocks(sequence: str, rows: int = 4, width: int = 4) -> Graph:
    """Return a model of one block for each letter; equal letters are equal blocks."""
    build = Builder()
    value = build.input(Value("x", TensorType("float64", (rows, width))))
    for number, kind in enumerate(sequence):
        build.scope = f"blocks/{number}"
        if kind in "ab":
            own = Value(f"w{number}", TensorType("float64", (width, width)))
            build.parameter(own, {"initializer": "normal(0.5)"})
            value = build.emit("matmul", value, own)
        if kind in "bc":
            value = build.emit("relu", value)
        if kind == "c":
            own = Value(f"b{number}", TensorType("float64", (width,)))
            build.parameter(own, {"initializer": "normal(0.5)"})
            value = build.emit("add", value, own)
    build.scope = ""
    graph = build.graph(f"blocks_{sequence}", (build.emit("reduce_sum", value).name,))
    verify(graph)
    return Canonicalize().run(graph)


def devices_of(seed: int) -> Cluster:
    """Return devices on which neither computation nor links nor launches are all that matters."""
    draw, like = np.random.default_rng(seed), cluster("a100-pod:figures=datasheet").without_host()
    rates = 10.0 ** draw.uniform(8, 9.5, 4)
    device = like.device.model_copy(
        update={
            "peak_flops": dict.fromkeys(like.device.peak_flops, float(rates[0])),
            "memory_bandwidth": float(rates[1]),
            "launch_seconds": float(draw.choice([0.0, 1e-8, 1e-7])),
        }
    )
    levels = tuple(
        level.model_copy(update={"bandwidth": float(rate), "latency": float(10.0**power)})
        for level, rate, power in zip(like.levels, rates[2:], draw.uniform(-9, -7, 2), strict=True)
    )
    return like.model_copy(update={"device": device, "levels": levels})


def asked(seed: int) -> Asked:
    """Return a question: of one form, or of several, in one stage or in more."""
    draw = np.random.default_rng(seed)
    kind = ("one", "stages", "one", "forms", "wide stages", "one")[seed % 6]
    graph = Canonicalize().run(random_graph(seed, nodes=2 + seed % 2))
    copied = any(node.operator == "transpose" for node in graph.nodes)  # numpy makes views of them
    if seed % 4 != 3 or copied:
        graph = blocks(str(draw.choice(SEQUENCES)), int(draw.choice([4, 8])))
    options = CompileOptions(
        optimizer=Optimizer(("sgd", "adam")[seed // 2 % 2]),  # type: ignore[arg-type]
        recompute=("none", "search")[seed // 5 % 2],
        gap=0.0,
    )
    forms = _forms(kind, seed, draw)
    ranks = max(form.mesh.size for form in forms)
    if ranks > 1 and len({form.mesh for form in forms}) == 1:
        options = replace(options, pins=_pins(graph, ranks, draw))
    devices = forms[0].mesh.size * forms[0].groups
    one = forms[0]
    form = f"{one.schedule} in {one.groups} x {one.chunks}" if one.groups > 1 else kind
    name = f"{graph.name}, {form}, {one.mesh.size} ranks, {one.passes} passes, seed {seed}"
    return Asked(name, graph, devices_of(seed), devices, forms, options)


def _forms(kind: str, seed: int, draw: np.random.Generator) -> tuple[Form, ...]:
    passes = int(draw.choice([1, 2, 4]))
    if kind == "one":
        return (Form(_mesh(int(draw.choice([2, 2, 4]))), passes),)
    if kind == "forms":
        found = tuple(Form(_mesh(2), count) for count in (1, 2))
        if seed // 6 % 3:
            return found
        one = _mesh(1)
        found += tuple(Form(one, count, 2) for count in (1, 2))
        return (*found, Form(one, 2, 2, 1, "zero_bubble"))
    schedule, groups, chunks = SCHEDULES[seed // 6 % 4], int(draw.choice([2, 2, 3])), 1
    if schedule == "interleaved":
        passes, groups, chunks = max(passes, 2), 2, 2
    return (Form(_mesh(1 if kind == "stages" else 2), passes, groups, chunks, schedule),)


def _pins(graph: Graph, ranks: int, draw: np.random.Generator) -> dict[str, SplitCounts]:
    """Return how the user divides operators, drawn: all but the first of some kinds."""
    ways: dict[str, tuple[SplitCounts, ...]] = {
        "matmul": (((ranks, 1), (1, 1)), ((1, 1), (1, ranks)), ((1, ranks), (ranks, 1))),
        "relu": (((ranks, 1),), ((1, ranks),)),
    }
    found = {}
    for kind, some in ways.items():
        free = int(draw.integers(2))
        for node in [node for node in graph.nodes if node.operator == kind][free:]:
            found[node.name] = some[int(draw.integers(len(some)))]
    return found


def _mesh(size: int) -> Mesh:
    return Mesh((MeshAxis("x", size, 0),))


def plans_of(question: Asked) -> list[Built]:
    """Return all plans of all forms; none where a form has none, or there are too many."""
    found: list[Built] = []
    for form in question.forms:
        try:
            found += all_plans(question.graph, question.cluster, form, question.options)
        except (OptionError, StrategyError, TooManyError):
            return []
    return found


def verdicts(question: Asked, plans: Sequence[Built]) -> Iterator[Verdict]:
    """Yield what is answered within several limits, for both objectives."""
    for limit, objective, best in bests(question, plans):
        yield verdict(question, len(plans), limit, objective, best)


def bests(question: Asked, plans: Sequence[Built]) -> Iterator[tuple[float, Objective, float]]:
    """Yield limits and objectives, with the least step of all plans that fit."""
    for limit in _limits(plans):
        for objective in _objectives(question):
            every = (plan.seconds(question.cluster, limit, objective) for plan in plans)
            yield limit, objective, min(every)


def _objectives(question: Asked) -> Sequence[Objective]:
    return ("overlapped",) if question.forms[0].groups > 1 else ("overlapped", "serial")


def _limits(plans: Sequence[Built]) -> list[float]:
    """Return limits with which some plans fit, all, and none: far from the memory of each."""
    taken = sorted({plan.memory for plan in plans})
    room = 2 * SCALARS
    between = [one for one, more in pairwise([*taken, math.inf]) if more - one > 2 * room]
    found = {
        taken[0] - room,
        *(between[int(share * (len(between) - 1))] + room for share in _SHARES),
    }
    return [*sorted(found), math.inf]


def verdict(
    question: Asked, plans: int, limit: float, objective: Objective, best: float
) -> Verdict:
    """Return what is answered within a limit, against the best of so many plans."""
    told = question.name, plans, limit, best
    try:
        answer = _answer(question, limit, objective)
    except InfeasibleError:
        wrong = ("it is said that no plan fits, and one does",) if best < math.inf else ()
        return Verdict(*told, math.inf, math.inf, "infeasible", wrong)
    except NotFoundError:
        return Verdict(*told, math.inf, 0.0, "not found", ())
    except ShardwrightError as error:
        return Verdict(*told, math.inf, 0.0, "refused", (f"refused: {error}",))
    return Verdict(*told, answer.cost, answer.bound, answer.status, (*_wrong(answer, best),))


@dataclass(frozen=True)
class _Answer:
    """What was answered, and what the referee found of the program."""

    cost: float
    bound: float
    status: str
    faults: tuple[str, ...]


def _answer(question: Asked, limit: float, objective: Objective) -> _Answer:
    first, several = question.forms[0], len(question.forms) > 1
    options = replace(question.options, objective=objective, workers=1, cache=False)
    if limit < math.inf:
        options = replace(options, memory_limit=limit)
    meshes: Mesh | tuple[Mesh, ...] = first.mesh
    if several:
        meshes = tuple(dict.fromkeys(form.mesh for form in question.forms))
        options = replace(options, micro_batches="search")
        options = replace(options, stages="search") if len(meshes) > 1 else options
    else:
        options = replace(options, micro_batches=first.passes)
    if first.groups > 1:
        staged = {"stages": first.groups, "chunks": first.chunks, "schedule": first.schedule}
        options = replace(options, **staged)  # type: ignore[arg-type]
    found = compile_graph(question.graph, question.cluster, question.devices, options, meshes)
    assert found.result is not None
    result, program = found.result, found.program
    own = Built(Form(found.mesh, groups=program.stages or 1), program, allocated(program))
    wrong = []
    if own.memory > limit + SCALARS:
        wrong.append(f"it takes {own.memory:.0f} bytes, more than the limit")
    foretold = peak_memory(program)
    if not foretold_alike(foretold.by_group or (foretold.peak_bytes,), own.allocated):
        wrong.append("it allocates another number of bytes than was foretold")
    if found.memory.peak_bytes > limit * EXACT:
        wrong.append("the memory of its step is more than the limit")
    timeline = simulate(program, question.cluster, limit)
    wrong += faults(program, question.cluster, timeline)
    if abs(own.seconds(question.cluster, limit, objective) / result.cost - 1) > 1e-6:
        wrong.append("its program takes another step than the answer says")
    return _Answer(result.cost, result.lower_bound, result.status, tuple(wrong))


def _wrong(answer: _Answer, best: float) -> Iterator[str]:
    yield from answer.faults
    if answer.bound > min(best, answer.cost) * EXACT:
        yield f"the bound {answer.bound:.9g} is above the best step {best:.9g}"
    if answer.status == "optimal" and answer.cost > best * (1 + 1e-7):
        yield f"it is said to be optimal, and {best:.9g} is less than {answer.cost:.9g}"

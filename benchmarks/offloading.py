"""Evidence on tensors that are saved in host memory.

    python benchmarks/offloading.py plans          # random plans, proven and run
    python benchmarks/offloading.py mutants        # of programs that offload
    python benchmarks/offloading.py exact          # the search against every choice
    python benchmarks/offloading.py cases          # where the search chooses it

Each prints a line for each model, and at the end what was counted.
"""

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from overlap import EXACT, Plan, all_plans

import shardwright
from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import Cluster, Host, cluster, mesh_for
from shardwright.ir.errors import NoPlanError, OptionError, ShardwrightError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.types import TensorType
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.operators.builder import Builder
from shardwright.operators.verify import verify
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.group_statistics import GroupStatistics
from shardwright.planner.options import CompileOptions
from shardwright.planner.whole.buckets import fastest_fusion
from shardwright.proof import UpdateRule, prove_program
from shardwright.solver.problem import FORBIDDEN, Pair, Problem
from shardwright.zoo.loading import load
from tests.equivalence import trained
from tests.search.test_offloading import CPU, SGD, marked_at_random, random_plan, request_for
from tests.search.test_saved_for_backward import SMALL

PASSES = (1, 2, 4)
HOSTS = tuple(Host(memory_bytes=2**32, to_host=rate, from_host=rate) for rate in (1e9, 8e9, 64e9))
TOLERANCE = 1e-9


def of_passes(model: str, passes: int) -> tuple[Graph, object]:
    """Return a model of the zoo in canonical form, for a number of micro-batches."""
    definition = load(SMALL[model])
    graph = definition.graph
    graph = Canonicalize().run(GroupStatistics(passes).run(graph) if passes > 1 else graph)
    return graph, definition


def plans(count: int) -> None:
    """Draw random plans that offload; prove each, and compare its step with the whole model's."""
    told: Counter[str] = Counter()
    each = -(-count // (len(SMALL) * len(PASSES)))
    for model in SMALL:
        for passes in PASSES:
            begin, worst, moved, before = time.process_time(), 0.0, 0, told["proven"]
            for seed in range(each):
                error, copies = one_plan(model, passes, seed, told)
                worst, moved = max(worst, error), moved + copies
            seconds = time.process_time() - begin
            print(
                f"{model}, {passes} micro-batches: {each} plans, {told['proven'] - before} proven, "
                f"{moved} copies to the host, largest relative difference {worst:.1e}, "
                f"{seconds:.0f} CPU s",
                flush=True,
            )
    print(dict(told))


def one_plan(model: str, passes: int, seed: int, told: Counter[str]) -> tuple[float, int]:
    """Check one random plan; return the largest difference, and its copies to the host."""
    graph, definition = of_passes(model, passes)
    random = np.random.default_rng([seed, passes])
    marked = marked_at_random(graph, random) if seed % 2 else graph
    program, _ = random_plan(request_for(marked, passes, None), seed)
    whole = compile_graph(graph, CPU, 1, CompileOptions(mode="stand_alone", optimizer=SGD)).program
    copies = sum(node.operator == "to_host" for node in program.nodes)
    told["plans"] += 1
    told["with copies"] += copies > 0
    told["proven"] += prove_program(graph, program, UpdateRule(SGD.kind, SGD.settings)).proven
    highs = {spec.name: spec.high for spec in definition.inputs if spec.high}  # type: ignore[attr-defined]
    runs = [trained(one, 1, highs, definition.initial) for one in (program, whole)]  # type: ignore[attr-defined]
    error = difference(*runs)
    told["equal"] += error <= TOLERANCE
    return error, copies


def difference(plan: dict[str, np.ndarray], whole: dict[str, np.ndarray]) -> float:
    """Return the largest relative difference of two runs."""
    return max(
        float(np.abs(plan[name] - expected).max() / max(1e-6, float(np.abs(expected).max())))
        for name, expected in whole.items()
    )


# Mutants


def mutants(count: int) -> None:
    """Alter the copies of random programs; each mutant is refused, or computes the same."""
    told: Counter[str] = Counter()
    for seed in range(count):
        model = list(SMALL)[seed % len(SMALL)]
        graph, definition = of_passes(model, 1)
        program, _ = random_plan(request_for(graph, 1, None), seed)
        highs = {spec.name: spec.high for spec in definition.inputs if spec.high}  # type: ignore[attr-defined]
        right = partial(trained, program, 1, highs, definition.initial)  # type: ignore[attr-defined]
        random = np.random.default_rng(seed)
        for kind, mutant in mutants_of(program, random):
            told["mutants"] += 1
            told[f"{kind}: {judged(graph, mutant, right, highs, definition)}"] += 1
    for name, number in sorted(told.items()):
        print(f"{name}: {number}")


def judged(
    graph: Graph,
    mutant: Graph,
    right: Callable[[], dict[str, np.ndarray]],
    highs: dict[str, int],
    definition: object,
) -> str:
    """Return how a mutant ends: refused by the verifier or the proof, or accepted."""
    try:
        verify(mutant)
    except ShardwrightError:
        return "refused by the verifier"
    proof = prove_program(graph, mutant, UpdateRule(SGD.kind, SGD.settings))
    if not proof.proven:
        return "refused by the proof"
    try:
        run = trained(mutant, 1, highs, definition.initial)  # type: ignore[attr-defined]
        same = difference(run, right()) <= TOLERANCE
    except Exception as error:  # whatever a wrong program raises
        return f"ACCEPTED, fails: {type(error).__name__}"
    return "proven, and computes the same" if same else "ACCEPTED, wrong"


def mutants_of(program: Graph, random: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    """Yield mutants of the copies of a program."""
    nodes = program.nodes
    there = [i for i, node in enumerate(nodes) if node.operator == "to_host"]
    back = [i for i, node in enumerate(nodes) if node.operator == "from_host"]
    if not there or not back:
        return
    one, other = (int(random.choice(positions)) for positions in (there, back))
    for kind, position in (("to_host deleted", one), ("from_host deleted", other)):
        node = nodes[position]
        names = {node.name: node.operands[0]}
        kept = tuple(_reading(n, names) for i, n in enumerate(nodes) if i != position)
        yield kind, program.with_nodes(kept)
    yield "to_host becomes identity", _with(program, one, operator="identity")
    yield "from_host becomes identity", _with(program, other, operator="identity")
    yield "to_host becomes from_host", _with(program, one, operator="from_host")
    yield "from_host becomes to_host", _with(program, other, operator="to_host")
    for kind, positions in (("from_host", back), ("to_host", there)):
        same = [
            (i, j) for i in positions for j in positions if i < j and _is_like(nodes[i], nodes[j])
        ]
        for i, j in same[:3]:
            swapped = replace(nodes[j], operands=nodes[i].operands)
            yield f"{kind} copies another tensor", _with_node(program, j, swapped)
    yield "a copy of what is already back", _with(program, other, operands=(nodes[other].name,))
    readers = [i for i, node in enumerate(nodes) if nodes[other].name in node.operands]
    if readers:
        reader = nodes[int(random.choice(readers))]
        names = {nodes[other].name: nodes[other].operands[0]}
        place = nodes.index(reader)
        yield "a gradient reads host memory", _with_node(program, place, _reading(reader, names))
    shifted = [
        j
        for j, node in enumerate(nodes)
        if len(node.results) == 1 and _is_like(node, nodes[other]) and j < other
    ]
    if readers and shifted:
        reader, source = nodes[readers[0]], nodes[int(random.choice(shifted))]
        changed = _reading(reader, {nodes[other].name: source.name})
        yield "a gradient reads another tensor", _with_node(program, readers[0], changed)


def _is_like(one: Node, other: Node) -> bool:
    """Return whether the results of two nodes have the same type and layout."""
    types = [(node.results[0].type, node.results[0].layout) for node in (one, other)]
    return types[0] == types[1]


def _reading(node: Node, names: dict[str, str]) -> Node:
    return replace(node, operands=tuple(names.get(name, name) for name in node.operands))


def _with(program: Graph, position: int, **changes: object) -> Graph:
    return _with_node(program, position, replace(program.nodes[position], **changes))  # type: ignore[arg-type]


def _with_node(program: Graph, position: int, node: Node) -> Graph:
    nodes = program.nodes
    return program.with_nodes((*nodes[:position], node, *nodes[position + 1 :]))


# Where the search chooses it


def cases(count: int) -> None:
    """Search Llama-3 8B on eight GH200, with host memory and without, in a minute each."""
    wheres = {"data sheet": gh200(450e9, 450e9), "measured rates": gh200(297e9, 375e9)}
    for sequence, batch, passes, offload, rates in (
        (8192, 16, 1, "none", "data sheet"),
        (8192, 16, 1, "search", "data sheet"),
        (8192, 32, 1, "none", "data sheet"),
        (8192, 32, 1, "search", "data sheet"),
        (8192, 32, 1, "search", "measured rates"),
        (8192, 32, 4, "none", "data sheet"),
        (32768, 8, 1, "none", "data sheet"),
        (32768, 8, 1, "search", "data sheet"),
    ):
        begin = time.process_time()
        found = shardwright.compile(
            f"llama3-8b:sequence={sequence}",
            8,
            cluster=wheres[rates],
            mesh="8",
            batch=batch,
            micro_batches=passes,
            precision="bfloat16",
            optimizer="adam",
            offload=offload,
        )
        document = found.plan.document
        print(
            f"sequence {sequence}, batch {batch}, {passes} micro-batches, "
            f"offload {offload}, {rates}: "
            f"{seconds_text(document.objective)}, bound {seconds_text(document.lower_bound)}, "
            f"{bytes_text(document.memory.peak_bytes)}, host "
            f"{bytes_text(document.memory.host_bytes)}, {time.process_time() - begin:.0f} CPU s",
            flush=True,
        )


def gh200(to_host: float, from_host: float) -> Cluster:
    """Return GH200 superchips on one NVLink domain, 32 of them, with rates to the host in bytes/s.

    96 GB of HBM3 at 4 TB/s, 480 GB of LPDDR5X, NVLink-C2C of 900 GB/s in both directions together
    (NVIDIA GH200 Grace Hopper superchip data sheet, 2023; GH200 NVL32); the device is that of an
    H100 otherwise.
    """
    base = cluster("h100-pod:figures=datasheet")
    device = base.device.model_copy(
        update={"name": "GH200", "memory_bandwidth": 4.0e12, "memory_bytes": 96 * 10**9}
    )
    domain = base.levels[0].model_copy(update={"size": 32})
    host = Host(memory_bytes=480 * 10**9, to_host=to_host, from_host=from_host)
    changed = {"name": "gh200", "device": device, "levels": (domain, base.levels[1]), "host": host}
    return base.model_copy(update=changed)


# Exactness


MOST = 1_000  # allowed assignments of a program that is compared
NEAR = 1.1  # a plan that offloads competes where it takes at most so many times the least step
# So fast that small tensors are worth the way to the host.
FAST = (64e9, 1e12, 16e12)


def exact(count: int, tightest: bool) -> None:
    """Compare the search with all plans of small programs, where plans that offload compete."""
    told: Counter[str] = Counter()
    seed, begin = 0, time.process_time()
    while told["cases"] < count:
        for line in exact_cases(seed, told, tightest):
            print(line, flush=True)
        seed += 1
    for name, number in told.items():
        print(f"{name}: {number}")
    print(f"seeds: {seed}, {time.process_time() - begin:.0f} s of the processor")


def saving_graph(random: np.random.Generator, nodes: int) -> Graph:
    """Return a chain of operators whose gradients read what was computed, with a scalar loss.

    Widths differ, so that a tensor that is saved waits for a larger one; odd ones are not divided.
    """
    build = Builder()
    rows = int(random.choice([3, 8, 32]))
    shape = (rows, int(random.choice([3, 8, 33])))
    values = [build.input(Value("x", TensorType("float64", shape)))]
    for place in range(nodes):
        last = values[-1]
        kind = "matmul" if place == 0 else str(random.choice(["matmul", "tanh", "exp", "mul"]))
        operands = [last]
        if kind == "matmul":
            weight = TensorType("float64", (last.type.shape[1], int(random.choice([3, 8, 33]))))
            given = {"initializer": "normal(0.5)"}
            operands.append(build.parameter(Value(f"w{place}", weight), given))
        elif kind == "mul":
            alike = [value for value in values if value.type == last.type]
            operands.append(alike[int(random.integers(len(alike)))])
        values.append(build.emit(kind, *operands))
    loss = build.emit("reduce_sum", build.emit("square", values[-1]))
    graph = build.graph("saving", (loss.name,))
    verify(graph)
    return graph


def random_machine(random: np.random.Generator) -> Cluster:
    """Return the cluster `cpu` with a fast way to the host, and computation that costs more."""
    rate = float(random.choice(FAST))
    slower = float(random.choice([1, 10, 100]))
    rates = {kind: peak / slower for kind, peak in CPU.device.peak_flops.items()}
    changed = {"launch_seconds": float(random.choice([0, 2e-6])), "peak_flops": rates}
    return CPU.model_copy(
        update={
            "device": CPU.device.model_copy(update=changed),
            "host": Host(memory_bytes=2**32, to_host=rate, from_host=rate),
        }
    )


def allowed_assignments(problem: Problem) -> Sequence[Sequence[int]]:
    """Return every assignment without a forbidden entry; none where there are more than `MOST`."""
    earlier: list[list[Pair]] = [[] for _ in problem.variables]
    for pair in problem.pairs:
        earlier[max(pair.first, pair.second)].append(pair)
    found: list[tuple[int, ...]] = [()]
    for place, variable in enumerate(problem.variables):
        found = [
            (*before, choice)
            for before in found
            for choice in range(len(variable.cost))
            if variable.cost[choice] < FORBIDDEN
            and all(
                pair.table[(*before, choice)[pair.first], (*before, choice)[pair.second]]
                < FORBIDDEN
                for pair in earlier[place]
            )
        ]
        if len(found) > 100 * MOST:
            return ()
    return found if len(found) <= MOST else ()


def exact_cases(seed: int, told: Counter[str], tightest: bool) -> Iterator[str]:
    """Compare one program within the limits of `_limits`; yield what differs.

    Every second program may be recomputed as well.
    """
    random = np.random.default_rng(seed)
    devices, passes = 1 + seed % 2, (1, 1, 2)[seed // 2 % 3]
    most = {1: 5, 2: 3}[devices]
    graph = Canonicalize().run(saving_graph(random, int(random.integers(1, most + 1))))
    described = random_machine(random)
    mesh = mesh_for(described, devices, (devices,))
    options = CompileOptions(
        optimizer=SGD,
        gap=0.0,
        micro_batches=passes,
        offload="search",
        recompute=("none", "search")[seed // 6 % 2],
    )
    try:
        where = graph, described, mesh, options
        plans = list(
            all_plans(*where, lambda request: request.recompute_space, allowed_assignments)
        )
    except OptionError:  # the batch is not divisible
        return
    for limit in _limits(plans, described, random, tightest):
        least = _least_steps(plans, described, limit)
        best = min(least.values())
        told["cases"] += 1
        told[f"cases on {devices} devices, recompute={options.recompute}, M={passes}"] += 1
        told["every best plan offloads"] += least[True] * EXACT < least[False]
        told["of these, others fit"] += least[True] * EXACT < least[False] < math.inf
        told["plans"] += len(plans)
        try:
            found = compile_graph(
                graph, described, devices, replace(options, memory_limit=limit), mesh
            )
        except NoPlanError as error:
            kind = type(error).__name__
            told[f"no plan: {kind}"] += 1
            yield f"seed {seed}, {limit:.0f} B: {kind}: {error}"
            continue
        assert found.result is not None
        told["the best is not below the bound"] += found.result.lower_bound <= best * EXACT
        told["the answer is the best"] += found.result.cost <= best * EXACT
        told["the answer offloads"] += moves(found.program)
        told["proven optimal"] += found.result.status == "optimal"
        if not found.result.lower_bound <= best * EXACT or found.result.cost > best * EXACT:
            yield (
                f"seed {seed}, {limit:.0f} B: bound {found.result.lower_bound:.9g}, best "
                f"{best:.9g}, answer {found.result.cost:.9g}"
            )


def _limits(
    plans: Sequence[Plan], described: Cluster, random: np.random.Generator, tightest: bool
) -> Sequence[float]:
    """Return a limit of each kind: by whether what offloads is best, and whether others fit.

    At random between what two plans take, or, if `tightest`, the least: to the byte what one takes.
    None within which no plan that offloads is near the best.
    """
    found: dict[tuple[bool, bool], list[float]] = {}
    peaks = sorted({plan.peak_bytes for plan in plans})
    for limit, above in zip(peaks, (*peaks[1:], *(2 * peak for peak in peaks[-1:])), strict=True):
        least = _least_steps(plans, described, limit)
        if least[True] <= NEAR * least[False]:
            kind = least[True] * EXACT < least[False], least[False] < math.inf
            within = limit if tightest else float(random.integers(limit, above))
            found.setdefault(kind, []).append(within)
    return [limits[0] if tightest else float(random.choice(limits)) for limits in found.values()]


def _least_steps(plans: Sequence[Plan], described: Cluster, limit: float) -> dict[bool, float]:
    """Return the least step within a limit of the plans that offload, and of the others."""
    least = {True: math.inf, False: math.inf}
    for plan in (plan for plan in plans if plan.peak_bytes <= limit):
        step = fastest_fusion(plan.program, described, limit)[1].step_seconds
        least[moves(plan.program)] = min(least[moves(plan.program)], step)
    return least


def moves(program: Graph) -> bool:
    """Return whether a program copies to the host."""
    return any(node.operator == "to_host" for node in program.nodes)


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("plans", "mutants", "exact", "cases"))
    parser.add_argument("--count", type=int, default=300, help="random plans (300)")
    parser.add_argument("--tightest", action="store_true", help="exact: limits to the byte")
    arguments = parser.parse_args()
    searched = partial(exact, tightest=arguments.tightest)
    parts = {"plans": plans, "mutants": mutants, "exact": searched, "cases": cases}
    parts[arguments.part](arguments.count)


if __name__ == "__main__":
    main()

"""Verify plans with every feature: ``python benchmarks/verified.py steps|pipelines|long``.

Every plan is proven, and its numbers are compared in float64 with those of one device. Then each of
its communications is left out, and transfers of one kind between two stages are swapped: the proof
must refuse such a program.

``steps``: strategies, what is saved, recomputed, gathered again or sent to the host, and storage
are drawn at random, with 1, 2 and 4 micro-batches, with and without a precision policy.
``pipelines``: 1, 2 and 4 stages with every schedule, with accumulation and recomputation. ``long``:
attention of split sequences of uneven lengths, with keys gathered and on a ring.

With ``--mpi``, the plans of pipelines and long sequences on 2 and 4 ranks are also verified by as
many MPI processes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machine import machine

import shardwright
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.plans.files import write_plan
from shardwright.compiler.plans.plan import Plan
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class
from shardwright.operators.models.precision import PRECISIONS
from shardwright.passes.apply_precision import ApplyPrecision
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.group_statistics import GroupStatistics
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.planner.search_request import SearchRequest
from shardwright.proof import Proof, UpdateRule, prove_program
from shardwright.zoo.loading import load
from tests.equivalence import trained
from tests.proof.test_stages import swapped
from tests.search.test_offloading import CPU, MESH, SGD, marked_at_random
from tests.search.test_recomputed_memory import random_assignment
from tests.shardwright.test_long_sequences import MODELS as LONG
from tests.shardwright.test_long_sequences import split

SMALL = "layers={},hidden=8,heads=4,batch=8,sequence=4,vocabulary=20"
MODELS = {
    "mlp": "mlp:batch=8,inputs=6,hidden=8,classes=4",
    "gpt": f"gpt:{SMALL},dropout=0.1",  # its embedding is its head, too
    "llama": f"llama:{SMALL},kv_heads=2,inner=8,tied=true",
    "mixtral": f"mixtral:{SMALL},kv_heads=2,inner=8,experts=4",
    "resnet": "resnet18-cifar:batch=32,side=8,width=2",
}
TOLERANCE = 1e-9
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@dataclass(frozen=True)
class Verified:
    """What came of a plan.

    Parameters
    ----------
    name : str
        Its model and options.
    proven : bool
        Whether it is proven.
    error : float
        Largest difference from one device, relative to the largest number of a tensor.
    left_out, swapped : int
        Programs without one communication, and with two transfers swapped.
    equal, accepted : int
        How many of these are proven: those whose numbers are the same, and the others.
    processes : dict of int to float
        The largest difference by number of MPI processes.
    """

    name: str
    proven: bool
    error: float
    left_out: int
    swapped: int
    equal: int
    accepted: int
    processes: dict[int, float]

    @property
    def is_right(self) -> bool:
        """Whether it is as it must be."""
        worst = max(self.error, *self.processes.values(), 0.0)
        return self.proven and worst <= TOLERANCE and not self.accepted


# Programs of random decisions


def steps(models: Sequence[str], seeds: int) -> Iterator[Verified]:
    """Yield random training steps of every model."""
    policies = ("float32", "bfloat16", "float16")
    for seed, model, passes, policy in product(range(seeds), models, (1, 2, 4), policies):
        yield _random_step(seed, model, passes, policy)


def _random_step(seed: int, model: str, passes: int, policy: str) -> Verified:
    definition = load(MODELS[model].format(1))
    graph = ApplyPrecision(PRECISIONS[policy]).run(definition.graph)
    graph = GroupStatistics(passes).run(graph) if passes > 1 else graph
    random = np.random.default_rng((seed, passes, len(model)))
    graph = marked_at_random(Canonicalize().run(graph), random)
    program = _random_program(graph, passes, random)
    alone = CompileOptions(mode="stand_alone", optimizer=SGD)
    whole = compile_graph(replace(graph, offloaded=()), CPU, 1, alone).program
    highs = {spec.name: spec.high for spec in definition.inputs if spec.high}
    expected = trained(whole, 2, highs, definition.initial)

    def error(other: Graph) -> float:
        found = trained(other, 2, highs, definition.initial)
        return max(_difference(found[name], expected[name]) for name in expected)

    proof = partial(_proof, graph)
    return Verified(
        f"{model}, {passes} micro-batches, {policy}, draw {seed}",
        bool(proof(program).proven),
        error(program),
        *_refused(program, proof, lambda other: error(other) <= TOLERANCE),
        {},
    )


def _random_program(graph: Graph, passes: int, random: np.random.Generator) -> Graph:
    """Return the program of random decisions, of all that the search decides."""
    options = CompileOptions(
        micro_batches=passes,
        optimizer=SGD,
        search="dynamic_programming",  # a space of layouts, not of orbits
        offload="search",
    )
    lowering = LowerRedistributions(CPU)
    request = SearchRequest(graph, CPU, lowering.planner(MESH), options)
    space = request.recompute_space
    decisions = space.decisions(random_assignment(space, random, float(random.uniform(0, 1))))
    if request.micro is not None:
        decisions = request.micro.lifted(decisions)
    return PassManager().run_all(partitioned(options, decisions, lowering), request.source)


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / max(1e-6, np.abs(expected).max()))


# Plans


def pipelines(models: Sequence[str], folder: Path | None) -> Iterator[Verified]:
    """Yield pipelines of every model, with every schedule."""
    ways = [(1, 1, None), (2, 1, "gpipe"), (2, 1, "1f1b"), (2, 1, "zero_bubble")]
    ways += [(2, 2, "interleaved"), (4, 1, "gpipe"), (4, 1, "1f1b"), (4, 1, "zero_bubble")]
    ways += [(4, 2, "interleaved")]
    cases = [(model, devices, *way) for model in models for devices in (2, 4) for way in ways]
    for number, (model, devices, stages, chunks, schedule) in enumerate(cases):
        if stages > devices:
            continue
        options = {
            "stages": stages,
            "chunks": chunks,
            "schedule": schedule,
            "micro_batches": (4, 2, 1)[number % 3] if stages == 1 else (4, 8)[number % 2],
            "recompute": ("none", "full")[number // 2 % 2] if model in LONG else "none",
            "optimizer": ("adam", "sgd", "momentum")[number % 3],
        }
        told = ", ".join(f"{key}={value}" for key, value in options.items() if value is not None)
        spec = MODELS[model].format(max(4, stages * chunks))
        plan = shardwright.compile(spec, devices, cluster="cpu", **options).plan
        yield _verified(f"{model} on {devices}, {told}", plan, devices, folder)


def long(models: Sequence[str], folder: Path | None) -> Iterator[Verified]:
    """Yield plans that split sequences of uneven lengths."""
    for model, (ranks, length) in product(
        [m for m in models if m in LONG], ((2, 7), (3, 8), (4, 13))
    ):
        for keys, told in ((ranks, "on a ring"), (1, "gathered")):
            plan = split(LONG[model].format(length), ranks, keys)
            yield _verified(f"{model} on {ranks}, {length} positions, {told}", plan, ranks, folder)


def _verified(name: str, plan: Plan, devices: int, folder: Path | None) -> Verified:
    verdict = shardwright.verify(plan)
    processes = {}
    if folder is not None and devices in (2, 4):
        processes = {devices: _by_processes(plan, devices, folder)}
    assert verdict.numbers is not None
    return Verified(
        name,
        bool(verdict.proof.proven),
        verdict.max_relative_error if verdict.equal else np.inf,
        *_refused(
            plan.program,
            lambda program: shardwright.prove(replace(plan, program=program)),
            lambda program: shardwright.verify(replace(plan, program=program)).equal is True,
        ),
        processes,
    )


def _by_processes(plan: Plan, devices: int, folder: Path) -> float:
    """Return the largest difference of a plan that MPI processes run."""
    assert MPIEXEC is not None
    where = Path(tempfile.mkdtemp(dir=folder)) / "plan"
    write_plan(where, plan)
    command = [MPIEXEC, "-n", str(devices), sys.executable, "-m", "shardwright", "verify"]
    ended = subprocess.run(
        [*command, str(where), "--backend", "mpi", "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    shutil.rmtree(where.parent)
    if ended.returncode:
        print(ended.stderr, file=sys.stderr)
        return np.inf
    return float(json.loads(ended.stdout)["max_relative_error"])


# Programs with a fault


def _proof(graph: Graph, program: Graph) -> Proof:
    return prove_program(graph, program, UpdateRule(SGD.kind, SGD.settings))


def _refused(
    program: Graph, proof: Callable[[Graph], Proof], is_right: Callable[[Graph], bool]
) -> tuple[int, int, int, int]:
    """Return how many programs with a fault were tried, of both kinds, and how many are proven.

    Those whose numbers are right all the same, such as of terms of a sum that are swapped, are
    counted apart.
    """
    without = list(_left_out(program))
    exchanged = [wrong for *_, wrong in swapped(program)]
    proven = [wrong for wrong in (*without, *exchanged) if _is_accepted(wrong, proof)]
    equal = sum(is_right(one) for one in proven)
    return len(without), len(exchanged), equal, len(proven) - equal


def _is_accepted(program: Graph, proof: Callable[[Graph], Proof]) -> bool:
    try:
        return proof(program).proven is not False
    except ShardwrightError:  # its types are wrong
        return False


def _left_out(program: Graph) -> Iterator[Graph]:
    """Yield the program without each of its communications."""
    for node in program.nodes:
        communicates = issubclass(operator_class(node.operator), Communication)
        if communicates and operator_class(node.operator).is_collective:
            yield program.replacing({node.name: node.operands[0]})


def main() -> None:
    """Verify what is asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("steps", "pipelines", "long"))
    parser.add_argument("--seeds", type=int, default=2, help="draws of each random step (2)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--mpi", action="store_true", help="also by MPI processes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if arguments.mpi else None
        plans = {
            "steps": partial(steps, arguments.models, arguments.seeds),
            "pipelines": partial(pipelines, arguments.models, folder),
            "long": partial(long, arguments.models, folder),
        }
        made: Counter[str] = Counter()
        worst = {"one process": 0.0}
        for one in plans[arguments.what]():
            said = "right" if one.is_right else "WRONG"
            print(f"{said}: {one}", flush=True)
            made.update({"plans": 1, said: 1, "left out": one.left_out, "swapped": one.swapped})
            made.update({"equal, accepted": one.equal, "wrong, accepted": one.accepted})
            worst["one process"] = max(worst["one process"], one.error)
            for count, error in one.processes.items():
                made[f"by {count} processes"] += 1
                where = f"{count} processes"
                worst[where] = max(worst.get(where, 0.0), error)
    print(machine(), dict(made), "largest difference", worst)


if __name__ == "__main__":
    main()

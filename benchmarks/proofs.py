"""What the proof proves and refuses: ``python benchmarks/proofs.py zoo|random|mutants``.

``zoo`` proves plans of every model at full size, in every mode and search; ``random`` proves plans
of random strategies; ``mutants`` makes small changes to programs and compares what the proof says
with two steps of numbers, with ``--whole`` of programs with micro-batches, recomputation and
bfloat16. Times are those of the processor. Run it in the repository's root, with
the root on ``PYTHONPATH``.
"""

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from proof_mutants import mutants

from shardwright.api import compile
from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.dataflow.samples import samples_of
from shardwright.ir.errors import PassError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.precision import PRECISIONS
from shardwright.operators.verify import verify
from shardwright.passes.apply_precision import ApplyPrecision
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.group_statistics import GroupStatistics
from shardwright.proof import UpdateRule, prove, prove_program
from shardwright.proof.samples import run_samples
from tests.equivalence import trained
from tests.random_micro_batches import ADAM, random_step
from tests.random_plans import profile_for, random_program

# Models at full size, with their batch for each device.
FULL = {
    "mlp": 32,
    "lenet5": 32,
    "resnet50": 32,
    "resnet18-cifar": 32,
    "vgg16": 32,
    "unet": 4,
    "vit-b16": 32,
    "bert-large": 8,
    "gpt2-xl": 4,
    "gpt3-175b:dtype=bfloat16": 1 / 8,
    "llama3-8b:dtype=bfloat16": 1,
    "llama3-70b:dtype=bfloat16": 1 / 8,
    "mixtral-8x7b:dtype=bfloat16": 1,
    "wide_deep": 2000,
    "dlrm": 2048,
    "feature_hash": 512,
}
# Options of `compile` besides the exact search: the other searches, modes and passes.
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"search": "dynamic_programming"},
    {"search": "recursive_programming"},
    {"search": "sharding_propagation"},
    {"search": "data_parallel"},
    {"search": "tensor_parallel"},
    {"search": "fully_sharded"},
    {"mode": "data_parallel"},
    {"mode": "semi_auto_parallel"},
    {"mode": "stand_alone"},
    {"search": "data_parallel", "optimizer_parallel": True},
    {"search": "data_parallel", "fusion": 64.0},
    {"loss_scale": 1024.0},
    {"micro_batches": 2},
    {"precision": "bfloat16", "reduce_type": "float32"},
    {"stages": 2, "micro_batches": 4},
)
# Models at a size at which thousands of programs can be run.
SMALL = (
    "mlp:batch=8,inputs=6,hidden=8,classes=4",
    "two_matmul:batch=8,inputs=8,hidden=12,outputs=6",
    "gpt:layers=1,hidden=8,heads=2,batch=4,sequence=4,vocabulary=12,dropout=0.2,dtype=float32",
    "bert:layers=1,hidden=8,heads=2,batch=4,sequence=4,vocabulary=10,dtype=float32",
    "llama:layers=1,hidden=8,heads=2,kv_heads=2,inner=8,batch=4,sequence=4,vocabulary=8,dtype=float32",
    "mixtral:layers=1,hidden=8,heads=2,kv_heads=2,inner=8,batch=4,sequence=4,vocabulary=8,dtype=float32",
    "lenet5:batch=4,side=20",
    "resnet18-cifar:batch=4,side=8,width=2",
    "unet:batch=2,side=16,width=4,depth=1",
    "vit:layers=1,hidden=8,heads=2,batch=4,side=8,patch=4,classes=6",
    "dlrm:batch=8,hidden=4,dense=3,tables=2,rows=6,width=8",
    "wide_deep:batch=8,buckets=12,fields=3,hidden=4,width=8",
    "feature_hash:batch=8,buckets=12,fields=2,hidden=4,width=8",
)
STAGED = (
    "gpt:layers=2,hidden=8,heads=2,batch=4,sequence=4,vocabulary=12,dtype=float32",
    "llama:layers=2,hidden=8,heads=2,kv_heads=2,inner=8,batch=4,sequence=4,vocabulary=8,dtype=float32",
    "mixtral:layers=2,hidden=8,heads=2,kv_heads=2,inner=8,batch=4,sequence=4,vocabulary=8,dtype=float32",
)
TOLERANCE = 1e-9
RULE = UpdateRule(ADAM.kind, ADAM.settings)
Programs = Callable[
    [int, int, tuple[str, ...], tuple[int, ...]], Iterator[tuple[str, Any, Graph, UpdateRule]]
]


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("zoo", "random", "mutants"))
    parser.add_argument("--devices", type=int, nargs="*", default=(64, 1024))
    parser.add_argument("--models", nargs="*", help="those whose names begin so (all)")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effort", type=float, default=1.0, help="of each search (1)")
    parser.add_argument("--ranks", type=int, default=4, help="of the programs of mutants")
    parser.add_argument("--whole", action="store_true", help="programs of whole training plans")
    parser.add_argument("--stages", action="store_true", help="programs with pipeline stages")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    prefixes = tuple(arguments.models or ("",))
    if arguments.what == "zoo":
        prove_zoo(arguments.devices, prefixes, arguments.effort)
    elif arguments.what == "random":
        prove_random(arguments.count, arguments.seed, prefixes)
    else:
        plans = random_plans
        if arguments.whole or arguments.stages:
            plans = staged_plans if arguments.stages else whole_plans
        prove_mutants(arguments.count, arguments.seed, prefixes, arguments.ranks, plans)


def prove_zoo(devices: list[int], prefixes: tuple[str, ...], effort: float) -> None:
    """Prove plans of full size, and run their operators on small shapes."""
    proven = total = 0
    slowest = 0.0
    for model, count, ways in _cases(devices, prefixes):
        try:
            plan = _plan(model, count, {**ways, "effort": effort})
        except ShardwrightError as error:
            print(f"{model} {count} {ways}: no plan: {str(error)[:90]}", flush=True)
            continue
        begin = time.process_time()
        proof = prove(plan)
        taken = time.process_time() - begin
        samples = run_samples(plan.program) if plan.program.mesh else None
        seconds = time.process_time() - begin - taken
        total, proven = total + 1, proven + bool(proof.proven)
        slowest = max(slowest, taken)
        said = "proven" if proof.proven else f"{proof.proven} {proof.first_failure}: {proof.reason}"
        shrunk = samples and f"{samples.compared} run {samples.equal} {samples.skipped or ''}"
        print(
            f"{model} {count} {ways or ''}: {said}, {proof.nodes} nodes, {taken:.2f} s; "
            f"shrunken {shrunk}, {seconds:.2f} s",
            flush=True,
        )
    print(f"{proven} of {total} plans proven, the slowest in {slowest:.2f} s")


def _cases(
    devices: list[int], prefixes: tuple[str, ...]
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for model in FULL:
        for count in devices if model.startswith(prefixes) else ():
            for ways in WAYS if count == devices[0] else WAYS[:1]:
                yield model, count, ways


def _plan(model: str, devices: int, ways: dict[str, Any]) -> Plan:
    devices = 1 if ways.get("mode") == "stand_alone" else devices
    least = devices if ways.get("mode") == "data_parallel" else 1
    batch = max(int(FULL[model] * devices), least)
    least *= int(ways.get("micro_batches", 1))
    options: dict[str, Any] = {"optimizer": Optimizer("adam", {"learning_rate": 1e-3})}
    options |= {"memory_limit": 1e15, "gap": 0.01, **ways}
    mesh = None if ways.get("mode") == "stand_alone" else "default"  # no outer search
    return compile(model, devices, batch=batch, mesh=mesh, **options).plan


def whole_plans(
    count: int, seed: int, prefixes: tuple[str, ...], devices: tuple[int, ...]
) -> Iterator[tuple[str, Any, Graph, UpdateRule]]:
    """Give random plans in micro-batches, with recomputation, and in bfloat16, of some ranks."""
    models = [model for model in SMALL if model.startswith(prefixes)]
    ranks = mesh_for(cluster("cpu"), devices[0])
    for number in range(count):
        random = np.random.default_rng((seed, number))
        model = models[number % len(models)]
        definition = load_model(model)
        passes = int(random.choice([1, 2, 2, 4]))
        passes = passes if (samples_of(definition.graph) or 1) % passes == 0 else 1
        casts = {}
        if random.random() < 0.5:
            kind = str(random.choice(["none", "reduce_type", "accumulate_type"]))
            casts = {} if kind == "none" else {kind: "float32"}
            policy = ApplyPrecision(PRECISIONS["bfloat16"], **casts)  # type: ignore[arg-type]
            graph = policy.run(definition.graph)
        else:
            graph = definition.graph
        graph = GroupStatistics(passes).run(graph) if passes > 1 else graph
        source = _marked(Canonicalize().run(graph), random)
        try:
            step = random_step(source, passes, int(random.integers(2**31)), mesh=ranks)
        except PassError:  # these strategies have no redistribution between them
            continue
        yield model, replace(definition, graph=graph), step.program, RULE


def staged_plans(
    count: int, seed: int, prefixes: tuple[str, ...], devices: tuple[int, ...]
) -> Iterator[tuple[str, Any, Graph, UpdateRule]]:
    """Give plans of two pipeline stages, with each schedule, and in bfloat16."""
    models = [model for model in STAGED if model.startswith(prefixes)]
    for number in range(count):
        random = np.random.default_rng((seed, number))
        model = models[number % len(models)]
        definition = load_model(model)
        schedule = str(random.choice(["gpipe", "1f1b", "zero_bubble"]))
        kind = str(random.choice(["float32", "bfloat16"]))
        plan = compile(
            model,
            devices[0],
            cluster="cpu",
            plan=f"pipeline=2,data={devices[0] // 2},micro_batch=1,schedule={schedule}",
            optimizer=ADAM,
            precision=kind,
            reduce_type=str(random.choice(["lower", "float32"])),
        ).plan
        yield model, replace(definition, graph=plan.model), plan.program, RULE


def _marked(graph: Graph, random: np.random.Generator) -> Graph:
    """Return a program of which random operators are recomputed."""
    stored = {parameter.name for parameter in graph.parameters} | graph.kept()
    share = float(random.choice([0.0, 0.3, 0.7]))
    marked = tuple(
        node.name
        for node in graph.nodes
        if node.operands
        and not stored.issuperset(node.operands)
        and stored.isdisjoint(result.name for result in node.results)
        and random.random() < share
    )
    return replace(graph, recomputed=marked)


def random_plans(
    count: int, seed: int, prefixes: tuple[str, ...], devices: tuple[int, ...]
) -> Iterator[tuple[str, Any, Graph, UpdateRule]]:
    """Give random plans: the model's name and definition, the program, and its update rule."""
    models = [model for model in SMALL if model.startswith(prefixes)]
    for number in range(count):
        random = np.random.default_rng((seed, number))
        model = models[number % len(models)]
        definition = load_model(model)
        optimizer = Optimizer(str(random.choice(["sgd", "momentum", "adam"])))  # type: ignore
        profile = profile_for(int(random.choice(devices)))
        program = random_program(Canonicalize().run(definition.graph), profile, random, optimizer)
        yield model, definition, program, UpdateRule(optimizer.kind, optimizer.settings)


def prove_random(count: int, seed: int, prefixes: tuple[str, ...]) -> None:
    """Prove plans of random strategies, and run their operators on small shapes."""
    proven = run = skipped = different = 0
    for model, definition, program, rule in random_plans(count, seed, prefixes, (4, 6, 8)):
        proof = prove_program(definition.graph, program, rule)
        proven += bool(proof.proven)
        if not proof.proven:
            print(f"{model}: {proof.first_failure}: {proof.reason}", flush=True)
        samples = run_samples(program)
        run, skipped = run + samples.compared, skipped + len(samples.skipped)
        for name in filter(None, (samples.first_difference, *samples.skipped)):
            different += name == samples.first_difference
            print(f"{model}: not run or different: {program.producers[name]}", flush=True)
    print(f"{proven} of {count} random plans proven")
    print(
        f"{run} operators in layouts run on small shapes, {different} different, {skipped} not run"
    )


def prove_mutants(
    count: int, seed: int, prefixes: tuple[str, ...], ranks: int, programs: Programs
) -> None:
    """Compare what the proof says of mutants with two steps of numbers."""
    made: Counter[tuple[str, str]] = Counter()
    by_types = 0
    plans = programs(10**6, seed, prefixes, (ranks,))
    while sum(made.values()) < count:
        model, definition, program, rule = next(plans)
        random = np.random.default_rng((seed, sum(made.values())))
        highs = {spec.name: spec.high or 2 for spec in definition.inputs}
        expected = trained(program, 2, highs, definition.initial)
        if not prove_program(definition.graph, program, rule).proven:
            print(f"REFUSED BUT RIGHT: {model}", flush=True)
        for (kind, mutant), _ in zip(mutants(program, random), range(40), strict=False):
            proof = prove_program(definition.graph, mutant, rule)
            wrong = differs(expected, mutant, highs, definition.initial)
            outcome = f"{'wrong' if wrong else 'equal'}, {_said(proof.proven)}"
            made[kind, outcome] += 1
            by_types += wrong and not is_typed(mutant)
            if wrong and proof.proven is not False:
                print(f"ACCEPTED BUT WRONG: {model} {kind}: {changes(program, mutant)}", flush=True)
    for kind in sorted({kind for kind, _ in made}):
        outcomes = {outcome: n for (k, outcome), n in sorted(made.items()) if k == kind}
        print(f"{kind}: {outcomes}")
    totals: Counter[str] = Counter()
    for (_, outcome), n in made.items():
        totals[outcome] += n
    print(dict(totals))
    print(f"types and layouts alone refuse {by_types} of the wrong ones")


def is_typed(graph: Graph) -> bool:
    """Return whether the static check accepts a program."""
    try:
        verify(graph)
    except (ShardwrightError, ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return True


def _said(proven: bool | None) -> str:
    return "accepted" if proven else "refused" if proven is False else "undecided"


def differs(
    expected: dict[str, Any], mutant: Graph, highs: dict[str, int], initial: dict[str, Any]
) -> bool:
    """Return whether two steps of a mutant fail, or give other numbers than those expected."""
    try:
        with np.errstate(all="ignore"):
            found = trained(mutant, 2, highs, initial)
    except (ShardwrightError, ArithmeticError, LookupError, TypeError, ValueError, AssertionError):
        return True
    if found.keys() != expected.keys():
        return True
    for name, whole in expected.items():
        scale = max(1e-6, float(np.abs(whole).max()))
        if whole.shape != found[name].shape:
            return True
        if not np.abs(found[name] - whole).max() <= TOLERANCE * scale:
            return True
    return False


def changes(program: Graph, mutant: Graph) -> str:
    """Return what a mutant has that its program has not."""
    new = [node for node in mutant.nodes if node not in program.nodes]
    updates = [update for update in mutant.updates if update not in program.updates]
    return f"{new[:3]} {updates[:3]} outputs {mutant.outputs}"


if __name__ == "__main__":
    main()

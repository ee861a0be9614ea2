"""Four devices that train exported packages, and try the collectives; see `test_package.py`."""

import re
import sys
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import shardwright as sw
from shardwright.exports.jax.support.mesh import Mesh, Totals
from shardwright.exports.table import export, write_export

DEVICES, RATE, BATCH, LENGTH, HIDDEN, WORDS = 4, 0.01, 8, 8, 16, 24
SIZES = {"x": 2, "y": 2}
ORDERS = [("x",), ("y",), ("x", "y"), ("y", "x")]
KINDS = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
CASES = {
    "sequence_parallel": {"plan": "tensor=2,data=2,sequence_parallel,zero=3"},
    "micro_batches": {"plan": "data=2,tensor=2,zero=2,micro_batch=1"},
    "recomputed": {"plan": "tensor=4,recompute=selective"},
    "chunks": {"plan": "tensor=2,data=2,micro_batch=2", "loss_chunks": 3},
    "bfloat16": {"plan": "data=4", "precision": "bfloat16"},
    "one": {},
}
OPTIMIZERS = {
    "adamw": "adamw:weight_decay=0.1",
    "muon": "muon:learning_rate=0.02,product_type=float64,adamw_learning_rate=0.003",
    "adamw8bit": "adamw8bit:weight_decay=0.1",
}
PLANS = {1: "data=1", 4: "tensor=2,data=2,zero=1"}
STEPS, WIDTH = 10, 64  # a matrix of the width has states of 8 bits


def norm(x, own):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * own["scale"] + own["bias"]


def decoder(params, ids, labels):
    """Return the loss of one layer of a decoder; the embedding is the head, too."""
    x = params["embedding"][ids]
    y = norm(x, params["norm"])
    heads = [(y @ params[n]).reshape(BATCH, LENGTH, 4, -1).swapaxes(1, 2) for n in "qkv"]
    scores = heads[0] @ heads[1].swapaxes(2, 3) / (HIDDEN // 4) ** 0.5
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    y = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1) @ heads[2]
    x = x + y.swapaxes(1, 2).reshape(x.shape) @ params["out"]
    y = norm(x, params["second"])
    x = x + jax.nn.gelu(y @ params["up"]) @ params["down"]
    logits = jax.nn.log_softmax(x @ params["embedding"].T)
    return -jnp.take_along_axis(logits, labels[..., None], -1).mean()


def arguments_of(kind):
    rng = np.random.default_rng(0)
    shapes = {"embedding": (WORDS, HIDDEN), "up": (HIDDEN, 64), "down": (64, HIDDEN)}
    shapes |= {name: (HIDDEN, HIDDEN) for name in (*"qkv", "out")}
    params = {name: jnp.asarray(rng.normal(0, 0.2, shape), kind) for name, shape in shapes.items()}
    for name in ("norm", "second"):
        params[name] = {"scale": jnp.ones(HIDDEN, kind), "bias": jnp.zeros(HIDDEN, kind)}
    ids = jnp.asarray(rng.integers(0, WORDS, (BATCH, LENGTH)), "int32")
    return params, ids, jnp.roll(ids, 1, 1)


def close(found, right, tolerance, least=0.0):
    found, right = np.asarray(found, np.float64), np.asarray(right, np.float64)
    scale = max(np.abs(right).max(), least, 1e-30)
    assert np.abs(found - right).max() / scale < tolerance, (found, right)


def named(tree):
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}


def trains(folder, name, options):
    """Check that a package does what the function does."""
    is_low = "precision" in options
    tolerance, (params, *inputs) = (0.05, arguments_of("float32"))
    if not is_low:
        tolerance, (params, *inputs) = (1e-9, arguments_of("float64"))
    example = (params, *inputs)
    devices = DEVICES if options else 1
    compilation = sw.compile(decoder, devices, example_inputs=example, optimizer="sgd", **options)
    write_export(folder / f"package_{name}", export(compilation.plan, "jax"))
    trainer = import_module(f"package_{name}").Trainer(params)
    program = trainer.lowered(*inputs).as_text()
    counts = Counter(re.findall(r"stablehlo\.(\w+)", program))
    volumes = compilation.plan.document.communication
    expected = {kind: volumes[kind].count if kind in volumes else 0 for kind in KINDS}
    assert {kind: counts[kind] for kind in KINDS} == expected
    step = jax.jit(jax.value_and_grad(decoder))
    alone = params
    for _ in range(3):
        gradients = trainer.gradients(*inputs)
        loss, right = step(alone, *inputs)
        close(trainer.step(*inputs), loss, tolerance)
        wanted = named(right)
        assert gradients.keys() == wanted.keys()
        largest = max(float(jnp.abs(g).max()) for g in wanted.values())
        for parameter, gradient in gradients.items():
            close(gradient, wanted[parameter], tolerance, (1e-1 if is_low else 1e-6) * largest)
        alone = jax.tree.map(lambda p, g: p - RATE * g, alone, right)
    jax.tree.map(partial(close, tolerance=tolerance), trainer.parameters(), alone)
    jax.block_until_ready(params)  # a step donates its own arrays, not these


def regression(params, x, y):
    return jnp.square(jnp.tanh(x @ params["first"] + params["bias"]) @ params["second"] - y).mean()


def updates(folder, name):
    """Check that ten steps by an optimizer are the same on one device and on four."""
    rng = np.random.default_rng(0)
    shapes = {"first": (WIDTH, WIDTH), "bias": (WIDTH,), "second": (WIDTH, WIDTH)}
    params = {n: jnp.asarray(rng.normal(0, 0.2, shape)) for n, shape in shapes.items()}
    inputs = [jnp.asarray(rng.normal(size=(BATCH, WIDTH))) for _ in "xy"]
    losses, trained = {}, {}
    for devices, plan in PLANS.items():
        example = (params, *inputs)
        options = {"optimizer": OPTIMIZERS[name], "plan": plan, "example_inputs": example}
        plan = sw.compile(regression, devices, **options).plan
        package = f"optimizer_{name}_{devices}"
        write_export(folder / package, export(plan, "jax"))
        trainer = import_module(package).Trainer(params)
        losses[devices] = [float(trainer.step(*inputs)) for _ in range(STEPS)]
        trained[devices] = trainer.parameters()
    close(losses[4], losses[1], 1e-9)
    assert losses[1][-1] < losses[1][0]
    jax.tree.map(partial(close, tolerance=1e-9), trained[4], trained[1])
    if name == "adamw":
        right = by_adamw(params, inputs)
        jax.tree.map(partial(close, tolerance=1e-9), trained[1], right)


def by_adamw(params, inputs):
    """Return the parameters after the steps, by the formulas of Loshchilov and Hutter."""
    first = second = jax.tree.map(jnp.zeros_like, params)
    for step in range(1, STEPS + 1):
        gradients = jax.grad(regression)(params, *inputs)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
        scales = 1 - 0.9**step, 1 - 0.999**step
        params = jax.tree.map(
            lambda p, m, v, of=scales: (
                p - 0.001 * (m / of[0] / (jnp.sqrt(v / of[1]) + 1e-8) + 0.1 * p)
            ),
            *(params, first, second),
        )
    return params


def on_devices(mesh, whole, function, taken, left):
    mapped = jax.shard_map(
        function,
        mesh=mesh.devices,
        in_specs=mesh.spec(taken),
        out_specs=mesh.spec(left),
        check_vma=False,
    )
    return jax.jit(mapped)(whole)


def moves_along(mesh, whole, axes, dimension, other):
    """Check the collectives along some axes."""
    split, turned = ([(), (), ()] for _ in range(2))
    split[dimension], turned[other] = axes, axes
    copy, run = [(), (), ()], partial(on_devices, mesh, whole)
    pairs = [
        (run(lambda p: mesh.all_gather(p, axes, dimension, 0), split, copy), 1),
        (run(lambda p: mesh.local_slice(p, axes, dimension), copy, split), 1),
        (run(lambda p: mesh.all_to_all(p, axes, other, dimension, 0), split, turned), 1),
        (run(lambda p: mesh.all_reduce(p, axes), copy, copy), mesh.count(axes)),
        (run(lambda p: mesh.all_reduce(p, axes, "max"), copy, copy), 1),
        (run(lambda p: mesh.reduce_scatter(p, axes, dimension), copy, split), mesh.count(axes)),
        (run(lambda p: mesh.all_reduce(mesh.to_partial(p, axes), axes), copy, copy), 1),
    ]
    for found, factor in pairs:
        assert (found == whole * factor).all(), (axes, dimension, found)


def moves():
    """Check the collectives along axes in every order."""
    mesh = Mesh(SIZES, {})
    whole = jnp.arange(8 * 4 * 4.0).reshape(8, 4, 4)
    for axes in ORDERS:
        moves_along(mesh, whole, axes, 0, 1)
    moves_along(mesh, whole, ("y", "x"), 2, 0)
    swap = [[("y", "x"), (), ()], [("x", "y"), (), ()]]
    found = on_devices(
        mesh,
        whole,
        lambda p: mesh.collective_permute(p, ("x", "y"), ("y", "x"), 0),
        swap[0],
        swap[1],
    )
    assert (found == whole).all()
    totals = Totals()
    for number in range(3):
        totals.before({})
        totals.reduce("sum", jnp.full((2,), float(number)))
        totals.reduce("max", jnp.full((2,), float(number)), "max")
        totals.append("parts", jnp.full((1,), float(number)), 0)
    found = jnp.concatenate([totals["sum"], totals["max"], totals["parts"]])
    assert found.tolist() == [3, 3, 2, 2, 0, 1, 2]


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, sys.argv[1])
    moves()
    for case, options in CASES.items():
        trains(Path(sys.argv[1]), case, options)
        print(case, flush=True)
    for case in OPTIMIZERS:
        updates(Path(sys.argv[1]), case)
        print(case, flush=True)
    print("done")

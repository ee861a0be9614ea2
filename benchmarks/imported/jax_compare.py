"""Compares imported functions with JAX: outputs, loss, gradients, and what is trained.

Used by `jax_models.py` and the tests of the frontend. Needs `jax` with 64-bit types enabled.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

import jax
import numpy as np
from compared import Array, difference, least_of, run
from jax import tree_util

import shardwright
from shardwright.dataflow.cotangents import gradient_name
from shardwright.frontends.jax import Imported, import_function
from shardwright.ir.graph import Graph
from shardwright.ir.text import plain_name
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate

Function = Callable[..., Any]


def cast(tree: Any, dtype: str) -> Any:
    """Return a tree whose floating-point arrays have another type."""

    def one(leaf: Any) -> Any:
        array = np.asarray(leaf)
        return jax.numpy.asarray(array, dtype) if array.dtype.kind == "f" else leaf

    return jax.tree.map(one, tree)


def named(tree: Any) -> dict[str, Array]:
    """Return the arrays of a tree by the names that the import gives them."""
    pairs = tree_util.tree_leaves_with_path(tree)
    found = {tree_util.keystr(p, simple=True, separator="/").strip("/"): a for p, a in pairs}
    return {plain_name(n) if n else "parameters": np.asarray(a) for n, a in found.items()}


def arrays_of(graph: Graph, arguments: Sequence[Any]) -> dict[str, Array]:
    """Return the inputs of a program."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tuple(arguments[1:]))]
    return dict(zip((value.name for value in graph.inputs), leaves, strict=True))


def outputs_differ(function: Function, arguments: Sequence[Any]) -> float:
    """Return the largest difference of all outputs."""
    imported = import_function(function, arguments, outputs=True)
    right = jax.tree.leaves(function(*arguments))
    names = list(imported.graph.outputs)
    found = run(imported.graph, imported.initial, arrays_of(imported.graph, arguments), names)
    return max(difference(found[n], np.asarray(r)) for n, r in zip(names, right, strict=True))


@dataclass
class Gradients:
    """What a training step of a function is compared in.

    Parameters
    ----------
    loss, gradient : float
        Largest relative difference of the loss, and of the gradients.
    missing : list of str
        Parameters with a gradient in JAX that the program does not train.
    extra : list of str
        Trained parameters of the program that JAX has no gradient of.
    imported : Imported
        The program.
    seconds : float
        Processor time of its import.
    """

    loss: float
    gradient: float
    missing: list[str]
    extra: list[str]
    imported: Imported
    seconds: float


def of_jax(function: Function, arguments: Sequence[Any]) -> tuple[Array, dict[str, Array]]:
    """Return the loss, and all gradients by name."""
    params, *rest = arguments
    has_more = isinstance(jax.eval_shape(function, *arguments), tuple)
    derived = jax.value_and_grad(function, allow_int=True, has_aux=has_more)
    loss, gradients = jax.jit(derived)(params, *rest)
    loss = loss[0] if has_more else loss
    floats = {n: g for n, g in named(gradients).items() if g.dtype.kind == "f"}
    return np.asarray(loss), floats


def gradients_differ(
    function: Function, arguments: Sequence[Any], imported: Imported | None = None
) -> Gradients:
    """Return how the loss and all gradients of a program of one device differ from those of JAX."""
    start = process_time()
    imported = import_function(function, arguments) if imported is None else imported
    seconds = process_time() - start
    loss, right = of_jax(function, arguments)
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    trained = {p.name for p in imported.graph.parameters if p.trainable}
    names = {n: gradient_name(n) for n in right if n in trained}
    wanted = [graph.outputs[0], *(g for g in names.values() if g in graph.values)]
    found = run(graph, imported.initial, arrays_of(imported.graph, arguments), wanted)
    least = least_of(right)
    worst = [
        difference(found.get(g, np.zeros_like(right[n])), right[n], least) for n, g in names.items()
    ]
    return Gradients(
        difference(found[graph.outputs[0]], loss),
        max(worst, default=0.0),
        sorted(n for n in set(right) - trained if np.abs(right[n]).max() > 0),
        sorted(trained - set(right)),
        imported,
        seconds,
    )


def on_ranks(
    function: Function, arguments: Sequence[Any], devices: int, **options: Any
) -> tuple[float, float]:
    """Return how loss and gradients of a plan for several devices differ from those of JAX."""
    loss, right = of_jax(function, arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = shardwright.compile(function, devices, example_inputs=arguments, **options)
    program, plan = made.plan.program, made.plan
    names = {n: gradient_name(n) for n in right if gradient_name(n) in program.values}
    wanted = [program.outputs[0], *names.values()]
    found = run(program, plan.initial, arrays_of(program, arguments), wanted, plan.mesh)
    least = least_of(right)
    worst = [difference(found[g], right[n], least) for n, g in names.items()]
    return difference(found[program.outputs[0]], loss), max(worst)

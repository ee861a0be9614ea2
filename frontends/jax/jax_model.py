"""The import of a JAX function: its jaxpr, parameters, inputs, and a loss."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import tree_util

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.imported import Imported, finished, unread_warning
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.common.loss import with_loss
from shardwright.frontends.jax.importer import Importer, is_complex
from shardwright.frontends.jax.jax_types import dtype_of, type_of
from shardwright.frontends.jax.places import line_of
from shardwright.frontends.jax.rewrites import with_operators
from shardwright.frontends.jax.streams import Stream, stream_of
from shardwright.ir.errors import IRError, ModelError
from shardwright.ir.graph import Value
from shardwright.ir.text import plain_name
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array


@dataclass(frozen=True, eq=False)
class Leaf:
    """An array of a tree, or the shape of one; read as an array on use.

    Parameters
    ----------
    item : jax.Array or ShapeDtypeStruct
        The array; a shape has no elements.
    """

    item: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(np.shape(self.item))

    @property
    def is_absent(self) -> bool:
        """Whether there are no elements."""
        return isinstance(self.item, jax.ShapeDtypeStruct)

    def read(self) -> Array:
        """Return the elements."""
        found: Array = np.asarray(self.item)
        return found.view(numpy_dtype(found.dtype.name))


def import_function(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    loss: str = "none",
    class_axis: int | None = None,
    outputs: bool = False,
) -> Imported:
    """Return a function as a graph of our IR.

    Parameters
    ----------
    function : callable
        The function; its first argument is the tree of parameters.
    arguments : sequence
        Its arguments: trees of arrays or of `jax.ShapeDtypeStruct`, whose shapes the program has.
    loss : str
        The loss that is appended to the first output; see `append_loss`.
    class_axis : int, optional
        Position of the classes among the dimensions of the first output.
    outputs : bool
        Whether the program returns all outputs; by default one with a loss returns the loss alone.

    Raises
    ------
    ModelError
        If JAX cannot trace the function, or our IR cannot express it.
    """
    closed = _traced(function, arguments)
    _refuse_complex(closed.jaxpr.outvars if outputs else closed.jaxpr.outvars[:1])
    importer = Importer()
    trained: list[str] = []
    try:
        items = _items(importer, arguments, trained)
        found = [importer.value(item) for item in importer.run(closed, items)]
        made = importer.emission.outputs(found, "a function")
        made = with_loss(importer.emission.build, made, loss, class_axis)
    except ModelError:
        raise
    except UnsupportedError as error:
        raise ModelError(str(error), importer.where) from error
    except IRError as error:
        raise ModelError(error.what, importer.where, error.hint) from error
    is_loss = not made[0].type.shape and made[0].type.is_float
    returned = made if outputs or not is_loss else made[:1]
    name = re.sub(r"\W", "_", getattr(function, "__name__", type(function).__name__)).lower()
    graph = importer.emission.build.graph(name, tuple(value.name for value in returned))
    imported = finished(with_operators(graph), importer.emission.data)
    told = _warnings(imported, trained, len(made) - len(returned))
    return replace(imported, warnings=(*imported.warnings, *told))


def _traced(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Return the jaxpr of a function.

    Raises
    ------
    ModelError
        If JAX cannot trace it.
    """
    if not isinstance(arguments, (tuple, list)) or not arguments:
        raise ModelError(
            f"the example inputs are {type(arguments).__name__}, expected a tuple: the parameters, "
            "and the other arguments of the function"
        )
    for leaf in jax.tree.leaves(arguments):
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float)):
            raise ModelError(
                f"a leaf of the example inputs is {type(leaf).__name__}, expected an array",
                hint="keep arrays alone: `equinox.partition(model, equinox.is_inexact_array)`",
            )
    try:
        return jax.make_jaxpr(function)(*arguments)
    except Exception as error:  # JAX raises errors of many types
        lines = str(error).strip().splitlines() or [""]
        what = f"{type(error).__name__}: {lines[0].strip()}"
        hint = None
        if isinstance(error, jax.errors.ConcretizationTypeError):
            hint = "let neither shapes nor branches depend on the elements of arrays"
        raise ModelError(f"JAX cannot trace the function ({what})", line_of(error), hint) from error


def _refuse_complex(results: Sequence[Any]) -> None:
    """Refuse complex results: the program has pairs of real numbers inside alone."""
    for position, result in enumerate(results):
        if is_complex(result):
            raise ModelError(
                f"result {position} is complex, expected real numbers",
                hint="return its `real` and `imag`, or its absolute value",
            )


def _items(importer: Importer, arguments: Sequence[Any], trained: list[str]) -> list[Any]:
    """Return the items of the parameters and inputs of a function; note which are trained."""
    items: list[Any] = []
    for path, leaf in tree_util.tree_leaves_with_path(arguments[0]):
        items.append(_parameter(importer, _name(path, "parameters"), leaf, trained))
    rest = arguments[1:]
    for position, argument in enumerate(rest):
        base = "x" if len(rest) == 1 else f"x{position}"
        for path, leaf in tree_util.tree_leaves_with_path(argument):
            items.append(_input(importer, f"{base}/{_name(path, '')}".rstrip("/"), leaf))
    return items


def _name(path: Any, default: str) -> str:
    """Return the name of a leaf: its keys, with slashes between."""
    keys = tree_util.keystr(path, simple=True, separator="/").strip("/")
    return plain_name(keys) if keys else default


def _parameter(importer: Importer, name: str, leaf: Any, trained: list[str]) -> Item:
    kind = type_of(_shaped(leaf))
    emission = importer.emission
    emission.names[name] = emission.build.unique_name(name)
    constant = Constant(Leaf(leaf), kind.dtype, name, kind.is_float)
    if not kind.is_float:
        return emission.enter_named(constant)
    trained.append(emission.names[name])
    return constant


def _input(importer: Importer, name: str, leaf: Any) -> Item | Stream:
    if _is_key(leaf):
        return stream_of(name, tuple(leaf.shape))
    value = Value(importer.emission.build.unique_name(plain_name(name)), type_of(_shaped(leaf)))
    return importer.emission.build.input(value)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _shaped(leaf: Any) -> Any:
    """Return the abstract value of a leaf.

    Raises
    ------
    UnsupportedError
        If it is a key of random numbers.
    """
    aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    if _is_key(leaf):
        raise UnsupportedError("a key of random numbers among the parameters")
    dtype_of(aval.dtype)
    return aval


def _warnings(imported: Imported, trained: Sequence[str], dropped: int) -> list[str]:
    """Return warnings about parameters that are not trained, and outputs that are dropped."""
    found = []
    kept = {p.name for p in imported.graph.parameters if p.trainable}
    unread = [name for name in trained if name not in kept]
    if unread:
        found.append(unread_warning(unread))
    if any(node.operator == "random_uniform" for node in imported.graph.nodes):
        found.append(
            "random numbers of keys that are arguments are other ones than JAX's, and others in "
            "every step, whatever the key is"
        )
    if dropped > 0:
        found.append(f"{dropped} outputs after the loss are dropped")
    if absent := imported.absent:
        found.append(
            f"the elements of {len(absent)} parameters are missing (they are shapes alone): "
            "it can be planned, but not run"
        )
    return found

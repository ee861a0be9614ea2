"""The walk over a jaxpr: inlines functions, folds constants, unrolls loops.

An equation whose operands are all known is run by JAX at once, and becomes a constant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from shardwright.frontends.common.emission import Emission
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.common.own_gradients import OwnGradients
from shardwright.frontends.jax.jax_types import compressed, narrowed, type_of
from shardwright.frontends.jax.places import frame_of, names_of, place, scope_of
from shardwright.frontends.jax.primitive_call import Call, Notes
from shardwright.frontends.jax.primitives import CONVERTERS
from shardwright.frontends.jax.streams import Bits, Stream, derived, from_bits, moved, wrapped
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.operators.info import Array

MOST_EQUATIONS = 20_000  # most equations of all repetitions of a loop together
# Equations that run a jaxpr once, and the parameter that has it.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_lin": "jaxpr",
}
_BODIES = ("scan", "while", "cond", "shard_map", "custom_linear_solve", "call_hi_primitive")
_TREES = ("cummax", "cummin", "cumlogsumexp")
# Primitives that only move elements.
_MOVES = frozenset(
    ("slice", "squeeze", "expand_dims", "reshape", "transpose", "broadcast_in_dim", "rev")
    + ("split", "unstack")
)
_CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


@dataclass(frozen=True, eq=False)
class Key:
    """A key of random numbers that is known when the function is imported.

    Parameters
    ----------
    value : jax.Array
        The key, or an array of keys.
    """

    value: Any


class Importer:
    """Grows our graph from the equations of a jaxpr."""

    def __init__(self) -> None:
        self.emission = Emission()
        self.own = OwnGradients(self.emission)
        self.notes = Notes()
        self.where: str | None = None
        self.names = ""
        self.around: tuple[str, int] | None = None
        self.equations = 0
        self.is_stopped = False  # inside of a derivative of the user's own

    # Functions

    def run(self, closed: Any, items: Sequence[Any]) -> list[Any]:
        """Convert the equations of a closed jaxpr, and return its outputs."""
        constants = [
            Key(c) if _is_key(getattr(c, "dtype", None)) else self.constant(np.asarray(c))
            for c in closed.consts
        ]
        return self.walk(closed.jaxpr, constants, items)

    def walk(self, jaxpr: Any, constants: Sequence[Any], items: Sequence[Any]) -> list[Any]:
        """Convert the equations of a jaxpr, and return its outputs."""
        bound: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        bound.update(zip(jaxpr.invars, items, strict=True))
        for equation in jaxpr.eqns:
            operands = [self._read(bound, atom) for atom in equation.invars]
            self.where = place(equation, self.around) or self.where
            results = self.result(equation, operands)
            bound.update(zip(equation.outvars, results, strict=True))
        return [self._read(bound, atom) for atom in jaxpr.outvars]

    def _read(self, bound: Mapping[Any, Any], atom: Any) -> Any:
        if isinstance(atom, Literal):
            return self.constant(np.asarray(atom.val, atom.aval.dtype))
        return bound[atom]

    def constant(self, array: Array) -> Constant:
        """Return an array as a constant."""
        if array.dtype == jax.dtypes.float0:
            array = np.zeros(array.shape, bool)
        return Constant(array, str(array.dtype.name))

    def within(self, equation: Any, closed: Any, items: Sequence[Any]) -> list[Any]:
        """Convert the function that an equation calls, in the scope of the equation."""
        outer = self.names, self.around
        self.names = "/".join(part for part in (self.names, names_of(equation)) if part)
        self.around = frame_of(equation) or self.around
        found = self.run(closed, items)
        self.names, self.around = outer
        return found

    # Equations

    def result(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Return the results of an equation."""
        name = equation.primitive.name
        self.emission.build.scope = scope_of(equation, self.names, self.around)
        if name in _CALLS:
            return self.within(equation, _closed(equation.params[_CALLS[name]]), operands)
        if name == "random_wrap" and isinstance(operands[0], Value):
            return [wrapped(operands[0])]
        if name not in _BODIES and any(isinstance(item, (Stream, Bits)) for item in operands):
            return self._streamed(equation, operands)
        if all(map(is_known, operands)) and name not in _BODIES:
            return self._folded(equation, operands)
        if name in _CUSTOM:
            return list(CONVERTERS["custom"](self, equation, operands))
        if name in _BODIES:
            return list(CONVERTERS[name](self, equation, operands))
        if name in _TREES and equation.outvars[0].aval.dtype.kind != "i" and not self.is_stopped:
            return list(CONVERTERS["cumulative"](self, equation, operands))
        if any(map(is_complex, (*equation.invars, *equation.outvars))):
            return list(CONVERTERS["complex"](self, equation, operands))
        return self._converted(equation, operands)

    def _streamed(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Return the results of a primitive on keys that are arguments, or on bits of them."""
        name, keys = equation.primitive.name, operands[0]
        if isinstance(keys, Stream):
            found: Any = derived(name, equation.params, operands)
            if name in _MOVES and all(map(is_known, operands[1:])):
                places = np.arange(keys.names.size, dtype=np.int32).reshape(keys.names.shape)
                with jax.ensure_compile_time_eval():
                    made = bound(equation, [places, *map(_plain, operands[1:])])
                return [moved(keys, np.asarray(one)) for one in made]
        else:
            found = from_bits(self, name, operands, type_of(equation.outvars[0].aval))
        if found is None:
            raise UnsupportedError(f"the primitive `{name}` of a key that is an argument")
        return [found]

    def _folded(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        """Run an equation on constants, of what is repeated on one slice."""
        keys = any(isinstance(item, Key) for item in operands)
        plain = [_plain(item) for item in operands]
        name, params = equation.primitive.name, equation.params
        shapes = [tuple(v.aval.shape) for v in equation.outvars]
        if name == "broadcast_in_dim" and len(plain) == 1:
            kept = [1] * len(shapes[0])
            for d, n in zip(params["broadcast_dimensions"], plain[0].shape, strict=True):
                kept[d] = n
            return [self.constant(np.broadcast_to(plain[0].reshape(kept), shapes[0]))]
        if not keys and _is_pointwise(name, plain, shapes):
            plain = _narrowed_together(plain)
        with jax.ensure_compile_time_eval():
            made = bound(equation, plain)
        return [
            Key(value)
            if _is_key(v.aval.dtype)
            else self.constant(compressed(np.broadcast_to(np.asarray(value), v.aval.shape)))
            for value, v in zip(made, equation.outvars, strict=True)
        ]

    def _converted(self, equation: Any, operands: list[Any]) -> list[Any]:
        name = equation.primitive.name
        converter = CONVERTERS.get(name)
        if converter is None:
            raise UnsupportedError(f"the primitive `{name}`")
        if any(isinstance(item, Key) for item in operands):
            raise UnsupportedError(f"the primitive `{name}`, of random numbers and data,")
        if all(0 in v.aval.shape for v in equation.outvars):
            return [self.constant(np.zeros(v.aval.shape, v.aval.dtype)) for v in equation.outvars]
        results = tuple(type_of(v.aval) for v in equation.outvars)
        call = Call(self.emission, name, operands, equation.params, results, self.notes)
        try:
            found = converter(call)
        except IRError as error:
            raise UnsupportedError(f"the primitive `{name}` ({error.what})") from error
        made: list[Any] = list(found) if isinstance(found, (list, tuple)) else [found]
        for item, kind in zip(made, results, strict=True):
            if isinstance(item, Value) and item.type != kind:
                raise UnsupportedError(
                    f"the primitive `{name}` as {kind} (it would be {item.type})"
                )
        return made

    # Values

    def value(self, item: Item) -> Value:
        """Return an item as a value of the program."""
        if isinstance(item, Constant):
            if item.dtype.startswith("complex"):
                item = self.constant(np.stack([item.array.real, item.array.imag], axis=-1))
            return self.emission.enter(item)
        if isinstance(item, Key):
            raise UnsupportedError("a key of random numbers where an array is expected")
        assert isinstance(item, Value)
        return item

    def stopped(self, item: Item) -> Item:
        """Return an item as a constant to gradients."""
        if isinstance(item, Constant) and not item.trained:
            return item
        value = self.value(item)
        return self.emission.build.emit("stop_gradient", value) if value.type.is_float else value

    def count(self, equations: int, what: str) -> None:
        """Count the equations of a loop that is unrolled.

        Raises
        ------
        UnsupportedError
            If there are too many.
        """
        self.equations += equations
        if self.equations > MOST_EQUATIONS:
            raise UnsupportedError(
                f"{what}, which is over {MOST_EQUATIONS:,} equations when it is unrolled,"
            )


def _closed(jaxpr: Any) -> Any:
    """Return a jaxpr with its constants."""
    return jaxpr if hasattr(jaxpr, "consts") else jax.extend.core.ClosedJaxpr(jaxpr, ())


def is_known(item: Any) -> bool:
    """Return whether an item is known when the function is imported."""
    if isinstance(item, Constant):
        return not item.trained and not item.is_absent
    return isinstance(item, Key)


def _is_key(dtype: Any) -> bool:
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _plain(item: Any) -> Any:
    """Return what JAX computes with."""
    return item.value if isinstance(item, Key) else np.asarray(item.array)


def is_complex(variable: Any) -> bool:
    """Return whether a variable of a jaxpr, or a number in it, is complex."""
    dtype = getattr(variable.aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, np.complexfloating)


def bound(equation: Any, arrays: Sequence[Any]) -> Sequence[Any]:
    """Apply the primitive of an equation."""
    functions, params = _bind_params(equation)
    found = equation.primitive.bind(*functions, *arrays, **params)
    return found if equation.primitive.multiple_results else [found]


def _bind_params(equation: Any) -> tuple[list[Any], dict[str, Any]]:
    made = equation.primitive.get_bind_params(equation.params)
    return (list(made[0]), dict(made[1])) if isinstance(made, tuple) else ([], dict(made))


def _is_pointwise(name: str, arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a primitive computes each element of its result from those at its place."""
    shape = shapes[0] if len(shapes) == 1 else None
    return name in _POINTWISE and all(array.shape in ((), shape) for array in arrays)


def _narrowed_together(arrays: Sequence[Array]) -> list[Array]:
    """Return one slice along each dimension that all arrays repeat."""
    small = [narrowed(array) for array in arrays]
    rank = max(array.ndim for array in arrays)
    whole = np.broadcast_shapes(*(array.shape for array in small))
    return [np.broadcast_to(array, whole) if rank else array for array in small]


_POINTWISE = frozenset(
    (
        *("abs", "add", "and", "ceil", "convert_element_type", "cos", "div", "eq", "erf", "exp"),
        *("floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "logistic", "lt", "max"),
        *("min", "mul", "ne", "neg", "not", "or", "pow", "rem", "round", "rsqrt", "select_n"),
        *("sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tanh", "xor"),
    )
)

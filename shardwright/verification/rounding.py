"""The rounding of a precision policy: a step in the types of the program against float64.

A program with values of 16 bits, or with products in TF32, is right if it is equal to the model in
float64; how far it is from that when it is run in its own types is the price of its policy. The
difference of all gradients, relative to their norm, is one number for a program. It is compared
with an estimate: the training step of one device in float64, with every number rounded to the
digits of the policy. The policy rounds fewer numbers than that, so it should not differ more;
rounding errors are random, so a factor is allowed.

A recipe of low precision rounds by the largest number of a block, which no number of digits
describes, and TF32 rounds what products read alone: there the estimate is the step of one device by
the same recipe, in its own types.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.compiler.plans.plan import Plan
from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.graph import Graph
from shardwright.ir.types import TF32, is_low, numpy_dtype, unit_roundoff
from shardwright.operators.info import Array, info_of
from shardwright.operators.linear.quantized import QuantizedProduct
from shardwright.operators.models.loss_scale import LOSS_SCALE, DynamicLossScale, loss_scale
from shardwright.operators.products import Product
from shardwright.runtime import (
    Executor,
    LocalCommunicator,
    State,
    assemble,
    initialize,
)
from shardwright.runtime.rounding import RoundedExecutor

_ALLOWED = 3.0  # tolerance over the estimate, since errors are random
_HALVINGS = 32  # most halvings of a dynamic loss scale
_EXACT = "float64"


@dataclass(frozen=True)
class Rounding:
    """The rounding of one step of a program in its own types.

    Parameters
    ----------
    error : float
        The norm of the difference of all gradients from those in float64, relative to their norm;
        infinite if one is not finite.
    bound : float
        What rounding every number of the step to the digits of the policy changes, or the recipe on
        one device, the same measure, but at least one rounding; times a factor for chance.
    dtype : str
        The element type of the policy with the fewest digits.
    recipe : str
        The recipe of low precision, or ``tf32``; empty without one.
    """

    error: float
    bound: float
    dtype: str
    recipe: str = ""

    @property
    def is_within(self) -> bool:
        """Whether the error is explained by the rounding of the policy."""
        return self.error <= self.bound


def policy_rounding(plan: Plan, batch: Mapping[str, Array]) -> Rounding | None:
    """Return the rounding of a plan's program; None where nothing has 16 bits or is in TF32.

    Parameters
    ----------
    plan : Plan
        The plan; a program written by hand for several ranks has no whole gradients to compare.
    batch : mapping of str to array
        The inputs of the step.
    """
    program, recipe = plan.program, _recipe(plan.program)
    dtype = recipe if recipe == TF32 else _lowest(program)
    if dtype is None or _is_by_hand(program):
        return None
    names = [gradient_name(p.name) for p in plan.model.parameters]
    names = [n for n in names if n in plan.reference.values and n in program.values]
    unit = unit_roundoff(numpy_dtype("float16" if dtype == TF32 else dtype))  # as many digits
    exact = _one_device(plan, names, batch, None)
    if recipe:
        alike = _distance(exact, _own_types_of(plan, plan.reference, exact, batch, None))
    else:
        alike = _distance(exact, _one_device(plan, names, batch, round(-np.log2(unit)) - 1))
    bound = _ALLOWED * max(alike, unit)
    return Rounding(_own_distance(plan, exact, batch), bound, dtype, recipe)


def _recipe(program: Graph) -> str:
    """Return the recipe of low precision of a program, or TF32; empty without one."""
    for node in program.nodes:
        info = info_of(program, node)
        if isinstance(info, QuantizedProduct):
            return info.recipe.name
        if isinstance(info, Product) and info.products:
            return info.products
    return ""


def _own_distance(plan: Plan, exact: Mapping[str, Array], batch: Mapping[str, Array]) -> float:
    """Return how far the program's own types are from float64.

    A dynamic loss scale is lowered, as in training, until the gradients are finite.
    """
    scale = loss_scale(plan.document.loss_scale)
    if not isinstance(scale, DynamicLossScale):
        return _distance(exact, _in_own_types(plan, exact, batch, None))
    for halvings in range(_HALVINGS):
        factor = 2.0**-halvings
        own = _in_own_types(plan, exact, batch, scale.initial * factor)
        error = _distance({name: array * factor for name, array in exact.items()}, own)
        if np.isfinite(error):
            break
    return error


def _lowest(program: Graph) -> str | None:
    """Return the element type of 16 bits with the fewest digits in a program."""
    kinds = {value.type.dtype for value in program.values.values() if value.type.is_float}
    low = [kind for kind in kinds if is_low(numpy_dtype(kind))]
    return max(low, key=lambda kind: unit_roundoff(numpy_dtype(kind)), default=None)


def _is_by_hand(program: Graph) -> bool:
    bare = all(value.layout is None for value in program.values.values())
    return bare and program.mesh is not None and program.mesh.size > 1


def _one_device(
    plan: Plan, names: Iterable[str], batch: Mapping[str, Array], bits: int | None
) -> dict[str, Array]:
    """Return gradients of one device in float64, with all numbers rounded to some bits if given."""
    graph, local = plan.reference, LocalCommunicator()
    executor = (
        Executor(graph, local, float_dtype=_EXACT)
        if bits is None
        else RoundedExecutor(graph, local, bits)
    )
    state = initialize(graph, plan.document.seed, local, plan.initial, _EXACT)
    found = executor.step(batch, state, list(names)).fetched
    return {name: np.asarray(parts[0]) for name, parts in found.items()}


def _in_own_types(
    plan: Plan, names: Iterable[str], batch: Mapping[str, Array], scale: float | None
) -> dict[str, Array]:
    """Return the gradients of the program in its own types, under a dynamic loss scale if given."""
    return _own_types_of(plan, plan.program, names, batch, scale)


def _own_types_of(
    plan: Plan,
    program: Graph,
    names: Iterable[str],
    batch: Mapping[str, Array],
    scale: float | None,
) -> dict[str, Array]:
    """Return the gradients of the program, or of that of one device, in its own types."""
    local = LocalCommunicator(plan.mesh) if program is plan.program else LocalCommunicator()
    state: State = initialize(program, plan.document.seed, local, plan.initial)
    if scale is not None:
        state[LOSS_SCALE] = dict.fromkeys(local.ranks, np.asarray(scale, np.float32))
    with np.errstate(all="ignore"):
        found = Executor(program, local).step(batch, state, list(names)).fetched
        return {
            name: assemble(program, name, parts, local.mesh, np.inf).astype(np.float64)
            for name, parts in found.items()
        }


def _distance(exact: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    """Return the norm of the difference of all tensors, relative to the norm of the exact ones."""
    difference = sum(float(np.sum(np.square(other[name] - exact[name]))) for name in exact)
    norm = sum(float(np.sum(np.square(array))) for array in exact.values())
    if not np.isfinite(difference):
        return float("inf")
    return float(np.sqrt(difference / norm)) if norm else 0.0

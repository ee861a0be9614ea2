"""The operators that update one parameter, and its states: emitted, and priced, from one place.

Most rules are one operator, where the parameter is stored. `muon` orthogonalizes whole matrices:
the direction of the step is gathered over the axes that split them, and each rank takes its part of
the result. `adam8bit` moves a parameter whose parts would cut blocks to a layout whose parts do
not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_class
from shardwright.operators.models.eight_bit import block_of
from shardwright.operators.models.muon import adjustment_ratio
from shardwright.operators.models.optimizer import Optimizer, Update

_OF_DIRECTION = ("momentum", "nesterov")
_OF_ITERATION = ("coefficients", "epsilon", "iterations")
_OF_UPDATE = ("learning_rate", "momentum", "weight_decay")


@dataclass(frozen=True)
class UpdateScalars:
    """The scalars that the update of a parameter reads.

    Parameters
    ----------
    step : Value, optional
        The number of the step, from 1.
    rate : Value, optional
        The learning rate, where it follows the step.
    scale, nonfinite : Value, optional
        The dynamic loss scale, and the number of elements of gradients that are not finite.
    """

    step: Value | None = None
    rate: Value | None = None
    scale: Value | None = None
    nonfinite: Value | None = None

    @property
    def operands(self) -> list[Value]:
        """The scalars in the order of operands."""
        every = (self.step, self.rate, self.scale, self.nonfinite)
        return [value for value in every if value is not None]


def update_class(kind: str) -> type[Update]:
    """Return the operator that updates a parameter by a rule."""
    found = operator_class(f"{kind}_update")
    assert issubclass(found, Update)
    return found


def can_update(kind: str, tensor: TensorType) -> bool:
    """Return whether a rule can update a parameter of a type: matrices, or whole blocks."""
    if kind == "muon":
        return tensor.rank >= 2
    return kind != "adam8bit" or block_of(tensor.shape) is not None


def state_values(
    optimizer: Optimizer, parameter: Value, mesh: Mesh | None
) -> list[tuple[str, Value]]:
    """Return the states of a parameter with their names, in the layout in which it is updated.

    Raises
    ------
    OptionError
        If the rule cannot update it.
    """
    name, kind, tensor = parameter.name, optimizer.kind_of(parameter.name), parameter.type
    if not can_update(kind, tensor):
        expected = "matrices" if kind == "muon" else "tensors of whole blocks of 256 numbers"
        raise OptionError(
            f"`{kind}` updates {expected}, and `{name}` has the shape {list(tensor.shape)}",
            hint=f"let `adam` update it: `overrides={{'{name}': {{'optimizer': 'adam'}}}}`",
        )
    update, layout = update_class(kind), parameter.layout
    if layout is not None and mesh is not None:
        layout = update.fitted(layout, tensor, mesh)
    names = optimizer.states_of(name)
    types = update.state_types(tensor)
    return [
        (state, Value(f"{name}.{state}", own, layout))
        for state, own in zip(names, types, strict=True)
    ]


def emit_update(
    build: Builder,
    optimizer: Optimizer,
    parameter: Value,
    gradient: Value,
    states: Sequence[Value],
    scalars: UpdateScalars,
) -> tuple[Value, ...]:
    """Emit the update of a parameter; return what it and its states become."""
    name, kind = parameter.name, optimizer.kind_of(parameter.name)
    attributes = optimizer.attributes_of(name)
    if kind == "muon":
        return _emit_muon(build, optimizer, parameter, gradient, states[0], scalars)
    fitted = states[0].layout if states else parameter.layout
    stored, operator = parameter.layout, f"{kind}_update"
    if kind == "adam8bit":
        attributes["block"] = block_of(parameter.type.shape)
    operands = [_at(build, value, fitted) for value in (parameter, gradient)]
    following, *others = build.emit_all(
        operator,
        *operands,
        *states,
        *scalars.operands,
        name=f"{name}.next",
        like=None,
        **attributes,
    )
    return _at(build, following, stored), *others


def _emit_muon(
    build: Builder,
    optimizer: Optimizer,
    parameter: Value,
    gradient: Value,
    momentum: Value,
    scalars: UpdateScalars,
) -> tuple[Value, ...]:
    name, given = parameter.name, optimizer.attributes_of(parameter.name)

    def own(names: Sequence[str]) -> dict[str, Attribute]:
        return {name: given[name] for name in names if name in given}

    product_type = str(optimizer.setting(name, "product_type"))
    adjustment = str(optimizer.setting(name, "adjustment"))
    scale = [] if scalars.scale is None else [scalars.scale]
    direction = build.emit(
        "muon_direction",
        gradient,
        momentum,
        *scale,
        name=f"{name}.direction",
        like=None,
        dtype=product_type,
        **own(_OF_DIRECTION),
    )
    whole = _at(build, direction, _whole_matrices(parameter.layout))
    orthogonal = build.emit(
        "orthogonalize", whole, name=f"{name}.orthogonal", like=None, **own(_OF_ITERATION)
    )
    return build.emit_all(
        "muon_update",
        parameter,
        gradient,
        momentum,
        _at(build, orthogonal, parameter.layout),
        *replace(scalars, step=None).operands,
        name=f"{name}.next",
        like=None,
        ratio=adjustment_ratio(adjustment, parameter.type.shape),
        **own(_OF_UPDATE),
    )


def _whole_matrices(layout: Layout | None) -> Layout | None:
    """Return a layout in which the last two dimensions are whole."""
    if layout is None:
        return None
    return Layout((*layout.splits[:-2], (), ()), stage=layout.stage)


def _at(build: Builder, value: Value, layout: Layout | None) -> Value:
    """Return a value in a layout."""
    if layout is None or value.layout is None or layout == value.layout:
        return value
    return build.redistribute(value, layout)

"""The reference training step of one device, by an independent reverse pass and update rules.

Proofs and numerical verification compare programs with this step. It shares only the gradients of
the operators with the compiler.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwright.ir.attributes import Attribute, Attributes
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node, Value, renamed
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import Linearization, operator_class, operator_info
from shardwright.operators.models.loss_scale import DynamicLossScale, loss_scale
from shardwright.proof.clipping import clipped

STEP = "optimizer.step"
SCALE = "optimizer.loss_scale"
GOOD_STEPS = "optimizer.good_steps"
RATE = "optimizer.learning_rate"
# The optimizer states of each rule, with the setting that has their first value.
_STATES: Mapping[str, Mapping[str, str | None]] = {
    "sgd": {},
    "momentum": {"momentum": None},
    "adam": {"m": None, "v": None},
    "adam8bit": {"m": None, "m_scale": None, "v": None, "v_scale": None},
    "muon": {"momentum": None},
    "ftrl": {"accumulator": "initial_accumulator", "linear": None},
    "adagrad": {"accumulator": "initial_accumulator"},
    "rmsprop": {"mean_square": "initial_square", "momentum": None},
    "lamb": {"m": None, "v": None},
    "lars": {"momentum": None},
    "amsgrad": {"m": None, "v": None, "v_max": None},
    "dampened": {"momentum": None},
    "centered": {"mean_square": "initial_square", "momentum": None, "mean": None},
    "gradient": {"gradient": None},
}
_COUNTING = frozenset({"adam", "adam8bit", "amsgrad", "dampened", "lamb"})
_COUNTED = _COUNTING | {"muon"}  # whose other parameters `adam` updates
_CLIP_NORM = "clip_norm"  # the greatest norm of all gradients together
_OF_OTHERS = "adamw_"  # begins the settings of `muon` that are of those
_ADAMW_DECAY = 0.01  # of PyTorch, said anew: a proof takes no table of what it proves
_MUON: Attributes = {
    "learning_rate": 0.001,
    "weight_decay": 0.1,
    "momentum": 0.95,
    "nesterov": True,
    "coefficients": (3.4445, -4.775, 2.0315),
    "epsilon": 1e-7,
    "iterations": 5,
    "adjustment": "original",
    "product_type": "bfloat16",
}


@dataclass(frozen=True)
class DynamicScale:
    """A loss scale that is a state of the program; a step with an overflow is skipped.

    Parameters
    ----------
    initial : float
        The first scale.
    attributes : mapping
        Attributes of the operator that makes the next one.
    """

    initial: float
    attributes: Attributes


@dataclass(frozen=True)
class UpdateRule:
    """The update rule of trained parameters.

    Parameters
    ----------
    kind : str
        ``sgd``, ``momentum``, ``adam``, ``adam8bit``, ``muon``, ``ftrl``, ``adagrad``, ``lamb``,
        ``lars``, ``rmsprop``, ``amsgrad``, ``dampened``, ``centered`` or ``gradient``.
    settings : mapping
        Attributes of the update operator; a learning rate that is a text or a tuple is computed
        from the number of the step.
    loss_scale : float or DynamicScale
        Factor of the loss and gradients; the update divides by it.
    overrides : mapping of str to mapping
        Attributes of single parameters, by name; ``optimizer`` is the rule of one that another
        updates.
    """

    kind: str = "sgd"
    settings: Attributes = field(default_factory=dict)
    loss_scale: "float | DynamicScale" = 1.0
    overrides: Mapping[str, Attributes] = field(default_factory=dict)


def scale_of(stated: float | str) -> float | DynamicScale:
    """Return the loss scale that a plan states as a number or as text."""
    scale = loss_scale(stated)
    if isinstance(scale, DynamicLossScale):
        return DynamicScale(scale.initial, scale.attributes)
    return scale


def gradient_of(parameter: str) -> str:
    """Return the name of the gradient of a parameter."""
    return f"{parameter}.grad"


def training_step(model: Graph, rule: UpdateRule) -> Graph:
    """Return the training step of a model on one device.

    Parameters
    ----------
    model : Graph
        The traced model; its first output is the loss.
    rule : UpdateRule
        The update rule.

    Raises
    ------
    PassError
        If the loss is not a floating-point scalar, or there is no such rule.
    """
    loss = model.value(model.outputs[0])
    if loss.type.rank or not loss.type.is_float:
        raise PassError(f"the loss `{loss.name}` is {loss.type}, expected a real scalar")
    if rule.kind not in _STATES:
        raise PassError(f"unknown optimizer `{rule.kind}`: expected one of {', '.join(_STATES)}")
    build = Builder(None, model)
    gradients = _gradients(build, model, loss, rule.loss_scale)
    _update(build, gradients, rule)
    return build.graph(model.name, model.outputs)


def _gradients(
    build: Builder, model: Graph, loss: Value, factor: float | DynamicScale
) -> dict[str, Value]:
    """Emit the gradient by every reached trained parameter, in reverse order of nodes."""
    reached = _reached(model)
    totals: dict[str, Value] = {}

    def contribute(value: Value, gradient: Value) -> None:
        gradient = _in_type_of_gradients(build, model, value, gradient)
        held = totals.get(value.name)
        totals[value.name] = gradient if held is None else build.emit("add", gradient, held)

    contribute(loss, _scale(build, loss, factor))
    for node in reversed(model.nodes):
        if not any(r.name in totals and r.name in reached for r in node.results):
            continue
        for operand, gradient in zip(
            node.operands, _pulled(build, model, node, totals), strict=True
        ):
            if gradient is not None and operand in reached:
                contribute(model.values[operand], gradient)
    widened = _widened(build)
    return {
        p.name: build.emit(
            "identity",
            widened.get(totals[p.name].name, totals[p.name]),
            name=gradient_of(p.name),
        )
        for p in model.parameters
        if p.trainable and p.name in totals
    }


def _in_type_of_gradients(build: Builder, model: Graph, value: Value, gradient: Value) -> Value:
    """Return a gradient in the type in which those of a copy of a parameter are added up."""
    producer = model.producers.get(value.name)
    if producer is None or not producer.attributes.get("reduce"):
        return gradient
    return build.emit("convert", gradient, dtype=producer.attributes["reduce"])


def _widened(build: Builder) -> dict[str, Value]:
    """Return for each value that is cast to a wider type the value before."""
    values = {result.name: result for node in build.nodes for result in node.results}
    casts = [node for node in build.nodes if node.operator == "cast"]
    return {
        node.name: values[node.operands[0]]
        for node in casts
        if node.operands[0] in values
        and values[node.operands[0]].type.is_float
        and values[node.operands[0]].type.nbytes < node.results[0].type.nbytes
    }


def _scale(build: Builder, loss: Value, scale: float | DynamicScale) -> Value:
    """Emit the gradient of the loss by itself, times the loss scale."""
    if not isinstance(scale, DynamicScale):
        return _constant(build, loss, scale)
    state = Value(SCALE, TensorType("float32", ()))
    initializer = f"constant({scale.initial:.17g})"
    build.parameter(state, {"initializer": initializer, "trainable": False})
    if loss.type.dtype == "float32":
        return state
    return build.emit("cast", state, dtype=loss.type.dtype)


def _reached(model: Graph) -> set[str]:
    """Return the values that depend on a trained parameter through floating-point values."""
    reached = {p.name for p in model.parameters if p.trainable and p.value.type.is_float}
    for node in model.nodes:
        stops = operator_class(node.operator).stops_gradient
        if not stops and not reached.isdisjoint(node.operands):
            reached.update(result.name for result in node.results if result.type.is_float)
    return reached


def _pulled(
    build: Builder, model: Graph, node: Node, totals: Mapping[str, Value]
) -> list[Value | None]:
    """Emit the gradient by each operand of a node."""
    operands = model.operand_values(node)
    info = operator_info(node.operator, [value.type for value in operands], node.attributes)
    cotangents = [totals.get(r.name) or _constant(build, r, 0.0) for r in node.results]
    return list(build.gradients(info, Linearization(operands, node.results, cotangents)))


def _constant(build: Builder, value: Value, number: float) -> Value:
    kind = value.type
    return build.emit("fill", shape=kind.shape, dtype=kind.dtype, value=number)


def _update(build: Builder, gradients: Mapping[str, Value], rule: UpdateRule) -> None:
    """Emit the update of every parameter with a gradient, and of its states."""
    guard = _guard(build, gradients, rule.loss_scale)
    every = (rule.settings, *rule.overrides.values())
    rated = ("learning_rate", f"{_OF_OTHERS}learning_rate")
    scheduled = any(isinstance(own.get(name), str | tuple) for own in every for name in rated)
    counted = _counted(build, guard) if scheduled or rule.kind in _COUNTED else None
    rates: dict[Attribute, Value] = {}
    by_name = {parameter.name: parameter.value for parameter in build.parameters}
    if not guard and rule.loss_scale != 1.0:
        gradients = {n: _unscaled(build, g, by_name[n], rule) for n, g in gradients.items()}
    if (limit := rule.settings.get(_CLIP_NORM)) is not None:
        gradients = clipped(build, gradients, by_name, guard[:1], limit)
    for name, gradient in gradients.items():
        kind, own = _rule_of(rule, name)
        kept = _kept(build, kind, by_name[name], own)
        scalars = [counted[1]] if counted and kind in _COUNTING else []
        if counted and scheduled:
            rate = own.pop("learning_rate", _default(kind, "learning_rate"))
            if rate not in rates:
                rates[rate] = build.emit("learning_rate", counted[0], name=RATE, rate=rate)
            scalars.append(rates[rate])
        operands = [by_name[name], gradient, *kept]
        if kind == "muon":
            operands.append(_direction(build, gradient, kept[0], guard, own))
            own = _of_muon(own, by_name[name].type.shape)
        if kind == "adam8bit":
            own["block"] = _block(by_name[name].type.shape)
        following = build.emit_all(
            f"{kind}_update",
            *operands,
            *scalars,
            *guard[:2],
            name=f"{name}.next",
            like=None,
            **own,
        )
        pairs = zip((name, *(state.name for state in kept)), following, strict=True)
        build.updates += [(old, new.name) for old, new in pairs]


def _rule_of(rule: UpdateRule, parameter: str) -> tuple[str, dict[str, Attribute]]:
    """Return the rule that updates a parameter, and its settings."""
    own = dict(rule.overrides.get(parameter, {}))
    kind = str(own.pop("optimizer", rule.kind))
    settings = {name: value for name, value in rule.settings.items() if name != _CLIP_NORM}
    if rule.kind != "muon":
        return kind, {**settings, **own}
    common: dict[str, Attribute] = {}
    for name, value in settings.items():
        if name.startswith(_OF_OTHERS) == (kind != "muon"):
            common[name.removeprefix(_OF_OTHERS)] = value
    if kind != "muon":
        shared = {n: v for n, v in rule.settings.items() if n == "learning_rate"}
        common = {"weight_decay": _ADAMW_DECAY, **shared, **common}
    return kind, {**common, **own}


def _direction(
    build: Builder,
    gradient: Value,
    momentum: Value,
    guard: Sequence[Value],
    settings: Attributes,
) -> Value:
    """Emit the orthogonalized direction of a step of Muon."""
    used = {**_MUON, **settings}
    direction = build.emit(
        "muon_direction",
        gradient,
        momentum,
        *guard[:1],
        momentum=used["momentum"],
        nesterov=used["nesterov"],
        dtype=used["product_type"],
    )
    names = ("coefficients", "epsilon", "iterations")
    own = {name: used[name] for name in names}
    return build.emit("orthogonalize", direction, name=None, like=None, **own)


def _of_muon(settings: Attributes, shape: tuple[int, ...]) -> dict[str, Attribute]:
    """Return the attributes of the update of a matrix by Muon."""
    adjustment, (rows, columns) = {**_MUON, **settings}["adjustment"], shape[-2:]
    ratio = {
        "original": max(1.0, rows / columns) ** 0.5,
        "spectral_unclamped": (rows / columns) ** 0.5,
        "match_rms_adamw": 0.2 * max(rows, columns) ** 0.5,
    }.get(str(adjustment), 1.0)
    names = ("learning_rate", "momentum", "weight_decay")
    return {"ratio": ratio, **{name: settings[name] for name in names if name in settings}}


def _block(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sides of blocks of 256 numbers: the most square ones that divide a tensor."""
    if len(shape) == 1:
        return (256,)
    sides = sorted((max(2**n, 2 ** (8 - n)), -(2**n)) for n in range(9))
    return next(
        (-rows, 256 // -rows)
        for _, rows in sides
        if shape[-2] % rows == 0 and shape[-1] % (256 // -rows) == 0
    )


def _kept(build: Builder, kind: str, parameter: Value, settings: Attributes) -> list[Value]:
    """Add the states of a parameter."""
    states = []
    for state, setting in _STATES[kind].items():
        initializer = "zeros"
        if setting is not None:
            first = settings.get(setting, _default(kind, setting))
            initializer = f"constant({float(first):.17g})"  # type: ignore[arg-type]
        attributes: Attributes = {"initializer": initializer, "trainable": False}
        value = Value(f"{parameter.name}.{state}", _state_type(kind, state, parameter.type))
        states.append(build.parameter(value, attributes))
    return states


def _state_type(kind: str, state: str, parameter: TensorType) -> TensorType:
    """Return the type of a state: of 8 bits with scales of blocks, or as the parameter."""
    if kind != "adam8bit":
        return _kept_type(parameter)
    if not state.endswith("_scale"):
        return TensorType("uint8", parameter.shape)
    block = _block(parameter.shape)
    whole, blocked = parameter.shape[: -len(block)], parameter.shape[-len(block) :]
    tiles = tuple(size // side for size, side in zip(blocked, block, strict=True))
    return TensorType("float32", (*whole, *tiles))


def _default(kind: str, setting: str) -> Attribute:
    """Return the value of a setting where none is given."""
    return _MUON[setting] if kind == "muon" else operator_class(f"{kind}_update").defaults[setting]


def _unscaled(build: Builder, gradient: Value, parameter: Value, rule: UpdateRule) -> Value:
    assert isinstance(rule.loss_scale, int | float)
    if gradient.type.dtype != parameter.type.dtype:
        gradient = build.emit("cast", gradient, dtype=parameter.type.dtype)
    return build.emit("scale", gradient, factor=1.0 / rule.loss_scale)


def _guard(
    build: Builder, gradients: Mapping[str, Value], scale: float | DynamicScale
) -> list[Value]:
    """Emit the next loss scale; return it, the overflows, and whether the step is applied."""
    if not isinstance(scale, DynamicScale) or not gradients:
        return []
    counts = [build.emit("count_nonfinite", gradient) for gradient in gradients.values()]
    total = counts[0]
    for count in counts[1:]:
        total = build.emit("add", total, count)
    now = next(p.value for p in build.parameters if p.name == SCALE)
    good = _zeros(build, GOOD_STEPS, TensorType("int64", ()))
    following = build.emit_all("loss_scale_update", now, good, total, **scale.attributes)  # type: ignore[arg-type]
    build.updates += [(SCALE, following[0].name), (GOOD_STEPS, following[1].name)]
    return [now, total, following[2]]


def _kept_type(parameter: TensorType) -> TensorType:
    """Return the type of the states of a parameter: float16 is too narrow for squares."""
    if parameter.dtype == "float16":
        return TensorType("float32", parameter.shape)
    return parameter


def _counted(build: Builder, guard: list[Value]) -> tuple[Value, Value]:
    """Emit the number of steps before, and with this one; skipped steps do not count."""
    count = _zeros(build, STEP, TensorType("int64", ()))
    if guard:
        following = build.emit("add", count, guard[2])
    else:
        following = build.emit("add_scalar", count, value=1)
    build.updates.append((STEP, following.name))
    return count, following


def _zeros(build: Builder, name: str, kind: TensorType) -> Value:
    """Add an untrained parameter that is initially zero."""
    attributes: Attributes = {"initializer": "zeros", "trainable": False}
    return build.parameter(Value(name, kind), attributes)


def merge_equal_nodes(graph: Graph, keep: Container[str] = frozenset()) -> Graph:
    """Return the graph with equal nodes merged and identities removed, except nodes in `keep`.

    The gradient of one value is one term, and of two equal values two terms, equal only over the
    real numbers. So values are merged that the compiler has merged; the meaning of the graph does
    not change.
    """
    names: dict[str, str] = {}
    first: dict[object, Node] = {}
    nodes = []
    for node in graph.nodes:
        node = renamed(node, names)
        kind = operator_class(node.operator)
        if kind.is_identity and not kind.stops_gradient and node.name not in keep:
            names[node.name] = node.operands[0]
            continue
        twin = first.setdefault((node.operator, node.operands, attributes_text(node)), node)
        if twin is not node and node.name not in keep:
            results = zip(node.results, twin.results, strict=True)
            names.update((result.name, other.name) for result, other in results)
            continue
        nodes.append(node)
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    updates = tuple((name, names.get(new, new)) for name, new in graph.updates)
    return replace(graph, nodes=tuple(nodes), outputs=outputs, updates=updates)


def attributes_text(node: Node, defaults: Attributes | None = None) -> str:
    """Return the attributes of a node, with defaults, as text that distinguishes 1 from 1.0."""
    return repr(sorted({**(defaults or {}), **node.attributes}.items()))

"""Tracing: from a network to its definition, a graph without a mesh and without layouts."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from shardwright.communication import get_group_size
from shardwright.dataflow.placement import cuts_of
from shardwright.gradients import Gradients
from shardwright.ir.errors import ModelError, ShardwrightError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.reachability import without_dead_nodes
from shardwright.ir.types import TensorType
from shardwright.ir.units import shortened
from shardwright.ir.values import check_fields, checked
from shardwright.nn.cell import Cell
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.info import Array, SplitCounts
from shardwright.operators.models.loss_scale import LossScale
from shardwright.operators.models.optimizer import Optimizer as Rule
from shardwright.operators.verify import verify
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, TracedTensor
from shardwright.tracer import Tracer, is_of_model

Network = Cell | Callable[..., Any]


@dataclass(frozen=True)
class InputSpec:
    """An input of a network.

    Parameters
    ----------
    name : str
        Name of the input.
    type : TensorType
        Type of the whole batch.
    high : int, optional
        Exclusive upper bound of an integer input, for random samples.
    """

    name: str
    type: TensorType
    high: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, eq=False)
class Definition:
    """A traced model.

    Parameters
    ----------
    graph : Graph
        The forward program; the loss, if any, is the first output, a scalar.
    inputs : tuple of InputSpec
        The inputs of the graph.
    pins, result_pins : mapping of str to tuple of tuple of int
        Strategies pinned by the model: by node, the slices of each dimension of its operands or
        results.
    initial : mapping of str to array
        Parameters with given initial data; their initializer is ``data``.
    optimizer : Optimizer, optional
        The update rule of the parameters.
    loss_scale : LossScale
        The factor on the loss in backward.
    world : int
        Number of ranks of a hand-written parallel program, whose types are those of one rank; 1
        for any other.
    precision : str, optional
        The policy of mixed precision that is assumed where the user asks for none.
    micro_batches : int
        The number of micro-batches, where the user asks for no other.
    holders : mapping of str to Parameter
        The parameters of the network, by name.
    gradients_mean : bool
        Whether a hand-written parallel program is trained on the mean of the losses of all ranks.
    lines : mapping of str to str
        The line of the model's own code that applies each operator, by node: ``model.py:12``.
    """

    graph: Graph
    inputs: tuple[InputSpec, ...]
    pins: Mapping[str, SplitCounts] = field(default_factory=dict)
    result_pins: Mapping[str, SplitCounts] = field(default_factory=dict)
    initial: Mapping[str, Array] = field(default_factory=dict)
    optimizer: Rule | None = None
    loss_scale: LossScale = 1.0
    world: int = 1
    precision: str | None = None
    micro_batches: int = 1
    holders: Mapping[str, Parameter] = field(default_factory=dict, repr=False)
    gradients_mean: bool = False
    lines: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{spec.name} {spec.type}" for spec in self.inputs)
        return (
            f"<Definition {self.graph.name}({shortened(inputs)}): {len(self.graph)} nodes, "
            f"{self.parameter_count:,} trained elements>"
        )

    @property
    def loss(self) -> str | None:
        """Name of the loss; None if the first output is no real scalar."""
        name = self.graph.outputs[0]
        kind = self.graph.values[name].type
        return name if kind.is_float and not kind.shape else None

    @property
    def parameter_count(self) -> int:
        """Number of trained elements."""
        return sum(p.value.type.elements for p in self.graph.parameters if p.trainable)


class WithLossCell(Cell):
    """A network and its loss, which gets the last input as labels."""

    def __init__(self, backbone: Network, loss_fn: Network, with_outputs: bool = False) -> None:
        self.backbone = backbone
        self.loss = loss_fn
        self._with_outputs = with_outputs

    def construct(self, *inputs: Tensor) -> Any:
        """Return the loss of the network's output and the labels, and the output if asked for."""
        output = self.backbone(*inputs[:-1])
        loss = self.loss(output, inputs[-1])
        return (loss, output) if self._with_outputs else loss


@checked
def trace(
    network: Network,
    inputs: Sequence[InputSpec],
    *,
    loss_fn: Network | None = None,
    optimizer: Optimizer | Rule | None = None,
    loss_scale: LossScale = 1.0,
    name: str | None = None,
    training: bool = True,
    only_rank: int | None = None,
) -> Definition:
    """Run a network once on symbols and return its definition.

    Parameters
    ----------
    network : Cell or callable
        The network; a parameter is named by the path of attributes to it.
    inputs : sequence of InputSpec
        Its inputs; with `loss_fn`, the last one are the labels.
    loss_fn : Cell or callable, optional
        Takes the network's output and the labels, returns a scalar.
    optimizer : Optimizer, optional
        The update rule; a training step that applies one itself needs none here.
    loss_scale : LossScale
        The factor on the loss in backward.
    name : str, optional
        Name of the graph; by default the name of the network's class or function.
    training : bool
        Whether the program is a training step; see `Tracer`. Else what the network returns follows
        its loss.
    only_rank : int, optional
        The rank whose program alone this is; see `Tracer`.

    Raises
    ------
    ModelError
        If the network cannot be traced; says where in the model and in which line.
    """
    scopes, named = _names(network, loss_fn)
    names = {id(parameter): name for name, parameter in named.items()}
    tracer = Tracer(get_group_size(), scopes, names, training, only_rank)
    symbols = [TracedTensor(tracer.input(Value(spec.name, spec.type))) for spec in inputs]
    whole = network if loss_fn is None else WithLossCell(network, loss_fn, not training)
    with tracer.tracing():
        outputs = _values(_run(whole, symbols, tracer), tracer)
    if isinstance(optimizer, Optimizer):
        _run(partial(tracer.apply, optimizer), (Gradients(),), tracer)
        optimizer = None
    tracer.check(outputs[0].name)
    loss_scale = _scale(tracer, loss_scale)
    outputs[0] = tracer.objective(outputs[0])
    graph = tracer.graph(name or _name(network), tuple(value.name for value in outputs))
    graph = _in_order(graph, tracer.stages)
    hosted = tracer.offloaded.keys() - tracer.recomputed.keys()
    graph = replace(
        without_training(graph, tracer.frozen()),
        recomputed=tuple(node.name for node in graph.nodes if node.name in tracer.recomputed),
        offloaded=tuple(node.name for node in graph.nodes if node.name in hosted),
        cuts=_cuts(graph, tracer.stages),
    )
    verify(graph)
    alive = {node.name for node in without_dead_nodes(graph).nodes}
    return Definition(
        graph,
        _all_inputs(inputs, tracer.inputs),
        {node: pin for node, pin in tracer.pins.items() if node in alive},
        {node: pin for node, pin in tracer.result_pins.items() if node in alive},
        tracer.initial,
        _dense_where_read_whole(tracer.optimizer, graph) or optimizer,
        loss_scale,
        tracer.world,
        _precision(network, loss_fn),
        _micro_batches(network, loss_fn),
        {name: parameter for name, parameter in named.items() if name in graph.values},
        tracer.gradients_mean,
        tracer.lines,
    )


def _scale(tracer: Tracer, scale: LossScale) -> LossScale:
    """Return the factor on the loss in backward, which the optimizer divides by.

    An optimizer that has one alone divides gradients that nobody multiplied by it.

    Raises
    ------
    ModelError
        If a loss scale manager has another one than the optimizer or the training step.
    """
    own, managed = tracer.loss_scale, tracer.managed_scale
    if managed is not None:
        if scale not in (1, managed):
            raise ModelError(
                f"the training step has the loss scale `{managed}`, and the loss scale manager "
                f"`{scale}`",
                hint="leave out the manager: the step multiplies and divides",
            )
        scale = managed
    if own == 1:
        return scale
    if scale not in (1, own):
        raise ModelError(
            f"the optimizer has the loss scale {own:g}, and the loss scale manager `{scale}`",
            hint="leave out that of the optimizer: the manager multiplies and divides",
        )
    if scale == 1:
        tracer.scale_gradients(1 / own)
    return own


def _dense_where_read_whole(rule: Rule | None, graph: Graph) -> Rule | None:
    """Return a lazy rule that updates all of each parameter that is not only read by rows."""
    if rule is None or not rule.settings.get("lazy"):
        return rule
    readers: dict[str, set[bool]] = {}
    for node in graph.nodes:
        for i, operand in enumerate(node.operands):
            readers.setdefault(operand, set()).add(node.operator == "gather" and i == 0)
    whole = [p.name for p in graph.parameters if p.trainable and readers.get(p.name) != {True}]
    own = {name: {**rule.overrides.get(name, {}), "lazy": False} for name in whole}
    return replace(rule, overrides={**rule.overrides, **own})


def _in_order(graph: Graph, placed: Mapping[str, int]) -> Graph:
    """Return the graph in the order of stages, where cells of an early one come again later.

    An operator in no cell of a stage is in the last stage of its operands then. What reads a later
    stage stays where it is.
    """
    order = [placed[node.name] for node in graph.nodes if node.name in placed]
    if order == sorted(order):
        return graph
    stages: dict[str, int] = {}
    of_values: dict[str, int] = {}
    for node in graph.nodes:
        before = max((of_values.get(operand, 0) for operand in node.operands), default=0)
        stages[node.name] = placed.get(node.name, before)
        if stages[node.name] < before:
            return graph
        of_values.update({result.name: stages[node.name] for result in node.results})
    nodes = sorted(graph.nodes, key=lambda node: stages[node.name])
    return replace(graph, nodes=tuple(nodes))


def _cuts(graph: Graph, placed: Mapping[str, int]) -> tuple[str, ...]:
    """Return the first operators of the pipeline stages that cells name.

    An operator in no such cell is in the stage of what comes before it.
    """
    stage, stages = 0, {}
    for node in graph.nodes if placed else ():
        stage = placed.get(node.name, stage)
        stages[node.name] = stage
    return cuts_of(graph, stages, 1)


def _micro_batches(network: Network, loss_fn: Network | None) -> int:
    """Return the number of micro-batches that a network asks for.

    Raises
    ------
    ModelError
        If a part of it asks, or a loss.
    """
    network, found = _outermost(network), 1
    for name, root in _roots(network, loss_fn):
        for path, cell in root.cells_and_names():
            applied = cell is network or (cell is root and not isinstance(network, Cell))
            found = max(found, cell.micro_batches)
            if cell.micro_batches not in (1, found if applied else 1):
                raise ModelError(
                    f"the cell `{path or name or type(cell).__name__}` accumulates gradients, "
                    f"expected the outermost cell of the network",
                    hint="pass `GradAccumulation(network, micro_size)` itself",
                )
    return found


def _all_inputs(given: Sequence[InputSpec], inputs: Iterable[Value]) -> tuple[InputSpec, ...]:
    """Return the inputs of a graph: those that are given, and those that the network adds."""
    known = {spec.name: spec for spec in given}
    return tuple(known.get(value.name) or InputSpec(value.name, value.type) for value in inputs)


def _outermost(network: Network) -> Network:
    """Return the network, without cells that are round it: a training step, a virtual data set."""
    while isinstance(network, Cell) and network.wraps is not None:
        network = getattr(network, network.wraps)
    return network


def _precision(network: Network, loss_fn: Network | None) -> str | None:
    """Return the precision of a network; None if it has none of its own.

    Raises
    ------
    ModelError
        If a part of it has another precision.
    """
    inner = _roots(_outermost(network), loss_fn)
    roots = [root for _, root in inner if list(root.get_parameters())]
    found = {root.precision for root in roots}
    for root in roots:
        for path, cell in root.cells_and_names():
            if len(found) > 1 or (cell is not root and cell.precision):
                raise ModelError(
                    f"the cell `{path or type(cell).__name__}` has the precision "
                    f"`{cell.precision or 'float32'}`, expected one for the whole network",
                    hint="call `auto_mixed_precision` on the outermost cell",
                )
    return next(iter(found), "") or None


def without_training(graph: Graph, names: frozenset[str]) -> Graph:
    """Return the graph with the parameters called `names` untrained."""
    if not names:
        return graph
    parameters = tuple(
        replace(p, attributes={**p.attributes, "trainable": False}) if p.name in names else p
        for p in graph.parameters
    )
    return replace(graph, parameters=parameters)


def _name(network: Network) -> str:
    return (type(network) if isinstance(network, Cell) else network).__name__.lower()


def _names(
    network: Network, loss_fn: Network | None
) -> tuple[dict[int, str], dict[str, Parameter]]:
    """Return the scopes of cells, by identity, and the parameters by name."""
    scopes: dict[int, str] = {}
    parameters: dict[str, Parameter] = {}
    known: set[int] = set()
    for prefix, root in _roots(network, loss_fn):
        for path, cell in root.cells_and_names(prefix):
            scopes.setdefault(id(cell), path.replace(".", "/"))
        for path, parameter in root.parameters_and_names():
            full = f"{prefix}.{path}" if prefix else path
            if id(parameter) in known:
                continue
            if full in parameters:
                raise ModelError(f"two parameters are called `{full}`, names must be unique")
            known.add(id(parameter))
            parameters[full] = parameter
    return scopes, parameters


def _roots(network: Network, loss_fn: Network | None) -> Iterator[tuple[str, Cell]]:
    """Return the outermost cells with the prefixes of their parameters' names."""
    if isinstance(network, Cell):
        yield "", network
    else:
        cells = list(_closed_over(network, set()))
        holders = [cell for _, cell in cells if list(cell.get_parameters())]
        for name, cell in cells:
            yield "" if holders == [cell] else name, cell
    if isinstance(loss_fn, Cell):
        yield "loss", loss_fn


def _closed_over(function: Callable[..., Any], seen: set[int]) -> Iterator[tuple[str, Cell]]:
    """Return the cells that a function, or one it calls, takes from its surroundings."""
    while hasattr(function, "function"):
        function = function.function
    if isinstance(function, Cell) and id(function) not in seen:
        seen.add(id(function))
        yield "network", function
    if id(function) in seen or not inspect.isfunction(function):
        return
    seen.add(id(function))
    variables = inspect.getclosurevars(function)
    for name, item in {**variables.nonlocals, **variables.globals}.items():
        if isinstance(item, Cell):
            if id(item) not in seen:
                seen.add(id(item))
                yield name, item
        elif callable(item):
            yield from _closed_over(item, seen)


def _run(network: Network, symbols: Sequence[object], tracer: Tracer) -> Any:
    try:
        return network(*symbols)
    except Exception as error:
        what, hint = f"{type(error).__name__}: {error}", None
        if isinstance(error, ShardwrightError):
            what, hint = error.what, error.hint
        raise ModelError(what, _where(error, tracer), hint) from error


def _where(error: Exception, tracer: Tracer) -> str | None:
    """Return the scope and the last line of the model's own code before the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_of_model(frame.filename)]
    places = [f"`{tracer.scope}`"] if tracer.scope else []
    if own:
        places.append(f"{Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line}")
    return ", ".join(places) or None


def _values(outputs: Any, tracer: Tracer) -> list[Value]:
    if isinstance(outputs, Tensor):
        return [outputs.value(tracer)]
    if isinstance(outputs, (tuple, list)) and outputs:
        return [value for output in outputs for value in _values(output, tracer)]
    raise ModelError(f"the network returns {outputs!r}, expected tensors")

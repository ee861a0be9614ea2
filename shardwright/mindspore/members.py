"""What MindSpore's cells and parameters have beside what ours do."""

from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from math import gcd
from typing import Any, Literal

from shardwright.eager import drawn
from shardwright.ir.errors import ModelError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, check_flag
from shardwright.mindspore.common.initializer import initializer
from shardwright.mindspore.context import ParallelMode, get_auto_parallel_context
from shardwright.mindspore.errors import as_mindspore
from shardwright.mindspore.pipelines import stages_of_parameters
from shardwright.mindspore.simulation import is_simulated
from shardwright.nn.cell import Cell
from shardwright.operators.info import SplitCounts, operator_info
from shardwright.operators.rule import Rule
from shardwright.parameter import Init, Parameter
from shardwright.tensor import Tensor
from shardwright.tracer import Tracer


def parameters_dict(self: Cell, recurse: bool = True) -> "OrderedDict[str, Parameter]":
    """Return the parameters of the cell by name, with those of inner cells unless told not to."""
    check_flag("recurse", recurse)
    own = {id(item) for item in vars(self).values()}
    return OrderedDict(
        (parameter.name, parameter)
        for parameter in self.get_parameters()
        if recurse or id(parameter) in own
    )


def init_parameters_data(
    self: Cell, auto_parallel_mode: bool = False
) -> dict[Parameter, Parameter]:
    """Let the initializers draw the values that the parameters begin with, by the seed.

    They are those that the network would begin with anyway. Each parameter is itself again in what
    is returned.
    """
    check_flag("auto_parallel_mode", auto_parallel_mode)
    found = dict(self.parameters_and_names())
    for name, parameter in found.items():
        if not parameter.has_value:
            parameter.set_data(drawn(name, parameter.initializer, parameter.type))
    return {parameter: parameter for parameter in found.values()}


def infer_param_pipeline_stage(self: Cell) -> list[Parameter]:
    """Return the trained parameters of the stage of this rank; in a run, those of all stages.

    The program of a run has all stages, and its optimizer all parameters; each rank keeps those of
    its stage.

    Raises
    ------
    ModelError
        If a parameter is in no cell of a stage, and `add_pipeline_stage` named none.
    """
    stages, trained = stages_of_parameters(self), self.trainable_params()
    for parameter in trained:
        if not stages[id(parameter)]:
            with as_mindspore():
                raise ModelError(
                    f"the parameter `{parameter.name}` is in no cell with a pipeline stage",
                    hint="set `pipeline_stage` of its cell, or call `add_pipeline_stage`",
                )
    if not is_simulated():
        return trained
    get = get_auto_parallel_context
    current = get("global_rank") // (get("device_num") // get("pipeline_stages"))
    return [parameter for parameter in trained if current in stages[id(parameter)]]


def set_data_parallel(self: Cell) -> None:
    """Split operators of the cell without a strategy by their batch, in ``auto_parallel``.

    The batch is the first dimension of results, or of operands; it is split into as many slices as
    divide it and the ranks of a stage.
    """
    self._pin = _pin_by_batch


def _pin_by_batch(tracer: Tracer, begin: int) -> None:
    get = get_auto_parallel_context
    if get("parallel_mode") != ParallelMode.AUTO_PARALLEL:
        return
    ranks = get("device_num") // get("pipeline_stages")
    results = (value for node in tracer.nodes for value in node.results)
    parameters = (parameter.value for parameter in tracer.parameters)
    types = {value.name: value.type for value in (*tracer.inputs, *parameters, *results)}
    for node in tracer.nodes[begin:]:
        if node.operands and node.name not in {*tracer.pins, *tracer.result_pins}:
            kinds = [types[name] for name in node.operands]
            rule = operator_info(node.operator, kinds, node.attributes).rule
            if counts := _by_batch(rule, ranks):
                tracer.pins[node.name] = counts


def _by_batch(rule: Rule, ranks: int) -> SplitCounts | None:
    """Return the slices of operands that are split by the batch; None where it stays whole."""
    first = [dims[0] for dims in rule.operands if dims]
    batch = next((dims[0] for dims in rule.results if dims and dims[0] in first), None)
    batch = batch or next(iter(first), ())
    if len(batch) != 1 or rule.kinds[batch[0]] not in ("parallel", "sum"):
        return None
    count = gcd(rule.sizes[batch[0]], ranks)
    return tuple(
        tuple(count if factors == batch else 1 for factors in dims) for dims in rule.operands
    )


def add_pipeline_stage(self: Parameter, stage: int) -> None:
    """Name a stage in which the parameter is read, for `infer_param_pipeline_stage`."""
    with as_mindspore():
        NOT_NEGATIVE_INTEGER.check("stage", stage)
    vars(self).setdefault("_named_stages", []).append(stage)


def clone(self: Parameter, init: Init | Tensor | Literal["same"] = "same") -> Parameter:
    """Return another parameter of the same name and type, which begins as this one or otherwise.

    Parameters
    ----------
    init : str, float, Initializer or Tensor
        ``same``: with its value, if it has one, or else as it begins.
    """
    other = copy(self)
    other.name, other.kept = self.name, None
    if not (isinstance(init, str) and init == "same"):
        begin = Parameter(initializer(init, self.shape, self.dtype))
        other.array, other.initializer = begin.array, begin.initializer
        other.begins_as_data = begin.begins_as_data
    elif self.has_value:
        other.array, other.initializer = self.asnumpy().copy(), "data"
    return other


def data(self: Parameter) -> Parameter:
    """Return the parameter itself, whose elements are its data."""
    return self


def mode_now() -> str:
    """Return the parallel mode of the context, in which a parameter is made."""
    return str(get_auto_parallel_context("parallel_mode"))


_CELLS: tuple[Callable[..., Any], ...] = (
    infer_param_pipeline_stage,
    init_parameters_data,
    parameters_dict,
    set_data_parallel,
)


def add_members() -> None:
    """Give cells and parameters these methods and properties."""
    for method in _CELLS:
        setattr(Cell, method.__name__, method)
    Parameter.mode_now = mode_now
    Parameter.clone = clone  # type: ignore[attr-defined]
    Parameter.add_pipeline_stage = add_pipeline_stage  # type: ignore[attr-defined]
    Parameter.data = property(data)  # type: ignore[attr-defined]

"""Pipelines as MindSpore's scripts write them: stages by name, reducers, shared parameters."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shardwright import nn
from shardwright.gradients import Gradients
from shardwright.ir.errors import ModelError
from shardwright.ir.units import shortened
from shardwright.ir.values import check_type, wrong_value
from shardwright.nn.cell import Cell
from shardwright.operators.models.loss_scale import SCALES
from shardwright.parameter import Parameter
from shardwright.tracer import current_tracer


class Pipeline(nn.PipelineCell):
    """A network that is trained in micro-batches, which pass through its pipeline stages.

    Parameters
    ----------
    network : Cell
        The network.
    micro_size : int
        Number of micro-batches.
    stage_config : mapping of str to int, optional
        The stages of its cells, by name; else they have them (``cell.pipeline_stage``).
    """

    def __init__(
        self, network: Cell, micro_size: int, stage_config: Mapping[str, int] | None = None
    ) -> None:
        check_type("network", network, Cell)
        super().__init__(network, micro_size)
        for name, stage in (stage_config or {}).items():
            _cell_of(network, name).pipeline_stage = stage


def _cell_of(network: Cell, name: str) -> Cell:
    """Return the cell of a name; MindSpore's wrappers call the network inside ``_backbone``.

    Raises
    ------
    ModelError
        If there is none.
    """
    found: Any = network
    for part in name.split("."):
        known = {} if not isinstance(found, Cell) else found.name_cells()
        found = known.get(part, known.get(part.removeprefix("_")))
    if not isinstance(found, Cell):
        names = [path for path, _ in network.cells_and_names() if path]
        raise ModelError(
            f"`stage_config` names the cell `{name}`, the network has {shortened(', '.join(names))}"
        )
    return found


def stages_of_parameters(network: Cell) -> dict[int, set[int]]:
    """Return the stages in which the trained parameters of a network are read, by identity."""
    trained = network.trainable_params()
    stages = {id(p): {*vars(p).get("_named_stages", ())} for p in trained}
    for _, cell in network.cells_and_names():
        for parameter in cell.get_parameters():
            if cell.pipeline_stage is not None and id(parameter) in stages:
                stages[id(parameter)].add(cell.pipeline_stage)
    return stages


def check_pipeline(network: Cell, parameters: Iterable[Parameter], all_stages: bool) -> None:
    """Refuse to train a network in stages without micro-batches, or some of its stages alone.

    Parameters
    ----------
    network : Cell
        The network, which is trained in several stages.
    parameters : iterable of Parameter
        Those of its optimizer.
    all_stages : bool
        Whether they should be those of all stages, as the program of a run has.

    Raises
    ------
    ModelError
        If nothing in the network divides the batch, or the optimizer leaves out a whole stage.
    """
    if not any(isinstance(cell, nn.PipelineCell) for _, cell in network.cells_and_names()):
        raise ModelError(
            f"`{type(network).__name__}` is trained in pipeline stages, and none of its cells is a "
            f"`PipelineCell`, which divides a batch into micro-batches",
            hint="train `PipelineCell(network, micro_size)`",
        )
    given, stages = {id(parameter) for parameter in parameters}, stages_of_parameters(network)
    trained = {stage for key, own in stages.items() if key in given for stage in own}
    left_out = sorted({stage for own in stages.values() for stage in own} - trained)
    if all_stages and left_out:
        raise ModelError(
            f"the optimizer has parameters of the pipeline stages {sorted(trained)}, and none of "
            f"{left_out}: the program of a run has all stages",
            hint="give it `network.trainable_params()`; to freeze a parameter set its "
            "`requires_grad` to False",
        )


class PipelineGradReducer:
    """Returns gradients as they are: those of a pipeline are added up and reduced by the compiler.

    Parameters
    ----------
    parameters : iterable of Parameter
        The parameters.
    scale_sense : float
        What gradients are divided by.
    opt_shard : bool, optional
        Must be left out: the context says whether ranks divide optimizer states.
    """

    def __init__(
        self, parameters: Iterable[Parameter], scale_sense: float = 1.0, opt_shard: None = None
    ) -> None:
        if not all(isinstance(parameter, Parameter) for parameter in parameters):
            raise wrong_value("parameters", parameters, "parameters")
        SCALES.check("scale_sense", scale_sense)
        if opt_shard is not None:
            raise wrong_value("opt_shard", opt_shard, "none")
        self._factor = 1 / scale_sense

    def __call__(self, gradients: Gradients) -> Gradients:
        """Return the gradients of `value_and_grad`.

        Raises
        ------
        ModelError
            If they are no gradients of a training step.
        """
        if not isinstance(gradients, Gradients):
            raise ModelError(
                f"`PipelineGradReducer` is given {type(gradients).__name__}, it takes what "
                f"`value_and_grad` returns in a training step",
                hint="write `@jit` before the function that calls it",
            )
        if gradients.clip_norm is not None:
            raise ModelError(
                "gradients are clipped before `PipelineGradReducer` has them, expected after it",
                hint="clip what it returns",
            )
        current_tracer().scale_gradients(self._factor)
        return gradients


def lazy_inline(
    fn: Callable[..., Any] | None = None, attrs: Any = None, policy: str | None = None
) -> Any:
    """Return the constructor of a cell as it is: cells are traced whole, and equal ones found.

    Parameters
    ----------
    fn : callable, optional
        The constructor; without it, a decorator is returned.
    attrs, policy : optional
        How MindSpore finds equal cells; have no meaning here.
    """
    return fn if callable(fn) else lambda function: function


def sync_pipeline_shared_parameters(net: Cell) -> None:
    """Check that a network is one: a parameter of several stages is one value here, and equal."""
    check_type("net", net, Cell)


__all__ = ["Pipeline", "PipelineGradReducer", "lazy_inline", "sync_pipeline_shared_parameters"]

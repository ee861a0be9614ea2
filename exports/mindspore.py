"""MindSpore's strategy files of a plan: protobuf and JSON, of a pipeline a pair for each stage.

`mindspore.build_searched_strategy` reads from them how parameters are sliced. Strategies of
operators have the names of the plan.
"""

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.writing import Code, code, document
from shardwright.frontends.configs.strategy_map import MatrixLayout, StrategyMap
from shardwright.ir.errors import OptionError
from shardwright.ir.units import first_names
from shardwright.runtime.checkpoints.strategy_file import strategy_contents

_LEFT_OUT = "not_expressible"


def export(plan: Plan) -> Exported:
    """Return ``strategy.ckpt`` and ``strategy.json``, or those of every stage.

    Raises
    ------
    OptionError
        If the plan has one device.
    """
    if plan.document.devices == 1:
        raise OptionError(
            f"the plan of `{plan.document.model}` has one device, so there is no strategy",
            hint="compile the model for 2 or more devices",
        )
    files: dict[str, Code | bytes] = {}
    left_out: list[str] = []
    for name, content in strategy_contents(plan.program).items():
        stage = content["current_stage"]
        left_out += content.pop(_LEFT_OUT, ())
        layouts = content["parallel_layout_item"]
        strategies = _strategies(plan, stage if plan.program.stages else None)
        content["parallel_strategy_item"] = {
            operator: {"stage": stage, "parallel_strategy": counts}
            for operator, counts in strategies.items()
        }
        files[name] = code("{}\n", document(content, indent=1))
        matrices = {
            parameter: MatrixLayout(tuple(one["dev_matrix"]), tuple(one["tensor_map"]))
            for parameter, one in layouts.items()
        }
        made = StrategyMap(stage, strategies, matrices)
        files[name.removesuffix(".json") + ".ckpt"] = made.to_bytes()
    return Exported(files, _notes(plan, left_out))


def _strategies(plan: Plan, stage: int | None) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the strategies of the operators of a stage."""
    here = {
        node.provenance.operator
        for node in plan.program.nodes
        if stage is None or plan.program.stage_of(node) in (stage, None)
    }
    return {
        name: strategy.split_counts
        for name, strategy in plan.document.strategies.items()
        if name in here
    }


def _notes(plan: Plan, left_out: list[str]) -> tuple[str, ...]:
    notes = ["operators have the names of the plan: MindSpore reads the layouts of parameters"]
    if left_out:
        notes.append(
            f"left out: {first_names(left_out, 1)}, whose slices are uneven or split over axes "
            "that do not follow each other"
        )
    if plan.mesh.passes > 1:
        notes.append(f"strategies are those of one of {plan.mesh.passes} micro-batches")
    return tuple(notes)

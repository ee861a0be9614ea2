"""A function that parallelizes the user's module by PyTorch's own calls.

A plan has that form, or is refused: `parallelize_module` with a style for each module that the
tensor ranks divide, checkpoints of the blocks that are computed again, and `fully_shard` over the
ranks that have samples of their own.
"""

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.parallelize.axes import Axes, DataRanks, refused
from shardwright.exports.parallelize.blocks import Blocks
from shardwright.exports.parallelize.styles import Styles
from shardwright.exports.parallelize.text import Writer
from shardwright.exports.table import Exported
from shardwright.ir.graph import Graph
from shardwright.operators.models.precision import MASTER

_PRECISIONS = (MASTER, "bfloat16")


def export(plan: Plan) -> Exported:
    """Return ``parallelize.py``.

    Raises
    ------
    PlanError
        If the plan has no such form.
    """
    _check(plan, plan.program)
    axes = Axes.of(plan)
    ranks = DataRanks(plan.program, plan.model, axes.data)
    ranks.check()
    blocks = Blocks(plan.program, ranks.constants)
    styles = Styles(plan.program, plan.mesh.of_ranks, axes.tensor, ranks.constants)
    if axes.tensor:
        styles.find()
    writer = Writer(plan, axes, styles, blocks)
    return Exported({"parallelize.py": writer.text()}, writer.notes)


def _check(plan: Plan, program: Graph) -> None:
    """Refuse plans of other forms than one stage with layouts."""
    if program.stages > 1 or plan.mesh.of_stages:
        count = max(program.stages, plan.mesh.stages)
        raise refused(
            f"the plan has {count} pipeline stages, `export --to parallelize` writes plans of one",
            "compile it without `--stages`",
        )
    if plan.mesh.size > 1 and any(value.layout is None for value in program.values.values()):
        raise refused(
            "the plan is of a program that calls collectives itself, `export --to parallelize` "
            "writes plans whose tensors have layouts",
            "compile the model in another mode than `hybrid_parallel`",
        )
    if plan.document.precision not in _PRECISIONS:
        raise refused(f"`fully_shard` scales no loss for the precision {plan.document.precision}")
    if program.offloaded:
        raise refused(f"`{program.offloaded[0]}` is kept in host memory, which no style does")

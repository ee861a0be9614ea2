"""A function that parallelizes the user's module by PyTorch's own calls.

A plan has that form, or the nearest one that has it stands for it: `parallelize_module` with a
style for each module that the tensor ranks divide, checkpoints of the blocks that are computed
again, and `fully_shard` over the ranks that have samples of their own.
"""

from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.degrees.nearest import Words, nearest
from shardwright.exports.emission.exported import Exported
from shardwright.exports.parallelize.axes import Axes, DataRanks, refused
from shardwright.exports.parallelize.blocks import Blocks
from shardwright.exports.parallelize.styles import Styles
from shardwright.exports.parallelize.text import Writer
from shardwright.ir.errors import PlanError
from shardwright.ir.types import TF32
from shardwright.operators.models.precision import MASTER, recipe_of
from shardwright.search.named_plan import NamedPlan

_PRECISIONS: Final = (MASTER, TF32, "bfloat16")


def refusal(plan: NamedPlan) -> str:
    """Return why no program of a named plan has the form; empty if its program decides."""
    names = [name for name in ("pipeline", "context", "expert") if getattr(plan, name) > 1]
    if names or plan.folds:
        name = names[0] if names else "expert_tensor"
        return f"`{name}={getattr(plan, name)}` by `parallelize_module` and `fully_shard`"
    if plan.recompute not in ("none", "full"):
        return f"`recompute={plan.recompute}` by checkpoints of whole blocks"
    return ""


def refusal_of_built(plan: Plan) -> str:
    """Return why a plan has not the form; empty if it has."""
    try:
        writer_of(plan)
    except PlanError as error:
        return error.what
    return ""


WORDS: Final = Words("PyTorch", refusal, refusal_of_built)


def export(plan: Plan) -> Exported:
    """Return ``parallelize.py``.

    Raises
    ------
    PlanError
        If no plan of this model, or of this precision, has the form.
    OptionError
        If the plan has not the form, and no other that fits has it.
    """
    _check_model(plan)
    said: tuple[str, ...] = ()
    instead: Plan | None = None
    try:
        writer = writer_of(plan)
    except PlanError as error:
        found = nearest(plan, WORDS, error.what)
        instead, said = found.built, found.sentences
        writer = writer_of(instead)
    return Exported({"parallelize.py": writer.text(said)}, (*said, *writer.notes), instead)


def writer_of(plan: Plan) -> Writer:
    """Return what writes a plan that has the form.

    Raises
    ------
    PlanError
        If it has not.
    """
    _check(plan)
    axes = Axes.of(plan)
    ranks = DataRanks(plan.program, plan.model, axes.data)
    ranks.check()
    blocks = Blocks(plan.program, ranks.constants)
    styles = Styles(plan.program, plan.mesh.of_ranks, axes.tensor, ranks.constants)
    if axes.tensor:
        styles.find()
    blocks.check()
    return Writer(plan, axes, styles, blocks)


def _check_model(plan: Plan) -> None:
    """Refuse what all plans of the same model and precision have."""
    values, is_one_stage = plan.program.values.values(), plan.program.stages == 1
    if is_one_stage and plan.mesh.size > 1 and any(value.layout is None for value in values):
        raise refused(
            "the plan is of a program that calls collectives itself, `export --to parallelize` "
            "writes plans whose tensors have layouts",
            "compile the model in another mode than `hybrid_parallel`",
        )
    if recipe_of(plan.document.precision) is not None:
        raise refused(
            f"the plan has products by the recipe `{plan.document.precision}`, which no call here "
            "quantizes",
            "compile the model with `--precision bfloat16`",
        )
    if plan.document.precision not in _PRECISIONS:
        raise refused(f"`fully_shard` scales no loss for the precision {plan.document.precision}")


def _check(plan: Plan) -> None:
    """Refuse plans of several stages, and those that keep tensors in host memory."""
    program = plan.program
    if program.stages > 1 or plan.mesh.of_stages:
        count = max(program.stages, plan.mesh.stages)
        raise refused(
            f"the plan has {count} pipeline stages, `export --to parallelize` writes plans of one",
            "compile it without `--stages`",
        )
    if program.offloaded:
        raise refused(f"`{program.offloaded[0]}` is kept in host memory, which no style does")

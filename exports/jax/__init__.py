"""A package that runs a plan in JAX: its program as Python, and the modules it needs.

The program has a line for each operator of the plan, on the parts of one device, and calls the
collectives of the plan, no others; `jax.shard_map` maps it over the devices.
"""

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.package import package_files, tf32_notes
from shardwright.exports.jax.jax_program import JaxProgram
from shardwright.exports.jax.shardy import shardy_text


def export(plan: Plan) -> Exported:
    """Return the files of the package, and the layouts for XLA."""
    files = package_files(plan, JaxProgram(plan))
    files["shardings.mlir"] = shardy_text(plan)
    count = plan.mesh.size
    notes = [
        f"it needs {count} device{'s' * (count > 1)} of JAX; `Trainer(params).step(...)` of this "
        "package is a step"
    ]
    if plan.mesh.passes > 1:
        notes.append(
            f"the {plan.mesh.passes} micro-batches of a step are compiled one after the other, "
            "each anew: many take XLA long"
        )
    return Exported(files, (*notes, *tf32_notes(plan, "JAX")))

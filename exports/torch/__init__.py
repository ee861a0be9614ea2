"""A package that runs a plan in PyTorch: its program as Python, and the modules it needs.

The program has a line for each operator of the plan, on the slices of one rank, and calls the
collectives of the plan, no others. A plan with pipeline stages has a program for each device group.
Parameters have the names of the user's module, whose tensors it takes and to which it returns them.
"""

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.package import package_files, tf32_notes
from shardwright.exports.torch.groups import StagedProgram
from shardwright.exports.torch.torch_program import TorchProgram


def export(plan: Plan) -> Exported:
    """Return the files of the package."""
    writer = StagedProgram if plan.mesh.of_stages else TorchProgram
    files = package_files(plan, writer(plan))
    count = plan.mesh.size
    note = (
        f"start the {count} process{'es' * (count > 1)} with `torchrun --nproc-per-node {count}`; "
        "in them, `Trainer(module).step(...)` of this package is a step"
    )
    return Exported(files, (note, *tf32_notes(plan, "PyTorch")))

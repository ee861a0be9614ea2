"""Small models of repeated layers on a mesh of two levels, and the plans of their blocks."""

from functools import cache
from math import inf

from shardwright.cost_model.cluster import cluster
from shardwright.dataflow.schedules import make_schedule
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.planner.choice.stages import StagedBlocks
from shardwright.planner.choice.steps import StepSearch
from shardwright.planner.fronts.site import Site
from shardwright.planner.options import CompileOptions
from shardwright.solver.work import Budget
from tests.extent import first

POD = cluster("a100-pod:figures=datasheet")
MESH = Mesh((MeshAxis("x", 2, 1), MeshAxis("y", 2, 0)))
SIZES = "layers=3,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64,dtype=float32"
MODELS = {
    "gpt": f"gpt:{SIZES}",  # its head reads the table of the embedding
    "dropout": f"gpt:{SIZES},dropout=0.1",
    "llama": f"llama:{SIZES},kv_heads=2,inner=64",
    "mixtral": f"mixtral:{SIZES},kv_heads=2,inner=64,experts=4",
}
CASES = (("gpt", 1), ("llama", 2), ("mixtral", 1))  # with their micro-batches
PLANNED = first(2, CASES)  # those of which tests search whole plans, which takes long
SHORT = 0.9  # of the memory of the fastest plan


@cache
def site(model: str, passes: int, memory: float = inf) -> Site:
    """Return the blocks of a model within some memory."""
    options = CompileOptions(micro_batches=passes, optimizer=Optimizer("adam"), memory_limit=memory)
    source = Canonicalize().run(load_model(MODELS[model]).graph)
    return Site.of(source, POD, MESH, options, Budget())


@cache
def planned(model: str, passes: int, share: float = 1.0) -> StepSearch:
    """Return the plans that were made within a share of the memory of the fastest one."""
    memory = inf if share == 1.0 else share * planned(model, passes).best().timeline.peak_bytes
    found = StepSearch(
        StagedBlocks(site(model, passes, memory), make_schedule("1f1b", 1, 1, passes))
    )
    found.best()
    return found


@cache
def planned_on_slow_links() -> StepSearch:
    """Return the plans of a model whose parameters take longer to gather than to be used."""
    levels = [level.model_copy(update={"bandwidth": level.bandwidth / 30}) for level in POD.levels]
    slow = POD.model_copy(update={"levels": tuple(levels)})
    sizes = "layers=4,hidden=1024,heads=8,batch=16,sequence=1024,vocabulary=64,dtype=float32"
    options = CompileOptions(optimizer=Optimizer("adam"))
    source = Canonicalize().run(load_model(f"gpt:{sizes}").graph)
    where = Site.of(source, slow, MESH, options, Budget())
    found = StepSearch(StagedBlocks(where, make_schedule("1f1b", 1, 1, 1)))
    found.best()
    return found

"""What a program saves in host memory, and where that may be: what it costs, and what it frees."""

from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.saved.groups import Group, Groups
from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster
from shardwright.cost_model.profiles import PROFILES
from shardwright.cost_model.roofline import node_seconds
from shardwright.ir.errors import InfeasibleError, OptionError
from shardwright.ir.graph import Graph, value_bytes
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text
from shardwright.planner.option_checks import SEARCHED
from shardwright.planner.options import CompileOptions
from shardwright.search.driver import SEARCHES

_ROLES = ("offload", "reload", "recompute")  # roles of nodes that move an offloaded tensor


def offloaded(compiled: Compiled, cluster: AnyCluster) -> list[Group]:
    """Return what is saved in host memory, in the order of the model.

    Its seconds are those of the copies there and back, which run concurrently with computation,
    and of redistributions of what came back.
    """
    program, source = compiled.program, compiled.source
    mesh, groups = program.mesh or Mesh(()), Groups()
    for node, times in zip(program.nodes, times_run(program), strict=True):
        role, operator = node.provenance.role, source.producers.get(node.provenance.tensor)
        if role not in _ROLES or operator is None or operator.name not in offloaded_names(compiled):
            continue
        group = groups.of(operator)
        group.seconds += times * node_seconds(node, program, cluster)
        if role == "offload":
            group.count += 1
            group.bytes += value_bytes(node.results[0], mesh)
    return groups.all()


def offloaded_names(compiled: Compiled) -> frozenset[str]:
    """Return the operators whose results are saved in host memory, where a gradient reads them."""
    if compiled.decisions is None:
        return frozenset(compiled.source.offloaded)
    return compiled.decisions.offloaded


def for_offloading(graph: Graph, cluster: AnyCluster, options: CompileOptions) -> AnyCluster:
    """Return the cluster, without its host memory where no tensor may be moved there.

    Raises
    ------
    OptionError
        If tensors are to be saved in host memory, and the cluster or another option does not allow
        that.
    """
    searched = options.offload == SEARCHED
    if not searched and not graph.offloaded:
        return cluster.without_host()
    asked = "`offload` is `search`" if searched else f"the model offloads `{graph.offloaded[0]}`"
    what = None
    if isinstance(cluster, MixedCluster):
        what = "that is not supported with pipeline stages"
        hint = "offload nothing"
    elif cluster.host is None:
        what = f"the cluster `{cluster.name}` has no `host` memory"
        hint = "describe it in a cluster file, or offload nothing"
    elif not PROFILES[options.cost_model].prices_recomputation:
        what = f"the cost model `{options.cost_model}` does not price that"
        hint = "use the cost model `time`"
    elif options.groups > 1 or options.stages == SEARCHED or graph.cuts:
        what = "that is not supported with pipeline stages"
        hint = "give `stages` 1, or offload nothing"
    elif options.named_plan is not None and options.named_plan.pipeline > 1:
        what = "that is not supported with pipeline stages"
        hint = "leave `pipeline` out of the plan, or offload nothing"
    elif searched and options.named_plan is not None:
        what = "a named plan decides what is saved"
        hint = "leave one of them out, or mark cells with `cell.offload()`"
    elif searched and (options.mode != "auto_parallel" or not SEARCHES[options.search].recomputes):
        what = "only the search `exact` decides what is offloaded"
        hint = (
            "search with `exact` in the mode `auto_parallel`, or mark cells with `cell.offload()`"
        )
    if what is not None:
        raise OptionError(f"{asked}, and {what}", hint=hint)
    return cluster


def check_host(memory: MemoryUseReport, cluster: AnyCluster) -> None:
    """Refuse a program that takes more host memory than a device has.

    Raises
    ------
    InfeasibleError
        If it does: the tensors that the user marks are too large.
    """
    if isinstance(cluster, MixedCluster) or cluster.host is None:
        return
    if memory.host_bytes > cluster.host.memory_bytes:
        raise InfeasibleError(
            f"the program saves {bytes_text(memory.host_bytes)} of each device in host memory, the "
            f"cluster `{cluster.name}` has {bytes_text(cluster.host.memory_bytes)} for it",
            hint="offload fewer cells",
        )

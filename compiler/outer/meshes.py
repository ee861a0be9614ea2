"""The meshes of a compilation: the user's, those of a search, or the default of the cluster."""

from collections.abc import Collection
from dataclasses import replace

from shardwright.compiler.stages.places import check_parts, devices_of_stage
from shardwright.cost_model.cluster import Cluster, mesh_for, mesh_shapes
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster
from shardwright.cost_model.profiles import PROFILES
from shardwright.dataflow.update_rules import state_bytes
from shardwright.ir.errors import ClusterError, OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.ir.values import wrong_value
from shardwright.operators.info import operator_class
from shardwright.operators.models.precision import MASTER, PRECISIONS
from shardwright.planner.option_checks import SEARCHED, decided_by_plan
from shardwright.planner.options import (
    DEFAULTS,
    UNPARTITIONED,
    CompileOptions,
)

DEFAULT = "default"
"""The mesh that the cluster suggests, whatever the size of the model."""

LARGE = 8
"""Devices whose memory a large model exceeds."""

# Options that decide what a search of a large model would.
_GIVEN = (
    *("mode", "search", "plan", "cost_model", "objective", "micro_batches", "stages", "chunks"),
    *("schedule", "extra_passes", "optimizer_parallel", "offload"),
)
_NUMBERS = frozenset({"micro_batches", "stages", "chunks"})  # asked for by a 1, too: the default
_FEW = 8  # devices up to which problems on the finest meshes are small enough


def with_search_of_large(
    graph: Graph,
    cluster: AnyCluster,
    devices: int,
    mesh: str | Mesh | None,
    options: CompileOptions,
    given: Collection[str] = (),
) -> tuple[str | Mesh | None, CompileOptions]:
    """Return what is compiled where no mesh is given: for a large model, everything is searched.

    A model is large if its parameters, gradients and optimizer states take the memory of at least
    `LARGE` devices, and no more than there are. Of another one whose batch is large, the number of
    micro-batches is searched: what all operators make of it in the forward pass takes more memory
    than all devices have. Where the user gives a mesh, stages, micro-batches, a plan, passes, or
    another mode, search or objective, or offloads tensors, nothing changes. `given` names what the
    user gives, be it the default: one stage that is asked for is no search.

    Raises
    ------
    ShardwrightError
        If the cluster has several parts, and the options are not for them; see `check_parts`.
    """
    if isinstance(cluster, MixedCluster):
        check_parts(cluster, graph, options, mesh)
        return mesh, options
    asked = {name for name in _GIVEN if getattr(options, name) != DEFAULTS[name]}
    asked |= _NUMBERS & set(given)
    if mesh is not None or asked or graph.cuts or graph.offloaded:
        return mesh, options
    parameters = sum(one.value.type.nbytes for one in graph.parameters if one.trainable)
    # The devices whose memory is taken by what is trained, and by one pass over the batch.
    states = state_bytes(options.optimizer, graph)
    trained = (2 * parameters + states) / options.memory_on(cluster)
    passed = _forward_bytes(graph, options) / options.memory_on(cluster)
    # Where even so many devices do not hold it, the search on one mesh proves that nothing fits.
    if LARGE <= trained <= devices:
        return SEARCHED, replace(options, stages=SEARCHED, micro_batches=SEARCHED)
    if trained <= devices < passed:
        return mesh, replace(options, micro_batches=SEARCHED)
    return mesh, options


def _forward_bytes(graph: Graph, options: CompileOptions) -> float:
    """Return about the bytes of all that operators make in the forward pass, views apart."""
    compute = PRECISIONS[options.precision].compute
    lower = item_bytes(compute) / item_bytes(MASTER)
    made = (
        result.type.nbytes * (lower if result.type.dtype == MASTER else 1.0)
        for node in graph.nodes
        if not operator_class(node.operator).is_view
        for result in node.results
    )
    return sum(made)


def meshes_of(
    cluster: AnyCluster, devices: int, mesh: str | Mesh | None, options: CompileOptions
) -> tuple[Mesh | None, ...]:
    """Return the meshes of a compilation; None stands for a mode without a mesh of the cluster's.

    Parameters
    ----------
    cluster : Cluster or MixedCluster
        The devices.
    devices : int
        Number of ranks.
    mesh : str or Mesh, optional
        A shape such as ``2x4`` or ``data=2,model=4``, the mesh itself, or ``search`` for the finest
        meshes; the default of the cluster and the cost model if not given, or for ``default``.
    options : CompileOptions
        The options of the compilation; of a pipeline, the mesh is that of one stage.

    Raises
    ------
    ShardwrightError
        If the mesh has another number of ranks or an axis in time or of stages, or is none.
    """
    if options.plan is not None and mesh is not None:
        raise decided_by_plan("mesh")
    mesh = None if mesh == DEFAULT else mesh
    if options.mode in UNPARTITIONED:
        return (_checked(mesh, devices) if isinstance(mesh, Mesh) else None,)
    if isinstance(cluster, MixedCluster):
        return (_mesh_of_part(cluster, devices, mesh, options),)
    if options.stages == SEARCHED:
        return _meshes_of_any_stages(cluster, devices, mesh, options)
    if mesh is None:
        return (mesh_of_options(cluster, devices, options),)
    devices = devices_of_stage(cluster, devices, options)
    if isinstance(mesh, Mesh):
        return (_checked(mesh, devices),)
    if not isinstance(mesh, str):
        raise wrong_value("mesh", mesh, "a text such as `2x4`, or a `Mesh`")
    if mesh == SEARCHED:
        return candidate_meshes(cluster, devices)
    return (mesh_for(cluster, devices, mesh),)


def _mesh_of_part(
    cluster: MixedCluster, devices: int, mesh: object, options: CompileOptions
) -> Mesh | None:
    """Return the mesh of a stage, which lies alike in every part; None where cells name stages."""
    if mesh is None and options.named_plan is None and options.groups == 1:
        return None
    if mesh is None:
        return mesh_of_options(cluster, devices, options)
    each = devices_of_stage(cluster, devices, options)
    if isinstance(mesh, Mesh):
        return _checked(mesh, each)
    if not isinstance(mesh, str):
        raise wrong_value("mesh", mesh, "a text such as `2x4`, or a `Mesh`")
    return mesh_for(cluster.parts[0], each, mesh)


def _meshes_of_any_stages(
    cluster: Cluster, devices: int, mesh: object, options: CompileOptions
) -> tuple[Mesh, ...]:
    """Return the meshes of one device group, for every number of groups that divides the devices.

    Numbers whose groups do not lie alike in the levels of the cluster are left out.

    Raises
    ------
    OptionError
        If a mesh is given.
    """
    if mesh not in (None, SEARCHED):
        raise OptionError(
            f"`stages` is {SEARCHED}, and the mesh `{mesh}` is that of one number of stages",
            hint=f"give the number of stages too, or `{SEARCHED}` as the mesh",
        )
    found: list[Mesh] = []
    for groups in (count for count in range(1, devices + 1) if devices % count == 0):
        each = devices // groups
        try:
            cluster.check_groups(devices, groups)
        except ClusterError:
            if groups == 1:
                raise
            continue
        default = PROFILES[options.cost_model].default_mesh(cluster, each)
        found += (default,) if mesh is None else candidate_meshes(cluster, each)
    return tuple(found)


def _checked(mesh: Mesh, devices: int) -> Mesh:
    """Return a mesh of the user.

    Raises
    ------
    OptionError
        If it is not one of so many ranks.
    """
    if mesh.in_time:
        raise OptionError(
            f"`mesh` has the axis `{mesh.in_time[0]}`, which is run in time",
            hint=f"pass `mesh.of_ranks`, and `micro_batches={mesh.passes}`",
        )
    if mesh.of_stages:
        raise OptionError(
            f"`mesh` has the axis `{mesh.of_stages[0]}`, which is of pipeline stages",
            hint=f"name a plan, such as `pipeline={mesh.stages}`, or give cells stages",
        )
    if mesh.size != devices:
        raise wrong_value("mesh", str(mesh), f"{devices} ranks, it has {mesh.size}")
    return mesh


def candidate_meshes(cluster: Cluster, devices: int) -> tuple[Mesh, ...]:
    """Return the meshes of ``mesh="search"``: every factorisation of the levels in use.

    A mesh that only merges axes of one level of another is left out: its collectives cost what
    those over the several axes cost, so its plans are among those of the finer mesh. The one with
    an axis for each level is tried all the same, on more than a few devices: its problems are
    small, so it has a plan first.
    """
    finest = [mesh_for(cluster, devices, shape) for shape in mesh_shapes(cluster, devices)]
    counts = cluster.for_devices(devices)
    coarse = mesh_for(cluster, devices, [size for size in reversed(counts) if size > 1] or [1])
    if coarse in finest or devices <= _FEW:
        return tuple(finest)
    return (*finest, coarse)


def mesh_of_options(cluster: AnyCluster, devices: int, options: CompileOptions) -> Mesh:
    """Return the mesh of a named plan, or the default one."""
    if options.named_plan is not None:
        return options.named_plan.mesh(cluster, devices)
    each = devices_of_stage(cluster, devices, options)
    part = cluster.parts[0] if isinstance(cluster, MixedCluster) else cluster  # all lie alike
    return PROFILES[options.cost_model].default_mesh(part, each)

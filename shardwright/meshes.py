"""The mesh of a compilation: the user's, or the default of the cluster."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from shardwright.compiler.driver import mesh_of_options
from shardwright.compiler.options import UNPARTITIONED, CompileOptions, decided_by_plan
from shardwright.cost_model.cluster import Cluster, mesh_for, mesh_shapes
from shardwright.ir.errors import NoPlanError, OptionError, StrategyError, combined
from shardwright.ir.mesh import Mesh
from shardwright.ir.values import wrong_value

T = TypeVar("T")


def mesh_of(
    cluster: Cluster, devices: int, mesh: str | Mesh | None, options: CompileOptions
) -> Mesh | None:
    """Return the mesh of a compilation; None where the mode has no mesh of the cluster's.

    Parameters
    ----------
    cluster : Cluster
        The devices.
    devices : int
        Number of ranks.
    mesh : str or Mesh, optional
        A shape such as ``2x4`` or ``data=2,model=4``, or the mesh itself; the default of the
        cluster and the cost model if not given.
    options : CompileOptions
        The options of the compilation.

    Raises
    ------
    ShardwrightError
        If the mesh has another number of ranks or an axis that is run in time, or is none.
    """
    if options.plan is not None and mesh is not None:
        raise decided_by_plan("mesh")
    if isinstance(mesh, Mesh):
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
    if options.mode in UNPARTITIONED:
        return None
    if mesh is None:
        return mesh_of_options(cluster, devices, options)
    if not isinstance(mesh, str):
        raise wrong_value("mesh", mesh, "a text such as `2x4`, or a `Mesh`")
    return mesh_for(cluster, devices, mesh)


def candidate_meshes(cluster: Cluster, devices: int) -> list[Mesh]:
    """Return the meshes of ``mesh="search"``: all of the finest ones."""
    return [mesh_for(cluster, devices, shape) for shape in mesh_shapes(cluster, devices)]


def compile_on_each(compile_on: Callable[[Mesh], T], meshes: Sequence[Mesh]) -> dict[str, T]:
    """Return the compilations for several meshes, by shape; a mesh without a plan is left out.

    Raises
    ------
    ShardwrightError
        If there is no plan on any of them.
    """
    compilations: dict[str, T] = {}
    errors: list[NoPlanError | StrategyError] = []
    for mesh in meshes:
        try:
            compilations["x".join(map(str, mesh.shape))] = compile_on(mesh)
        except (NoPlanError, StrategyError) as error:
            errors.append(error)
    if not compilations:
        raise combined(errors)
    return compilations

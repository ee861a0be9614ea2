"""A compilation: the plan of a model for a cluster, and how the compiler came to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardwright.arguments import DatasetStrategy
from shardwright.compiler.driver import Compiled, compile_graph
from shardwright.compiler.options import CompileOptions
from shardwright.compiler.plans.document import InputDocument
from shardwright.compiler.plans.files import write_plan
from shardwright.compiler.plans.plan import Plan, make_plan
from shardwright.cost_model.cluster import Cluster
from shardwright.input_layouts import input_layouts
from shardwright.ir.graph import Graph
from shardwright.ir.html import html_table
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import seconds_text
from shardwright.meshes import compile_on_each
from shardwright.search.options import Progress
from shardwright.tracing import Definition


@dataclass(frozen=True)
class Compilation:
    """A compiled model: its plan, and the record of its compilation.

    Parameters
    ----------
    plan : Plan
        The program and document that are written, run and verified.
    compiled : Compiled
        The graphs after every pass, times and decisions.
    cluster : Cluster
        The cluster it was compiled for.
    objectives : mapping of str to float
        Cost of the best plan on each shape of the mesh, where several were compiled.
    lower_bounds : mapping of str to float
        Lower bound of the cost of any plan on each of these shapes.
    """

    plan: Plan
    compiled: Compiled
    cluster: Cluster
    objectives: Mapping[str, float] = field(default_factory=dict)
    lower_bounds: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Compilation {self.plan.document.summary}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        rows = {**self.plan.document.table, "compiled in": seconds_text(self.compiled.seconds)}
        return html_table("compilation", rows.items())

    def write(self, directory: str | Path, ranks: list[int] | None = None) -> Path:
        """Write the plan; see `write_plan`."""
        write_plan(Path(directory), self.plan, ranks)
        return Path(directory)


@dataclass(frozen=True)
class Request:
    """The arguments of a compilation, except for the mesh.

    Parameters
    ----------
    definition : Definition
        The model.
    name : str
        Its name in the plan.
    cluster : Cluster
        The devices.
    devices : int
        Number of ranks.
    options : CompileOptions
        The options.
    dataset_strategy : str, optional
        Layout of the inputs.
    traced : Graph
        The program of one device.
    seed : int
        Seed of the initial values.
    progress : callable, optional
        Called by the search with (seconds, cost, bound).
    """

    definition: Definition
    name: str
    cluster: Cluster
    devices: int
    options: CompileOptions
    dataset_strategy: DatasetStrategy | None
    traced: Graph
    seed: int
    progress: Progress | None

    def compile_on(self, mesh: Mesh | None) -> Compilation:
        """Compile for one mesh; None in a mode without a mesh of the cluster's."""
        definition, options = self.definition, self.options
        layouts = {**self._input_layouts(mesh), **options.input_layouts}
        options = replace(options, input_layouts=layouts)
        compiled = compile_graph(
            definition.graph, self.cluster, self.devices, options, mesh, self.progress
        )
        plan = make_plan(
            compiled,
            self.cluster,
            options,
            model=self.name,
            traced=self.traced,
            inputs=_inputs(definition),
            initial=definition.initial,
            seed=self.seed,
        )
        return Compilation(plan, compiled, self.cluster)

    def compile_on_cheapest(self, meshes: Sequence[Mesh]) -> Compilation:
        """Compile for several meshes and return the cheapest compilation.

        Raises
        ------
        ShardwrightError
            If there is no plan on any of them.
        """
        compilations = compile_on_each(self.compile_on, meshes)
        documents = {shape: item.plan.document for shape, item in compilations.items()}
        objectives = {shape: document.objective for shape, document in documents.items()}
        bounds = {shape: document.lower_bound for shape, document in documents.items()}
        best = compilations[min(objectives, key=objectives.__getitem__)]
        compiled = _with_total_seconds(
            best.compiled, [item.compiled for item in compilations.values()]
        )
        return replace(best, compiled=compiled, objectives=objectives, lower_bounds=bounds)

    def _input_layouts(self, mesh: Mesh | None) -> dict[str, Layout]:
        if mesh is None:
            return {}
        return input_layouts(self.definition.inputs, self.dataset_strategy, mesh)


def _with_total_seconds(best: Compiled, tried: Sequence[Compiled]) -> Compiled:
    """Return the best compiled program with the times of all that were tried."""
    searched = sum(compiled.result.seconds for compiled in tried if compiled.result)
    result = best.result and replace(best.result, seconds=searched)
    return replace(best, seconds=sum(compiled.seconds for compiled in tried), result=result)


def _inputs(definition: Definition) -> tuple[InputDocument, ...]:
    return tuple(
        InputDocument(name=spec.name, type=str(spec.type), high=spec.high)
        for spec in definition.inputs
    )

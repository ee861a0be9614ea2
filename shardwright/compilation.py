"""A compilation: the plan of a model for a cluster, and how the compiler came to it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from shardwright.arguments import DatasetStrategy
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.garbage import rare_collections
from shardwright.compiler.page.compact import compact_tables
from shardwright.compiler.page.page import write_page
from shardwright.compiler.page.page_document import page_document
from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.plans.document import InputDocument
from shardwright.compiler.plans.files import write_plan
from shardwright.compiler.plans.plan import Plan, make_plan
from shardwright.compiler.plans.plan_timeline import timeline_of_plan
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.pipelines.step import MemoryLimit
from shardwright.input_layouts import input_layouts
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import html_table, seconds_text
from shardwright.ir.values import checked
from shardwright.planner.choice.trace import SearchTrace
from shardwright.planner.options import CompileOptions
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
    cluster : Cluster or MixedCluster
        The cluster it was compiled for.
    lines : mapping of str to str
        The line of the model's own code that applies each operator, by name: ``model.py:12``.
    """

    plan: Plan
    compiled: Compiled
    cluster: AnyCluster
    lines: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def search_trace(self) -> SearchTrace | None:
        """What a search over configurations tried, and what became of each; None without one."""
        return self.compiled.trace

    @property
    def is_interrupted(self) -> bool:
        """Whether the user ended the search; the plan is the best until then."""
        return self.search_trace is not None and self.search_trace.is_interrupted

    @property
    def objectives(self) -> Mapping[str, float]:
        """Cost of the best plan found on each shape of the mesh, where several were searched."""
        return self._by_shape(SearchTrace.best_by_shape)

    @property
    def lower_bounds(self) -> Mapping[str, float]:
        """Lower bound of the cost of any plan on each of these shapes."""
        return self._by_shape(SearchTrace.bounds_by_shape)

    def _by_shape(
        self, figures: Callable[[SearchTrace], Mapping[str, float]]
    ) -> Mapping[str, float]:
        trace = self.compiled.trace
        if trace is None or len({item.configuration.shape for item in trace.tried}) < 2:
            return {}
        return figures(trace)

    def __repr__(self) -> str:
        return f"<Compilation {self.plan.document.summary}>"

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows: the compact form of the page."""
        rows = {**self.plan.document.table, "compiled in": seconds_text(self.compiled.seconds)}
        tables = compact_tables(self.compiled, self.cluster)
        return html_table("compilation", rows.items()) + tables

    @checked
    def timeline_within(self, limit: MemoryLimit) -> Timeline:
        """Return the timeline whose memory the plan states; of one that does not fit, the fastest.

        Parameters
        ----------
        limit : float or tuple of float
            Memory limit of a device in bytes, or of those of each device group.
        """
        return timeline_of_plan(self.plan, self.cluster, limit)

    @checked
    def write_page(
        self, path: str | Path, timeline: Timeline | None = None, said: Sequence[str] = ()
    ) -> Path:
        """Write a page for people to look at, which needs no network.

        It has the model with its layouts, the timeline, the memory, the communication with its
        reasons, the strategies and the search. Another file that is no page is never replaced.

        Parameters
        ----------
        path : str or Path
            The file.
        timeline : Timeline, optional
            The timeline of a step; by default that whose memory the plan states.
        said : sequence of str
            Sentences that the page begins with.
        """
        timeline = timeline or timeline_of_plan(self.plan, self.cluster)
        where = self.plan, self.compiled, self.cluster, timeline
        write_page(Path(path), page_document(*where, lines=self.lines, said=said))
        return Path(path)

    @checked
    def write(self, directory: str | Path, ranks: Iterable[int] | None = None) -> Path:
        """Write the plan; see `write_plan`."""
        with rare_collections():
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
    cluster : Cluster or MixedCluster
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
    cluster: AnyCluster
    devices: int
    options: CompileOptions
    dataset_strategy: DatasetStrategy | None
    traced: Graph
    seed: int
    progress: Progress | None

    def compile_on(self, meshes: Sequence[Mesh | None]) -> Compilation:
        """Compile for the best of some meshes; None in a mode without a mesh of the cluster's."""
        with rare_collections():
            return self._compiled_on(meshes)

    def _compiled_on(self, meshes: Sequence[Mesh | None]) -> Compilation:
        definition, options = self.definition, self.options
        compiled = compile_graph(
            definition.graph,
            self.cluster,
            self.devices,
            options,
            meshes,
            self.progress,
            partial(input_layouts, definition.inputs, self.dataset_strategy),
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
        return Compilation(plan, compiled, self.cluster, definition.lines)


def _inputs(definition: Definition) -> tuple[InputDocument, ...]:
    return tuple(
        InputDocument(name=spec.name, type=str(spec.type), high=spec.high)
        for spec in definition.inputs
    )

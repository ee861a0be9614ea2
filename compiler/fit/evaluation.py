"""The step of a plan of Megatron's family, simulated: of equal layers few are partitioned."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

from shardwright.compiler.buckets import fastest_fusion
from shardwright.cost_model.cluster import Cluster
from shardwright.dataflow.samples import samples_of
from shardwright.dataflow.update_rules import rules_within
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.passes.clean_up import CleanUp
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.evaluation.lengthening import NotRepeatedError
from shardwright.planner.evaluation.tiles import Shortened, shortened
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import as_asked, canonical_form, marking, partitioned
from shardwright.planner.search_request import SearchRequest
from shardwright.search.named_plan import NamedPlan
from shardwright.search.options import SearchOptions


@dataclass
class Evaluator:
    """Plans of one stage of a model, on a number of devices.

    Parameters
    ----------
    graph : Graph
        The whole program; its first output is the loss.
    cluster : Cluster
        The devices.
    devices : int
        Number of devices.
    options : CompileOptions
        How it is trained; the rules of the optimizer by parameters.
    """

    graph: Graph
    cluster: Cluster
    devices: int
    options: CompileOptions
    _models: dict[tuple[int, str], tuple[Graph, Shortened | None]] = field(default_factory=dict)

    def seconds(self, plan: NamedPlan) -> float:
        """Return the least step of a plan in its best buckets; infinite where it does not fit.

        The step of the compiled plan is this one, or longer by what less memory costs.

        Parameters
        ----------
        plan : NamedPlan
            A plan without pipeline stages.

        Raises
        ------
        ShardwrightError
            If the model has no such plan.
        """
        passes = plan.passes(samples_of(self.graph) or 1, self.devices)
        options = replace(self.options, plan=plan, recompute=plan.recompute, micro_batches=passes)
        source, few = self._model(options)
        program = None
        if few is not None:
            with suppress(NotRepeatedError):
                program = few.lengthened(self._program(few.graph, options))
        if program is None:
            program = self._program(source, options)
        limit = options.memory_on(self.cluster)
        _, timeline = fastest_fusion(program, self.cluster, limit, options.gap)
        return timeline.step_seconds if timeline.peak_bytes <= limit else inf

    def _model(self, options: CompileOptions) -> tuple[Graph, Shortened | None]:
        """Return the model in canonical form, and with few of its layers where it has many."""
        key = options.passes, options.recompute
        if key not in self._models:
            passes = (
                *as_asked(options, options.passes),
                canonical_form(options),
                *marking(options),
            )
            source = PassManager().run_all(passes, self.graph)
            rules = options.optimizer.overrides
            self._models[key] = source, shortened(source, Decisions(Mesh(()), {}, {}), rules)
        return self._models[key]

    def _program(self, model: Graph, options: CompileOptions) -> Graph:
        """Return the program of a plan, before gradients are fused."""
        plan = options.named_plan
        assert plan is not None
        options = replace(options, optimizer=rules_within(options.optimizer, model))
        lowering = LowerRedistributions(self.cluster, options.cost_model)
        planner = lowering.planner(plan.mesh(self.cluster, self.devices))
        request = SearchRequest(model, self.cluster, planner, options)
        decisions = request.decisions(request.solve(request.space, SearchOptions()))
        pipeline = partitioned(options, decisions, lowering)
        until = pipeline.index(CleanUp()) + 1
        return PassManager(verify_later=True).run_all(pipeline[:until], model)

"""What is compared of a plan: its figures, its decisions, and what it was compiled with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from shardwright.compiler.plans.files import DOCUMENT
from shardwright.compiler.plans.parallelism import Parallelism
from shardwright.compiler.plans.plan import Plan
from shardwright.compiler.plans.plan_timeline import timeline_of_plan
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.model_flops import batch_size
from shardwright.cost_model.roofline import node_seconds
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh
from shardwright.tools.answers.headline import device_name, divided
from shardwright.tools.estimate.exposed import exposed, parts_of_step

COMPUTING, AGAIN = "computing", "computing again"
_FIGURES = ("memory", "communication", "strategies", "parameters", "predicted_step_seconds")
_CERTIFICATE = ("how", "status", "objective", "objective_is", "lower_bound", "gap")
_TRIED = ("meshes_tried", "micro_batches_tried", "pin_prices")
_APART = ("files", "mesh", "cluster", "optimizer", "inputs", "devices", "buckets")


@dataclass(frozen=True)
class Side:
    """One of two plans.

    Parameters
    ----------
    name : str
        What the user calls it: its folder.
    plan : Plan
        The plan.
    """

    name: str
    plan: Plan

    @cached_property
    def timeline(self) -> Timeline:
        """The step, by the cost model of this version."""
        return timeline_of_plan(self.plan)

    @cached_property
    def parallelism(self) -> Parallelism:
        """How it divides the work."""
        return Parallelism.of(self.plan)

    @property
    def degrees(self) -> str:
        """How it divides the work, in words."""
        document = self.plan.document
        where = f"{document.devices} {device_name(document.cluster)}"
        return f"{where}: {', '.join(divided(self.parallelism, document.devices))}"

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds of which the step consists; what is computed again is told apart."""
        parts = parts_of_step(self.timeline, exposed(self.timeline))
        again = min(self._again_seconds, parts.get(COMPUTING, 0.0))
        if again > 0:
            parts = {COMPUTING: parts[COMPUTING] - again, AGAIN: again, **_rest(parts)}
        return parts

    @property
    def _again_seconds(self) -> float:
        """Seconds in which a rank computes again, of a pipeline a mean over its device groups."""
        plan = self.plan
        pairs = zip(plan.program.nodes, times_run(plan.program), strict=True)
        seconds = sum(
            times * node_seconds(node, plan.program, plan.document.cluster)
            for node, times in pairs
            if node.provenance.role == "recompute"
        )
        return seconds / plan.mesh.stages

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens that a device trains on in a second; None of a model without tokens."""
        tokens = batch_size(self.plan.model).tokens
        step, devices = self.timeline.step_seconds, self.plan.document.devices
        return None if tokens is None else tokens / step / devices

    @cached_property
    def facts(self) -> dict[str, str]:
        """What it is of and how it was compiled, with its certificate, as texts by name."""
        document = self.plan.document
        optimizer = document.optimizer
        settings = [f"{key} {value}" for key, value in optimizer.settings.items()]
        told = {
            "devices": f"{document.devices} of {document.cluster.name}",
            "figures of the cluster": document.cluster.model_dump_json(),
            "inputs": ", ".join(f"{one.name} {one.type}" for one in document.inputs),
            "optimizer": ", ".join([optimizer.kind, *settings]),
            "settings of parameters": str(optimizer.overrides),
            "degrees": self.degrees,
            "mesh": str(document.device_mesh),
            "gradients": document.buckets,
        }
        fields = (set(type(document).model_fields)) - {*_FIGURES, *_TRIED, *_APART, *_CERTIFICATE}
        told |= {name.replace("_", " "): str(getattr(document, name)) for name in sorted(fields)}
        return {**told, "certificate": self._certificate}

    @property
    def _certificate(self) -> str:
        document = self.plan.document
        return f"{document.certificate} {document.bound_covers} ({document.how})"

    @property
    def digests(self) -> Mapping[str, str]:
        """The SHA-256 of what the plan consists of, but its document and listings of ranks."""
        files = self.plan.document.files.items()
        return {name: digest for name, digest in files if not _is_apart(name)}


def _is_apart(name: str) -> bool:
    return name == DOCUMENT or name.startswith("rank_")


def _rest(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds for name, seconds in parts.items() if name != COMPUTING}


def common_names(old: Mesh, new: Mesh) -> dict[str, str]:
    """Return the names that axes of the old mesh have for those of the new, if they are alike.

    Axes with the same sizes on the same levels are the same, whatever they are called; the answer
    is empty for other meshes.
    """
    alike = [[replace(axis, name="") for axis in mesh.axes] for mesh in (old, new)]
    if alike[0] != alike[1]:
        return {}
    return dict(zip(new.names, old.names, strict=True))

"""Programs with pipeline stages, made of lowered programs by placing every node in a stage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.ir.graph import Graph, Node, Value, renamed
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.provenance import Provenance


def staged(program: Graph, groups: int, cuts: Sequence[int], schedule: str) -> Graph:
    """Return a lowered program with stages that begin at some operators of the model.

    Parameters
    ----------
    program : Graph
        A lowered program with a loop over micro-batches.
    groups : int
        Device groups.
    cuts : sequence of int
        The operators, by number, at which the stages after the first begin.
    schedule : str
        The schedule.
    """
    return _Staging(program, groups, cuts).graph(schedule)


def operators(program: Graph) -> list[str]:
    """Return the operators of the model, in program order."""
    forward = (node for node in program.nodes if node.provenance.role == "forward")
    return list(dict.fromkeys(node.provenance.operator for node in forward))


def random_cuts(program: Graph, stages: int, seed: int) -> list[int]:
    """Return random cuts into stages that all have an operator."""
    count = len(operators(program))
    chosen = np.random.default_rng(seed).permutation(range(1, count))[: stages - 1]
    return sorted(int(cut) for cut in chosen)


@dataclass
class _Staging:
    program: Graph
    groups: int
    cuts: Sequence[int]
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    moved: dict[tuple[str, int], str] = field(default_factory=dict)

    def graph(self, schedule: str) -> Graph:
        program, mesh = self.program, self.program.mesh
        assert mesh is not None
        axis = MeshAxis("stage", self.groups, mesh.axes[-1].level, of_stages=True)
        count = len(mesh.in_time)
        self.stage_of = {
            name: sum(cut <= i for cut in self.cuts) for i, name in enumerate(operators(program))
        }
        homes = self._homes()
        parameters = tuple(
            replace(p, value=_at(p.value, homes.get(p.weight or p.name)))
            for p in program.parameters
        )
        self.values.update((value.name, value) for value in program.inputs)
        self.values.update((p.name, p.value) for p in parameters)
        self._place(homes)
        return replace(
            program,
            parameters=parameters,
            nodes=self._with_transfers(),
            mesh=Mesh((*mesh.axes[:count], axis, *mesh.axes[count:])),
            schedule=schedule,
        )

    def _homes(self) -> dict[str, int]:
        """Return the stage of the first reader of each parameter."""
        names = {p.name for p in self.program.parameters if not p.weight}
        homes: dict[str, int] = {}
        for node in self.program.nodes:
            stage = self.stage_of.get(node.provenance.operator)
            for name in names.intersection(node.operands):
                if stage is not None and node.provenance.phase == "forward":
                    homes[name] = min(stage, homes.get(name, stage))
        return homes

    def _place(self, homes: Mapping[str, int]) -> None:
        for node in self.program.nodes:
            stage = self._stage(node, homes)
            placed = tuple(_at(result, stage) for result in node.results)
            self.values.update((value.name, value) for value in placed)
            self.nodes.append(replace(node, results=placed))

    def _stage(self, node: Node, homes: Mapping[str, int]) -> int | None:
        origin = node.provenance
        held = [self._held(name) for name in node.operands]
        if node.operands and all(stage is None for stage in held):
            return None
        if origin.role in ("update", "accumulation", "gradient_redistribution", "fusion"):
            if origin.tensor in homes:
                return homes[origin.tensor]
        if origin.operator in self.stage_of:
            return self.stage_of[origin.operator]
        return max((stage for stage in held if stage is not None), default=None)

    def _held(self, name: str) -> int | None:
        layout = self.values[name].layout
        return None if layout is None else layout.stage

    def _with_transfers(self) -> tuple[Node, ...]:
        wanted: dict[str, dict[int, None]] = {}
        nodes = []
        for node in self.nodes:
            stage = self._held(node.name)
            names = {}
            for name in node.operands:
                if stage is not None and self._held(name) not in (None, stage):
                    wanted.setdefault(name, {})[stage] = None
                    names[name] = f"{name}.at{stage}"
            nodes.append(renamed(node, names))
        found = [t for p in self.program.parameters for t in self._transfers(p.name, wanted, None)]
        for node in nodes:
            found.append(node)
            for result in node.results:
                found += self._transfers(result.name, wanted, node)
        return tuple(found)

    def _transfers(
        self, name: str, wanted: Mapping[str, Iterable[int]], node: Node | None
    ) -> list[Node]:
        forward = node is None or node.provenance.phase == "forward"
        role = "redistribution" if forward else "gradient_redistribution"
        operator = "" if node is None else node.provenance.operator
        return [
            Node(
                "transfer",
                (name,),
                (replace(_at(self.values[name], stage), name=f"{name}.at{stage}"),),
                {"stage": stage},
                provenance=Provenance(operator, role, name),
            )
            for stage in wanted.get(name, ())
        ]


def _at(value: Value, stage: int | None) -> Value:
    assert value.layout is not None
    return replace(value, layout=value.layout.at(stage))

"""Decisions of a search, written on the program."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from shardwright.dataflow.placement import Placement, cuts_of, stages_of
from shardwright.dataflow.properties import ANNOTATED, WHOLE
from shardwright.ir.attributes import Attributes
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import OptionError, PassError, ShardwrightError
from shardwright.ir.files.reading import read_text
from shardwright.ir.graph import Graph, Parameter
from shardwright.ir.text import parse
from shardwright.passes.base import Pass, Spelled, register_pass

REGATHERED = "regathered"  # a parameter whose gathered copy is not saved for backward
GATHERED_IN_PASSES = "gathered_in_passes"  # it is gathered in every pass over micro-batches
REDUCED_IN_PASSES = "reduced_in_passes"  # its gradient is reduced in every pass


def decisions_of(graph: Graph) -> Decisions:
    """Return the decisions that an annotated program carries.

    Raises
    ------
    PassError
        If it is not annotated.
    """
    violation = ANNOTATED.violation(graph)
    if violation is not None or graph.mesh is None:
        raise PassError(f"the graph is not annotated: {violation}", f"graph {graph.name}")
    stored = (*graph.inputs, *(parameter.value for parameter in graph.parameters))

    def marked(attribute: str) -> frozenset[str]:
        return frozenset(p.name for p in graph.parameters if p.attributes.get(attribute))

    return Decisions(
        graph.mesh,
        {node.name: node.strategy for node in graph.nodes if node.strategy is not None},
        {value.name: value.layout for value in stored if value.layout is not None},
        dict(graph.shared_layouts),
        marked(REGATHERED) | frozenset(graph.regathered),
        frozenset(graph.recomputed),
        marked(GATHERED_IN_PASSES),
        marked(REDUCED_IN_PASSES),
        stages_of(graph),
        graph.schedule,
        frozenset(graph.offloaded),
    )


def _read(path: str) -> Decisions:
    try:
        text = read_text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "").lower() if isinstance(error, OSError) else "it is no text"
        raise OptionError(f"cannot read the decisions `{path}`: {reason}") from error
    try:
        return decisions_of(parse(text))
    except ShardwrightError as error:
        where = f"{path}, {error.where}" if error.where else path
        raise OptionError(error.what, where, error.hint) from None


_DECISIONS = Spelled("the file of an annotated graph", _read, lambda item: "DECISIONS.ir")


@register_pass
@dataclass(frozen=True)
class Annotate(Pass):
    """Write decisions on a program: strategies of operators, layouts of inputs and parameters.

    The annotated program carries all that was decided, so that the passes after this one have no
    other source: the layouts that the readers of a tensor share, the operators that are recomputed
    or whose results are regathered or saved in host memory, and the attributes of parameters:
    ``regathered`` where the gathered copy is not saved for backward, and with micro-batches
    ``gathered_in_passes`` and ``reduced_in_passes``. With pipeline stages it has a ``cut`` at the
    first operator of each stage, and every parameter is in its home stage, that of its first
    reader.

    Before::

        input x: f32[8, 16]
        parameter w: f32[16, 4]
        h: f32[8, 4] = matmul(x, w)

    After::

        input x: f32[8@x, 16]
        parameter w: f32[16@x, 4] {regathered=True}
        h: f32[8, 4] = matmul(x, w) split(m=x)

    Parameters
    ----------
    decisions : Decisions
        What the search decided; in text the file of a graph that was annotated before.
    """

    name = "annotate"
    requires = (WHOLE,)
    ensures = (ANNOTATED,)

    decisions: Annotated[Decisions, _DECISIONS]

    def run(self, graph: Graph) -> Graph:
        """Return the annotated program.

        Raises
        ------
        PassError
            If the decisions are those of another program.
        """
        chosen = self.decisions
        self._check(graph)
        graph = replace(graph, cuts=cuts_of(graph, chosen.stages, chosen.mesh.stages))
        places = Placement(graph).homes
        return replace(
            graph,
            inputs=tuple(replace(v, layout=chosen.stored[v.name]) for v in graph.inputs),
            parameters=tuple(self._stored(p, places.get(p.name)) for p in graph.parameters),
            nodes=tuple(replace(n, strategy=chosen.strategies[n.name]) for n in graph.nodes),
            mesh=chosen.mesh,
            shared_layouts=tuple(
                (name, replace(shared, saved=False, remade=0))
                for name, shared in chosen.shared_layouts.items()
            ),
            recomputed=tuple(n.name for n in graph.nodes if n.name in chosen.recomputed),
            regathered=tuple(n.name for n in graph.nodes if n.name in chosen.regathered),
            offloaded=tuple(n.name for n in graph.nodes if n.name in chosen.offloaded),
            schedule=chosen.schedule,
        )

    def _check(self, graph: Graph) -> None:
        chosen = self.decisions
        decided = {*chosen.strategies, *chosen.stored, *chosen.recomputed, *chosen.stages}
        decided |= chosen.regathered | chosen.offloaded
        stored = {*(value.name for value in graph.inputs), *(p.name for p in graph.parameters)}
        present = {*(node.name for node in graph.nodes), *stored}
        for names, what in (
            (present - decided, "the decisions do not decide `{}`"),
            (decided - present, "the decisions decide `{}`, which the program does not have"),
        ):
            if names:
                hint = "take decisions for the same program, in canonical form"
                raise PassError(what.format(min(names)), f"graph {graph.name}", hint)
        without = {node.name for node in graph.nodes} - set(chosen.stages or chosen.strategies)
        if without:
            what = f"the decisions give `{min(without)}` no stage, and others have one"
            raise PassError(what, f"graph {graph.name}")

    def _stored(self, parameter: Parameter, stage: int | None) -> Parameter:
        attributes: Attributes = dict(parameter.attributes)
        chosen = self.decisions
        for mark, names in (
            (REGATHERED, chosen.regathered),
            (GATHERED_IN_PASSES, chosen.gathered_in_passes),
            (REDUCED_IN_PASSES, chosen.reduced_in_passes),
        ):
            if parameter.name in names:
                attributes = {**attributes, mark: True}
        layout = chosen.stored[parameter.name]
        layout = layout if stage is None else layout.at(stage)
        value = replace(parameter.value, layout=layout)
        return replace(parameter, value=value, attributes=attributes)

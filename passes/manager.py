"""The pass manager: runs passes, checks what they require and ensure, times and records them."""

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.dataflow.properties import Property
from shardwright.ir.errors import OptionError, PassError, ShardwrightError
from shardwright.ir.export import to_dot, to_json
from shardwright.ir.files.writing import begins, check_names, write_files
from shardwright.ir.graph import Graph
from shardwright.ir.registry import explained
from shardwright.ir.text import to_text
from shardwright.ir.values import in_words, suggestion
from shardwright.operators.verify import verify
from shardwright.passes.base import PASSES, Pass

_WHAT = "the graphs"
_SAVE_GRAPHS = ("SHARDWRIGHT_SAVE_GRAPHS", "MS_DEV_SAVE_GRAPHS")
_NAME = re.compile(r"\d\d_\w+\.(ir|dot|json)")
_is_graph = begins(b"graph ", b"digraph ", b'{\n "name": ')


def graphs_asked_for() -> tuple[Path | None, int]:
    """Return the folder of graphs that the environment asks for, or None, and the level of detail.

    ``SHARDWRIGHT_SAVE_GRAPHS``, or MindSpore's ``MS_DEV_SAVE_GRAPHS``: 1 for text, 2 also for the
    graph before each pass, 3 for all formats, below ``SHARDWRIGHT_SAVE_GRAPHS_PATH`` or
    ``MS_DEV_SAVE_GRAPHS_PATH``.

    Raises
    ------
    OptionError
        If the variable is something else.
    """
    name = next((n for n in _SAVE_GRAPHS if n in os.environ), _SAVE_GRAPHS[0])
    level = os.environ.get(name, "0")
    if level not in ("", "0", "1", "2", "3"):
        raise OptionError(f"`{name}` is `{level}`, expected 0, 1, 2 or 3")
    if level in ("", "0"):
        return None, 1
    paths = (os.environ.get(f"{n}_PATH") for n in _SAVE_GRAPHS)
    return Path(next((path for path in paths if path), ".")) / "rank_0", int(level)


def check_graphs(directory: Path) -> None:
    """Check that graphs may be written to a directory, before a search that takes long.

    Raises
    ------
    OutputError
        If not; see `PassManager.write`.
    """
    present = directory.iterdir() if directory.is_dir() else ()
    names = sorted(path.name for path in present if _NAME.fullmatch(path.name))
    check_names(directory, names, _WHAT, _is_graph)


@dataclass(frozen=True)
class PassRecord:
    """A pass that has run.

    Parameters
    ----------
    work : Pass
        The pass.
    seconds : float
        The time it took, without checks.
    graph : Graph
        The graph after it.
    before : Graph
        The graph before it.
    """

    work: Pass
    seconds: float
    graph: Graph
    before: Graph

    @property
    def name(self) -> str:
        """The name of the pass."""
        return self.work.name


@dataclass
class PassManager:
    """Runs passes, and records the graphs before and after each.

    Parameters
    ----------
    verify_each : bool
        Whether the graph is verified after every pass, and the properties that the pass ensures.
    records : list of PassRecord
        The passes that have run.
    verify_later : bool
        Whether nothing is verified until `verify` is called.
    """

    verify_each: bool = True
    records: list[PassRecord] = field(default_factory=list)
    verify_later: bool = False

    def __repr__(self) -> str:
        return f"<PassManager: {', '.join(record.name for record in self.records)}>"

    def run(self, work: Pass, graph: Graph) -> Graph:
        """Run a pass and return the graph it leaves.

        Raises
        ------
        PassError
            If the graph lacks a property that the pass requires, or the pass leaves a graph that is
            not well formed, or without a property that it ensures.
        """
        _check_required(work, graph, self._ensured(graph))
        begin = time.perf_counter()
        result = _run(work, graph)
        seconds = time.perf_counter() - begin
        if self.verify_each and not self.verify_later:
            _check_result(work, result)
        self.records.append(PassRecord(work, seconds, result, graph))
        return result

    def _ensured(self, graph: Graph) -> tuple[Property, ...]:
        """Return the properties that were checked of a graph when the last pass left it."""
        if not (self.verify_each and self.records and self.records[-1].graph is graph):
            return ()
        return self.records[-1].work.ensures

    def verify(self) -> None:
        """Verify the graphs that all passes left, and the properties that they ensure; see `run`.

        Raises
        ------
        PassError
            If one is not well formed, or without a property.
        """
        known: set[tuple[int, ...]] = set()  # nodes that one pass leaves as the one before
        for record in self.records:
            _check_result(record.work, record.graph, known)

    def run_all(self, pipeline: tuple[Pass, ...], graph: Graph) -> Graph:
        """Run the passes of a pipeline in order; see `run`."""
        for work in pipeline:
            graph = self.run(work, graph)
        return graph

    def left_by(self, pipeline: tuple[Pass, ...], graph: Graph) -> Graph:
        """Return the graph that some passes leave; what ran on it before is not run again."""
        for work in pipeline:
            ran = [one for one in self.records if one.work == work and one.before is graph]
            graph = ran[0].graph if ran else PassManager().run(work, graph)
        return graph

    def write(self, directory: Path, detail: int = 1) -> None:
        """Write the graph after every pass: ``NN_pass.ir``.

        Parameters
        ----------
        directory : Path
            The folder; graphs that were written there before are replaced.
        detail : int
            1: text; 2: also the graph before every pass; 3: also ``dot`` and ``json``.

        Raises
        ------
        OutputError
            If the files cannot be written, or one would replace something else.
        """
        texts: dict[str, str] = {}
        for number, record in enumerate(self.records):
            stem = f"{number:02d}_{record.name}"
            if detail >= 2:
                texts[f"{stem}_begin.ir"] = to_text(record.before)
            texts[f"{stem}.ir"] = to_text(record.graph)
            if detail >= 3:
                texts[f"{stem}.dot"] = to_dot(record.graph)
                texts[f"{stem}.json"] = to_json(record.graph)
        check_names(directory, texts, _WHAT, _is_graph)
        write_files(directory, {name: text.encode() for name, text in texts.items()}, _WHAT)

    def ran(self, name: str) -> bool:
        """Return whether a pass of this name has run."""
        return any(record.name == name for record in self.records)

    def record(self, name: str) -> PassRecord:
        """Return the record of the first pass of a name.

        Raises
        ------
        PassError
            If it has not run.
        """
        for record in self.records:
            if record.name == name:
                return record
        raise pass_not_run(name, [record.name for record in self.records])

    def after(self, name: str) -> Graph:
        """Return the graph that the first pass of a name left; see `record`."""
        return self.record(name).graph


def _run(work: Pass, graph: Graph) -> Graph:
    try:
        with explained(work, f"pass `{work.name}`", PassError):
            return work.run(graph)
    except Exception as error:
        error.add_note(f"in pass `{work.name}`")
        raise


def pass_not_run(name: str, names: Sequence[str]) -> PassError:
    """Return the error that a pass is not among those that run."""
    near = suggestion(name, names)
    return PassError(f"pass `{name}` does not run", hint=near or f"expected {in_words(names)}")


def _check_required(work: Pass, graph: Graph, ensured: tuple[Property, ...]) -> None:
    for required in work.requires:
        violation = None if required in ensured else required.violation(graph)
        if violation is not None:
            raise PassError(
                f"pass `{work.name}` requires `{required.name}`, but {violation}",
                f"graph {graph.name}",
                _hint(required),
            )


def _hint(required: Property) -> str | None:
    makers = [
        f"`{name}`"
        for name in PASSES
        if required in PASSES[name].ensures and required not in PASSES[name].requires
    ]
    return f"run {in_words(makers)} first" if makers else None


def _check_result(work: Pass, graph: Graph, known: set[tuple[int, ...]] | None = None) -> None:
    if not isinstance(graph, Graph):
        raise PassError(f"pass `{work.name}` returned {type(graph).__name__}, expected a Graph")
    try:
        verify(graph, known)
    except ShardwrightError as error:
        what = f"pass `{work.name}` left a wrong graph: {error.what}"
        raise PassError(what, error.where) from error
    for ensured in work.ensures:
        violation = ensured.violation(graph)
        if violation is not None:
            raise PassError(
                f"pass `{work.name}` ensures `{ensured.name}`, but {violation}",
                f"graph {graph.name}",
            )

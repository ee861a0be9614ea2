"""The pass manager: runs a pass, verifies what it leaves, times it, and dumps it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.ir.errors import PassError, ShardwrightError
from shardwright.ir.export import to_dot, to_json
from shardwright.ir.graph import Graph
from shardwright.ir.text import to_text
from shardwright.operators.verify import verify


@dataclass(frozen=True)
class PassRecord:
    """One pass that has run.

    Parameters
    ----------
    name : str
        Name of the pass.
    seconds : float
        Time it took, without verification and dumps.
    graph : Graph
        What it left.
    """

    name: str
    seconds: float
    graph: Graph


@dataclass
class PassManager:
    """Runs passes in order; see `run`.

    Parameters
    ----------
    dump : Path, optional
        Folder for one ``NN_pass.ir`` after every pass.
    detail : int
        1: text; 2: also the beginning of each pass; 3: also ``dot`` and ``json``.
    """

    dump: Path | None = None
    detail: int = 1
    records: list[PassRecord] = field(default_factory=list)

    def run(self, name: str, work: Callable[[Graph], Graph], graph: Graph) -> Graph:
        """Run one pass and return what it leaves, verified.

        Raises
        ------
        PassError
            If what it leaves is not well formed; names the pass.
        """
        begin = time.perf_counter()
        result = work(graph)
        seconds = time.perf_counter() - begin
        try:
            verify(result)
        except ShardwrightError as error:
            raise PassError(
                f"pass `{name}` left a wrong graph: {error.what}", error.where
            ) from error
        self._dump(name, graph, result)
        self.records.append(PassRecord(name, seconds, result))
        return result

    def _dump(self, name: str, before: Graph, after: Graph) -> None:
        if self.dump is None:
            return
        self.dump.mkdir(parents=True, exist_ok=True)
        stem = f"{len(self.records):02d}_{name}"
        if self.detail >= 2:
            (self.dump / f"{stem}_begin.ir").write_text(to_text(before))
        (self.dump / f"{stem}.ir").write_text(to_text(after))
        if self.detail >= 3:
            (self.dump / f"{stem}.dot").write_text(to_dot(after))
            (self.dump / f"{stem}.json").write_text(to_json(after))

    def after(self, name: str) -> Graph:
        """Return the graph that the pass called `name` left.

        Raises
        ------
        PassError
            If it has not run.
        """
        for record in self.records:
            if record.name == name:
                return record.graph
        ran = ", ".join(record.name for record in self.records)
        raise PassError(f"no pass called `{name}` has run", hint=f"those that have are {ran}")

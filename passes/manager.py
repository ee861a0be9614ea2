"""The pass manager: runs passes, verifies what they leave, times them, and writes them down."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.ir.errors import PassError, ShardwrightError
from shardwright.ir.export import to_dot, to_json
from shardwright.ir.files import begins, check_names, write_files
from shardwright.ir.graph import Graph
from shardwright.ir.text import to_text
from shardwright.operators.verify import verify

_WHAT = "the graphs"
_NAME = re.compile(r"\d\d_\w+\.(ir|dot|json)")
_is_graph = begins(b"graph ", b"digraph ", b'{\n "name": ')


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
    """One pass that has run.

    Parameters
    ----------
    name : str
        Name of the pass.
    seconds : float
        Time it took, without verification and dumps.
    graph : Graph
        What it left.
    before : Graph
        What it was given.
    """

    name: str
    seconds: float
    graph: Graph
    before: Graph


@dataclass
class PassManager:
    """Runs passes in order; see `run`."""

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
        self.records.append(PassRecord(name, seconds, result, graph))
        return result

    def write(self, directory: Path, detail: int = 1) -> None:
        """Write what every pass left: ``NN_pass.ir``.

        Parameters
        ----------
        directory : Path
            Where; graphs that were written there before are replaced.
        detail : int
            1: text; 2: also what each pass was given; 3: also ``dot`` and ``json``.

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

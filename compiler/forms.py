"""The canonical form of a program, from which each configuration of it is compiled."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardwright.ir.errors import OptionError, ShardwrightWarning
from shardwright.ir.graph import Graph
from shardwright.passes.manager import PassManager, PassRecord
from shardwright.planner.options import UNPARTITIONED, CompileOptions, Mode
from shardwright.planner.pipelines import as_asked, canonical_form, marking


@dataclass(frozen=True)
class Prepared:
    """A program in canonical form, as each configuration is compiled from it.

    Parameters
    ----------
    source : Graph
        The program.
    options : CompileOptions
        The options for it.
    records : tuple of PassRecord
        The passes that made it.
    seconds : float
        What they took.
    """

    source: Graph
    options: CompileOptions
    records: tuple[PassRecord, ...]
    seconds: float


@dataclass(eq=False)
class Forms:
    """The forms of a program by its number of micro-batches.

    Parameters
    ----------
    graph : Graph
        The whole program.
    options : CompileOptions
        How to compile; the number of micro-batches is of no account.
    """

    graph: Graph
    options: CompileOptions
    _known: dict[int, Prepared] = field(default_factory=dict)

    def prepared(self, count: int) -> Prepared:
        """Return the program in a number of micro-batches, in canonical form."""
        if count not in self._known:
            options = replace(self.options, micro_batches=count)
            self._known[count] = prepared(self.graph, options)
        return self._known[count]

    def source_of(self, count: int) -> Graph:
        """Return the graph of that."""
        return self.prepared(count).source


def prepared(graph: Graph, options: CompileOptions) -> Prepared:
    """Return the canonical form of a program in micro-batches, and the options for it."""
    begin = time.perf_counter()
    passes = PassManager()
    canonicalize = canonical_form(options)
    graph = passes.run_all(as_asked(options, options.passes), graph)
    source = passes.run_all((canonicalize, *marking(options)), graph)
    if options.mode in UNPARTITIONED:
        source = _in_one_stage(source, options.mode)
    numbered = any(parameter.attributes.get("fusion") for parameter in graph.parameters)
    if options.mode not in UNPARTITIONED and numbered:
        options = replace(options, gather_fusion=replace(options.gather_fusion, by_layer=True))
    if options.pins or options.result_pins:
        options = _with_moved_pins(options, canonicalize.merged_values(graph))
    return Prepared(source, options, tuple(passes.records), time.perf_counter() - begin)


def _in_one_stage(source: Graph, mode: Mode) -> Graph:
    """Return a program without the pipeline stages of its cells.

    Raises
    ------
    OptionError
        If its parallel program is written by hand, which the compiler does not cut.
    """
    if source.cuts and mode == "hybrid_parallel":
        raise OptionError(
            f"the cells of the model have {source.stages} pipeline stages, which have no effect in "
            f"the mode `{mode}`",
            hint="leave `pipeline_stage` out, or use a mode in which the compiler splits the model",
        )
    if source.cuts:
        warnings.warn(
            f"the mode `{mode}` runs all pipeline stages of the model on one device",
            ShardwrightWarning,
            stacklevel=2,
        )
    return replace(source, cuts=())


def _with_moved_pins(options: CompileOptions, names: Mapping[str, str]) -> CompileOptions:
    """Return the options with the pins of merged operators on those that they were merged with."""
    pins, results = (
        {names.get(name, name): pin for name, pin in pinned.items()}
        for pinned in (options.pins, options.result_pins)
    )
    return replace(options, pins=pins, result_pins=results)

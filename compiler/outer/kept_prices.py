"""Prices of blocks that are searched once, and kept for later runs of the same program.

They depend on the program, the mesh, the cluster, the options, what the search may spend and which
bound is high enough. All that is their key, so what is kept is what a search finds. What that
spends is told with them and charged in either case, so no plan depends on what is kept.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from pydantic import TypeAdapter

from shardwright.compiler.outer.block_prices import BlockPrices, BlockPricing
from shardwright.compiler.stages.pipeline import Pipelined
from shardwright.ir.text import to_text
from shardwright.planner.bounds.chunk_floors import Halves
from shardwright.planner.bounds.priced_blocks import BlockBounds, BlockKind
from shardwright.planner.cache import Kept, text_of
from shardwright.planner.choice.configuration import Configuration, merged
from shardwright.planner.options import CompileOptions
from shardwright.solver.work import Budget

# Options that tell who searches, and how much: that is what the budget of the prices says.
_OTHERS = frozenset({"cache", "workers", "executor", "effort", "time_limit", "explain_search"})


@dataclass(frozen=True)
class _Prices:
    """Prices, and the seconds of work that their search takes; see `BlockPrices`."""

    work_seconds: float
    step_seconds: float
    limited_seconds: float
    least: tuple[BlockKind, ...]
    usual: tuple[BlockKind, ...]
    fits: bool
    is_short: bool
    most_stages: int
    merged: BlockBounds | None


_KEPT = Kept("price of blocks", TypeAdapter(_Prices))


@dataclass
class KeptPricing:
    """Prices the blocks of a program, or takes what was kept.

    Parameters
    ----------
    pricing : BlockPricing
        What searches.
    """

    pricing: BlockPricing

    def prices(
        self,
        configuration: Configuration,
        options: CompileOptions,
        budget: Budget,
        below: float,
        known: Mapping[Hashable, object],
    ) -> BlockPrices:
        """Return the prices of a configuration; see `BlockPricing.prices`."""
        alone = Budget(budget.left, budget.work.anew())
        where = configuration, options, alone, below, known
        key = self._key(*where) if options.cache else None
        kept = None if key is None else _KEPT.read(key)
        if kept is not None:
            budget.charge(kept.work_seconds)
            return self._named(configuration, options, kept)
        try:
            found = self.pricing.prices(*where)
        finally:
            budget.charge(alone.spent)
        if key is not None and not alone.work.is_stopped:
            _KEPT.write(key, _unnamed(found, alone.spent))
        return found

    def _named(
        self, configuration: Configuration, options: CompileOptions, kept: _Prices
    ) -> BlockPrices:
        own, pricing = self.pricing.own(configuration), self.pricing
        assert own.mesh is not None
        return BlockPrices(
            own,
            kept.step_seconds,
            kept.limited_seconds,
            kept.least,
            kept.usual,
            kept.fits,
            kept.is_short,
            pricing.is_one_program,
            kept.most_stages,
            pricing.halves if own.stages > 1 else Halves(),
            {} if kept.merged is None else {(merged(own.mesh), options.passes): kept.merged},
        )

    def _key(
        self,
        configuration: Configuration,
        options: CompileOptions,
        budget: Budget,
        below: float,
        known: Mapping[Hashable, object],
    ) -> str | None:
        """Return what prices depend on; None where something is not told by fields."""
        mesh, pricing = configuration.mesh, self.pricing
        assert mesh is not None
        pipeline: Pipelined = pricing.pipeline_of(options, mesh, Budget())
        source = pipeline.source
        program = source.analysed("text digest", lambda: sha256(to_text(source).encode()).digest())
        chosen = {name: value for name, value in vars(options).items() if name not in _OTHERS}
        of_program = pricing.levels, pricing.overlaps, pricing.is_one_program, pricing.halves
        merged_bounds = known.get((merged(mesh), options.passes))
        searched = budget.left, below, merged_bounds
        where = pipeline.cluster, mesh, configuration.stages, pipeline.level
        try:
            text = text_of((program.hex(), where, chosen, of_program, searched))
        except TypeError:
            return None
        return sha256(text.encode()).hexdigest()


def _unnamed(found: BlockPrices, spent: float) -> _Prices:
    (merged_bounds,) = (*found.known.values(), None)[:1]
    assert merged_bounds is None or isinstance(merged_bounds, BlockBounds)
    return _Prices(
        spent,
        found.step_seconds,
        found.limited_seconds,
        found.least,
        found.usual,
        found.fits,
        found.is_short,
        found.most_stages,
        merged_bounds,
    )

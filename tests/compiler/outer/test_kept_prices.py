"""Prices of blocks that are kept are those of a search, for the same work."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from shardwright.compiler.outer.block_prices import BlockPrices, BlockPricing
from shardwright.compiler.outer.kept_prices import KeptPricing
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.planner import cache
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.options import CompileOptions
from shardwright.solver.work import Budget

POD = cluster("a100-pod:figures=datasheet")
GPT = "gpt:layers=2,hidden=16,heads=2,batch=8,sequence=8,vocabulary=32,dtype=float32"
PAIR = Mesh((MeshAxis("x", 2, 0),))
SHORT = 20_000.0  # bytes, which bind
CASES = (
    Configuration(PAIR, 2),
    Configuration(PAIR, 4, 2),
    Configuration(mesh_for(POD, 8, (2, 2, 2)), 1),  # of more axes than levels
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what is kept, empty at first."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[Configuration]:
    """The configurations whose prices are searched."""
    found: list[Configuration] = []
    prices = BlockPricing.prices

    def noted(pricing: BlockPricing, configuration: Configuration, *rest: object) -> BlockPrices:
        found.append(configuration)
        return prices(pricing, configuration, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockPricing, "prices", noted)
    return found


def pricing(model: str = GPT) -> KeptPricing:
    source = Canonicalize().run(load_model(model).graph)

    def pipeline_of(options: CompileOptions, mesh: Mesh, budget: Budget) -> PipelinePartitioning:
        return PipelinePartitioning(source, POD, mesh, options, PassManager(), None, budget, 0)

    return KeptPricing(BlockPricing(pipeline_of, len(POD.levels), True, True))


def priced(
    one: Configuration,
    seconds: float = 60.0,
    below: float = 1.0,
    model: str = GPT,
    **options: object,
) -> tuple[BlockPrices, float]:
    """Return prices, and the work that they take."""
    given = CompileOptions(
        micro_batches=one.micro_batches, optimizer=Optimizer("adam"), memory_limit=SHORT
    )
    budget = Budget(seconds)
    found = pricing(model).prices(one, replace(given, **options), budget, below, {})  # type: ignore[arg-type]
    return found, budget.spent


@pytest.mark.long
@pytest.mark.parametrize("one", CASES, ids=str)
def test_kept_prices_are_those_of_a_search_and_cost_as_much(
    one: Configuration, folder: Path, searched: list[Configuration]
) -> None:
    without = priced(one, cache=False)
    assert not folder.exists()
    assert priced(one) == without
    assert len(searched) == 2
    assert priced(one) == without
    assert len(searched) == 2
    assert without[1] > 0
    assert len([*folder.glob("*/*.json")]) == 1


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the prices of the first case are kept."""
    place = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.VARIABLE, str(place))
        priced(CASES[0])
    return place


@pytest.mark.long
@pytest.mark.parametrize(
    "other",
    [
        {"seconds": 50.0},
        {"below": 1e-9},
        {"memory_limit": 2 * SHORT},
        {"optimizer": Optimizer("sgd")},
        {"recompute": "none"},
        {"model": GPT.replace("layers=2", "layers=3")},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_decides_is_told(
    other: dict[str, object],
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
    searched: list[Configuration],
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(kept))
    priced(CASES[0])
    assert not searched
    priced(CASES[0], **other)  # type: ignore[arg-type]
    assert len(searched) == 1


def test_a_stopped_search_keeps_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, searched: list[Configuration]
) -> None:
    class Stopped(type(Budget().work)):  # type: ignore[misc]
        is_stopped = True

        def anew(self) -> "Stopped":
            return self

    options = CompileOptions(micro_batches=2, optimizer=Optimizer("adam"), cache=True)
    found = BlockPrices(CASES[0], 1.0, 1.0)
    monkeypatch.setattr(BlockPricing, "prices", lambda *_: found)
    budget = Budget(np.inf, Stopped())
    assert pricing().prices(CASES[0], options, budget, inf, {}) is found
    assert not folder.exists()

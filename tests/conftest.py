import gc
import os
from collections.abc import Iterator

# Matrices of tests are too small for several threads each; must be said before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests neither use nor change what the user's searches have kept.
os.environ["SHARDWRIGHT_CACHE"] = ""
# Plans of tests that name no cluster are by data sheets, so that a figure which is measured anew
# changes what users are told, and no plan of a test.
os.environ["SHARDWRIGHT_CLUSTER"] = "h100-pod:figures=datasheet"
# Tests start hundreds of processes: a module is compiled once for all of them, whatever the
# environment says, or the start of each takes twice as long.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tables are as wide as where there is no terminal.
os.environ.pop("COLUMNS", None)

import pytest
from hypothesis import given, settings, strategies
from hypothesis.internal.conjecture import providers

from shardwright.cost_model.buffers import KINDS
from shardwright.cost_model.profiles import PROFILES
from shardwright.dataflow.orders import SCHEDULES
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse, to_text
from shardwright.operators import info as registry
from shardwright.passes.base import Pass
from shardwright.passes.manager import PassManager
from shardwright.passes.pipeline import PASSES  # registers the built-in passes
from shardwright.search.driver import SEARCHES
from shardwright.search.plan_dimensions import DIMENSIONS
from tests.extent import first

# The same examples in every run, and no limit of time, so that a slow machine fails no test.
EXAMPLES = len(first(40, range(100)))
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, max_examples=EXAMPLES
)
settings.load_profile("repeatable")
# Hypothesis would also draw the constants of all modules that are imported: examples would change
# with any source and with the tests before, and each process would parse 700 files (3 s).
providers._get_local_constants = providers.Constants
# What is collected stays: to look for garbage in it takes a third of that time.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files under tests/golden anew",
    )


def pytest_collection_finish() -> None:
    """Let garbage collection run seldom.

    It would visit modules and ten thousand tests again and again, a quarter of the time of all
    tests. What a compilation makes is mostly gone before as many objects are there. What is there
    before the first test is visited by none, nor by those at the end of each process.
    """
    gc.set_threshold(2_000_000, 20, 100)
    gc.freeze()
    given(strategies.none())(lambda _: None)()  # the first example of a process collects, too
    gc.enable()


def pytest_unconfigure() -> None:
    """Let nobody visit what the tests have left: pytest collects garbage twice when it ends."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _every_pass_survives_text() -> Iterator[None]:
    """Check, after every pass that any test runs, that the graph can be written and read back.

    Of the graphs that a pass makes of one model, those twice as long as others are read back: all
    of them would take a third of the time of all tests.
    """
    run, read_back = PassManager.run, set[tuple[str, str, int]]()

    def checked(passes: PassManager, work: Pass, graph: Graph) -> Graph:
        result = run(passes, work, graph)
        kind = work.name, graph.name, len(result.nodes).bit_length()
        if kind not in read_back:
            read_back.add(kind)
            same = parse(to_text(result)) == result
            assert same, f"pass `{work.name}` left what text does not hold"
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PassManager, "run", checked)
        yield


@pytest.fixture
def own_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget afterwards what a test registers: operators, passes, searches, profiles and so on."""
    for entries in (registry._OPERATORS, PASSES, SEARCHES, PROFILES, SCHEDULES, KINDS, DIMENSIONS):
        monkeypatch.setattr(entries, "_items", dict(entries._items))
        monkeypatch.setattr(entries, "_origins", dict(entries._origins))
    yield
    registry._cached.cache_clear()

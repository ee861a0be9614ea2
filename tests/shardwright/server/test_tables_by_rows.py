"""Tables of which a step reads some rows: what servers send, and that no number changes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright import nn, ops
from shardwright.communication.processes import _WORKERS
from shardwright.ir.types import TensorType
from shardwright.operators.models.optimizer import Optimizer
from shardwright.server import roles, set_ps_context
from shardwright.server.cache import RowCache
from shardwright.server.context import reset
from shardwright.server.lookups import lookups_of, numbered, with_small_tables
from shardwright.server.session import begin
from shardwright.session import ParallelOptions
from shardwright.session import begin as begin_alone
from shardwright.tracing import InputSpec, trace
from tests.shardwright.server.runs import needs_grpc, running


class Clicks(nn.Cell):
    """Two lookups in one table, one in another of hashed features."""

    def __init__(self):
        self.items = nn.Embedding(1000, 4)
        self.features = nn.HashEmbedding([300, 500], 2)
        self.head = nn.Dense(3 * 4 + 4, 1)

    def construct(self, first, second, features):
        found = [self.items(first).reshape(8, 8), self.items(second), self.features(features)]
        rows = ops.concat([found[0], found[1], found[2].reshape(8, 4)], 1)
        return (self.head(rows) ** 2.0).mean()


def batch(random):
    return {
        "first": random.integers(0, 1000, (8, 2)).astype(np.int32),
        "second": random.integers(0, 30, 8).astype(np.int32),
        "features": random.integers(0, 10**6, (8, 2)).astype(np.int32),
    }


def optimizer(network, kind):
    parameters = network.trainable_params()
    made = {
        "sgd": lambda: nn.SGD(parameters, 0.5),
        "momentum": lambda: nn.Momentum(parameters, 0.1, 0.9),
        "adam": lambda: nn.Adam(parameters, 0.01),
        "lazy": lambda: nn.LazyAdam(parameters, 0.01),
        "adagrad": lambda: nn.Adagrad(parameters, learning_rate=0.1),
        "ftrl": lambda: nn.FTRL(parameters, learning_rate=0.1, l1=1e-4),
        "scheduled": lambda: nn.LazyAdam(parameters, [0.1, 0.05, 0.02]),
    }
    return made[kind]()


KINDS = ("sgd", "momentum", "adam", "lazy", "adagrad", "ftrl", "scheduled")
BY_ROWS = {"sgd", "lazy", "adagrad", "ftrl", "scheduled"}


def definition(kind="sgd"):
    network, random = Clicks(), np.random.default_rng(0)
    specs = [InputSpec(n, TensorType("int32", a.shape)) for n, a in batch(random).items()]
    return trace(network, specs, optimizer=optimizer(network, kind))


def trained(begun, network, kind, steps=4):
    random = np.random.default_rng(5)
    session = begun(network, batch(random), ParallelOptions(), optimizer=optimizer(network, kind))
    losses = [session.step(list(batch(random).values())) for _ in range(steps)]
    values = {name: p.asnumpy() for name, p in network.parameters_and_names()}
    return losses, values, session


@pytest.fixture
def as_worker(monkeypatch):
    """Let this process be the one worker of a run."""

    def enter(run, **given):
        variables = {
            "MS_ROLE": "MS_WORKER",
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": run.address.rpartition(":")[2],
            "MS_SERVER_NUM": str(run.servers),
            "MS_WORKER_NUM": "1",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(roles, "_PART", roles._Part())
        set_ps_context(enable_ps=True, **given)

    yield enter
    _WORKERS.clear()
    reset()
    roles.meet_by(None)


@needs_grpc
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_tables_are_those_of_one_process_to_the_bit(as_worker, kind):
    expected, values, _ = trained(begin_alone, Clicks(), kind)
    with running(2, 1) as run:
        as_worker(run, cache_rows=40, hash_rows=kind == "sgd")
        network = Clicks()
        network.set_param_ps()
        losses, found, session = trained(begin, network, kind)
        by_rows = {table.name for table in session.program.tables if table.by_rows}
        roles._PART.member.leave()
        roles._PART.client.close()
    tables = {"items.embedding_table", "features.embedding.embedding_table"}
    assert by_rows == (tables if kind in BY_ROWS else set())
    assert losses == expected
    assert all(np.array_equal(found[name], values[name]) for name in values)


def test_a_small_table_takes_the_place_of_a_large_one():
    model = definition()
    tables = lookups_of(model.graph, [p.name for p in model.graph.parameters], model.optimizer)
    assert [(t.table, t.rows) for t in tables] == [
        ("items.embedding_table", 24),
        ("features.embedding.embedding_table", 16),
    ]
    small = with_small_tables(model.graph, tables)
    shapes = {p.name: p.value.type.shape for p in small.parameters}
    assert shapes["items.embedding_table"] == (24, 4)
    assert [value.name for value in small.inputs[3:]] == [n for t in tables for n in t.inputs]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("momentum", {}), ("adam", {}), ("sgd", {"weight_decay": 0.1})],
)
def test_tables_whose_idle_rows_change_are_whole(kind, settings):
    model = definition()
    names = [p.name for p in model.graph.parameters]
    assert lookups_of(model.graph, names, Optimizer(kind, settings)) == ()


def test_a_table_that_is_read_otherwise_too_is_whole():
    class Tied(Clicks):
        def construct(self, first, second, features):
            return super().construct(first, second, features) + self.items.embedding_table.mean()

    network, random = Tied(), np.random.default_rng(0)
    specs = [InputSpec(n, TensorType("int32", a.shape)) for n, a in batch(random).items()]
    model = trace(network, specs, optimizer=nn.SGD(network.trainable_params()))
    tables = lookups_of(model.graph, [p.name for p in model.graph.parameters], model.optimizer)
    assert [table.table for table in tables] == ["features.embedding.embedding_table"]


@given(st.lists(st.lists(st.integers(-3, 12), min_size=1, max_size=9), min_size=1, max_size=3))
def test_numbers_of_rows_lead_back_to_the_indices(lists):
    indices = [np.array(items, np.int32) for items in lists]
    rows, numbers = numbered(indices, 10)
    assert (np.diff(rows) > 0).all()
    for before, after in zip(indices, numbers, strict=True):
        inside = (before >= 0) & (before < 10)
        assert (after[~inside] == -1).all()
        assert (rows[after[inside]] == before[inside]).all()


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_a_cache_is_bounded_and_never_gives_another_version(capacity, seed):
    random = np.random.default_rng(seed)
    cache, versions = RowCache(capacity, 2, np.dtype("float32")), np.ones(50, np.uint64)
    for step in range(30):
        rows = np.unique(random.zipf(1.5, 12) % 50)
        values, known = cache.known(rows)
        current = np.stack([rows, versions[rows]], 1).astype(np.float32)
        assert ((known == 0) | (known <= versions[rows])).all()
        fresh = known == versions[rows]
        assert np.array_equal(values[fresh], current[fresh])
        cache.keep(rows, current, versions[rows])
        changed = random.choice(50, 5)
        versions[changed] = step + 2
    assert len(cache._values) == capacity


def test_hot_rows_stay():
    random = np.random.default_rng(0)
    cache, hits = RowCache(100, 1, np.dtype("float32")), []
    for _ in range(200):
        rows = np.unique(np.concatenate([np.arange(20), random.integers(20, 10**6, 50)]))
        _, known = cache.known(rows)
        hits.append((known[:20] != 0).mean())
        cache.keep(rows, np.zeros((len(rows), 1)), np.ones(len(rows), np.uint64))
    assert np.mean(hits[20:]) > 0.8

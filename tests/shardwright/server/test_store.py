"""Division of tables, and the updates of a server: to the bit those of one device."""

import threading
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.operators.info import whole_kernel
from shardwright.operators.models.random import initial_value
from shardwright.server.messages import WithData, decoded, message, message_class, with_data
from shardwright.server.store import Push, Store
from shardwright.server.tables import Division, divisions
from shardwright.server.transport import CallError
from tests.shardwright.server.runs import needs_grpc, table, task

ADAM = ("adam_update", (("learning_rate", 0.1), ("weight_decay", 0.01)))


@given(st.integers(1, 300), st.integers(1, 7), st.booleans())
def test_every_row_is_on_one_server_at_one_place(rows, servers, hashed):
    division = Division(rows, servers, hashed)
    held = [division.rows_of(server) for server in range(servers)]
    assert sorted(np.concatenate(held)) == list(range(rows))
    found, places = division.places(np.arange(rows))
    assert all(
        held[server][place] == i
        for i, (server, place) in enumerate(zip(found, places, strict=True))
    )
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_small_tables_are_whole_and_spread():
    tables = [table(f"t{i}", (10, 3)) for i in range(4)]
    assert [division.home for division in divisions(tables, 2)] == [0, 1, 0, 1]
    assert divisions([table("t", (10**5, 3))], 2)[0].home is None


def drawn(store, number):
    shard = store.shards[number]
    return shard.values


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_updates_are_those_of_one_device_in_any_order_of_workers(seed):
    random = np.random.default_rng(seed)
    adam = table("w", (30, 5), rule=ADAM, states=("zeros", "zeros"))
    work = task(adam, workers=3, seed=7)
    orders = list(permutations(range(3)))
    stores = [Store(work, 0, 1) for _ in range(2)]
    region = tuple(slice(0, n) for n in adam.type.shape)
    p = initial_value("normal", "w", 7, adam.type.shape, region, np.float32)
    m = v = np.zeros_like(p)
    assert np.array_equal(drawn(stores[0], 0), p)
    for step in range(3):
        gradients = [random.normal(size=(30, 5)).astype(np.float32) for _ in range(3)]
        for store in stores:
            for worker in orders[random.integers(6)]:
                store.push(Push(worker, step, {0: gradients[worker]}))
        mean = ((gradients[0] + gradients[1]) + gradients[2]) / np.float32(3)
        p, m, v = whole_kernel(adam.operator, p, mean, m, v, np.asarray(step + 1))
        for store in stores:
            assert np.array_equal(drawn(store, 0), p)
            assert store.clock == step + 1


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_rows_are_updated_as_the_whole_table_is(seed, hashed):
    random = np.random.default_rng(seed)
    rows = table("t", (50, 4), by_rows=True, hashed=hashed)
    whole = Store(task(table("t", (50, 4)), workers=2, seed=3), 0, 1)
    store = Store(task(rows, workers=2, seed=3), 0, 1)
    shard = store.shards[0]
    for step in range(4):
        for worker in range(2):
            places = np.sort(random.choice(50, 8, replace=False))
            gradient = random.normal(size=(8, 4)).astype(np.float32)
            dense = np.zeros((50, 4), np.float32)
            dense[shard.division.rows_of(0, places)] = gradient
            store.push(Push(worker, step, by_rows={0: (places, gradient)}))
            whole.push(Push(worker, step, {0: dense}))
    values, _ = shard.at(np.arange(50))
    assert np.array_equal(values, drawn(whole, 0)[shard.division.rows_of(0)])


def test_pushes_count_once_and_in_their_order():
    store = Store(task(table("w", (2,), "zeros"), workers=2, synchronous=False), 0, 1)
    gradient = np.ones(2, np.float32)
    store.push(Push(0, 0, {0: gradient}))
    store.push(Push(0, 0, {0: gradient}))
    store.push(Push(1, 0, {0: gradient}))
    assert store.clock == 2
    assert drawn(store, 0).ravel().tolist() == [-1, -1]


def test_a_worker_that_skips_a_step_is_refused_where_others_wait_for_it():
    store = Store(task(table("w", (2,), "zeros"), workers=2), 0, 1)
    with pytest.raises(CallError, match="worker 0 pushes its step 2, expected 0"):
        store.push(Push(0, 2, {0: np.ones(2, np.float32)}))


def test_a_push_waits_for_the_update_of_the_one_before():
    store = Store(task(table("w", (2,), "zeros"), workers=2), 0, 1)
    gradient = np.ones(2, np.float32)
    store.push(Push(0, 0, {0: gradient}))
    with pytest.raises(CallError, match="there were 0 updates, 1 are asked for") as caught:
        store.push(Push(0, 1, {0: 5 * gradient}))
    assert caught.value.may_repeat
    for worker, step in ((1, 0), (0, 1), (1, 1)):
        store.push(Push(worker, step, {0: gradient}))
    assert store.applied == [2, 2]
    assert drawn(store, 0).ravel().tolist() == [-1, -1]


def test_a_worker_that_ends_too_early_is_named_by_those_that_wait():
    store = Store(task(table("w", (2,)), workers=2), 0, 1)
    store.push(Push(0, 0, {0: np.ones(2, np.float32)}))
    store.note_gone([1])
    message = "worker 1 has ended after 0 steps, and another waits for its step 1; give all"
    with pytest.raises(CallError, match=message):
        store.wait_for(1, 30)


def test_who_waits_for_values_that_nobody_can_send_is_told():
    store = Store(task(table("w", (2,), "data"), workers=2), 0, 1)
    store.note_gone([0])
    message = "worker 0 has ended before it sent the initial values; start the run again"
    with pytest.raises(CallError, match=message):
        store.wait_for(0, 30)


def test_a_push_that_comes_again_at_the_end_is_in_the_checkpoint():
    def save(store: Store, now: bool) -> None:
        if now:
            store.durable[:] = store.applied

    store = Store(task(table("w", (2,), "zeros"), workers=2), 0, 1, save)
    gradient, last = np.ones(2, np.float32), {"saves": True}
    store.push(Push(0, 0, {0: gradient}))
    with pytest.raises(CallError, match="there were 0 updates, 1 are asked for") as caught:
        store.push(Push(0, 0, {0: gradient}, **last))  # it waits for the one of worker 1
    assert caught.value.may_repeat
    store.push(Push(1, 0, {0: gradient}))
    assert store.durable == [0, 0]
    store.push(Push(0, 0, {0: gradient}, **last))
    assert (store.clock, store.durable) == (1, [1, 1])


def test_who_waits_is_told_when_the_run_ends():
    store = Store(task(table("w", (2,)), workers=2), 0, 1)
    threading.Timer(0.05, store.fail, ["the worker 1 has ended early"]).start()
    with pytest.raises(CallError, match="the worker 1 has ended early"):
        store.wait_for(1, 30)


def piece(**fields):
    return message("Piece", **{"step": 300, "table": 2, **fields})


@needs_grpc
def test_long_data_of_a_message_is_a_view_of_what_came():
    kind, content = message_class("Piece"), bytes(range(256)) * 40
    sent = with_data(piece(begin=1 << 40, rows=b"abc"), memoryview(content))
    found = decoded(kind, sent)
    assert isinstance(found, WithData)
    assert found.data.obj is sent
    assert bytes(found.data) == content
    fields = (found.step, found.table, found.begin, found.rows)
    assert fields == (300, 2, 1 << 40, b"abc")
    assert kind.FromString(sent).data == content  # as protobuf reads it


@needs_grpc
def test_messages_are_read_or_refused_as_protobuf_does():
    kind, random = message_class("Piece"), np.random.default_rng(0)
    sent = with_data(piece(rates=b"12345678"), memoryview(bytes(5000)))
    twice = kind(data=b"first", table=3).SerializeToString() + sent
    behind = sent + piece(save=True).SerializeToString()
    wrong = [bytes(b"\x80" * 5000), sent[:-1], sent + b"\x07", b"\x3a" + b"\xff" * 9 + sent]
    damaged = [bytearray(sent) for _ in range(300)]
    for item in damaged:
        item[random.integers(0, 40)] = random.integers(0, 256)
    for data in (twice, behind, *wrong, *map(bytes, damaged)):
        found = []
        for read in (kind.FromString, lambda data: decoded(kind, data)):
            try:
                item = read(data)
            except Exception:
                found.append(None)
            else:
                names = [field.name for field in kind.DESCRIPTOR.fields if field.name != "data"]
                found.append((bytes(item.data), *(getattr(item, name) for name in names)))
        assert found[0] == found[1]

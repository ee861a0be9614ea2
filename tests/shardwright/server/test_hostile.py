"""Malformed and hostile messages: refused with a sentence, and nothing grows or changes."""

from pathlib import Path

import numpy as np
import pytest

from shardwright.server.messages import message, methods
from shardwright.server.transport import CallError, grpc
from tests.shardwright.server.runs import needs_grpc, running, table, task

pytestmark = needs_grpc
MESSAGES = 1000
REFUSALS = {
    "INVALID_ARGUMENT",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "RESOURCE_EXHAUSTED",
    "UNIMPLEMENTED",
    "INTERNAL",
}


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def mutated(random, data):
    """Return bytes with some flipped, cut off, repeated, or all at random."""
    kind = random.integers(4)
    found = bytearray(data)
    if kind == 0 or not found:
        return random.bytes(int(random.integers(0, 200)))
    if kind == 1:
        return bytes(found[: random.integers(len(found))])
    if kind == 2:
        return bytes(found) * int(random.integers(2, 4))
    for _ in range(random.integers(1, 4)):
        found[random.integers(len(found))] = random.integers(256)
    return bytes(found)


def valid(random, token):
    """Return a message of each method of a server, as a worker would send it."""
    own = {"token": token, "worker": 0}
    numbers = np.ones(6, np.float32).tobytes()
    rows = np.array([1, 3], np.int64).tobytes()
    return {
        "Declare": [message("Model", **own, workers=1, synchronous=True)],
        "Fill": [message("Piece", **own, data=numbers)],
        "Push": [
            message("Piece", **own, step=int(random.integers(4)), data=numbers),
            message("Piece", **own, table=1, rows=rows, data=numbers[:16]),
        ],
        "Pull": [message("Wish", **own, clock=int(random.integers(2)), tables=[0, 9])],
        "PullRows": [message("Rows", **own, table=1, rows=rows, versions=rows)],
    }


def code_of(channel, method, requests):
    """Send bytes to a method; return the code of the answer."""
    call = getattr(channel, method.kind)(method.path)
    request = iter(requests) if method.streams_requests else requests[0]
    try:
        answer = call(request, timeout=5.0)
        list(answer) if method.streams_responses else answer
    except grpc().RpcError as error:
        return error.code().name
    return "OK"


def test_a_thousand_hostile_messages():
    random = np.random.default_rng(0)
    tables = (table("w", (2, 3), "ones"), table("t", (10, 2), by_rows=True))
    with running(1, 1) as run:
        client = run.worker(task(*tables))
        server, store = client._links[0].connection.address, run.answers[0].store
        known = {"ParameterServer": server, "Scheduler": run.address}
        token = client.member.token
        with grpc().insecure_channel(server) as one, grpc().insecure_channel(run.address) as two:
            channels = {"ParameterServer": one, "Scheduler": two}
            codes, before = [], 0
            for i in range(MESSAGES):
                if i == MESSAGES // 5:
                    before = resident_bytes()
                service = "Scheduler" if i % 5 == 0 else "ParameterServer"
                name = list(methods(service))[i % len(methods(service))]
                own = token if i % 2 else int(random.integers(2**62))
                samples = valid(random, own) if service == "ParameterServer" else {}
                sample = samples.get(name, [message("Member", role="MS_WORKER", number=7)])
                data = [mutated(random, item.SerializeToString()) for item in sample]
                codes.append(
                    (own == token, code_of(channels[service], methods(service)[name], data))
                )
            grown = resident_bytes() - before
        assert {code for _, code in codes} <= REFUSALS | {"OK", "DEADLINE_EXCEEDED"}
        assert not any(code == "OK" for is_known, code in codes if not is_known)
        assert sum(code in REFUSALS for _, code in codes) > 0.8 * MESSAGES
        assert grown < 2**24
        assert known["ParameterServer"] == server
        clock = store.clock
        client.step = store.counted(0)
        client.push({0: np.ones((2, 3), np.float32)}, {})  # it works as before
        assert store.clock == clock + 1
        client.close()
        client.member.leave()


def refused(connection, method, *requests, seconds=5.0):
    known = methods("ParameterServer")[method]
    request = iter(requests) if known.streams_requests else requests[0]

    def call():
        if known.streams_responses:
            return list(connection.calls(method, request, seconds))
        return connection.call(method, request, seconds)

    with pytest.raises(CallError) as caught:
        call()
    return str(caught.value)


def test_what_does_not_fit_is_refused_with_one_sentence():
    tables = (table("w", (2, 3), "ones"), table("t", (10, 2), by_rows=True))
    with running(1, 1) as run:
        client = run.worker(task(*tables))
        connection = client._links[0].connection
        own = {"token": client.member.token, "worker": 0}
        head = message("Piece", **own)

        def piece(**fields):
            return message("Piece", **own, **fields)

        def push(*pieces):
            return refused(connection, "Push", head, *pieces)

        five = bytes(20)
        assert push() == "a stream ends after 0 elements of `w`"
        assert push(piece(data=five)) == "a stream ends after 5 elements of `w`"
        assert push(piece(data=bytes(28))) == "`w` has 6 elements here"
        assert push(piece(data=five, begin=1)) == "a piece of `w` at 1 is not expected"
        assert push(piece(data=b"abc")) == "3 bytes are no whole number of float32"
        assert push(piece(data=five, table=2)) == "there is no table 2"
        assert push(piece(data=five, step=1)) == "a stream has messages of several steps"
        rows = np.array([3, 1], np.int64).tobytes()
        sixteen = bytes(16)
        assert push(piece(data=sixteen, table=1, rows=rows)).startswith("rows of `t` are not in")
        outside = np.array([3, 10], np.int64).tobytes()
        message_ = push(piece(data=sixteen, table=1, rows=outside))
        assert message_ == "a row of `t` is outside of the 10 rows here"
        assert push(piece(data=five, table=1, rows=rows)) == "2 rows of `t` have 5 elements"
        assert push(piece(data=five, rows=rows)) == "`w` is not divided into rows"
        assert refused(connection, "Push") == "a stream has no messages"
        wish = message("Wish", **own, tables=[5])
        assert refused(connection, "Pull", wish) == "there is no table 5 here"
        stranger = message("Wish", worker=0, token=1)
        found = refused(connection, "Pull", stranger)
        assert found == "worker 0 is not known to the scheduler"
        assert refused(connection, "Pull", wish, seconds=None).startswith("a call has no deadline")
        large = message("Piece", **own, data=bytes(2**23))
        assert "larger than max" in refused(connection, "Push", large)
        model = message("Model", **own, workers=1, tables=[message("Table", name="x")])
        assert refused(connection, "Declare", model) == "the table `x` has the type ``"
        assert run.answers[0].store.clock == 0
        client.close()
        client.member.leave()

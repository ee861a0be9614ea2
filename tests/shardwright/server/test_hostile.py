"""Malformed and hostile messages: refused with a sentence, and nothing grows or changes."""

import gc
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from shardwright.ir.errors import ModelError
from shardwright.server.callers import JOINS, Caller
from shardwright.server.messages import message, methods
from shardwright.server.security import PLAIN
from shardwright.server.transport import CallError, Connection, grpc
from tests.extent import first, long_after
from tests.shardwright.server.runs import needs_grpc, running, table, task

pytestmark = needs_grpc
MESSAGES = len(first(300, range(1000)))
SECRET = b"0123456789abcdef"
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


def valid(random):
    """Return a message of each method of a server, as a worker would send it."""
    numbers = np.ones(6, np.float32).tobytes()
    rows = np.array([1, 3], np.int64).tobytes()
    return {
        "Declare": [message("Model", workers=1, synchronous=True)],
        "Fill": [message("Piece", data=numbers, last=True)],
        "Push": [
            message("Piece", step=int(random.integers(4)), data=numbers),
            message("Piece", table=1, rows=rows, data=numbers[:16], last=True),
        ],
        "Pull": [message("Wish", clock=int(random.integers(2)), tables=[0, 9])],
        "PullRows": [message("Rows", table=1, rows=rows, versions=rows)],
    }


def code_of(call, method, requests, caller):
    """Send bytes to a method; return the code of the answer."""
    request = iter(requests) if method.streams_requests else requests[0]
    try:
        answer = call(request, timeout=5.0, metadata=caller.metadata)
        list(answer) if method.streams_responses else answer
    except grpc().RpcError as error:
        return error.code().name
    return "OK"


def wait_until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def stranger(random):
    role = random.choice([JOINS, "MS_WORKER", "MS_PSERVER", "nobody"])
    return Caller(str(role), int(random.integers(3)), f"{random.integers(2**62):x}")


@pytest.mark.long
def test_hostile_messages():
    random = np.random.default_rng(0)
    tables = (table("w", (2, 3), "ones"), table("t", (10, 2), by_rows=True))
    with running(1, 1, secret=SECRET) as run:
        client = run.worker(task(*tables))
        server, store = client._links[0].connection.address, run.answers[0].store
        known = {"ParameterServer": server, "Scheduler": run.address}
        worker = client.member.caller
        with grpc().insecure_channel(server) as one, grpc().insecure_channel(run.address) as two:
            channels = {"ParameterServer": one, "Scheduler": two}
            calls = {  # gRPC keeps what is made for a call
                method: getattr(channel, method.kind)(method.path)
                for service, channel in channels.items()
                for method in methods(service).values()
            }
            codes, before = [], 0
            for i in range(MESSAGES):
                if i % 100 == 0:
                    gc.collect()  # tests do so seldom: what is counted is what stays
                if i == MESSAGES // 5:
                    before = resident_bytes()
                service = "Scheduler" if i % 5 == 0 else "ParameterServer"
                name = list(methods(service))[i % len(methods(service))]
                caller = worker if i % 2 else stranger(random)
                samples = valid(random) if service == "ParameterServer" else {}
                sample = samples.get(name, [message("Member", role="MS_WORKER", number=7)])
                data = [mutated(random, item.SerializeToString()) for item in sample]
                method = methods(service)[name]
                code = code_of(calls[method], method, data, caller)
                codes.append((caller is worker, code))
            gc.collect()
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
        head = message("Piece")

        def piece(**fields):
            return message("Piece", **fields)

        def push(*pieces):
            return refused(connection, "Push", head, *pieces, message("Piece", last=True))

        five = bytes(20)
        assert refused(connection, "Push", head) == "a stream ends before its last message"
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
        wish = message("Wish", tables=[5])
        assert refused(connection, "Pull", wish) == "there is no table 5 here"
        address = connection.address
        unknown = Connection("ParameterServer", address, PLAIN, Caller.member("MS_WORKER", 0, 1))
        found = refused(unknown, "Pull", wish)
        assert found == "worker 0 is not known to the scheduler"
        nobody = Connection("ParameterServer", address, PLAIN, Caller("", 0, ""))
        assert refused(nobody, "Pull", wish) == "a call does not say who calls"
        assert refused(connection, "Pull", wish, seconds=None).startswith("a call has no deadline")
        large = message("Piece", data=bytes(2**23))
        assert "larger than max" in refused(connection, "Push", large)
        model = message("Model", workers=1, tables=[message("Table", name="x")])
        assert refused(connection, "Declare", model) == "the table `x` has the type ``"
        assert run.answers[0].store.clock == 0
        client.close()
        client.member.leave()


def test_who_does_not_know_the_secret_does_not_join():
    with running(1, 1, secret=SECRET) as run:
        run.secret = b"fedcba9876543210"
        with pytest.raises(ModelError, match="does not know the secret of the run"):
            run.member()
        run.secret = SECRET
        member = run.member()
        member.leave()


def test_a_call_to_join_that_comes_again_takes_no_other_place():
    with running(0, 1, secret=SECRET) as run:
        connection = Connection("Scheduler", run.address, PLAIN, Caller.joining(SECRET))
        asked = message("Member", role="MS_WORKER", number=0, workers=1)
        run.members.silence = 0.0  # its place may be taken by a process that is started again
        first = connection.call("Join", asked)
        assert connection.call("Join", asked) == first
        other = Connection("Scheduler", run.address, PLAIN, Caller.joining(SECRET))
        time.sleep(0.01)
        assert other.call("Join", asked) != first
        for one in (connection, other):
            one.close()


CALLERS = {
    "nobody": (),
    "a stranger": Caller.member("MS_WORKER", 0, 1).metadata,
    "one that joins": Caller.joining(b"fedcba9876543210").metadata,
}


@pytest.mark.parametrize("who", long_after(1, [*CALLERS, "the worker itself"]))
def test_open_streams_of_others_stop_no_training(who):
    end = threading.Event()

    def silent():
        end.wait(60)
        yield from ()

    with running(1, 1, secret=SECRET) as run:
        client = run.worker(task(table("w", (2, 3), "ones")))
        metadata = CALLERS.get(who, client.member.caller.metadata)
        services = {
            run.address: "Scheduler",
            client._links[0].connection.address: "ParameterServer",
        }
        with ExitStack() as stack:
            calls = []
            for address, service in services.items():
                channel = stack.enter_context(grpc().insecure_channel(address))
                for method in methods(service).values():
                    kind = "stream" if method.streams_responses else "unary"
                    call = getattr(channel, f"stream_{kind}")(method.path)
                    call = call if method.streams_responses else call.future
                    calls += [call(silent(), timeout=60.0, metadata=metadata) for _ in range(100)]
            stack.callback(end.set)
            wanted = len(calls) if who in CALLERS else len(calls) - 4 * len(services)
            wait_until(lambda: sum(call.code() is not None for call in calls) >= wanted)
            for _ in range(3):
                client.push({0: np.ones((2, 3), np.float32)}, {})
            assert (client.pull([0])[0] == 1 - 3 * 0.5).all()
        client.close()
        client.member.leave()

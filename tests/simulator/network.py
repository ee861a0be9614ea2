"""A network in a world: it stands for gRPC, and delays, loses, doubles, cuts and reorders calls.

It has what `shardwright.server.transport` takes of the module `grpc`; the services, connections,
quotas and admissions are those of the product.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.simulator.world import Process, Task, World

_CODES = (
    *("OK", "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "PERMISSION_DENIED"),
    *("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "INTERNAL", "UNAVAILABLE"),
)
# Seconds that a message takes, and one that is held up: longer than the pauses between two tries,
# so that what is sent again comes first. Half of it would do; twice as much only takes longer.
_DELAY, _HELD_UP = 0.02, 1.5


class RpcError(Exception):
    """A call that failed."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(code, details)
        self._code, self._details = code, details

    def code(self) -> Any:
        return SimpleNamespace(name=self._code)

    def details(self) -> str:
        return self._details


class _AbortedError(Exception):
    """A handler refuses its call."""


@dataclass
class Faults:
    """How often something happens to a call; nothing does from some time on.

    Parameters
    ----------
    often : float
        The part of the calls to which something happens.
    until : float
        The time of the world at which the network is whole again.
    """

    often: float
    until: float


@dataclass
class _Service:
    process: Process
    handlers: Any


class Network:
    """Services by their addresses.

    Parameters
    ----------
    world : World
        The world.
    faults : Faults
        What happens to calls.
    """

    def __init__(self, world: World, faults: Faults) -> None:
        self.world, self.faults = world, faults
        self.services: dict[str, _Service] = {}
        self._ports = 9000

    @property
    def grpc(self) -> SimpleNamespace:
        """What stands for the module."""
        return SimpleNamespace(
            RpcError=RpcError,
            StatusCode=SimpleNamespace(**{code: code for code in _CODES}),
            GenericRpcHandler=object,
            stream_unary_rpc_method_handler=lambda work, read, write: (work, False, write),
            stream_stream_rpc_method_handler=lambda work, read, write: (work, True, write),
            server=lambda pool, **how: _Server(self),
            insecure_channel=lambda address, options: _Channel(self, address),
        )

    def listen(self, address: str, handlers: Any) -> int:
        """Let a service listen; return its port."""
        host, _, port = address.rpartition(":")
        self._ports += 1
        number = int(port) or self._ports
        assert self.world.current is not None
        process = self.world.current.process
        self.services[f"{host}:{number}"] = _Service(process, handlers)
        return number

    def fate(self, messages: int) -> str:
        """Draw what happens to a call of so many messages."""
        draw = self.world.draw
        if self.world.now >= self.faults.until or draw.random() >= self.faults.often:
            return "whole"
        fates = ("lost", "unanswered", "unanswered", "doubled", "held up", "partly answered")
        return draw.choice((*fates, *("cut",) * min(3, messages)))

    def delay(self) -> None:
        """Let a message take its time."""
        self.world.sleep(self.world.draw.uniform(0, _DELAY))


class _Server:
    def __init__(self, network: Network) -> None:
        self._network, self._handlers, self._address = network, None, ""

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        (self._handlers,) = handlers

    def add_insecure_port(self, address: str) -> int:
        port = self._network.listen(address, self._handlers)
        self._address = f"{address.rpartition(':')[0]}:{port}"
        return port

    def start(self) -> None:
        pass

    def stop(self, seconds: float) -> Any:
        self._network.services.pop(self._address, None)
        return SimpleNamespace(wait=lambda: None)


class _Channel:
    def __init__(self, network: Network, address: str) -> None:
        self._network, self._address = network, address

    def __getattr__(self, kind: str) -> Any:
        return partial(self._method, kind)

    def _method(
        self, kind: str, path: str, *, request_serializer: Any, response_deserializer: Any
    ) -> Callable[..., Any]:
        streams, answers = (word == "stream" for word in kind.split("_"))

        def call(request: Any, timeout: float, metadata: Any) -> Any:
            network = self._network
            items = request if streams else (request,)
            sent = [request_serializer(item) for item in items]
            made = _Call(network, self._address, path, sent, timeout, metadata)
            if answers:
                return _Answers(map(response_deserializer, made.answers()))
            return response_deserializer(next(made.answers()))

        return call

    def close(self) -> None:
        pass


class _Answers:
    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items

    def cancel(self) -> None:
        pass


class _Call:
    """A call: its messages, and what came of it."""

    def __init__(
        self,
        network: Network,
        address: str,
        path: str,
        sent: Sequence[bytes],
        timeout: float,
        metadata: Any,
    ) -> None:
        self._network, self._address, self._path = network, address, path
        self._sent, self._metadata = sent, metadata
        self._deadline = network.world.now + timeout
        self._found: list[bytes] = []
        self._error: RpcError | None = None
        self._is_done = False
        assert network.world.current is not None
        self._waiting: Task = network.world.current

    def answers(self) -> Iterator[bytes]:
        """Make the call, and yield what is answered."""
        network, world = self._network, self._network.world
        world.check()
        fate = network.fate(len(self._sent))
        name = world.current.process.name if world.current is not None else ""
        world.note(f"{name} calls {self._path.rpartition('/')[2]}: {fate}")
        network.delay()
        service = network.services.get(self._address)
        if service is None or not service.process.is_alive or fate == "lost":
            raise RpcError("UNAVAILABLE", "failed to connect to all addresses")
        for number in range(2 if fate == "doubled" else 1):
            late = fate == "held up" or number > 0
            work = partial(self._handled, service, late=late, cut=fate == "cut")
            world.spawn(service.process, work)
        service.process.buried.append(self._lose)
        patience = self._deadline - world.now
        if fate in ("unanswered", "held up", "cut"):
            patience = min(patience, world.draw.uniform(0, _HELD_UP))
        end = world.now + patience
        while not self._is_done and world.now < end:
            world.block(end - world.now)
        if fate in ("unanswered", "cut") or not self._is_done:
            raise RpcError(world.draw.choice(("UNAVAILABLE", "DEADLINE_EXCEEDED")), "it is lost")
        network.delay()
        if self._error is not None:
            raise self._error
        if fate == "partly answered":
            yield from self._found[: world.draw.randrange(len(self._found) + 1)]
            raise RpcError("UNAVAILABLE", "the connection is lost")
        yield from self._found

    def _lose(self) -> None:
        """Note that the process that should answer has died."""
        self._done(RpcError("UNAVAILABLE", "the connection is lost"))

    def _done(self, error: RpcError | None) -> None:
        if not self._is_done:
            self._is_done, self._error = True, error
            self._network.world.wake(self._waiting)

    # In the process that answers

    def _handled(self, service: _Service, *, late: bool, cut: bool) -> None:
        network, world = self._network, self._network.world
        network.delay()
        if late:
            world.sleep(world.draw.uniform(0, 2 * _HELD_UP))
        work, streams, write = service.handlers.service(SimpleNamespace(method=self._path))
        context = SimpleNamespace(
            invocation_metadata=lambda: self._metadata,
            time_remaining=lambda: max(0.0, self._deadline - world.now),
            abort=_abort,
        )
        try:
            answer = work(self._received(world.draw, cut=cut), context)
            found = [write(item) for item in (answer if streams else (answer,))]
        except _AbortedError as error:
            self._done(RpcError(*error.args))
        except RpcError:
            pass
        else:
            if not self._is_done:
                self._found = found
            self._done(None)

    def _received(self, draw: random.Random, *, cut: bool) -> Iterator[bytes]:
        """Yield the messages; a stream that is cut may end as if it were whole, as in gRPC."""
        count = draw.randrange(len(self._sent)) if cut else len(self._sent)
        for item in self._sent[:count]:
            if len(self._sent) > 1:
                self._network.world.sleep(draw.uniform(0, _DELAY / 4))
            yield item
        if cut and draw.random() < 0.5:
            raise RpcError("CANCELLED", "the connection is lost")


def _abort(code: str, what: str) -> None:
    raise _AbortedError(code, what)

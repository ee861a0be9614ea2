"""Calls over gRPC: services that answer them, and connections that make them.

Every call has a deadline, and a service refuses those without one. A message has at most
`MOST_BYTES`; longer data goes in pieces of `PIECE_BYTES`. What a service cannot read it refuses
with one sentence.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from shardwright.ir.errors import ShardwrightError
from shardwright.ir.optional import optional
from shardwright.server.messages import (
    EXTRA,
    NEED,
    Method,
    decoded,
    encoded,
    message_class,
    methods,
)
from shardwright.server.security import Security

PIECE_BYTES = 2**20
MOST_BYTES = 2**22
SHORT, LONG = 20.0, 600.0  # seconds for a message, and for many
_MOST_SECONDS = 3600.0
_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", MOST_BYTES),
    ("grpc.max_metadata_size", 2**14),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
)
# The refusals of this program, as codes of gRPC.
WRONG, WAIT, STRANGER, LATE = (
    "INVALID_ARGUMENT",
    "ABORTED",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
)
Handler = Callable[[Any, float], Any]


class CallError(ShardwrightError):
    """A call that is refused.

    Parameters
    ----------
    what : str
        Why.
    code : str
        ``WRONG``, ``WAIT`` (may be repeated), ``STRANGER``, ``LATE``, or another code of gRPC.
    """

    def __init__(self, what: str, code: str = WRONG) -> None:
        super().__init__(what)
        self.code = code

    @property
    def is_lost(self) -> bool:
        """Whether the other side cannot be reached."""
        return self.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")


def grpc() -> Any:
    """Return the module of gRPC.

    Raises
    ------
    PackageError
        If it is not installed.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # calls say themselves what is wrong
    return optional("grpc", extra=EXTRA, need=NEED)


# A service


class Service:
    """A service that listens.

    Parameters
    ----------
    name : str
        Its name in the protocol.
    handlers : mapping of str to callable
        By method: takes the message, or an iterator over messages, and the seconds that are left;
        returns the answer, or an iterator over answers.
    address : str
        Where it listens: ``127.0.0.1:0`` for any port.
    security : Security
        How messages are encrypted.
    threads : int
        Calls that are answered at the same time; as many more may wait.

    Raises
    ------
    CallError
        If it cannot listen there.
    """

    def __init__(
        self,
        name: str,
        handlers: Mapping[str, Handler],
        address: str,
        security: Security,
        threads: int,
    ) -> None:
        module = grpc()
        pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._server = module.server(pool, options=_OPTIONS, maximum_concurrent_rpcs=2 * threads)
        known = methods(name)
        answers = {known[key].path: _answering(known[key], handlers[key]) for key in known}
        self._server.add_generic_rpc_handlers((_handlers_by_path(answers),))
        try:
            if security.is_on:
                credentials = security.of_services()
                self.port = self._server.add_secure_port(address, credentials)
            else:
                self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise CallError(
                f"the address {address} cannot be listened at: it is in use, or not ours"
            )
        self._server.start()

    def stop(self, seconds: float = 1.0) -> None:
        """End, after the calls that are answered, which have some time left."""
        self._server.stop(seconds).wait()


def _handlers_by_path(answers: Mapping[str, Any]) -> Any:
    class Handlers(grpc().GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            return answers.get(call.method)

    return Handlers()


def _answering(method: Method, handler: Handler) -> Any:
    """Return gRPC's handler of a method, which reads and checks messages itself."""
    request = message_class(method.request)

    def read(data: Any) -> Any:
        if not method.streams_requests:
            return _parsed(request, data)
        return (_parsed(request, item) for item in data)

    def answer(data: Any, context: Any) -> Any:
        with _refusing(context):
            return handler(read(data), _seconds_left(context))

    def answers(data: Any, context: Any) -> Iterator[Any]:
        with _refusing(context):
            yield from handler(read(data), _seconds_left(context))

    make = getattr(grpc(), f"{method.kind}_rpc_method_handler")
    function = answers if method.streams_responses else answer
    return make(function, None, encoded)


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return decoded(kind, data)
    except Exception:  # protobuf's own, which has no common base
        raise CallError(f"{len(data)} bytes are no message `{kind.DESCRIPTOR.name}`") from None


def _seconds_left(context: Any) -> float:
    seconds = context.time_remaining()
    if seconds is None or seconds > _MOST_SECONDS:
        raise CallError(f"a call has no deadline within {_MOST_SECONDS:.0f} s")
    return float(seconds)


@contextmanager
def _refusing(context: Any) -> Iterator[None]:
    """Answer errors of this program with their sentence, and all others without details."""
    codes = grpc().StatusCode
    code, what = codes.OK, ""
    try:
        yield
    except CallError as error:
        code, what = getattr(codes, error.code), str(error)
    except ShardwrightError as error:
        code, what = codes.INVALID_ARGUMENT, str(error)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        code, what = codes.INTERNAL, f"a message cannot be answered: {type(error).__name__}"
    if what:
        context.abort(code, what)


# A connection


class Connection:
    """A connection to a service.

    Parameters
    ----------
    name : str
        The service's name in the protocol.
    address : str
        Where it listens.
    security : Security
        How messages are encrypted.
    """

    def __init__(self, name: str, address: str, security: Security) -> None:
        module = grpc()
        options = (*_OPTIONS, ("grpc.max_reconnect_backoff_ms", 1000))
        self.address = address
        if security.is_on:
            self._channel = module.secure_channel(address, security.of_connections(), options)
        else:
            self._channel = module.insecure_channel(address, options)
        self._calls = {key: self._made(method) for key, method in methods(name).items()}

    def _made(self, method: Method) -> Any:
        return getattr(self._channel, method.kind)(
            method.path,
            request_serializer=encoded,
            response_deserializer=partial(decoded, message_class(method.response)),
        )

    def call(self, method: str, request: Any, seconds: float = SHORT) -> Any:
        """Call a method with one answer, and return it.

        Raises
        ------
        CallError
            If the call is refused, or the service cannot be reached.
        """
        with _told():
            return self._calls[method](request, timeout=seconds)

    def calls(self, method: str, request: Any, seconds: float = LONG) -> Iterator[Any]:
        """Call a method with several answers, and yield them."""
        with _told():
            call = self._calls[method](request, timeout=seconds)
            try:
                yield from call
            finally:
                call.cancel()  # where the caller does not want the rest

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


@contextmanager
def _told() -> Iterator[None]:
    """Raise the refusals that a service answers."""
    try:
        yield
    except grpc().RpcError as error:
        raise CallError(error.details() or error.code().name, error.code().name) from None

"""Calls over gRPC: services that answer them, and connections that make them.

Every call says who calls, and has a deadline; a service refuses others before it waits for their
messages. A message has at most `MOST_BYTES`; longer data goes in pieces of `PIECE_BYTES`. What a
service cannot read it refuses with one sentence.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from shardwright.ir.errors import ShardwrightError
from shardwright.ir.optional import optional
from shardwright.server.callers import JOINS, Caller, Quotas, TooManyCallsError
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
# Calls of one member at a time: one to work with and a sign of life, each beside one of before that
# the member has given up and the service has not noticed. With fewer, a retry waits for that one.
_CALLS_OF_A_MEMBER = 4
_CALLS_OF_JOINING = 8  # they end at once: with half as many more wait, which are repeated
_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", MOST_BYTES),
    ("grpc.max_metadata_size", 2**14),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
)
# What gRPC reads from the environment when it is imported, unless the user says otherwise.
_VARIABLES = {
    "GRPC_VERBOSITY": "NONE",  # calls say themselves what is wrong
    # Its own resolver asks for variables of the environment whenever it connects, from a thread:
    # where the script sets a variable at that moment, the process ends by SIGSEGV.
    "GRPC_DNS_RESOLVER": "native",
    # Children that are forked, as workers of a dataset, never call; where gRPC makes its threads
    # anew for them, some end by SIGABRT.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
# The refusals of this program, as codes of gRPC.
WRONG, WAIT, STRANGER, LATE, BUSY = (
    "INVALID_ARGUMENT",
    "ABORTED",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
)
Handler = Callable[[Any, float, Caller], Any]
Admission = Callable[[str, Caller], None]


class CallError(ShardwrightError):
    """A call that is refused.

    Parameters
    ----------
    what : str
        Why.
    code : str
        ``WRONG``, ``WAIT`` and ``BUSY`` (may be repeated), ``STRANGER``, ``LATE``, or another code
        of gRPC.
    """

    def __init__(self, what: str, code: str = WRONG) -> None:
        super().__init__(what)
        self.code = code

    @property
    def is_lost(self) -> bool:
        """Whether the other side cannot be reached."""
        return self.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")

    @property
    def may_repeat(self) -> bool:
        """Whether the same call may be answered later."""
        return self.code in (WAIT, BUSY)


def grpc() -> Any:
    """Return the module of gRPC.

    Raises
    ------
    PackageError
        If it is not installed.
    """
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    return optional("grpc", extra=EXTRA, need=NEED)


# A service


class Service:
    """A service that listens.

    Parameters
    ----------
    name : str
        Its name in the protocol.
    handlers : mapping of str to callable
        By method: takes the message, or an iterator over messages, the seconds that are left, and
        who calls; returns the answer, or an iterator over answers.
    admit : callable
        Takes a method and who calls; raises a `CallError` where the call is refused. It does not
        wait.
    address : str
        Where it listens: ``127.0.0.1:0`` for any port.
    security : Security
        How messages are encrypted.
    members : int
        How many members there are, each of which has a quota of calls at the same time.

    Raises
    ------
    CallError
        If it cannot listen there.
    """

    def __init__(
        self,
        name: str,
        handlers: Mapping[str, Handler],
        admit: Admission,
        address: str,
        security: Security,
        members: int,
    ) -> None:
        module = grpc()
        threads = _CALLS_OF_A_MEMBER * members + _CALLS_OF_JOINING
        pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        quotas = Quotas(lambda role: _CALLS_OF_JOINING if role == JOINS else _CALLS_OF_A_MEMBER)
        self._server = module.server(pool, options=_OPTIONS, maximum_concurrent_rpcs=2 * threads)
        known = methods(name)
        answers = {
            known[key].path: _answering(known[key], handlers[key], partial(admit, key), quotas)
            for key in known
        }
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


def _answering(
    method: Method, handler: Handler, admit: Callable[[Caller], None], quotas: Quotas
) -> Any:
    """Return gRPC's handler of a method, which reads and checks messages itself.

    To gRPC every method takes a stream, so that no thread waits for the message of a caller before
    it is known who that is.
    """
    request = message_class(method.request)

    def read(data: Iterator[bytes]) -> Any:
        if method.streams_requests:
            return (_parsed(request, item) for item in data)
        return _parsed(request, next(data, b""))

    def answer(data: Iterator[bytes], context: Any) -> Any:
        with _refusing(context), quotas.one_more(_admitted(context, admit)) as caller:
            return handler(read(data), _seconds_left(context), caller)

    def answers(data: Iterator[bytes], context: Any) -> Iterator[Any]:
        with _refusing(context), quotas.one_more(_admitted(context, admit)) as caller:
            yield from handler(read(data), _seconds_left(context), caller)

    if method.streams_responses:
        return grpc().stream_stream_rpc_method_handler(answers, None, encoded)
    return grpc().stream_unary_rpc_method_handler(answer, None, encoded)


def _admitted(context: Any, admit: Callable[[Caller], None]) -> Caller:
    """Return who calls.

    Raises
    ------
    CallError
        If it is not said, or the caller is refused.
    """
    caller = Caller.of_metadata(context.invocation_metadata())
    if caller is None:
        raise CallError("a call does not say who calls", STRANGER)
    admit(caller)
    return caller


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return decoded(kind, data)
    except Exception:  # protobuf's own, which has no common base
        raise CallError(f"{len(data)} bytes are no message `{kind.DESCRIPTOR.name}`") from None


def _seconds_left(context: Any) -> float:
    seconds = context.time_remaining()
    if seconds is None or seconds > 2 * LONG:  # a deadline of so many comes rounded
        raise CallError(f"a call has no deadline within {2 * LONG:.0f} s")
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
    except TooManyCallsError:
        code, what = codes.RESOURCE_EXHAUSTED, "this process has too many calls at the same time"
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
    caller : Caller
        Who calls.
    """

    def __init__(self, name: str, address: str, security: Security, caller: Caller) -> None:
        module = grpc()
        options = (*_OPTIONS, ("grpc.max_reconnect_backoff_ms", 1000))
        self.address, self._metadata = address, caller.metadata
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
            return self._calls[method](request, timeout=seconds, metadata=self._metadata)

    def calls(self, method: str, request: Any, seconds: float = LONG) -> Iterator[Any]:
        """Call a method with several answers, and yield them."""
        with _told():
            call = self._calls[method](request, timeout=seconds, metadata=self._metadata)
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
        code, details = error.code().name, error.details() or error.code().name
        if code == BUSY and "larger than max" in details:
            code = WRONG  # to gRPC the same, but a message that is too long stays so
        raise CallError(details, code) from None

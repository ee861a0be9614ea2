"""Messages of the protocol, as `protocol.proto` describes them.

The classes are built when they are first used, from a descriptor that is read from the file, so
that no compiler of protobuf and no generated code is needed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shardwright.ir.optional import optional

_FILE = Path(__file__).with_name("protocol.proto")
_MESSAGE = re.compile(r"message (\w+) \{")
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")
_SERVICE = re.compile(r"service (\w+) \{")
_METHOD = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
NEED = "a parameter server"
EXTRA = "server"


@dataclass(frozen=True)
class Method:
    """A method of a service.

    Parameters
    ----------
    path : str
        Its path: ``/shardwright.Scheduler/Join``.
    request, response : str
        Names of the messages.
    streams_requests, streams_responses : bool
        Whether there are several of them.
    """

    path: str
    request: str
    response: str
    streams_requests: bool
    streams_responses: bool

    @property
    def kind(self) -> str:
        """What gRPC calls such a method: ``stream_unary``."""
        words = ("unary", "stream")
        return f"{words[self.streams_requests]}_{words[self.streams_responses]}"


def message(kind: str, /, **fields: Any) -> Any:
    """Return a message with some fields."""
    return message_class(kind)(**fields)


def encoded(item: Any) -> bytes:
    """Return the bytes of a message; those of `with_data` as they are."""
    return item if isinstance(item, bytes) else item.SerializeToString()


def with_data(item: Any, data: memoryview) -> bytes:
    """Return the bytes of a message whose field ``data`` is not set, with that field.

    The field is written behind the others: protobuf itself would copy the data twice.
    """
    number = message_class(item.DESCRIPTOR.name).DESCRIPTOR.fields_by_name["data"].number
    return b"".join((item.SerializeToString(), _varint(number << 3 | 2), _varint(len(data)), data))


def _varint(number: int) -> bytes:
    """Return an integer in groups of seven bits, the lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


@cache
def message_class(name: str) -> Any:
    """Return the class of a message."""
    factory = optional("google.protobuf.message_factory", extra=EXTRA, need=NEED)
    return factory.GetMessageClass(_pool().FindMessageTypeByName(f"shardwright.{name}"))


@cache
def methods(service: str) -> Mapping[str, Method]:
    """Return the methods of a service by name."""
    return {
        name: Method(f"/shardwright.{service}/{name}", request, response, bool(ins), bool(outs))
        for section, (name, ins, request, outs, response) in _entries(_SERVICE, _METHOD)
        if section == service
    }


@cache
def _pool() -> Any:
    descriptors = optional("google.protobuf.descriptor_pb2", extra=EXTRA, need=NEED)
    pools = optional("google.protobuf.descriptor_pool", extra=EXTRA, need=NEED)
    file = descriptors.FileDescriptorProto(
        name="shardwright.proto", package="shardwright", syntax="proto3"
    )
    kinds = descriptors.FieldDescriptorProto
    made: dict[str, Any] = {}
    for section, (repeated, kind, name, number) in _entries(_MESSAGE, _FIELD):
        if section not in made:
            made[section] = file.message_type.add(name=section)
        field = made[section].field.add(name=name, number=int(number))
        field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        if hasattr(kinds, f"TYPE_{kind.upper()}"):
            field.type = getattr(kinds, f"TYPE_{kind.upper()}")
        else:
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".shardwright.{kind}"
    pool = pools.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _entries(
    section: re.Pattern[str], entry: re.Pattern[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the entries of all sections of a kind, each with the name of its section."""
    current = ""
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        text = line.partition("//")[0].strip()
        if begun := section.fullmatch(text):
            current = begun[1]
        elif text == "}":
            current = ""
        elif current and (found := entry.fullmatch(text)):
            yield current, found.groups()

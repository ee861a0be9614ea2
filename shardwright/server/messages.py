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

import numpy as np

from shardwright.ir.optional import optional
from shardwright.operators.info import Array

_FILE = Path(__file__).with_name("protocol.proto")
_MESSAGE = re.compile(r"message (\w+) \{")
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")
_SERVICE = re.compile(r"service (\w+) \{")
_METHOD = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
_LONG = 2**12  # bytes; the field of a shorter message is copied
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


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of a contiguous array, which are not copied."""
    return array.reshape(-1).view(np.uint8).data


class WithData:
    """A message whose field ``data`` is a view of the bytes that it came in.

    Parameters
    ----------
    head : message
        The message without that field.
    data : memoryview
        The field.
    """

    __slots__ = ("_head", "data")

    def __init__(self, head: Any, data: memoryview) -> None:
        self._head, self.data = head, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)


def decoded(kind: Any, data: bytes) -> Any:
    """Return the message in some bytes; a long field ``data`` at their end is not copied.

    Raises
    ------
    Exception
        Protobuf's, if they are no message.
    """
    end = _begin_of_data(kind, data) if len(data) >= _LONG else None
    if end is None:
        return kind.FromString(data)
    head, begin = end
    return WithData(kind.FromString(data[:head]), memoryview(data)[begin:])


def _begin_of_data(kind: Any, data: bytes) -> tuple[int, int] | None:
    """Return where a last field ``data`` begins, and its content; None if there is none."""
    field = kind.DESCRIPTOR.fields_by_name.get("data")
    position = 0
    try:
        for _ in kind.DESCRIPTOR.fields if field is not None else ():  # each comes once
            head = position
            key, position = _number_at(data, position)
            if key & 7 == 0:
                _, position = _number_at(data, position)
            elif key & 7 == 1:
                position += 8
            elif key & 7 == 2:
                length, position = _number_at(data, position)
                if key >> 3 == field.number and position + length == len(data):
                    return head, position
                position += length
            else:
                return None
    except IndexError:
        pass
    return None


def _number_at(data: bytes, position: int) -> tuple[int, int]:
    """Return an integer in groups of seven bits, and the position behind it."""
    number = 0
    for shift in range(0, 70, 7):  # protobuf's longest
        number |= (data[position] & 127) << shift
        position += 1
        if data[position - 1] < 128:
            return number, position
    raise IndexError


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

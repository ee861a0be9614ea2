"""MindSpore's strategy file: strategies of operators and layouts of parameters, as protobuf.

The messages are few, so that they are written and read here without a library: MindSpore's
`ParallelStrategyMap` of `node_strategy.proto`, with the numbers of its fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.ir.errors import ModelError

_VARINT, _BYTES = 0, 2  # wire types
_WORD = 1 << 64
Counts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class MatrixLayout:
    """The layout of a parameter in MindSpore's form.

    Parameters
    ----------
    dev_matrix : tuple of int
        Sizes of the axes of the devices.
    tensor_map : tuple of int
        The axis that splits each dimension, counted from the right; -1 for none.
    """

    dev_matrix: tuple[int, ...]
    tensor_map: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of slices of each dimension.

        Examples
        --------
        >>> MatrixLayout((2, 4), (0, -1, 1)).counts
        (4, 1, 2)
        """
        return tuple(1 if at < 0 else self.dev_matrix[-1 - at] for at in self.tensor_map)


@dataclass(frozen=True)
class StrategyMap:
    """A strategy file.

    Parameters
    ----------
    stage : int
        The stage that it is of.
    strategies : mapping of str to tuple of tuple of int
        Slices of each dimension of each operand, by operator.
    layouts : mapping of str to MatrixLayout
        Layouts by parameter.
    """

    stage: int = 0
    strategies: Mapping[str, Counts] = field(default_factory=dict)
    layouts: Mapping[str, MatrixLayout] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the file."""
        parts = [_number_field(1, self.stage)]
        for name, counts in self.strategies.items():
            operands = b"".join(_bytes_field(2, _dims(one)) for one in counts)
            item = _bytes_field(1, name.encode())
            parts.append(
                _bytes_field(2, item + _bytes_field(2, _number_field(1, self.stage) + operands))
            )
        for name, layout in self.layouts.items():
            content = _bytes_field(1, _dims(layout.dev_matrix))
            content += _bytes_field(2, _dims(layout.tensor_map))
            content += _bytes_field(3, b"") + _bytes_field(4, b"")  # no slices of unequal size
            content += b"".join(_number_field(number, 0) for number in (5, 6, 7))
            item = _bytes_field(1, name.encode()) + _bytes_field(2, content)
            parts.append(_bytes_field(3, item))
        return b"".join(parts)


def read_strategy_map(where: str, content: bytes) -> StrategyMap:
    """Return what a strategy file says.

    Raises
    ------
    ModelError
        If it is none, or says something that has no form here.
    """
    try:
        return _map(where, content)
    except (IndexError, KeyError, UnicodeDecodeError):
        raise ModelError(
            "the file is no strategy file of MindSpore (protobuf `ParallelStrategyMap`)", where
        ) from None


def ranks_message(ranks: Sequence[int]) -> bytes:
    """Return MindSpore's `ParallelGroupMap` with the ranks of equal checkpoints."""
    return _bytes_field(2, _dims(ranks))


def read_ranks(content: bytes) -> list[int]:
    """Return the ranks of equal checkpoints that a `ParallelGroupMap` lists; none in another file.

    Examples
    --------
    >>> read_ranks(ranks_message([0, 4, 300]))
    [0, 4, 300]
    """
    try:
        listed = [value for number, value in _fields(content) if number == 2]
        return [number for value in listed for number in _numbers(value)]
    except IndexError:
        return []


def layout_of(
    where: str, name: str, matrix: Sequence[int], places: Sequence[int], sharded: int
) -> MatrixLayout:
    """Return a layout, after checks.

    Parameters
    ----------
    where, name : str
        The file and the parameter.
    matrix, places : sequence of int
        The matrix of devices and the map of the tensor.
    sharded : int
        Slices of the parallel optimizer, which divide the first dimension again.

    Raises
    ------
    ModelError
        If a place is none of the matrix, or the parameter is divided in another way too.
    """
    if not matrix or min(matrix) < 1 or any(not -1 <= at < len(matrix) for at in places):
        raise ModelError(
            f"`{name}` has the tensor map {list(places)}, which are no places of the device matrix "
            f"{list(matrix)}",
            where,
        )
    if sharded > 1:
        raise ModelError(
            f"`{name}` is divided over {sharded} ranks by the parallel optimizer, which pins of "
            "operators do not say",
            where,
            hint="leave `opt_weight_shard_size` 0, and pass `--optimizer-parallel`",
        )
    return MatrixLayout(tuple(matrix), tuple(places))


# Writing


def _varint(number: int) -> bytes:
    """Return a number, seven bits in a byte, the lowest first; of a negative one its complement."""
    number %= _WORD
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes((*parts, number))


def _number_field(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _dims(numbers: Sequence[int]) -> bytes:
    return b"".join(_number_field(1, number) for number in numbers)


# Reading


def _map(where: str, content: bytes) -> StrategyMap:
    stage, strategies, layouts = 0, {}, {}
    for number, value in _fields(content):
        if number == 1:
            stage = _whole(value)
        elif number == 2:
            name, operands = _named(value)
            strategies[name] = tuple(_numbers(one) for at, one in _fields(operands) if at == 2)
        elif number == 3:
            name, own = _named(value)
            layouts[name] = _layout(where, name, own)
    if not strategies and not layouts:
        raise ModelError("the strategy file has neither strategies nor layouts", where)
    return StrategyMap(stage, strategies, layouts)


def _layout(where: str, name: str, content: bytes) -> MatrixLayout:
    found: dict[int, list[bytes | int]] = {}
    for number, value in _fields(content):
        found.setdefault(number, []).append(value)
    maps = found.get(2, [])
    if len(maps) > 1:
        raise ModelError(f"`{name}` has a dimension that is split over several axes", where)
    uneven = [one for one in (*found.get(3, []), *found.get(4, [])) if one]
    if uneven:
        raise ModelError(f"`{name}` has slices of unequal size (`param_split_shape`)", where)
    matrix, places = (_numbers(one[0]) if one else () for one in (found.get(1, []), maps))
    return layout_of(where, name, matrix, places, _whole(found.get(7, [0])[0]))


def _named(content: bytes | int) -> tuple[str, bytes]:
    """Return name and content of an item."""
    found = dict(_fields(content))
    name, own = found[1], found[2]
    if isinstance(name, int) or isinstance(own, int):
        raise IndexError
    return name.decode(), own


def _numbers(content: bytes | int) -> tuple[int, ...]:
    """Return the numbers of a message of dimensions, each a field or all of them packed."""
    numbers: list[int] = []
    for _, value in _fields(content):
        if isinstance(value, int):
            numbers.append(_signed(value))
        else:
            place = 0
            while place < len(value):
                number, place = _number(value, place)
                numbers.append(_signed(number))
    return tuple(numbers)


def _signed(number: int) -> int:
    return number - _WORD if number >= _WORD // 2 else number


def _whole(value: bytes | int) -> int:
    if not isinstance(value, int):
        raise IndexError
    return _signed(value)


def _fields(content: bytes | int) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of the fields of a message."""
    if isinstance(content, int):
        raise IndexError
    place = 0
    while place < len(content):
        key, place = _number(content, place)
        value, place = _number(content, place)
        if key & 7 == _VARINT:
            yield key >> 3, value
        elif key & 7 == _BYTES and place + value <= len(content):
            yield key >> 3, content[place : place + value]
            place += value
        else:
            raise IndexError


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Return the varint at a place, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = content[place]
        number, place = number | (byte & 127) << shift, place + 1
        if byte < 128:
            return number, place
    raise IndexError

"""The table of ONNX operators: for each a function that emits it in operators of our IR."""

from collections.abc import Callable, Sequence

from shardwright.frontends.common.items import Result
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.operators.info import Array

Converter = Callable[[Call], Result]

CONVERTERS: dict[str, Converter] = {}
# Numpy's meaning of operators on constants without elements, which our tensors cannot hold.
FOLDERS: dict[str, Callable[[Call, Sequence[Array]], Array]] = {}


def converts(*operators: str) -> Callable[[Converter], Converter]:
    """Register a function as the converter of ONNX operators; a decorator."""

    def add(converter: Converter) -> Converter:
        for operator in operators:
            CONVERTERS[operator] = converter
        return converter

    return add

"""Printing in a network: ``Print``."""

from typing import Any

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.tensor import Tensor, tensors_in
from shardwright.tracer import current_tracer, is_tracing


class Print:
    """Prints texts and tensors in each step, on each rank what it has of them."""

    def __call__(self, *items: Any) -> None:
        """Print: texts before the tensor that follows them.

        Raises
        ------
        ModelError
            If something else than texts, numbers and tensors is given.
        """
        texts: list[str] = []
        for item in items:
            if not isinstance(item, Tensor | str | int | float | tuple | list):
                raise ModelError(f"`Print` is given {item!r}, expected texts, numbers and tensors")
            tensors = [*tensors_in(item)]
            if tensors and is_tracing():
                for tensor in tensors:
                    _printed(" ".join(texts), tensor)
                texts = []
            else:
                texts.append(str(item))
        if texts:
            print(*texts, flush=True)


def _printed(message: str, tensor: Tensor) -> None:
    """Print a tensor when the program runs: a buffer that is updated keeps the place."""
    tracer = current_tracer()
    name = tracer.unique_name("print", numbered=True)
    attributes: Attributes = {"initializer": "zeros", "trainable": False}
    held = tracer.parameter(Value(name, TensorType("int64", ())), attributes, "buffer")
    number = len(tracer.updates)
    made = tracer.emit("print_value", tensor.value(tracer), message=message, number=number)
    following = tracer.emit("add", held, made, name=f"{name}.next")
    tracer.updates.append((name, following.name))


__all__ = ["Print"]

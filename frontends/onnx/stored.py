"""Tensors of an ONNX file, read on use."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onnx import TensorProto, checker
from onnx.external_data_helper import uses_external_data

from shardwright.frontends.onnx.onnx_types import array_of, dtype_of
from shardwright.ir.errors import ModelError
from shardwright.operators.info import Array
from shardwright.operators.rule import Shape


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in an ONNX file, or in an external file.

    Parameters
    ----------
    tensor : TensorProto
        The tensor.
    folder : str
        The folder of the model, where external files are.
    """

    tensor: TensorProto
    folder: str = ""

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return tuple(self.tensor.dims)

    @property
    def dtype(self) -> str:
        """The element type of the tensor."""
        return dtype_of(self.tensor.data_type)

    @property
    def is_external(self) -> bool:
        """Whether the elements are in an external file."""
        return uses_external_data(self.tensor)

    @property
    def location(self) -> str:
        """The name of the file with the elements, relative to the model."""
        return next((e.value for e in self.tensor.external_data if e.key == "location"), "")

    @cached_property
    def is_absent(self) -> bool:
        """Whether the file with the elements is missing.

        Raises
        ------
        ModelError
            If it is outside of the model's folder, or no file.
        """
        if not self.is_external:
            return False
        path = Path(self.folder, self.location)
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.folder)):
            raise self._wrong("leads out of the folder of the model")
        if path.exists() and not path.is_file():
            raise self._wrong("is a folder, a pipe or a device")
        return not path.exists()

    @cached_property
    def _inside(self) -> Array:
        return array_of(self.tensor)

    def read(self) -> Array:
        """Return the elements; an external file is read anew each time.

        Raises
        ------
        ModelError
            If the file with the elements is missing, too short, or outside of the model's folder.
        """
        if self.is_absent:
            raise self._wrong("is missing")
        try:
            return array_of(self._copied(), self.folder) if self.is_external else self._inside
        except (ValueError, OSError, checker.ValidationError) as error:
            reason = str(error).replace("\n", " ")
            raise ModelError(f"`{self.tensor.name}` cannot be read: {reason}") from error

    def _wrong(self, what: str) -> ModelError:
        return ModelError(
            f"the elements of `{self.tensor.name}` are in the file `{self.location}`, which {what}",
            hint="put it into the folder of the model",
        )

    def _copied(self) -> TensorProto:
        """Return a copy of a tensor, which may hold the elements of an external file."""
        copy = TensorProto()
        copy.CopyFrom(self.tensor)
        return copy

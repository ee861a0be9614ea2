from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto


@pytest.fixture
def saved(tmp_path: Path, make: Callable[[], ModelProto]) -> Path:
    path = tmp_path / f"{make.__name__}.onnx"
    onnx.save(make(), path)
    return path

"""Networks of the zoo learn images in the file formats of MNIST and CIFAR-10."""

from pathlib import Path

import numpy as np
import pytest

from shardwright.api import compile, run
from shardwright.dataset import digits
from shardwright.operators.models.optimizer import Optimizer
from tests.extent import ANY_PLAN, first

COUNT = 64


def pictures(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return handwritten digits ``[n, side, side]`` of bytes, and what they are."""
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    columns = digits().columns
    images = (columns["image"][:COUNT].reshape(-1, 28, 28) * 255).astype(np.uint8)
    nearest = np.arange(side) * 28 // side
    return images[:, nearest][:, :, nearest], columns["label"][:COUNT].astype(np.uint8)


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    images, labels = pictures(28)
    for name, magic, array in (("images-idx3", 2051, images), ("labels-idx1", 2049, labels)):
        header = np.array([magic, *array.shape], ">i4").tobytes()
        (tmp_path / f"train-{name}-ubyte").write_bytes(header + array.tobytes())
    return tmp_path


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    images, labels = pictures(32)
    channels = [images, 255 - images, images // 2]
    records = np.concatenate([labels[:, None], *(c.reshape(COUNT, -1) for c in channels)], 1)
    for i, part in enumerate(np.split(records, 2)):
        (tmp_path / f"data_batch_{i + 1}.bin").write_bytes(part.tobytes())
    return tmp_path


def losses(model: str, data: Path, devices: int, mode: str, steps: int, rate: float) -> list[float]:
    optimizer = Optimizer("momentum", {"learning_rate": rate})
    mesh = "2x2x2" if devices == 8 else None
    how = ANY_PLAN if mode == "auto_parallel" else {}
    plan = compile(model, devices, cluster="cpu", mesh=mesh, mode=mode, optimizer=optimizer, **how)
    return [record.loss for record in run(plan, steps, data=data)]


@pytest.mark.long
@pytest.mark.parametrize("mode", first(1, ["auto_parallel", "data_parallel"]))
def test_lenet_learns_digits_in_the_files_of_mnist(mnist: Path, mode: str) -> None:
    model = "lenet5:batch=32,dtype=float64"
    alone = losses(model, mnist, 1, "stand_alone", 16, 0.1)
    np.testing.assert_allclose(losses(model, mnist, 8, mode, 16, 0.1), alone, rtol=1e-9)
    assert alone[-1] < 0.97 * alone[0]


@pytest.mark.long
@pytest.mark.parametrize("mode", first(1, ["data_parallel", "auto_parallel"]))
def test_resnet_learns_pictures_in_the_files_of_cifar(cifar: Path, mode: str) -> None:
    model = "resnet18-cifar:batch=32,width=4,dtype=float64"
    alone = losses(model, cifar, 1, "stand_alone", 4, 0.1)
    np.testing.assert_allclose(losses(model, cifar, 8, mode, 4, 0.1), alone, rtol=1e-9)
    assert alone[-1] < 0.97 * alone[0]

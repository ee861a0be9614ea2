"""Initializers of parameters: functions of MindSpore's names that return one."""

from shardwright import parameter as own
from shardwright.ir.values import check_choice, wrong_value
from shardwright.parameter import Init, Initial, Initializer
from shardwright.tensor import Tensor


def initializer(
    init: Init | Tensor,
    shape: int | tuple[int, ...] | list[int] | None = None,
    dtype: str = "float32",
) -> Initial | Tensor:
    """Return the initial value of a tensor; of a tensor itself, in an element type.

    Parameters
    ----------
    init : str, float, Initializer or Tensor
        As for `shardwright.initializer`, or data of the shape.
    shape : int or sequence of int
        Shape of the tensor; that of the data unless given.
    dtype : str
        Element type.

    Raises
    ------
    OptionError
        If a tensor has another shape, or there is none.
    """
    if not isinstance(init, Tensor):
        if shape is None:
            raise wrong_value("shape", shape, "the shape of the tensor")
        return own.initializer(init, shape, dtype)
    sizes = (shape,) if isinstance(shape, int) else shape
    if sizes is not None and tuple(sizes) != init.shape:
        raise wrong_value("shape", shape, f"{init.shape}, that of the tensor `init`")
    return init.astype(dtype)


def Zero() -> Initializer:  # noqa: N802
    """Return the initializer that fills with zeros."""
    return Initializer("zeros")


def One() -> Initializer:  # noqa: N802
    """Return the initializer that fills with ones."""
    return Initializer("ones")


def Constant(value: float) -> Initializer:  # noqa: N802
    """Return the initializer that fills with a number."""
    return Initializer(f"constant({float(value)!r})")


def Uniform(scale: float = 0.07) -> Initializer:  # noqa: N802
    """Return the initializer that draws evenly from -scale to scale."""
    return Initializer(f"uniform({float(scale)!r})")


def Normal(sigma: float = 0.01, mean: float = 0.0) -> Initializer:  # noqa: N802
    """Return the initializer that draws normal numbers.

    Raises
    ------
    OptionError
        If the mean is not zero.
    """
    _check("mean", mean, 0)
    return Initializer(f"normal({float(sigma)!r})")


def TruncatedNormal(  # noqa: N802
    sigma: float = 0.01, mean: float = 0.0, a: float = -2.0, b: float = 2.0
) -> Initializer:
    """Return the initializer that draws normal numbers within two deviations.

    Raises
    ------
    OptionError
        If the mean or the bounds are others.
    """
    for name, value, expected in (("mean", mean, 0), ("a", a, -2), ("b", b, 2)):
        _check(name, value, expected)
    return Initializer(f"truncated_normal({float(sigma)!r})")


def XavierUniform(gain: float = 1) -> Initializer:  # noqa: N802
    """Return Glorot's initializer of even numbers (Glorot and Bengio, 2010)."""
    return Initializer(f"xavier_uniform({float(gain)!r})")


def XavierNormal(gain: float = 1) -> Initializer:  # noqa: N802
    """Return Glorot's initializer of normal numbers."""
    return Initializer(f"xavier_normal({float(gain)!r})")


def HeUniform(  # noqa: N802
    negative_slope: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Initializer:
    """Return He's initializer of even numbers (He et al., 2015)."""
    return _he("he_uniform", negative_slope, mode, nonlinearity)


def HeNormal(  # noqa: N802
    negative_slope: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Initializer:
    """Return He's initializer of normal numbers."""
    return _he("he_normal", negative_slope, mode, nonlinearity)


def _he(kind: str, negative_slope: float, mode: str, nonlinearity: str) -> Initializer:
    """Return an initializer by the inputs of a weight, or by its outputs.

    Its gain is relative to that of a rectifier.
    """
    check_choice("mode", mode, ("fan_in", "fan_out"))
    check_choice("nonlinearity", nonlinearity, ("leaky_relu", "relu"))
    slope = float(negative_slope) if nonlinearity == "leaky_relu" else 0.0
    gain = (1 / (1 + slope**2)) ** 0.5
    return Initializer(f"{kind}{'_out' * (mode == 'fan_out')}({gain!r})")


def _check(name: str, value: float, expected: float) -> None:
    if value != expected:
        raise wrong_value(name, value, str(expected))


__all__ = [
    "Constant",
    "HeNormal",
    "HeUniform",
    "Initializer",
    "Normal",
    "One",
    "TruncatedNormal",
    "Uniform",
    "XavierNormal",
    "XavierUniform",
    "Zero",
    "initializer",
]

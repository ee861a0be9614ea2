"""The updates of parameters: the next parameter and states from the gradient and those before."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .pointwise import _is_cast_to, _keep_copy
from .shared.eight_bits import *  # noqa: F403
from .shared.rules import *  # noqa: F403
from .shared.rules import _adam_rule
from .shared.stepping import updated

try:
    import triton
    from triton import language as tl
except ImportError:  # the kernels of PyTorch are there
    triton = None

_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(math, name) for name in ("ceil", "cos", "exp", "floor", "log", "sin")},
    **{"sqrt": math.sqrt, "trunc": math.trunc, "max": max, "min": min},
}


def learning_rate(step: Tensor, *, rate: str | Sequence[float]) -> Tensor:
    """Return the learning rate of a step: of a formula over `step`, or one for each step."""
    number = int(step)
    if isinstance(rate, str):
        found = eval(rate, {"__builtins__": {}, **_FUNCTIONS}, {"step": float(number)})
    else:
        found = rate[min(number, len(rate) - 1)]
    return torch.tensor(float(found), dtype=torch.float64, device="cpu")


def adam_update(
    *tensors: Tensor,
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    l2: float = 0.0,
    bias_correction: str = "moments",
    lazy: bool = False,
    nesterov: bool = False,
) -> tuple[Tensor, ...]:
    """Update by Adam; a third state is the greatest mean of squares, whose root divides."""
    states = next(i for i, t in enumerate(tensors) if not t.is_floating_point()) - 2

    how = (beta1, beta2), epsilon, (weight_decay, l2), bias_correction, lazy, nesterov

    def rule(rate: float, *operands: Any) -> Sequence[Tensor]:
        *own, step = operands
        return _adam_rule(rate, own, step, *how)

    plain = bias_correction == "moments" and not lazy and 0.0 in (weight_decay, l2)
    plain = plain and not nesterov and states == 2
    if plain and len(tensors) <= 6 and tensors[0].is_cuda and _are_alike(tensors):
        rate = float(tensors[5]) if len(tensors) > 5 else learning_rate
        settings = {"lr": rate, "beta1": beta1, "beta2": beta2, "eps": epsilon}
        if triton is not None and tensors[0].dtype == torch.float32 and min(beta1, beta2) > 0:
            return _in_own_kernel(tensors[:5], **settings, weight_decay=weight_decay, l2=l2)
        kernel = torch._fused_adam_ if l2 else torch._fused_adamw_
        return _in_one_kernel(kernel, tensors[:5], **settings, weight_decay=weight_decay + l2)
    return updated(rule, states, True, learning_rate, tensors)


amsgrad_update = adam_update


def _are_alike(tensors: Sequence[Tensor]) -> bool:
    """Return whether parameter and states have the one form that PyTorch's kernel takes."""
    own = (tensors[0], *tensors[2:4])
    return all(t.dtype == own[0].dtype and t.is_contiguous() for t in own)


def _in_one_kernel(
    kernel: Callable[..., None], tensors: Sequence[Tensor], **settings: float
) -> tuple[Tensor, ...]:
    """Run Adam as PyTorch's optimizers do on GPUs: parameter and states change where they are."""
    p, g, m, v, step = tensors
    steps = [step.to(torch.float32)]
    g = g.to(p.dtype).contiguous()
    kernel([p], [g], [m], [v], [], steps, amsgrad=False, maximize=False, **settings)
    return p, m, v


_writable: set[int] = set()  # the addresses of gradients that nothing else reads


@contextmanager
def _writing_over(gradients: Iterable[Tensor], others: Iterable[Tensor]) -> Iterator[None]:
    """Let updates write over gradients, those that share their memory excepted."""
    parts = [*gradients, *others]
    counts = Counter(part.untyped_storage().data_ptr() for part in parts)
    _writable.update(address for address, count in counts.items() if count == 1)
    try:
        yield
    finally:
        _writable.clear()


def _is_writable(g: Tensor) -> bool:
    own = g.untyped_storage()
    return g.itemsize == 2 and own.nbytes() == g.nbytes and own.data_ptr() in _writable


# Elements of a program of the kernel: 256 to 4,096 take the same time on H200, within 3 %.
_BLOCK = 1024


def _in_own_kernel(
    tensors: Sequence[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    l2: float,
) -> tuple[Tensor, ...]:
    """Run Adam as above, on a gradient of any type.

    Where nothing else reads a gradient of 16 bits, it leaves there the parameter in that type.
    """
    p, g, m, v, step = tensors
    g = g.contiguous()
    is_left = _is_writable(g) and _is_cast_to(p, g.dtype)
    with torch.cuda.device_of(p):
        _adam[(triton.cdiv(p.numel(), _BLOCK),)](
            *(p, g, m, v, step, p.numel(), lr),
            *(math.log(beta1), math.log(beta2), 1 - beta1, 1 - beta2),
            *(beta1, beta2, eps, weight_decay, l2, is_left, _BLOCK),
        )
    _keep_copy(p, g if is_left else None)
    return p, m, v


if triton is not None:
    # Triton takes annotations for types of its own.
    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _adam(  # type: ignore[no-untyped-def]
        p,
        g,
        m,
        v,
        step,
        size,
        rate,
        log1: tl.constexpr,
        log2: tl.constexpr,
        rest1: tl.constexpr,
        rest2: tl.constexpr,
        beta1: tl.constexpr,
        beta2: tl.constexpr,
        epsilon: tl.constexpr,
        weight_decay: tl.constexpr,
        l2: tl.constexpr,
        is_left: tl.constexpr,
        block: tl.constexpr,
    ):
        place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        inside = place < size
        count = tl.load(step).to(tl.float64)
        first = (1 - tl.exp(count * log1)).to(tl.float32)
        second = (1 - tl.exp(count * log2)).to(tl.float32)
        old = tl.load(p + place, inside)
        gradient = tl.load(g + place, inside).to(tl.float32) + l2 * old
        mean = beta1 * tl.load(m + place, inside) + rest1 * gradient
        square = beta2 * tl.load(v + place, inside) + rest2 * gradient * gradient
        change = mean / first / (tl.sqrt_rn(square / second) + epsilon) + weight_decay * old
        new = old - rate * change
        tl.store(p + place, new, inside)
        tl.store(m + place, mean, inside)
        tl.store(v + place, square, inside)
        if is_left:
            tl.store(g + place, new.to(g.dtype.element_ty), inside)


def orthogonalize(
    x: Tensor,
    *,
    coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
    epsilon: float = 1e-7,
    iterations: int = 5,
) -> Tensor:
    """Bring the singular values of matrices near 1 by iterations of Newton and Schulz.

    As in PyTorch's own optimizer, the sum with a product is rounded once.
    """
    (a, b, c), shape = coefficients, x.shape
    is_tall = shape[-2] > shape[-1]
    x = x.reshape(-1, *shape[-2:])
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=epsilon)
    for _ in range(iterations):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, gram, x, beta=a)
    return (x.mT if is_tall else x).reshape(shape)


def loss_scale_update(
    scale: Tensor, good: Tensor, nonfinite: Tensor, *, factor: float = 2.0, window: int = 2000
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next scale, the number of steps since it changed, and 1 for a step that counts."""
    old, steps = float(scale), int(good)
    new = old
    if nonfinite > 0:
        new, steps = max(old / factor, min(old, 1.0)), 0
    elif steps + 1 >= window:
        largest = torch.finfo(torch.float32).max
        new, steps = (old * factor if old * factor <= largest else old), 0
    else:
        steps += 1
    applied = torch.tensor(int(nonfinite == 0), device=scale.device)
    after = torch.tensor(new, dtype=scale.dtype, device=scale.device)
    return after, torch.tensor(steps, device=scale.device), applied

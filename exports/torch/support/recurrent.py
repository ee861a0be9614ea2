"""Operators of a plan that follow the steps of a sequence."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .shared.elementwise import widened
from .shared.recurrent import next_state


def recurrent_layer(
    x: Tensor, weights: Tensor, *others: Tensor, cell: str = "lstm", reverse: bool = False
) -> Tensor | tuple[Tensor, ...]:
    count = 2 if cell == "lstm" else 1
    state, bias = others[:count], others[count] if len(others) > count else None
    outputs: list[tuple[Tensor, ...]] = []
    for entered in (x.flip(0) if reverse else x).unbind(0):
        turned = torch.nn.functional.linear(state[0], weights, bias)
        state = next_state(cell, entered, turned, state)
        outputs.append(state)
    found = tuple(
        torch.stack(states[::-1] if reverse else states)
        for states in map(list, zip(*outputs, strict=True))
    )
    return found if count > 1 else found[0]


def recurrent_layer_gradient(
    *tensors: Tensor, cell: str = "lstm", reverse: bool = False
) -> tuple[Tensor, ...]:
    count = 2 if cell == "lstm" else 1
    operands = tensors[count:-count]
    turned_axes = (0,) if reverse else ()
    pairs = (tensors[:count], tensors[-count:])
    slopes, states = ([t.flip(turned_axes) for t in some] for some in pairs)
    x = operands[0].flip(turned_axes)
    weights, first, bias = operands[1], operands[2 : 2 + count], operands[2 + count :]
    before = [torch.cat((a[None], y[:-1])) for a, y in zip(first, states, strict=True)]
    turned = torch.nn.functional.linear(before[0], weights, bias[0] if bias else None)
    slope = [torch.zeros_like(a) for a in first]
    entering, turning = torch.empty_like(x), torch.empty_like(x)
    for step in reversed(range(len(x))):
        slope = [a + dy[step] for a, dy in zip(slope, slopes, strict=True)]
        state = [y[step] for y in before]
        entering[step], turning[step], *rest = _pull(cell, x[step], turned[step], state, slope)
        slope = [rest[0] + turning[step] @ weights, *rest[1:]]
    rows = turning.flatten(0, 1)
    found = (entering.flip(turned_axes), rows.T @ before[0].flatten(0, 1), *slope)
    return (*found, rows.sum(0)) if bias else found


def _pull(
    cell: str, entered: Tensor, turned: Tensor, state: Sequence[Tensor], slope: Sequence[Tensor]
) -> list[Tensor]:
    """Return the gradients of a step by its gates, and by the state beside their product."""
    with torch.enable_grad():
        own = [t.detach().requires_grad_() for t in (entered, turned, *state)]
        after = next_state(cell, own[0], own[1], own[2:])
    found = torch.autograd.grad(after, own, slope, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(own, found, strict=True)]


@widened
def linear_recurrence(
    a: Tensor, b: Tensor, *initial: Tensor, axis: int = -1, reverse: bool = False
) -> Tensor:
    factors, terms = list(a.unbind(axis)), list(b.unbind(axis))
    state = initial[0] if initial else torch.zeros_like(terms[0])
    states = []
    for factor, term in list(zip(factors, terms, strict=True))[:: -1 if reverse else 1]:
        state = factor * state + term
        states.append(state)
    return torch.stack(states[::-1] if reverse else states, axis)


@widened
def ctc_loss(
    logs: Tensor,
    labels: Tensor,
    steps: Tensor,
    counts: Tensor,
    *,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Tensor:
    how = {"blank": blank, "reduction": "none", "zero_infinity": zero_infinity}
    return torch.nn.functional.ctc_loss(logs, labels, steps, counts, **how)


@widened
def ctc_loss_gradient(
    g: Tensor,
    logs: Tensor,
    labels: Tensor,
    steps: Tensor,
    counts: Tensor,
    *,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Tensor:
    with torch.enable_grad():
        own = logs.detach().requires_grad_()
        losses = ctc_loss(own, labels, steps, counts, blank=blank, zero_infinity=zero_infinity)
    (found,) = torch.autograd.grad(losses, own, g)
    # PyTorch adds what a softmax before the loss would subtract.
    plain = ctc_loss(logs, labels, steps, counts, blank=blank)
    step = torch.arange(len(logs), device=logs.device)[:, None]
    is_read = (step < steps) & (plain.isfinite() | (not zero_infinity))
    return found - torch.where(is_read[..., None], g[:, None] * logs.exp(), 0)


@widened
def ctc_prefixes(
    logs: Tensor, labels: Tensor, steps: Tensor, counts: Tensor, *, blank: int = 0
) -> Tensor:
    own = torch.arange(labels.shape[1], device=logs.device) < counts[:, None]
    classes = torch.full((len(labels), 2 * labels.shape[1] + 1), blank, device=logs.device)
    classes[:, 1::2] = torch.where(own, labels, blank)
    states = torch.arange(classes.shape[1], device=logs.device)
    skips = (classes != torch.nn.functional.pad(classes, (2, 0))[:, :-2]) & (states % 2 == 1)
    is_own, none = states <= 2 * counts[:, None], logs.new_tensor(-torch.inf)
    found = torch.where((states < 1) & is_own, logs.new_zeros(()), none)
    sums = []
    for step, log in enumerate(logs):
        before = torch.nn.functional.pad(found, (2, 0), value=-torch.inf)
        skipped = torch.where(skips, before[:, :-2], none) if step else none.expand_as(found)
        ways = torch.stack((found, before[:, 1:-1], skipped)).logsumexp(0)
        found = torch.where(is_own, ways + log.gather(1, classes), none)
        sums.append(torch.where((step < steps)[:, None], found, none))
    return torch.stack(sums, 1)

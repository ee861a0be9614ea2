"""The CTC loss, which exports cannot trace: its results have sizes that depend on lengths."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch

# An operator that exports have and PyTorch never runs; `converters.loss` imports it. The reduction
# and infinite losses are the same as PyTorch's.
torch.library.define(
    "shardwright::ctc_loss",
    "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
    "bool zero_infinity) -> Tensor",
)


def _losses(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape[1])


torch.library.register_fake("shardwright::ctc_loss", _losses)


@contextmanager
def traced_alignments() -> Iterator[None]:
    """Let CTC losses be traced as an operator."""
    with patch.object(torch, "ctc_loss", _ctc_loss):
        yield


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | Sequence[int],
    target_lengths: torch.Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    is_single = log_probs.dim() == 2
    logs = log_probs.unsqueeze(1) if is_single else log_probs
    steps, counts = _lengths(input_lengths), _lengths(target_lengths)
    losses: torch.Tensor = torch.ops.shardwright.ctc_loss(
        logs, targets, steps, counts, blank, zero_infinity
    )
    if reduction == 1:
        return (losses / counts.clamp(min=1).to(losses.dtype)).mean()
    if reduction == 2:
        return losses.sum()
    return losses.squeeze(0) if is_single else losses


def _lengths(given: torch.Tensor | Sequence[int]) -> torch.Tensor:
    found = given if isinstance(given, torch.Tensor) else torch.tensor(given)
    return found.reshape(-1)

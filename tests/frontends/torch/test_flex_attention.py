"""`flex_attention` and causal biases, which PyTorch cannot train on CPUs or export."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.nn.attention import bias  # noqa: E402
from torch.nn.attention.flex_attention import (  # noqa: E402
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402


def _written_out(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    scale: float,
) -> tuple[Any, Any]:
    """Return attention, and the logarithms of its sums, by functions of all places at once."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.mT * scale
    places = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, *places)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(*places), -torch.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) @ value, scores.logsumexp(-1)


def _flexible(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    scale: float,
) -> tuple[Any, Any]:
    samples, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    sizes = (samples, None, queries, keys)
    mask = None if mask_mod is None else create_block_mask(mask_mod, *sizes, device="cpu")
    how: dict[str, Any] = {"score_mod": score_mod, "block_mask": mask, "scale": scale}
    is_grouped = query.shape[1] != key.shape[1]
    aux = AuxRequest(lse=True)
    found = flex_attention(query, key, value, enable_gqa=is_grouped, return_aux=aux, **how)
    return found[0], found[1].lse


class Attending(nn.Module):
    """Attention with a window and fewer heads of keys, with a bias and documents, and a strict one.

    The strict one has a query without keys.
    """

    def __init__(self, attend: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.given, self.table = nn.Linear(6, 16), nn.Parameter(torch.randn(2, 9))
        self.attend = attend
        self.double()

    def forward(self, x: Any, documents: Any) -> Any:
        query, key, value, one = self.given(x).unflatten(-1, (4, 2, 2)).permute(2, 0, 3, 1, 4)

        def window(b: Any, h: Any, q: Any, k: Any) -> Any:
            return (q >= k) & (q - k < 3)

        def together(b: Any, h: Any, q: Any, k: Any) -> Any:
            return (documents[b, q] == documents[b, k]) & (q >= k)

        def learned(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return 2 * torch.tanh(score / 2) + self.table[h, q - k + 4]

        def strict(b: Any, h: Any, q: Any, k: Any) -> Any:
            return q > k

        first, _ = self.attend(query, one[:, :1], value[:, :1], None, window, 0.5)
        second, sums = self.attend(query, key, value, learned, together, 0.7)
        third, _ = self.attend(query, key, one, None, strict, 0.6)
        return (first * second).sin().sum() + third.square().sum() + sums.cos().mean()


def test_flex_attention_is_what_its_functions_say() -> None:
    documents = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 1, 1]])
    inputs = (torch.randn(4, 5, 6, dtype=torch.float64), documents)
    imported = import_module(Attending(_flexible), inputs)
    found = compare.gradients_differ(Attending(_written_out), inputs, imported)
    assert max(found.loss, found.gradient) < 1e-12
    assert found.missing == found.extra == []
    assert not imported.warnings
    kinds = [node.operator for node in imported.graph.nodes]
    assert kinds.count("scaled_dot_product_attention") == 2


class Blocks(nn.Module):
    """Attention with a mask of blocks that has no function."""

    def forward(self, x: Any) -> Any:
        ones = torch.ones(1, 1, 1, dtype=torch.int32)
        mask = BlockMask.from_kv_blocks(ones, torch.zeros(1, 1, 1, 1, dtype=torch.int32))
        return flex_attention(x, x, x, block_mask=mask).sum()


def test_blocks_without_a_function_are_refused_with_the_line() -> None:
    with pytest.raises(ModelError) as refused:
        import_module(Blocks(), (torch.randn(1, 1, 128, 4),))
    assert refused.value.what == (
        "a `BlockMask` has no `mask_mod`, and its blocks mask only where PyTorch compiles it"
    )
    assert "flex_attention(x, x, x, block_mask=mask)" in str(refused.value)


class Biased(nn.Module):
    """Attention of the last queries of more keys, with a causal bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.given = nn.Linear(6, 12).double()

    def forward(self, x: Any) -> Any:
        query, key, value = self.given(x).chunk(3, -1)
        mask = bias.causal_lower_right(3, 5)
        query, key, value = query[:, None, 2:], key[:, None], value[:, None]
        return F.scaled_dot_product_attention(query, key, value, mask).sin().sum()


def test_causal_biases_are_masks() -> None:
    found = compare.gradients_differ(Biased(), (torch.randn(4, 5, 6, dtype=torch.float64),))
    assert max(found.loss, found.gradient) < 1e-12
    assert found.missing == []

"""Mixtures as people write them become the same operators, and train as autograd does."""

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

from shardwright.frontends.common.mixtures import mixture  # noqa: E402
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402
from tests.frontends.torch.experts import mixtures  # noqa: E402
from tests.frontends.torch.experts.mixtures import EXPERTS, WAYS  # noqa: E402

_ROUTED = ("dispatch", "grouped_matmul", "combine")
_SELECTING = {"gather", "scatter_nd", "scatter_nd_update", "sort", "cumsum", "one_hot"}


def _module(kind: str) -> Any:
    torch.manual_seed(0)
    return WAYS[kind]().double()


@pytest.mark.parametrize("kind", WAYS)
def test_ways_to_write_a_mixture_are_rows_of_experts(kind: str) -> None:
    module = _module(kind)
    if not hasattr(torch.nn.functional, "grouped_mm") and module.fused:
        pytest.skip("a release without grouped products")
    found = compare.gradients_differ(module, (mixtures.inputs_of("random"),))
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing
    graph = found.imported.graph
    counts = Counter(node.operator for node in graph.nodes)
    assert [counts[name] for name in _ROUTED] == [1, 3, 1]
    assert not _SELECTING & {*counts}
    (rows,) = (node.results[0].type for node in graph.nodes if node.operator == "dispatch")
    assert rows.size_texts[0] == "2/4*1.04"


@pytest.mark.parametrize("kind", ["Where", "Masks", "Inverse"])
def test_an_imported_mixture_trains_where_tokens_choose_alike(kind: str) -> None:
    module, x = _module(kind), mixtures.inputs_of("alike")
    imported = import_module(module, (mixtures.inputs_of("random"),))
    found = compare.gradients_differ(module, (x,), imported)
    assert max(found.loss, found.gradient) < 1e-9


@pytest.mark.parametrize("kind", ["Hit", "Nonzero", "Grouped"])
def test_an_imported_mixture_trains_on_ranks(kind: str) -> None:
    x = mixtures.inputs_of("random").repeat(2, 1, 1)
    assert max(compare.on_ranks(_module(kind), (x,), 4, plan="data=4,expert=2,zero=3")) < 1e-9


@pytest.mark.parametrize("kind", mixtures.DENSE)
def test_experts_that_compute_every_token_are_told(kind: str) -> None:
    torch.manual_seed(0)
    module = mixtures.DENSE[kind]().double()
    found = compare.gradients_differ(module, (mixtures.inputs_of("random"),))
    assert max(found.loss, found.gradient) < 1e-9
    told = "every expert computes every token: 2 times the needed operations"
    assert found.imported.warnings == (told,)


class _Sparse(nn.Module):
    """Attention to the positions of the greatest scores, which has no experts."""

    def forward(self, x: Any) -> Any:
        weights, chosen = torch.topk(x @ x.transpose(1, 2), 2, -1)
        mask = torch.zeros(2, 6, 6, dtype=x.dtype).scatter(2, chosen, weights.softmax(-1))
        return (mask @ x).square().sum()


def test_a_choice_of_positions_is_none_of_experts() -> None:
    assert import_module(_Sparse(), (mixtures.inputs_of("random"),)).warnings == ()


@pytest.mark.parametrize("kind", ["Where", "Masks", "Shared", "Grouped", "Inverse", "Scattered"])
def test_wide_rows_are_recognized_by_one_feature(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixture, "WIDE", 0)
    x = mixtures.inputs_of("random")[:, :4]  # as many tokens as features
    nodes = import_module(_module(kind), (x,)).graph.nodes
    counts = Counter(node.operator for node in nodes)
    assert [counts[name] for name in _ROUTED] == [1, 3, 1]


def test_a_mixture_without_elements_is_recognized() -> None:
    with torch.device("meta"):
        module, x = WAYS["GroupedCounts"](), torch.zeros(2, 6, mixtures.HIDDEN)
    counts = Counter(node.operator for node in import_module(module, (x,)).graph.nodes)
    assert [counts[name] for name in _ROUTED] == [1, 3, 1]


class _Lengths(nn.Module):
    """What an input of lengths selects follows from no choice by scores."""

    def forward(self, x: Any, lengths: Any) -> Any:
        mask = torch.arange(x.shape[1])[None] < lengths.max()
        return x[mask.expand(len(x), -1)].square().sum()


def test_a_selection_by_lengths_is_that_of_the_example() -> None:
    inputs = mixtures.inputs_of("random"), torch.tensor([3, 4])
    graph = import_module(_Lengths(), inputs).graph
    assert [value.name for value in graph.inputs] == ["x"]


class _Mixing(mixtures.Mixture):
    """What a token gets depends on the other tokens of its expert."""

    def mix(self, x: Any, weights: Any, chosen: Any) -> Any:
        total = torch.zeros_like(x)
        for expert, layer in enumerate(self.experts):
            token, choice = torch.where(chosen == expert)
            rows = x[token]
            rows = rows - rows.mean(0)
            total.index_add_(0, token, layer(rows) * weights[token, choice, None])
        return total


class _Counting(mixtures.Mixture):
    """The places of tokens are read as numbers."""

    def mix(self, x: Any, weights: Any, chosen: Any) -> Any:
        total = torch.zeros_like(x)
        for expert, layer in enumerate(self.experts):
            token, choice = torch.where(chosen == expert)
            made = layer(x[token]) * token[:, None]
            total.index_add_(0, token, made * weights[token, choice, None])
        return total


class _Dropping(mixtures.GroupedMarks):
    """The last row of each expert but the last is dropped: no mixture of all choices."""

    def ends(self, chosen: Any) -> Any:
        ends = super().ends(chosen)
        return torch.where(torch.arange(EXPERTS) < EXPERTS - 1, (ends - 1).clamp(min=0), ends)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            _Mixing,
            "tokens are selected by the expert that they chose, and what comes of them is no sum "
            "of what experts compute row by row; let every expert compute each of its tokens "
            "alone, and add up what it computes times the weight of the choice",
        ),
        (_Counting, "the places of tokens that chose an expert, as numbers, cannot be imported"),
    ],
)
def test_a_selection_that_is_no_mixture_is_refused(kind: type[nn.Module], sentence: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ModelError) as caught:
        import_module(kind().double(), (mixtures.inputs_of("random"),))
    assert sentence in str(caught.value)


def test_products_of_groups_that_are_no_mixture_keep_their_rows() -> None:
    torch.manual_seed(0)
    module, x = _Dropping().double(), mixtures.inputs_of("random")
    found = compare.gradients_differ(module, (x,))
    assert max(found.loss, found.gradient) < 1e-9
    counts = Counter(node.operator for node in found.imported.graph.nodes)
    assert counts["sort"] == 1
    (rows,) = {n.results[0].type.size_texts[0] for n in found.imported.graph.nodes
               if n.operator == "dispatch"}  # fmt: skip
    assert rows == "1/4*1.04"

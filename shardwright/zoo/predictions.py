"""Losses of decoders: of the next token, of further ones, and the balance of the experts.

A head that predicts a further token (DeepSeek-AI, 2024, section 2.2) has layers of its own. Depth k
of D reads what the depth before made of position i and the word k places ahead, and predicts the
word after that: ``h_k = norm(layers(W [norm(word of i + k); norm(h_{k-1})]))``, where h_0 is what
the head of the next token reads. All depths have its table of words and its head. The loss adds
``weight / D`` times the mean of each depth over the positions that have such a word, as
Megatron-Core and NeMo AutoModel do.
"""

from collections.abc import Sequence
from typing import Protocol

from shardwright import nn
from shardwright.nn.losses import cross_entropy
from shardwright.tensor import Tensor, apply


class Predictor(Protocol):
    """A decoder, by what its losses ask of it."""

    experts: list[nn.RoutedExperts]

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the scores of the next token."""

    def words(self, tokens: Tensor) -> Tensor:
        """Return the features of words."""

    def features(self, tokens: Tensor) -> Tensor:
        """Return what the head reads."""

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of all words."""


class BalancedLoss(nn.Cell):
    """Cross entropy plus a load-balancing loss of the experts, and of others."""

    def __init__(
        self,
        decoder: Predictor,
        loss: nn.CrossEntropyLoss,
        balance: float,
        others: Sequence[nn.RoutedExperts] = (),
    ) -> None:
        self.decoder = decoder
        self.loss = loss
        self.balanced = [*decoder.experts, *others] if balance else []
        self.share = balance / max(len(self.balanced), 1)

    def construct(self, *inputs: Tensor) -> Tensor:
        """Return the loss of tokens, positions where they are in documents, and labels."""
        loss = self.cross_entropy(*inputs)
        for experts in self.balanced:
            if experts.balance is not None:
                loss = loss + experts.balance * self.share
        return loss

    def cross_entropy(self, *inputs: Tensor) -> Tensor:
        """Return the loss of the predictions."""
        return self.loss(self.decoder(*inputs[:-1]), inputs[-1])


class Depth(nn.Cell):
    """The layers of one depth, between the product that joins what they read and a norm.

    Parameters
    ----------
    norms : sequence of three cells
        Of the words, of the features, and of the end.
    product : nn.Dense
        From both to the features of a token.
    blocks : nn.SequentialCell
        The layers.
    experts : sequence of nn.RoutedExperts
        Their experts.
    """

    def __init__(
        self,
        norms: Sequence[nn.Cell],
        product: nn.Dense,
        blocks: nn.SequentialCell,
        experts: Sequence[nn.RoutedExperts],
    ) -> None:
        self.of_words, self.of_features, self.norm = norms
        self.product, self.blocks, self.experts = product, blocks, list(experts)

    def construct(self, words: Tensor, features: Tensor) -> Tensor:
        """Join both, and go through the layers."""
        joined = apply("concat", self.of_words(words), self.of_features(features), axis=-1)
        return self.norm(self.blocks(self.product(joined)))


class FurtherTokens(BalancedLoss):
    """Cross entropy of the next token and of further ones, plus the balance of the experts.

    Parameters
    ----------
    decoder, loss, balance
        As `BalancedLoss` has them.
    depths : sequence of Depth
        One for each further token; one that is there several times has the same weights.
    weight : float
        What the mean of their losses counts.
    """

    def __init__(
        self,
        decoder: Predictor,
        loss: nn.CrossEntropyLoss,
        balance: float,
        depths: Sequence[Depth],
        weight: float,
    ) -> None:
        own = list(dict.fromkeys(depths))
        super().__init__(decoder, loss, balance, [e for depth in own for e in depth.experts])
        self.depths = nn.CellList(own)
        self.order = [own.index(depth) for depth in depths]
        self.each = weight / len(depths)

    def cross_entropy(self, *inputs: Tensor) -> Tensor:
        """Return the loss of all predictions."""
        tokens, labels = inputs
        features = self.decoder.features(tokens)
        loss = self.loss(self.decoder.scores(features), labels)
        for ahead, number in enumerate(self.order, 1):
            features = self.depths[number](self.decoder.words(_shifted(tokens, ahead)), features)
            scores = self.decoder.scores(features)
            losses = cross_entropy(scores, _shifted(labels, ahead), True)
            loss = loss + losses[:, : labels.shape[1] - ahead].mean() * self.each
        return loss


def _shifted(words: Tensor, ahead: int) -> Tensor:
    """Return the words so many places ahead; those after the last are 0."""
    return apply("pad", words[:, ahead:], before=(0, 0), after=(0, ahead), value=0)

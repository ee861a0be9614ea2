"""Attention under masks, recurrences and embeddings."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Cases, Extra, Net, extra, forward, inner

# Attention, recurrences, embeddings


_LENGTHS = torch.tensor([2, 4])


_PADDED = torch.arange(4) >= torch.tensor([[2], [4]])


_WORDS = torch.tensor([[0, 3, 3, 1], [5, 0, 0, 2]])


def _rows(h: Tensor) -> Tensor:
    return h.view(2, 4, 8)


def _padded_heads(m: Any, h: Tensor) -> Tensor:
    rows = _rows(h)
    found, weights = m(rows, rows, rows, key_padding_mask=_PADDED)
    return found.reshape(8, 8) + weights.sum()


def _biased_heads(m: Any, h: Tensor) -> Tensor:
    rows = _rows(h)
    mask = torch.full((4, 4), float("-inf")).triu(1).double()
    found, weights = m(rows, rows, rows, attn_mask=mask, average_attn_weights=False)
    return found.reshape(8, 8) + weights.square().mean()


def _crossed_heads(m: Any, h: Tensor) -> Tensor:
    rows = h.view(4, 2, 8)
    found, _ = m(rows, rows[:3, :, :5], rows[1:, :, :6], need_weights=False)
    return found.reshape(8, 8)


def _hidden_heads(m: Any, h: Tensor) -> Tensor:
    rows = _rows(h)
    mask = torch.eye(4, dtype=torch.bool)
    return m(rows, rows, rows, attn_mask=mask)[0].reshape(8, 8)


def _encoded(m: Any, h: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(4).double()
    return m(_rows(h), mask, src_key_padding_mask=_PADDED.double() * -1e4).reshape(8, 8)


def _decoded(m: Any, h: Tensor) -> Tensor:
    rows = _rows(h)
    return m(rows, rows[:, 1:], memory_key_padding_mask=_PADDED[:, 1:]).reshape(8, 8)


def _grouped(m: Net, x: Tensor) -> Tensor:
    q = m.a(x).view(2, 4, 4, 2).transpose(1, 2)
    found = F.scaled_dot_product_attention(q, q[:, :2], q[:, 2:], is_causal=True, enable_gqa=True)
    return m.b(found.transpose(1, 2).reshape(8, 8))


def _not_square(m: Net, x: Tensor) -> Tensor:
    q = m.a(x).view(1, 2, 4, 8)
    found = F.scaled_dot_product_attention(q[:, :, :2], q, q, is_causal=True, scale=0.2)
    return m.b(torch.cat([found, found], 2).view(8, 8))


def _sunk(m: Net, x: Tensor) -> Tensor:
    """A sink: a score that takes its share of the softmax and gives nothing."""
    h = m.a(x).view(2, 4, 8)
    scores = torch.cat([h @ h.mT, m.a.bias[:1].expand(2, 4, 1)], -1).softmax(-1)[..., :-1]
    return m.b((scores @ h).view(8, 8))


def _cached(m: Net, x: Tensor) -> Tensor:
    """Attention a step at a time, with keys in a tensor that is written."""
    h, kept, out = m.a(x).view(2, 4, 8), torch.zeros(2, 4, 8).double(), []
    for t in range(4):
        kept[:, t] = h[:, t]
        keys = kept[:, : t + 1].clone()
        shares = torch.einsum("bd,bsd->bs", h[:, t], keys).softmax(-1)
        out.append(shares.unsqueeze(1) @ keys)
    return m.b(torch.cat(out, 1).view(8, 8))


def _local_mask(m: Net, x: Tensor) -> Tensor:
    h, at = m.a(x), torch.arange(8)
    near = (at[:, None] - at).abs() <= 2
    documents = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    mask = near & (documents[:, None] == documents)
    return m.b(F.scaled_dot_product_attention(h[None], h[None], h[None], mask)[0])


def _unsorted(rnn: Any, h: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(
        _rows(h), _LENGTHS, batch_first=True, enforce_sorted=False
    )
    out, last = rnn(packed)
    padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, padding_value=-0.5)
    return padded.reshape(8, -1)[:, :8] + (last[0] if isinstance(last, tuple) else last).mean()


def _started(rnn: Any, h: Tensor) -> Tensor:
    first = torch.stack([h[:2], h[2:4]])
    out, (state, cell) = rnn(h.view(4, 2, 8), (first, first.tanh()))
    return out.reshape(8, 8) + state.mean() - cell.sin().mean()


def _alone(rnn: Any, h: Tensor) -> Tensor:
    out, last = rnn(h)  # no batch
    return out + last.sum()


def _stacked_cells(cells: Any, h: Tensor) -> Tensor:
    states = [torch.zeros(2, 8, dtype=h.dtype) for _ in cells]
    out = []
    for step in reversed(h.view(4, 2, 8)):
        for i, cell in enumerate(cells):
            step = states[i] = cell(step, states[i])
        out.insert(0, step)
    return torch.cat(out)


def _teacher_forced(cell: Any, h: Tensor) -> Tensor:
    """A decoder that reads its own output, or at odd steps the target."""
    state, said, out = torch.zeros(2, 8).double(), torch.zeros(2, 8).double(), []
    for i, target in enumerate(h.view(4, 2, 8)):
        state = cell(target if i % 2 else said, state)
        said = state.softmax(-1)
        out.append(said)
    return torch.stack(out).view(8, 8)


def _masked_steps(cell: Any, h: Tensor) -> Tensor:
    state, out = torch.zeros(2, 8).double(), []
    for t in range(4):
        state = torch.where(_PADDED[:, t, None], state, cell(_rows(h)[:, t], state))
        out.append(state)
    return torch.stack(out, 1).view(8, 8)


def _embedded(table: Any, h: Tensor) -> Tensor:
    return h + table(_WORDS).view(8, 8).sin()


def _bagged(table: Any, h: Tensor) -> Tensor:
    return h + table(_WORDS.tile(4, 1)).sin()


def _weighted_bags(table: Any, h: Tensor) -> Tensor:
    shares = h[:, :4].reshape(-1)
    offsets = torch.tensor([0, 2, 2, 9, 20, 21, 30, 32])
    return h + table(_WORDS.tile(4, 1).reshape(-1), offsets, per_sample_weights=shares)


def _tied_head(table: Any, h: Tensor) -> Tensor:
    scores = F.linear(table(_WORDS).view(8, 8) + h, table.weight)
    return h + F.cross_entropy(scores, _WORDS.view(-1), ignore_index=0)


def _frozen_rows(table: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        old = table.weight.clone()
    rows = torch.where(torch.arange(6)[:, None] < 3, old, table.weight)
    return h + F.embedding(_WORDS, rows, padding_idx=1).view(8, 8)


def _one_hot_table(table: Any, h: Tensor) -> Tensor:
    return h + F.one_hot(_WORDS.view(-1), 6).double() @ table.weight


# Recurrences written by hand


class Cell(nn.Module):
    """Gates written by hand, a step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.norm = nn.Linear(16, 32), nn.LayerNorm(8)

    def forward(self, h: Tensor) -> Tensor:
        """Return the states of all steps."""
        steps = h.view(4, 2, 8)
        state, memory = h.new_zeros(2, 8), h.new_zeros(2, 8)
        out = []
        for step in steps:
            i, f, g, o = self.gates(torch.cat([step, state], 1)).chunk(4, 1)
            memory = torch.sigmoid(f + 1) * memory + torch.sigmoid(i) * g.tanh()
            state = torch.sigmoid(o) * torch.tanh(self.norm(memory))
            out.append(state)
        return torch.stack(out).view(8, 8)


def _bidirectional(rnn: Any, h: Tensor) -> Tensor:
    out, last = rnn(h.view(4, 2, 8))
    last = last[0] if isinstance(last, tuple) else last
    return out.reshape(8, 8) + last.mean()


def _packed(rnn: Any, h: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(
        h.view(2, 4, 8), torch.tensor([4, 2]), batch_first=True
    )
    out, (state, _) = rnn(packed)
    padded = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=4)[0]
    return padded.reshape(8, 8) + state[-1].mean()


def _cell_loop(cell: Any, h: Tensor) -> Tensor:
    state, out = None, []
    for step in h.view(4, 2, 8).unbind():
        state = cell(step, state)
        out.append(state[0] if isinstance(state, tuple) else state)
    return torch.cat(out)


def _truncated(cell: Any, h: Tensor) -> Tensor:
    state, out = h.new_zeros(2, 8), []
    for i, step in enumerate(h.view(4, 2, 8)):
        state = cell(step, state.detach() if i == 2 else state)
        out.append(state)
    return torch.stack(out).flatten(0, 1)


def _reservoir(m: Extra, x: Tensor) -> Tensor:
    state = torch.zeros(8, dtype=x.dtype)
    for row in m.a(x):
        state = torch.addmv(row, m.w, state).tanh()
    return m.b(state).expand(8, 3)


def _selective(m: Extra, x: Tensor) -> Tensor:
    """A selective state space, step by step."""
    u = m.a(x).view(2, 4, 8)
    step = F.softplus(u @ m.step)
    state, out = torch.zeros(2, 8, 3, dtype=x.dtype), []
    for t in range(4):
        decay = torch.exp(-step[:, t, :, None] * m.rates.exp())
        write = (u[:, t] @ m.write)[:, None]
        state = decay * state + step[:, t, :, None] * u[:, t, :, None] * write
        out.append((state * (u[:, t] @ m.read)[:, None]).sum(-1))
    return m.b(torch.stack(out, 1).reshape(8, 8))


def _diagonal_complex(m: Extra, x: Tensor) -> Tensor:
    """A linear recurrence of complex numbers (LRU)."""
    rate = torch.exp(torch.complex(-m.size.exp(), m.angle))
    u = m.a(x).view(2, 4, 8) * (1 - rate.abs() ** 2).sqrt()
    state, out = torch.zeros(2, 8, dtype=torch.complex128), []
    for t in range(4):
        state = rate * state + u[:, t]
        out.append(state.real)
    return m.b(torch.stack(out, 1).reshape(8, 8))


SEQUENCES: Cases = {
    "heads_padded": inner(lambda: nn.MultiheadAttention(8, 2, batch_first=True), _padded_heads),
    "heads_with_bias_rows": inner(
        lambda: nn.MultiheadAttention(8, 4, add_bias_kv=True, add_zero_attn=True, batch_first=True),
        lambda m, h: m(_rows(h), _rows(h), _rows(h))[0].reshape(8, 8),
    ),
    "heads_causal_weights": inner(
        lambda: nn.MultiheadAttention(8, 2, bias=False, batch_first=True), _biased_heads
    ),
    "heads_crossed": inner(lambda: nn.MultiheadAttention(8, 2, kdim=5, vdim=6), _crossed_heads),
    "heads_without_themselves": inner(
        lambda: nn.MultiheadAttention(8, 2, batch_first=True), _hidden_heads
    ),
    "encoder_norm_first": inner(
        lambda: nn.TransformerEncoderLayer(
            8, 2, 16, 0.0, F.gelu, batch_first=True, norm_first=True
        ),
        _encoded,
    ),
    "encoder_eval": inner(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), 2, nn.LayerNorm(8)
        ).eval(),
        lambda m, h: m(_rows(h)).reshape(8, 8),
    ),
    "decoder_layer": inner(
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), _decoded
    ),
    "attention_grouped": forward(_grouped),
    "attention_not_square": forward(_not_square),
    "attention_sink": forward(_sunk),
    "attention_cached": forward(_cached),
    "attention_local_documents": forward(_local_mask),
    "gru_packed_unsorted": inner(
        lambda: nn.GRU(8, 4, bidirectional=True, batch_first=True), _unsorted
    ),
    "lstm_packed_two_layers": inner(
        lambda: nn.LSTM(8, 4, 2, bidirectional=True, batch_first=True), _unsorted
    ),
    "rnn_packed": inner(lambda: nn.RNN(8, 8, batch_first=True), _unsorted),
    "lstm_with_first_states": inner(lambda: nn.LSTM(8, 8, 2, bias=False), _started),
    "gru_without_batch": inner(lambda: nn.GRU(8, 8), _alone),
    "cells_backwards": inner(
        lambda: nn.ModuleList([nn.GRUCell(8, 8), nn.RNNCell(8, 8, nonlinearity="relu")]),
        _stacked_cells,
    ),
    "decoder_reads_itself": inner(lambda: nn.GRUCell(8, 8), _teacher_forced),
    "steps_masked": inner(lambda: nn.RNNCell(8, 8), _masked_steps),
    "embedding_padded": inner(lambda: nn.Embedding(6, 8, padding_idx=3), _embedded),
    "embedding_padded_from_behind": inner(lambda: nn.Embedding(6, 8, padding_idx=-1), _embedded),
    "embedding_by_frequency": inner(lambda: nn.Embedding(6, 8, scale_grad_by_freq=True), _embedded),
    "embedding_of_a_norm": inner(lambda: nn.Embedding(6, 8, max_norm=1.0), _embedded),
    "bags_of_maxima": inner(lambda: nn.EmbeddingBag(6, 8, mode="max"), _bagged),
    "bags_padded": inner(lambda: nn.EmbeddingBag(6, 8, mode="mean", padding_idx=0), _bagged),
    "bags_weighted": inner(lambda: nn.EmbeddingBag(6, 8, mode="sum"), _weighted_bags),
    "table_is_head": inner(lambda: nn.Embedding(6, 8, padding_idx=0), _tied_head),
    "rows_frozen": inner(lambda: nn.Embedding(6, 8), _frozen_rows),
    "table_by_one_hot": inner(lambda: nn.Embedding(6, 8), _one_hot_table),
    "cell_by_hand": inner(Cell),
    "bidirectional_lstm": inner(
        lambda: nn.LSTM(8, 4, 2, bidirectional=True, batch_first=True), _bidirectional
    ),
    "gru_of_two_layers": inner(lambda: nn.GRU(8, 8, 2), _bidirectional),
    "rnn_with_relu": inner(lambda: nn.RNN(8, 8, nonlinearity="relu"), _bidirectional),
    "lstm_with_projection": inner(lambda: nn.LSTM(8, 12, proj_size=8), _bidirectional),
    "packed_lstm": inner(lambda: nn.LSTM(8, 8, batch_first=True), _packed),
    "lstm_cell_loop": inner(lambda: nn.LSTMCell(8, 8), _cell_loop),
    "gru_cell_truncated": inner(lambda: nn.GRUCell(8, 8), _truncated),
    "states_along_the_batch": extra(_reservoir, w=(8, 8)),
    "selective_state_space": extra(
        _selective, step=(8, 8), rates=(8, 3), write=(8, 3), read=(8, 3)
    ),
    "complex_recurrence": extra(_diagonal_complex, size=(8,), angle=(8,)),
}

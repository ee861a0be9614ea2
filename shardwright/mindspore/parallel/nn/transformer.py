"""Transformers of MindSpore's arguments: encoders, decoders, and both."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any

from shardwright import nn
from shardwright.ir.errors import OptionError
from shardwright.ir.values import check_flag, check_names, of_type, wrong_value
from shardwright.mindspore.context import ParallelMode, get_auto_parallel_context
from shardwright.mindspore.errors import as_mindspore
from shardwright.mindspore.parallel.nn.config import (
    MoEConfig,
    OpParallelConfig,
    TransformerOpParallelConfig,
    TransformerRecomputeConfig,
    check_config,
)
from shardwright.mindspore.parallel.nn.experts import MoE
from shardwright.mindspore.parallel.nn.layers import (
    FeedForward,
    MultiHeadAttention,
    check_rates,
    check_real,
    check_sizes,
    check_tensor,
)
from shardwright.nn.cell import Cell, CellList
from shardwright.tensor import Tensor

_REAL = ("float16", "float32")
Made = tuple[Tensor, ...]  # the losses of balance of experts, of which there may be none
Configure = Callable[[Cell, int, int, Any, int], None]


@dataclass(frozen=True)
class Options:
    """What all layers of a transformer have in common, under MindSpore's names.

    `use_past` must be False. With experts in `moe_config` each part returns their loss of balance
    too, last, weighted by its `aux_loss_factor`.

    Raises
    ------
    OptionError
        If a value is not allowed, or does not fit the parallel context.
    """

    hidden_size: int
    ffn_hidden_size: int
    num_heads: int
    batch_size: int | None = None
    attention_dropout_rate: float = 0.1
    hidden_dropout_rate: float = 0.1
    post_layernorm_residual: bool = False
    layernorm_compute_type: str = "float32"
    softmax_compute_type: str = "float32"
    param_init_type: str = "float32"
    hidden_act: Any = "gelu"
    use_past: bool = False
    moe_config: MoEConfig = field(default_factory=MoEConfig)
    parallel_config: OpParallelConfig = field(default_factory=TransformerOpParallelConfig)

    def __post_init__(self) -> None:
        with as_mindspore():
            check_config(self.parallel_config, self.moe_config)
            check_real(layernorm_compute_type=self.layernorm_compute_type)
            check_flag("post_layernorm_residual", self.post_layernorm_residual)
            check_rates(hidden_dropout_rate=self.hidden_dropout_rate)
            if self.batch_size is not None:
                check_sizes(batch_size=self.batch_size)

    def norm(self) -> Cell:
        """Return a normalization."""
        return nn.LayerNorm(self.hidden_size).to_float(self.layernorm_compute_type)

    def attention(self, source: int, target: int) -> MultiHeadAttention:
        """Return attention of sequences of one length to those of another."""
        return MultiHeadAttention(
            self.batch_size,
            source,
            target,
            self.hidden_size,
            self.num_heads,
            self.hidden_dropout_rate,
            self.attention_dropout_rate,
            softmax_compute_type=self.softmax_compute_type,
            param_init_type=self.param_init_type,
            use_past=self.use_past,
            parallel_config=self.parallel_config,
        )

    @property
    def has_experts(self) -> bool:
        """Whether feed-forward parts are experts."""
        return self.moe_config.expert_num > 1

    def feed_forward(self) -> FeedForward | MoE:
        """Return the feed-forward part, or experts."""
        sizes = (self.hidden_size, self.ffn_hidden_size, self.hidden_dropout_rate, self.hidden_act)
        own: dict[str, Any] = {
            "param_init_type": self.param_init_type,
            "parallel_config": self.parallel_config,
        }
        if self.has_experts:
            return MoE(*sizes, moe_config=self.moe_config, **own)
        return FeedForward(*sizes, **own)

    def fed(self, x: Tensor, norm: Cell, part: Cell) -> tuple[Tensor, Made]:
        """Return the sum with a feed-forward part, and the loss of its experts if it has them."""
        losses: list[Tensor] = []

        def made(normal: Tensor) -> Tensor:
            output, *own = part(normal) if self.has_experts else (part(normal),)
            losses.extend(own)
            return output

        return self.residual(x, norm, made), tuple(losses)

    def residual(self, x: Tensor, norm: Cell, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a sum with a part of the normalized input; or of that with it."""
        normal = norm(x).astype("float16")
        base = normal if self.post_layernorm_residual else x
        return base + part(normal).astype(base.dtype)


def _options(given: dict[str, Any]) -> Options:
    with as_mindspore():
        check_names("a transformer has no", given, tuple(one.name for one in fields(Options)))
    return Options(**given)


class TransformerEncoderLayer(Cell):
    """Attention of every position to those that a mask says, and feed-forward.

    Parameters
    ----------
    seq_length : int
        Length of the sequences.
    **options
        Those of `Options`.
    """

    def __init__(self, *, seq_length: int, **options: Any) -> None:
        self._own = own = _options(options)
        self.layernorm1, self.layernorm2 = own.norm(), own.norm()
        self.attention = own.attention(seq_length, seq_length)
        self.output = own.feed_forward()

    def construct(self, x: Tensor, input_mask: Tensor | None = None) -> tuple[Tensor, None, *Made]:
        """Return the outputs, no past keys and values, and the loss of experts if there are any."""
        check_tensor("x", x, (2, 3), _REAL)
        own = self._own
        x = own.residual(x, self.layernorm1, lambda y: self.attention(y, y, y, input_mask))
        x, losses = own.fed(x, self.layernorm2, self.output)
        return (self.layernorm1(x) if own.post_layernorm_residual else x), None, *losses


class TransformerDecoderLayer(Cell):
    """Attention of a sequence to itself and to what an encoder made, and feed-forward.

    Parameters
    ----------
    src_seq_length, tgt_seq_length : int
        Length of the sequences of the encoder, and of its own.
    **options
        Those of `Options`.
    """

    def __init__(self, *, src_seq_length: int, tgt_seq_length: int, **options: Any) -> None:
        self._own = own = _options(options)
        self.layernorm1, self.layernorm2 = own.norm(), own.norm()
        self.cross_attention_layernorm = own.norm()
        self.attention = own.attention(tgt_seq_length, tgt_seq_length)
        self.cross_attention = own.attention(tgt_seq_length, src_seq_length)
        self.output = own.feed_forward()

    def construct(
        self,
        hidden_stats: Tensor,
        decoder_mask: Tensor | None,
        encoder_output: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, None, *Made]:
        """Return the outputs, no past keys and values, and the loss of experts if there are any."""
        check_tensor("hidden_stats", hidden_stats, (2, 3), _REAL)
        own, x = self._own, hidden_stats
        x = own.residual(x, self.layernorm1, lambda y: self.attention(y, y, y, decoder_mask))
        if encoder_output is not None:
            read = encoder_output.astype("float16")
            x = own.residual(
                x,
                self.cross_attention_layernorm,
                lambda y: self.cross_attention(y, read, read, memory_mask),
            )
        x, losses = own.fed(x, self.layernorm2, self.output)
        return x, None, *losses


def _configured(
    layer: Cell, at: int, offset: int, config: Any, layers: int, given: Configure | None
) -> Cell:
    """Return a layer, set to its stage, its group of gradients, and what it recomputes.

    Layer ``i`` of ``n`` is in stage ``i // (n // stages)``; those left are in the last.

    Raises
    ------
    OptionError
        If there are more stages than layers.
    """
    if given is not None:
        given(layer, at, offset, config, layers)
        return layer
    if not isinstance(config, TransformerOpParallelConfig):
        return layer
    stages = config.pipeline_stage
    if layers < stages:
        with as_mindspore():
            raise wrong_value("pipeline_stage", stages, f"at most {layers}, the number of layers")
    if stages > 1:
        layer.pipeline_stage = min((at + offset) // (layers // stages), stages - 1)
    group = max(layers // config.gradient_aggregation_group, 1)
    layer.set_comm_fusion((at + offset) // group + 1)
    how = config.recompute
    if isinstance(how, TransformerRecomputeConfig) and how.recompute:
        layer.recompute(
            mp_comm_recompute=how.mp_comm_recompute,
            parallel_optimizer_comm_recompute=how.parallel_optimizer_comm_recompute,
            recompute_slice_activation=how.recompute_slice_activation,
        )
    elif how is True:
        layer.recompute()
    return layer


def _summed(losses: Sequence[Made]) -> Made:
    """Return the sums of what each part returns."""
    return tuple(reduce(operator.add, each) for each in zip(*losses, strict=True))


def _stack(
    layers: Sequence[Cell], offset: int, config: OpParallelConfig, given: Configure | None
) -> CellList:
    """Return layers that are set to what a configuration says of them."""
    count = len(layers)
    return CellList(
        [_configured(one, i, offset, config, count, given) for i, one in enumerate(layers)]
    )


class TransformerEncoder(Cell):
    """Layers of an encoder.

    Parameters
    ----------
    num_layers, seq_length : int
        Number of layers, and length of the sequences.
    lambda_func : callable, optional
        Sets the stage and such of a layer, in the place of what `parallel_config` says: takes the
        layer, its number, `offset`, the configuration, and the number of layers.
    offset : int
        Number of layers before these.
    **options
        Those of `Options`.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        seq_length: int,
        lambda_func: Configure | None = None,
        offset: int = 0,
        **options: Any,
    ) -> None:
        with as_mindspore():
            check_sizes(num_layers=num_layers, seq_length=seq_length)
        config = _options(options).parallel_config
        made = [
            TransformerEncoderLayer(seq_length=seq_length, **options) for _ in range(num_layers)
        ]
        self.blocks = _stack(made, offset, config, lambda_func)

    def construct(
        self, hidden_states: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, tuple[None, ...], *Made]:
        """Return the outputs, no past keys and values, and the loss of experts if there are any."""
        losses = []
        for block in self.blocks:
            hidden_states, _, *own = block(hidden_states, attention_mask)
            losses.append(tuple(own))
        return hidden_states, (None,) * len(self.blocks), *_summed(losses)


class TransformerDecoder(Cell):
    """Layers of a decoder.

    Parameters
    ----------
    num_layers, src_seq_length, tgt_seq_length : int
        Number of layers, and length of the sequences of the encoder and of its own.
    lambda_func, offset, **options
        As of `TransformerEncoder`.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        src_seq_length: int,
        tgt_seq_length: int,
        lambda_func: Configure | None = None,
        offset: int = 0,
        **options: Any,
    ) -> None:
        lengths = {"src_seq_length": src_seq_length, "tgt_seq_length": tgt_seq_length}
        with as_mindspore():
            check_sizes(num_layers=num_layers, **lengths)
        config = _options(options).parallel_config
        made = [TransformerDecoderLayer(**lengths, **options) for _ in range(num_layers)]
        self.blocks = _stack(made, offset, config, lambda_func)

    def construct(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        encoder_output: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, tuple[None, ...], *Made]:
        """Return the outputs, no past keys and values, and the loss of experts if there are any."""
        losses = []
        for block in self.blocks:
            inputs = (hidden_states, attention_mask, encoder_output, memory_mask)
            hidden_states, _, *own = block(*inputs)
            losses.append(tuple(own))
        return hidden_states, (None,) * len(self.blocks), *_summed(losses)


class Transformer(Cell):
    """An encoder, and a decoder that reads what it makes; or an encoder alone.

    Parameters
    ----------
    src_seq_length, tgt_seq_length : int
        Length of the sequences of the encoder, and of the decoder.
    encoder_layers, decoder_layers : int
        Number of layers.
    num_heads : int
        Number of heads.
    lambda_func, **options
        As of `TransformerEncoder`.

    Raises
    ------
    OptionError
        If there is a decoder without an encoder, or the mode searches by another way than sharding
        propagation.
    """

    def __init__(
        self,
        *,
        src_seq_length: int,
        tgt_seq_length: int,
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        num_heads: int = 2,
        lambda_func: Configure | None = None,
        **options: Any,
    ) -> None:
        options["num_heads"] = num_heads
        get = get_auto_parallel_context
        searched = get("parallel_mode") == ParallelMode.AUTO_PARALLEL
        lengths = {"src_seq_length": src_seq_length, "tgt_seq_length": tgt_seq_length}
        with as_mindspore():
            if searched and get("search_mode") != "sharding_propagation":
                expected = "`sharding_propagation` with strategies of a transformer"
                raise wrong_value("search_mode", get("search_mode"), expected)
            check_sizes(**lengths)
            for name, count in (
                ("encoder_layers", encoder_layers),
                ("decoder_layers", decoder_layers),
            ):
                if not isinstance(count, int) or isinstance(count, bool):
                    raise of_type(wrong_value(name, count, "a number of layers"))
            if encoder_layers <= 0:
                raise OptionError(
                    f"`encoder_layers` is {encoder_layers}, expected one or more",
                    hint="write a decoder alone as a `TransformerDecoder`",
                )
        own, total = _options(options), encoder_layers + max(decoder_layers, 0)
        config = own.parallel_config

        def configure(layer: Cell, at: int, offset: int, *_: Any) -> None:
            _configured(layer, at, offset, config, total, lambda_func)

        self.encoder = TransformerEncoder(
            num_layers=encoder_layers, seq_length=src_seq_length, lambda_func=configure, **options
        )
        self.decoder = None
        if decoder_layers > 0:
            self.decoder = TransformerDecoder(
                num_layers=decoder_layers,
                lambda_func=configure,
                offset=encoder_layers,
                **lengths,
                **options,
            )

    def construct(
        self,
        encoder_inputs: Tensor,
        encoder_masks: Tensor | None,
        decoder_inputs: Tensor | None = None,
        decoder_masks: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, tuple[None, ...], tuple[None, ...] | None, *Made]:
        """Return the outputs of the decoder, or of the encoder alone; no past keys and values.

        The loss of all experts is last, if there are any.
        """
        output, past, *losses = self.encoder(encoder_inputs, encoder_masks)
        if self.decoder is None:
            return output, past, None, *losses
        if decoder_inputs is None:
            raise OptionError("`decoder_inputs` is none, expected what the decoder reads")
        made, own, *more = self.decoder(decoder_inputs, decoder_masks, output, memory_mask)
        return made, past, own, *_summed([tuple(losses), tuple(more)])

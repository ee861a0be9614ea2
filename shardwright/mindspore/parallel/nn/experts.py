"""Experts with MindSpore's arguments: a router with capacities, and feed-forward parts."""

from math import ceil

from shardwright import nn
from shardwright.ir.errors import ModelError
from shardwright.mindspore.errors import as_mindspore
from shardwright.mindspore.ops import operations as ops
from shardwright.mindspore.parallel.nn.config import (
    MoEConfig,
    OpParallelConfig,
    check_config,
    parts_of_experts,
)
from shardwright.mindspore.parallel.nn.layers import FeedForward
from shardwright.nn.cell import Cell
from shardwright.tensor import Tensor, apply, apply_all


class Router(Cell):
    """Sends each token to experts, which take no more of a group than their capacity.

    Each of the choices of a token takes the expert of the greatest probability among those that
    have not taken it yet. Choices that are made first have the room first, and in each of them the
    tokens in their order.

    Parameters
    ----------
    hidden_size : int
        Size of a token.
    moe_config : MoEConfig
        How many experts there are, how many a token is sent to, and their capacity.
    parallel_config : OpParallelConfig
        How it is spread.
    """

    def __init__(
        self, hidden_size: int, moe_config: MoEConfig, parallel_config: OpParallelConfig
    ) -> None:
        dp = parallel_config.data_parallel
        self._config = moe_config
        self.dense = nn.Dense(hidden_size, moe_config.expert_num, "normal", has_bias=False)
        self.dense.matmul.shard(((dp, 1), (1, 1)))
        self.softmax = ops.Softmax().shard(((dp, 1, 1),))

    def construct(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights ``[group, token, expert, place]``, and the loss of balance."""
        config = self._config
        groups, count, hidden = tokens.shape
        rows = tokens.astype("float32").reshape((-1, hidden))
        shape = (groups, count, config.expert_num)
        shares = self.softmax(self.dense(rows).reshape(shape))
        taken: Tensor | float = 0.0  # one where an expert has taken the token
        before: Tensor | float = 0.0  # how many tokens an expert has taken in choices before
        weights: Tensor | None = None
        loss: Tensor | None = None
        for _ in range(config.num_experts_chosen):
            shares = shares * (1.0 - taken)
            gates, experts = (item[..., 0] for item in apply_all("top_k", shares, k=1, axis=-1))
            chosen = apply("one_hot", experts, depth=config.expert_num, dtype="float32")
            balance = self._balance(chosen, shares)
            kept, place = self._placed(chosen, before)
            choice = apply("expand_dims", kept * apply("expand_dims", gates, axis=-1), axis=-1)
            choice = choice * place
            loss = balance if loss is None else loss + balance
            weights = choice if weights is None else weights + choice
            taken, before = taken + kept, before + kept.sum(1, keep_dims=True)
        assert weights is not None
        assert loss is not None
        return _shares(weights, (-2, -1)), loss

    def _balance(self, chosen: Tensor, shares: Tensor) -> Tensor:
        """Return the loss that is least where experts are chosen equally often."""
        return (chosen.mean(1) * _shares(shares, -1).mean(1)).mean() * float(
            self._config.expert_num**2
        )

    def _placed(self, chosen: Tensor, before: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return the choices that find room, and the place of each in its expert."""
        room = capacity(self._config, chosen.shape[1])
        place = (apply("cumsum", chosen, axis=1, exclusive=True) + before) * chosen
        kept = (place < float(room)).astype("float32") * chosen
        return kept, apply("one_hot", place.astype("int32"), depth=room, dtype="float32")


def _shares(x: Tensor, axis: int | tuple[int, ...]) -> Tensor:
    """Return numbers divided by their sum, which may be zero, as MindSpore divides them."""
    return x / (x.sum(axis, keep_dims=True) + 1e-9)


def capacity(config: MoEConfig, tokens: int) -> int:
    """Return how many tokens of a group an expert takes."""
    return ceil(config.num_experts_chosen * tokens * config.capacity_factor / config.expert_num)


class MoE(Cell):
    """Feed-forward parts, of which a token goes through the few that a router sends it to.

    The tokens of each of ``data_parallel`` parts of the batch are a group: experts take as many of
    each as their capacity. A token that finds no room is zero afterwards.

    Parameters
    ----------
    hidden_size, ffn_hidden_size : int
        Size outside and inside an expert.
    dropout_rate : float
        Probability of a zero at the end.
    hidden_act : str or class of Cell
        The activation.
    param_init_type : str
        Element type of the parameters.
    moe_config : MoEConfig, optional
        The experts.
    parallel_config : OpParallelConfig, optional
        How they are spread.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        dropout_rate: float,
        hidden_act: str | type[Cell] = "gelu",
        param_init_type: str = "float32",
        moe_config: MoEConfig | None = None,
        parallel_config: OpParallelConfig | None = None,
    ) -> None:
        config = MoEConfig() if moe_config is None else moe_config
        spread = OpParallelConfig() if parallel_config is None else parallel_config
        with as_mindspore():
            check_config(spread, config)
        self._config, self._groups = config, spread.data_parallel
        self._parts = parts_of_experts(spread)
        self.router = Router(hidden_size, config, spread)
        self.ffn = FeedForward(
            hidden_size,
            ffn_hidden_size,
            dropout_rate,
            hidden_act,
            config.expert_num,
            param_init_type=param_init_type,
            parallel_config=spread,
        )
        split = (self._groups, 1, 1)
        self.dispatch = ops.BatchMatMul(transpose_a=True).shard((split, split))
        self.combine = ops.BatchMatMul().shard((split, split))

    def construct(self, input_tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs, and the weighted loss of balance."""
        shape, groups = input_tensor.shape, self._groups
        rows = input_tensor.reshape((-1, shape[-1]))
        if rows.shape[0] % groups:
            raise ModelError(
                f"experts are given {rows.shape[0]} tokens, expected a multiple of the "
                f"`data_parallel` of their configuration, {groups}"
            )
        tokens = rows.reshape((groups, rows.shape[0] // groups, shape[-1]))
        weights, loss = self.router(tokens)
        weights = weights.reshape((*tokens.shape[:2], -1))
        sent = (weights != 0.0).astype(tokens.dtype)
        made = self._through(self.dispatch(sent, tokens))
        output: Tensor = self.combine(weights.astype(made.dtype), made).reshape(shape)
        return output, loss * float(self._config.aux_loss_factor)

    def _through(self, sent: Tensor) -> Tensor:
        """Return what experts make of ``[group, expert and place, hidden]``."""
        experts, parts = self._config.expert_num, self._parts
        apart = (self._groups // parts, parts, experts, sent.shape[1] // experts, sent.shape[2])
        rows = sent.reshape(apart).transpose((0, 2, 1, 3, 4))
        made = self.ffn(rows.reshape((-1, sent.shape[2]))).reshape(rows.shape)
        return made.transpose((0, 2, 1, 3, 4)).reshape(sent.shape)

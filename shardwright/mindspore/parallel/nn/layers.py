"""Parts of transformers with their strategies: attention, feed-forward, a table, the loss.

Products are of float16, as in MindSpore; tensors are ``[batch, position, hidden]`` or have the
first two dimensions as one.
"""

from functools import partial
from typing import Any

from shardwright import nn
from shardwright.frontends.common.patterns.masks import MASKED
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.values import SHARE, check_type, of_type, wrong_value
from shardwright.mindspore.errors import as_mindspore
from shardwright.mindspore.ops import operations as ops
from shardwright.mindspore.parallel.nn.config import (
    EmbeddingOpParallelConfig,
    MoEConfig,
    OpParallelConfig,
    check_config,
    integer,
    parts_of_experts,
)
from shardwright.nn.cell import Cell
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply

_REAL = ("float16", "float32")


def check_sizes(**sizes: Any) -> None:
    """Check positive integers.

    Raises
    ------
    OptionError
        If one is none.
    """
    for name, size in sizes.items():
        integer(name, size)


def check_rates(**rates: Any) -> None:
    """Check probabilities of a zero.

    Raises
    ------
    OptionError
        If one is none.
    """
    for name, rate in rates.items():
        check_type(name, rate, float)
        SHARE.check(name, rate)


def check_real(**types: Any) -> None:
    """Check element types of real numbers.

    Raises
    ------
    OptionError
        If one is another.
    """
    for name, kind in types.items():
        if kind not in _REAL:
            raise of_type(wrong_value(name, kind, "float16 or float32"))


def check_tensor(name: str, tensor: Tensor, ranks: tuple[int, ...], types: tuple[str, ...]) -> None:
    """Check the number of dimensions and the element type of an input.

    Raises
    ------
    ModelError, OptionError
        If it has another.
    """
    if tensor.ndim not in ranks:
        expected = " or ".join(map(str, ranks))
        raise ModelError(f"`{name}` has the shape {tensor.shape}, expected {expected} dimensions")
    if tensor.dtype not in types:
        raise of_type(wrong_value(name, tensor.dtype, " or ".join(types)))


def dense(
    inputs: int, outputs: int, config: OpParallelConfig, wide: bool, dtype: str, act: Any = None
) -> nn.Dense:
    """Return a product of rows whose outputs are split, or else whose inputs are."""
    dp, mp = config.data_parallel, config.model_parallel
    made = nn.Dense(inputs, outputs, activation=act, dtype=dtype)
    made.matmul.shard(((dp, 1), (mp, 1)) if wide else ((dp, mp), (1, mp)))
    made.bias_add.shard(((dp, mp), (mp,)) if wide else ((dp, 1), (1,)))
    made.to_float("float16")
    return made


class ExpertDense(Cell):
    """Products of rows ``[data part, expert, token]`` with the matrices of their experts.

    Parameters
    ----------
    experts, inputs, outputs : int
        Number of experts, and size of the last dimension before and after.
    config : OpParallelConfig
        How they are spread.
    wide : bool
        Whether the outputs are split, or else the inputs.
    dtype : str
        Element type of the parameters.
    act : str or Cell, optional
        The activation.
    """

    def __init__(
        self,
        experts: int,
        inputs: int,
        outputs: int,
        config: OpParallelConfig,
        wide: bool,
        dtype: str,
        act: Any = None,
    ) -> None:
        ep, mp = parts_of_experts(config), config.model_parallel
        self._parts = dp = config.data_parallel // ep
        self.weight = Parameter("normal", shape=(experts, inputs, outputs), dtype=dtype)
        bias = (1, experts, 1, outputs)
        self.bias = Parameter("zeros", shape=bias, dtype=dtype, parallel_optimizer=False)
        self.matmul, self.bias_add = ops.BatchMatMul(), ops.Add()
        if wide:
            self.matmul.shard(((dp, ep, 1, 1), (ep, 1, mp)))
            self.bias_add.shard(((dp, ep, 1, mp), (1, ep, 1, mp)))
        else:
            self.matmul.shard(((dp, ep, 1, mp), (ep, mp, 1)))
            self.bias_add.shard(((dp, ep, 1, 1), (1, ep, 1, 1)))
        self.activation = nn.get_activation(act) if isinstance(act, str) else act
        self.to_float("float16")

    def construct(self, x: Tensor) -> Tensor:
        """Multiply, add, activate."""
        experts, inputs, outputs = self.weight.shape
        if x.size // inputs % (self._parts * experts):
            raise ModelError(
                f"{experts} experts on {self._parts} parts of the batch are given rows of the "
                f"shape {x.shape}, expected as many rows for each"
            )
        rows = x.reshape((self._parts, experts, -1, inputs))
        made = self.bias_add(self.matmul(rows, self.weight), self.bias)
        made = made if self.activation is None else self.activation(made)
        return made.reshape((*x.shape[:-1], outputs))


def divide(size: str, number: int, by: str, parts: int) -> None:
    """Check that a size is a multiple of a number of parts.

    Raises
    ------
    OptionError
        If it is none.
    """
    if number % parts:
        raise wrong_value(size, number, f"a multiple of `{by}`, {parts}")


class MultiHeadAttention(Cell):
    """Attention of queries to keys and values, whose heads are split.

    Parameters
    ----------
    batch_size : int
        Number of sequences; that of the inputs is taken.
    src_seq_length, tgt_seq_length : int
        Length of the sequences of the queries, and of those that are read.
    hidden_size, num_heads : int
        Size of the last dimension, and number of heads.
    hidden_dropout_rate, attention_dropout_rate : float
        Probability of a zero at the end, and in the weights.
    compute_dtype : str
        Must be float16.
    softmax_compute_type, param_init_type : str
        Element types of the softmax and of the parameters.
    use_past : bool
        Must be False.
    parallel_config : OpParallelConfig, optional
        How it is spread.
    """

    def __init__(
        self,
        batch_size: int | None,
        src_seq_length: int,
        tgt_seq_length: int,
        hidden_size: int,
        num_heads: int,
        hidden_dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.1,
        compute_dtype: str = "float16",
        softmax_compute_type: str = "float32",
        param_init_type: str = "float32",
        use_past: bool = False,
        parallel_config: OpParallelConfig | None = None,
    ) -> None:
        config = OpParallelConfig() if parallel_config is None else parallel_config
        with as_mindspore():
            check_config(config, MoEConfig())
            check_sizes(hidden_size=hidden_size, num_heads=num_heads)
            check_sizes(src_seq_length=src_seq_length, tgt_seq_length=tgt_seq_length)
            check_rates(
                hidden_dropout_rate=hidden_dropout_rate,
                attention_dropout_rate=attention_dropout_rate,
            )
            check_real(softmax_compute_type=softmax_compute_type, param_init_type=param_init_type)
            if compute_dtype != "float16":
                raise wrong_value("compute_dtype", compute_dtype, "float16")
            if use_past is not False:
                raise wrong_value("use_past", use_past, "False", "generate with `shardwright.zoo`")
            divide("hidden_size", hidden_size, "num_heads", num_heads)
            divide("num_heads", num_heads, "model_parallel", config.model_parallel)
        dp, mp = config.data_parallel, config.model_parallel
        self.num_heads, self.softmax_type = num_heads, softmax_compute_type
        self.lengths = (src_seq_length, tgt_seq_length)
        self.dense1, self.dense2, self.dense3 = (
            dense(hidden_size, hidden_size, config, True, param_init_type) for _ in range(3)
        )
        self.projection = dense(hidden_size, hidden_size, config, False, param_init_type)
        heads = (dp, mp, 1, 1)
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.read = ops.BatchMatMul().shard((heads, heads))
        self.softmax = ops.Softmax().shard((heads,))
        self.dropout = nn.Dropout(hidden_dropout_rate)
        self.prob_dropout = nn.Dropout(attention_dropout_rate)

    def construct(
        self,
        query_tensor: Tensor,
        key_tensor: Tensor,
        value_tensor: Tensor,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend; a mask ``[batch, query, key]`` is one where a query reads a key."""
        source, target = self.lengths
        query = self._by_head(self.dense1, query_tensor, source)
        key = self._by_head(self.dense2, key_tensor, target)
        value = self._by_head(self.dense3, value_tensor, target)
        root = float(query.shape[-1]) ** 0.25
        scores = self.scores(query / root, key / root).astype(self.softmax_type)
        if attention_mask is not None:
            kept = apply("expand_dims", attention_mask.astype(self.softmax_type), axis=1)
            scores = scores + (1.0 - kept) * MASKED
        weights = self.prob_dropout(self.softmax(scores).astype("float16"))
        joined = self.read(weights, value).transpose((0, 2, 1, 3))
        rows = joined.reshape((-1, query_tensor.shape[-1]))
        return self.dropout(self.projection(rows)).reshape(query_tensor.shape)

    def _by_head(self, product: Cell, x: Tensor, length: int) -> Tensor:
        """Return ``[batch, head, position, feature]``."""
        rows = x.reshape((-1, x.shape[-1]))
        if rows.shape[0] % length:
            raise ModelError(f"an input has the shape {x.shape}, expected sequences of {length}")
        size = x.shape[-1] // self.num_heads
        made: Tensor = product(rows).reshape((-1, length, self.num_heads, size))
        return made.transpose((0, 2, 1, 3))


class FeedForward(Cell):
    """Two products with an activation in between, whose inner dimension is split.

    Parameters
    ----------
    hidden_size, ffn_hidden_size : int
        Size outside and inside.
    dropout_rate : float
        Probability of a zero at the end.
    hidden_act : str or class of Cell
        The activation.
    expert_num : int
        Number of experts; rows are ``[data part, expert, token]`` where there are several.
    expert_group_size : int, optional
        Has no meaning here; see `MoEConfig`.
    param_init_type : str
        Element type of the parameters.
    parallel_config : OpParallelConfig, optional
        How it is spread.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        dropout_rate: float,
        hidden_act: Any = "gelu",
        expert_num: int = 1,
        expert_group_size: int | None = None,
        param_init_type: str = "float32",
        parallel_config: OpParallelConfig | None = None,
    ) -> None:
        config = OpParallelConfig() if parallel_config is None else parallel_config
        with as_mindspore():
            check_config(config, MoEConfig(expert_num, expert_group_size=expert_group_size))
            check_sizes(hidden_size=hidden_size, ffn_hidden_size=ffn_hidden_size)
            check_rates(dropout_rate=dropout_rate)
            check_real(param_init_type=param_init_type)
            divide("ffn_hidden_size", ffn_hidden_size, "model_parallel", config.model_parallel)
            divide("hidden_size", hidden_size, "model_parallel", config.model_parallel)
            if not isinstance(hidden_act, str):
                if not (isinstance(hidden_act, type) and issubclass(hidden_act, Cell)):
                    expected = "a name, or a class of `Cell`"
                    raise of_type(wrong_value("hidden_act", hidden_act, expected))
                hidden_act = hidden_act()
        kind = param_init_type
        product = dense if expert_num == 1 else partial(ExpertDense, expert_num)
        self.mapping = product(hidden_size, ffn_hidden_size, config, True, kind, hidden_act)
        self.projection = product(ffn_hidden_size, hidden_size, config, False, kind)
        self.dropout = nn.Dropout(dropout_rate)

    def construct(self, x: Tensor) -> Tensor:
        """Widen, activate, narrow."""
        check_tensor("x", x, (2, 3), _REAL)
        rows = x.reshape((-1, x.shape[-1]))
        return self.dropout(self.projection(self.mapping(rows))).reshape(x.shape)


class VocabEmbedding(Cell):
    """Rows of a table; returns the table too.

    Parameters
    ----------
    vocab_size, embedding_size : int
        Rows and columns of the table.
    parallel_config : EmbeddingOpParallelConfig, optional
        How it is spread.
    param_init : str
        How the table begins.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        parallel_config: EmbeddingOpParallelConfig | None = None,
        param_init: str = "normal",
    ) -> None:
        config = EmbeddingOpParallelConfig() if parallel_config is None else parallel_config
        with as_mindspore():
            check_config(config, MoEConfig())
            check_sizes(vocab_size=vocab_size, embedding_size=embedding_size)
            parts = 1 if config.vocab_emb_dp else config.model_parallel
            divide("vocab_size", vocab_size, "model_parallel", parts)
        self.embedding_table = Parameter(
            param_init, shape=(vocab_size, embedding_size), parallel_optimizer=False
        )
        self.gather = ops.Gather().shard(((parts, 1), (config.data_parallel, 1)))

    def construct(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows, and the table."""
        check_tensor("input_ids", input_ids, (2,), ("int32",))
        return self.gather(self.embedding_table, input_ids, 0), self.embedding_table


class CrossEntropyLoss(Cell):
    """The mean loss of rows of logits that a mask chooses.

    Parameters
    ----------
    parallel_config : OpParallelConfig, optional
        How it is spread.
    """

    def __init__(self, parallel_config: OpParallelConfig | None = None) -> None:
        config = OpParallelConfig() if parallel_config is None else parallel_config
        with as_mindspore():
            check_config(config, MoEConfig())
        dp, mp = config.data_parallel, config.model_parallel
        self.log_softmax = ops.LogSoftmax().shard(((dp, 1),))
        self.one_hot = ops.OneHot().shard(((dp, mp), (), ()))

    def construct(self, logits: Tensor, label: Tensor, input_mask: Tensor) -> Tensor:
        """Return the mean; the labels are classes."""
        check_tensor("logits", logits, (2,), _REAL)
        check_tensor("label", label, (1,), ("int32",))
        check_tensor("input_mask", input_mask, (1,), ("float32",))
        log = self.log_softmax(logits.astype("float32"))
        chosen = self.one_hot(label, logits.shape[-1], 1.0, 0.0)
        losses = -(log * chosen).sum(axis=-1)
        return (losses * input_mask).sum() / (input_mask.sum() + 1e-5)


class FixedSparseAttention(Cell):
    """Refused: no operator of this package computes blocks of a score matrix alone."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        raise OptionError(
            "`FixedSparseAttention` is not supported: scores are not computed by blocks",
            hint="use `MultiHeadAttention` with a mask",
        )

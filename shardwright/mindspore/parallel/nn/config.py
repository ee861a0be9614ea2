"""How transformers are spread: over how many parts of the batch, of the weights, and stages."""

from typing import Any

from shardwright.ir.errors import OptionError
from shardwright.ir.values import POSITIVE_INTEGER, Range, check_flag, of_type, wrong_value
from shardwright.mindspore.context import (
    get_auto_parallel_context,
    set_auto_parallel_context,
    splits_operators,
)
from shardwright.mindspore.errors import as_mindspore

_FLAGS = (
    "vocab_emb_dp",
    "optimizer_shard",
    "parallel_optimizer_comm_recompute",
    "mp_comm_recompute",
    "recompute_slice_activation",
)


class _Config:
    """Settings that are checked when they are made."""

    def __setattr__(self, name: str, value: Any) -> None:
        with as_mindspore():
            self._check(name, value)
        super().__setattr__(name, value)

    def _check(self, name: str, value: Any) -> None:
        if name in _FLAGS:
            check_flag(name, value)
        else:
            integer(name, value)


def integer(name: str, value: Any) -> None:
    """Check a positive integer.

    Raises
    ------
    OptionError
        If it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise of_type(wrong_value(name, value, "a positive integer"))
    POSITIVE_INTEGER.check(name, value)


class OpParallelConfig(_Config):
    """Over how many parts an operator is spread.

    Parameters
    ----------
    data_parallel : int
        Parts of the batch.
    model_parallel : int
        Parts of the weights.
    """

    def __init__(self, data_parallel: int = 1, model_parallel: int = 1) -> None:
        self.data_parallel, self.model_parallel = data_parallel, model_parallel


class EmbeddingOpParallelConfig(OpParallelConfig):
    """Over how many parts a table is spread.

    Parameters
    ----------
    data_parallel : int
        Parts of the batch.
    model_parallel : int
        Parts of the rows of the table.
    vocab_emb_dp : bool
        Whether the table is whole on every rank.
    """

    def __init__(
        self, data_parallel: int = 1, model_parallel: int = 1, vocab_emb_dp: bool = True
    ) -> None:
        super().__init__(data_parallel, model_parallel)
        self.vocab_emb_dp = vocab_emb_dp

    @property
    def dp_mp_config(self) -> OpParallelConfig:
        """The numbers alone."""
        return OpParallelConfig(self.data_parallel, self.model_parallel)


class TransformerRecomputeConfig(_Config):
    """What layers recompute in the backward pass; see `Cell.recompute`.

    Parameters
    ----------
    recompute : bool
        Whether they recompute.
    parallel_optimizer_comm_recompute, mp_comm_recompute, recompute_slice_activation : bool
        As there.
    """

    def __init__(
        self,
        recompute: bool = False,
        parallel_optimizer_comm_recompute: bool = False,
        mp_comm_recompute: bool = True,
        recompute_slice_activation: bool = False,
    ) -> None:
        self.recompute = recompute
        self.parallel_optimizer_comm_recompute = parallel_optimizer_comm_recompute
        self.mp_comm_recompute = mp_comm_recompute
        self.recompute_slice_activation = recompute_slice_activation

    def _check(self, name: str, value: Any) -> None:
        check_flag(name, value)


class MoEConfig(_Config):
    """Experts in the place of feed-forward parts; one is none.

    Parameters
    ----------
    expert_num : int
        Number of experts.
    capacity_factor, aux_loss_factor : float
        The capacity of an expert, as a multiple of its share of the choices of a group, and the
        weight of the loss of balance.
    num_experts_chosen : int
        How many each token is sent to.
    expert_group_size : int, optional
        Has no meaning here: it is for searches that a transformer refuses.
    group_wise_a2a, comp_comm_parallel : bool
        Have no meaning here: the compiler chooses the communication, values are the same.
    comp_comm_parallel_degree : int
        Has none either.
    """

    def __init__(
        self,
        expert_num: int = 1,
        capacity_factor: float = 1.1,
        aux_loss_factor: float = 0.05,
        num_experts_chosen: int = 1,
        expert_group_size: int | None = None,
        group_wise_a2a: bool = False,
        comp_comm_parallel: bool = False,
        comp_comm_parallel_degree: int = 2,
    ) -> None:
        self.expert_num, self.num_experts_chosen = expert_num, num_experts_chosen
        self.capacity_factor, self.aux_loss_factor = capacity_factor, aux_loss_factor
        self.expert_group_size = expert_group_size
        self.group_wise_a2a, self.comp_comm_parallel = group_wise_a2a, comp_comm_parallel
        self.comp_comm_parallel_degree = comp_comm_parallel_degree
        if num_experts_chosen > expert_num:
            expected = f"at most `expert_num`, {expert_num}"
            with as_mindspore():
                raise wrong_value("num_experts_chosen", num_experts_chosen, expected)

    def _check(self, name: str, value: Any) -> None:
        if name == "capacity_factor":
            Range(least=1.0).check(name, value)
        elif name == "aux_loss_factor":
            Range(above=0, below=1).check(name, value)
        elif name in ("group_wise_a2a", "comp_comm_parallel"):
            check_flag(name, value)
        elif name != "expert_group_size" or value is not None:
            integer(name, value)


class MoEParallelConfig(OpParallelConfig):
    """Over how many parts feed-forward parts of experts are spread.

    Parameters
    ----------
    data_parallel, model_parallel, expert_parallel : int
        Parts of the batch, of the weights, and of the experts.
    """

    def __init__(
        self, data_parallel: int = 1, model_parallel: int = 1, expert_parallel: int = 1
    ) -> None:
        super().__init__(data_parallel, model_parallel)
        self.expert_parallel = expert_parallel

    @property
    def dpmp(self) -> OpParallelConfig:
        """The numbers of other parts."""
        return OpParallelConfig(self.data_parallel, self.model_parallel)


class TransformerOpParallelConfig(EmbeddingOpParallelConfig):
    """How a transformer is spread.

    The number of stages, and an `optimizer_shard` of True, are set in the parallel context too.

    Parameters
    ----------
    data_parallel, model_parallel, expert_parallel : int
        Parts of the batch, of the weights, and of the experts.
    pipeline_stage : int
        Number of pipeline stages.
    micro_batch_num : int
        Number of micro-batches; `PipelineCell` is given it.
    recompute : TransformerRecomputeConfig or bool
        What layers recompute.
    optimizer_shard : bool
        Whether the optimizer is divided over ranks with the same weights.
    gradient_aggregation_group : int
        Number of groups in which the gradients of layers are reduced.
    vocab_emb_dp : bool
        Whether tables are whole on every rank.
    """

    def __init__(
        self,
        data_parallel: int = 1,
        model_parallel: int = 1,
        expert_parallel: int = 1,
        pipeline_stage: int = 1,
        micro_batch_num: int = 1,
        recompute: TransformerRecomputeConfig | bool | None = None,
        optimizer_shard: bool = False,
        gradient_aggregation_group: int = 4,
        vocab_emb_dp: bool = True,
    ) -> None:
        super().__init__(data_parallel, model_parallel, vocab_emb_dp)
        self.expert_parallel = expert_parallel
        self.pipeline_stage, self.micro_batch_num = pipeline_stage, micro_batch_num
        self.recompute = TransformerRecomputeConfig() if recompute is None else recompute
        self.optimizer_shard = optimizer_shard
        self.gradient_aggregation_group = gradient_aggregation_group

    def _check(self, name: str, value: Any) -> None:
        if name != "recompute":
            super()._check(name, value)
        elif not isinstance(value, TransformerRecomputeConfig | bool):
            expected = "a `TransformerRecomputeConfig`, True or False"
            raise of_type(wrong_value(name, value, expected))
        if name == "pipeline_stage":
            set_auto_parallel_context(pipeline_stages=value)
        elif name == "optimizer_shard" and value:
            set_auto_parallel_context(enable_parallel_optimizer=True)

    @property
    def moe_parallel_config(self) -> MoEParallelConfig:
        """What experts are given."""
        return MoEParallelConfig(self.data_parallel, self.model_parallel, self.expert_parallel)

    @property
    def embedding_dp_mp_config(self) -> EmbeddingOpParallelConfig:
        """What tables are given."""
        return EmbeddingOpParallelConfig(self.data_parallel, self.model_parallel, self.vocab_emb_dp)


def check_config(config: Any, moe_config: MoEConfig) -> None:
    """Refuse a configuration that does not fit the parallel context.

    Raises
    ------
    OptionError
        If it has other stages or more parts than devices, or experts that it cannot spread.
    """
    get = get_auto_parallel_context
    if not isinstance(config, OpParallelConfig):
        raise of_type(wrong_value("parallel_config", config, "an `OpParallelConfig`"))
    if not isinstance(moe_config, MoEConfig):
        raise of_type(wrong_value("moe_config", moe_config, "a `MoEConfig`"))
    stages, devices = get("pipeline_stages"), get("device_num")
    own = getattr(config, "pipeline_stage", stages)
    if own != stages:
        raise wrong_value("pipeline_stage", own, f"{stages}, that of the parallel context")
    if splits_operators():
        parts = config.data_parallel * config.model_parallel * stages
        if parts > devices:
            raise OptionError(
                f"`parallel_config` has {config.data_parallel} parts of the batch, "
                f"{config.model_parallel} of the weights and {stages} stages, expected at most "
                f"{devices} ranks"
            )
    if moe_config.expert_num > 1:
        experts = parts_of_experts(config)
        for name, number in (
            ("expert_num", moe_config.expert_num),
            ("data_parallel", config.data_parallel),
        ):
            if number % experts:
                raise wrong_value(name, number, f"a multiple of `expert_parallel`, {experts}")


def parts_of_experts(config: OpParallelConfig) -> int:
    """Return over how many parts experts are spread."""
    return getattr(config, "expert_parallel", 1)

"""Flags of Megatron-LM, Megatron-Core's training scripts: a model, a plan and a training.

The names are those of `megatron/training/arguments.py`. With bfloat16 Megatron reduces and
accumulates gradients in float32, unless `--grad-reduce-in-bf16` says otherwise.
"""

import re
from math import lcm
from typing import Any

from shardwright.dataflow.orders import InterleavedPairs
from shardwright.dataflow.recompute_rules import METHODS, MODULES, Layers
from shardwright.frontends.configs.layout import is_even, sizes_of
from shardwright.frontends.configs.reading import Fields, Reading
from shardwright.frontends.configs.recipes import of_megatron
from shardwright.frontends.configs.shell import flags_of
from shardwright.ir.values import in_words

_DEGREES = {
    "tensor": "tensor-model-parallel-size",
    "context": "context-parallel-size",
    "pipeline": "pipeline-model-parallel-size",
    "expert": "expert-model-parallel-size",
}
_RINGS = {"p2p": True, "all_gather": False}
_DISPATCHERS = ("alltoall", "allgather", "alltoall_seq", "flex")
_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_PADDED = 128  # the words of a tensor rank, of which the vocabulary is a multiple
_WORDS = {"GPT2BPETokenizer": ("GPT-2", 50257), "Llama2Tokenizer": ("Llama 2", 32000)}
_MODELS = ("gpt", "llama", "mixtral")  # in the names of scripts in Python that train a decoder
_SCHEDULES = ("rampup-batch-size", "step-batch-size-schedule")
_EACH = "num-layers-per-virtual-pipeline-stage"
_OF_MODELS = (
    *("num-layers", "hidden-size", "num-attention-heads", "seq-length", "vocab-size"),
    *("padded-vocab-size", "make-vocab-size-divisible-by", "ffn-hidden-size", "kv-channels"),
    *("group-query-attention", "num-query-groups", "swiglu", "position-embedding-type"),
    *("use-rotary-position-embeddings", "normalization", "rotary-base", "rotary-percent"),
    *("untie-embeddings-and-output-weights", "disable-bias-linear", "add-qkv-bias"),
    *("qk-layernorm", "hidden-dropout", "attention-dropout", "squared-relu"),
    *("no-position-embedding", "num-experts", "moe-router-topk", "moe-ffn-hidden-size"),
    *("moe-router-load-balancing-type", "moe-aux-loss-coeff"),
)
_NO_EFFECT = (
    *("adam-beta1", "adam-beta2", "adam-eps", "weight-decay", "clip-grad", "seed", "split"),
    *("min-lr", "train-iters", "train-samples", "init-method-std", "override-opt_param-scheduler"),
    *("master-addr", "master-port", "node-rank", "rdzv-id", "rdzv-backend", "rdzv-endpoint"),
    *("mock-data", "data-path", "data-cache-path", "train-data-path", "valid-data-path"),
    *("test-data-path", "vocab-file", "merge-file", "num-workers", "tiktoken-pattern", "profile"),
    *("use-mcore-models", "norm-epsilon", "weight-decay-incr-style", "loss-scale"),
    *("initial-loss-scale", "ckpt-format", "distributed-timeout-minutes", "exit-interval"),
    *("exit-duration-in-mins", "exit-on-missing-checkpoint", "override-opt-param-scheduler"),
    *("start-weight-decay", "end-weight-decay", "async-save", "auto-detect-ckpt-format"),
    *("hysteresis", "loss-scale-window", "min-loss-scale", "dataloader-type", "max-restarts"),
    *("manual-gc", "manual-gc-interval", "empty-unused-memory-level", "reset-position-ids"),
    *("reset-attention-mask", "eod-mask-loss", "no-create-attention-mask-in-dataloader"),
    *("no-mmap-bin-files", "no-load-optim", "no-load-rng", "no-save-optim", "no-save-rng"),
    *("finetune", "local-rank", "tee", "redirects", "max-position-embeddings"),
    *("lr", "apply-layernorm-1p", "check-for-nan-in-loss-and-grad", "dist-ckpt-format"),
    *("no-check-for-nan-in-loss-and-grad", "legacy-tokenizer", "use-dist-ckpt", "role"),
    *("init-model-with-meta-device", "logging-level", "record-memory-history"),
)
_NO_EFFECT_BEGINNINGS = (
    *("lr-", "save", "load", "log-", "eval-", "tensorboard-", "wandb-", "tokenizer-", "decoupled-"),
    *("profile-", "memory-snapshot", "timing-", "rope-scaling", "use-rope-scaling", "straggler-"),
    *("dist-ckpt-", "no-log-", "nccl-", "high-priority-"),
)
_SOFTWARE = (
    *("overlap-grad-reduce", "overlap-param-gather", "tp-comm-overlap", "use-flash-attn"),
    *("attention-backend", "attention-softmax-in-fp32", "cross-entropy-loss-fusion"),
    *("cross-entropy-fusion-impl", "no-masked-softmax-fusion", "no-bias-gelu-fusion"),
    *("no-bias-swiglu-fusion", "no-bias-dropout-fusion", "no-rope-fusion", "transformer-impl"),
    *("no-gradient-accumulation-fusion", "gradient-accumulation-fusion", "distributed-backend"),
    *("no-overlap-p2p-communication", "overlap-p2p-communication", "ddp-bucket-size"),
    *("ddp-average-in-collective", "calculate-per-token-loss", "align-grad-reduce"),
    *("no-persist-layer-norm", "overlap-param-gather-with-optimizer"),
    *("no-async-tensor-model-parallel-allreduce", "enable-cuda-graph", "cuda-graph-scope"),
    *("delay-grad-reduce", "use-nccl-ub", "fsdp-double-buffer", "fsdp-manual-registration"),
    *("moe-grouped-gemm", "moe-permute-fusion", "moe-router-fusion", "moe-enable-deepep"),
    *("moe-flex-dispatcher-backend", "moe-deepep-num-sms", "moe-hybridep-num-sms"),
    *("moe-shared-expert-overlap", "delay-wgrad-compute"),
    *("moe-use-legacy-grouped-gemm", "moe-router-padding-for-fp8", "moe-router-dtype"),
    *("moe-router-padding-for-quantization", "moe-per-layer-logging", "create-moe-param-group"),
)


def read(where: str, text: str, *, with_model: bool) -> Reading:
    """Return what a command line or a script of Megatron says.

    Parameters
    ----------
    where, text : str
        The file, and what it holds.
    with_model : bool
        Whether the model is read too; else its flags are told, and left alone.

    Raises
    ------
    ModelError
        If a flag is not supported.
    """
    reading = Reading(where)
    fields = Fields(reading, flags_of(reading, text), "--")
    other = [name for name in re.findall(r"pretrain_(\w+)\.py", text) if name not in _MODELS]
    if other and with_model:
        raise reading.error(
            f"it runs `pretrain_{other[0]}.py`, whose model is none of those of `pretrain_gpt.py`",
            "name the model, and give the file as the plan",
        )
    _read_plan(fields)
    _read_types(fields)
    if with_model:
        _read_model(fields)
    else:
        _leave_model(fields)
    fields.drop(_NO_EFFECT, _NO_EFFECT_BEGINNINGS)
    for name in [name for name in fields.left if name in _SOFTWARE]:
        reading.software.append(name)
        del fields.left[name]
    if fields.left:
        name, value = next(iter(fields.left.items()))
        shown = f"--{name}" if value is True else f"--{name} {value}"
        raise reading.error(
            f"the flag `{shown}` is not supported",
            "remove it where it changes neither step nor memory",
        )
    return reading


# The plan


def _read_plan(fields: Fields) -> None:
    reading, plan = fields.reading, fields.reading.plan
    for key, name in _DEGREES.items():
        degree = fields.count(name, 1)
        if degree > 1:
            plan[key] = degree
    nodes, each = fields.take("nnodes"), fields.take("nproc-per-node")
    if each is not None:
        numbers = (str(nodes or 1), str(each))
        if all(number.isdecimal() for number in numbers):
            reading.devices = int(numbers[0]) * int(numbers[1])
        else:
            reading.notes.append("the number of devices is set when the script runs")
    plan["micro_batch"] = fields.count("micro-batch-size")
    batch = fields.take("global-batch-size")
    if batch is not None:
        fields.left["global-batch-size"] = batch
        reading.sizes["batch"] = fields.count("global-batch-size")
    _read_growth(fields)
    _read_context(fields)
    _read_ranks_of_experts(fields)
    _read_stages(fields)
    _read_zero(fields)
    _read_recomputation(fields)
    if fields.take("sequence-parallel") is not None and plan.get("tensor", 1) > 1:
        plan["sequence_parallel"] = True


def _read_growth(fields: Fields) -> None:
    """Read the batches of the first steps: what is planned is the last one's."""
    reading = fields.reading
    for name in _SCHEDULES:
        value = fields.take(name)
        if value is not None and "batch" not in reading.sizes:
            raise reading.error(
                f"`--{name}` is `{value}`, and there is no `--global-batch-size`",
                "add that of the steps to plan",
            )
        if value is not None:
            reading.notes.append(f"`--{name}`: the step is that of the whole batch, not the first")


def _read_context(fields: Fields) -> None:
    """Read how keys and values pass between context ranks."""
    plan = fields.reading.plan
    how = fields.only("cp-comm-type", _RINGS, f"expected {' or '.join(_RINGS)}", "p2p")
    if plan.get("context", 1) > 1 and _RINGS[how]:
        plan["ring"] = True


def _read_ranks_of_experts(fields: Fields) -> None:
    """Read between which ranks experts are divided, and how their tokens come to them.

    The flags of DeepSpeed's branch count expert ranks among those of the batch.
    """
    reading, plan = fields.reading, fields.reading.plan
    tensor, other = plan.get("tensor", 1), "moe-expert-parallel-size"
    within = fields.count("expert-tensor-parallel-size", tensor)
    if other in fields.left:
        expert = fields.count(other)
        cut = fields.take("enable-expert-tensor-parallelism") is not None
        if expert > 1 and tensor > 1 and not cut:
            raise reading.refused(
                f"--{other}",
                expert,
                f"the {tensor} tensor ranks hold the same experts there, which no named plan says; "
                "it needs `--enable-expert-tensor-parallelism`",
            )
        if expert > 1:
            plan["expert"] = expert
    if within != tensor:
        plan["expert_tensor"] = within
    known = f"expected {', '.join(_DISPATCHERS)}"
    how = fields.only("moe-token-dispatcher-type", (None, *_DISPATCHERS), known)
    if plan.get("expert", 1) > 1 and how != _DISPATCHERS[0]:
        told = f"`{how}`" if how else f"`{_DISPATCHERS[1]}`, the default"
        reading.notes.append(
            f"`--moe-token-dispatcher-type` is {told}: the exchange is priced as all-to-all"
        )
    if fields.take("moe-router-force-load-balancing") is not None:
        reading.notes.append("the loads of experts are forced to be equal: `--imbalance 1` says so")


def _read_layout(fields: Fields, text: str) -> None:
    """Read the blocks of every stage: they must be those of a named plan."""
    reading, plan = fields.reading, fields.reading.plan
    name, groups = "--pipeline-model-parallel-layout", plan.get("pipeline", 1)
    sizes = sizes_of(text)
    if sizes is None:
        raise reading.refused(name, text, "expected the embedding, blocks, and the head with loss")
    if len(sizes) % groups:
        raise reading.refused(name, text, f"{len(sizes)} stages for {groups} device groups")
    if not is_even(sizes):
        raise reading.refused(
            name, text, "a named plan has as even stages as there are, the longer ones behind"
        )
    if len(sizes) > groups > 1:
        plan["chunks"] = len(sizes) // groups


def _read_stages(fields: Fields) -> None:
    """Read how a pipeline is interleaved."""
    reading, plan = fields.reading, fields.reading.plan
    stages = plan.get("pipeline", 1)
    layout = fields.take("pipeline-model-parallel-layout")
    if layout is not None:
        _read_layout(fields, str(layout))
    chunks = fields.count("num-virtual-stages-per-pipeline-rank", 1)
    if _EACH in fields.left:
        each = fields.count(_EACH)
        layers = Fields(reading, fields.left, "--").count("num-layers")
        if layers % (stages * each):
            raise reading.refused(
                f"--{_EACH}",
                each,
                f"{layers} layers are not divided so between {stages} device groups",
            )
        chunks = layers // (stages * each)
    if chunks > 1 and stages == 1:
        raise reading.error(
            f"there are {chunks} virtual stages and no pipeline",
            "add `--pipeline-model-parallel-size`",
        )
    if chunks > 1:
        plan["chunks"] = chunks
    if fields.take("overlap-moe-expert-parallel-comm") is not None:
        if plan.get("chunks", 1) > 1:
            plan["schedule"] = InterleavedPairs.name
        else:
            reading.notes.append(
                "`--overlap-moe-expert-parallel-comm` without virtual stages is not priced: "
                "computation waits for the exchanges of experts"
            )


def _read_zero(fields: Fields) -> None:
    reading, plan = fields.reading, fields.reading.plan
    strategy = fields.take("data-parallel-sharding-strategy", "no_shard")
    if strategy not in _SHARDING:
        known = ", ".join(_SHARDING)
        raise reading.refused("--data-parallel-sharding-strategy", strategy, f"expected {known}")
    zero = int(fields.take("use-distributed-optimizer") is not None)
    if fields.take("use-megatron-fsdp") is not None:
        zero = _SHARDING[strategy]
    elif strategy != "no_shard":
        raise reading.refused(
            "--data-parallel-sharding-strategy", strategy, "it needs `--use-megatron-fsdp`"
        )
    if fields.take("use-torch-fsdp2") is not None:
        zero = 3
    if zero:
        plan["zero"] = zero


def _read_recomputation(fields: Fields) -> None:
    reading = fields.reading
    what = fields.take("recompute-granularity")
    if fields.take("recompute-activations") is not None:
        what = "selective"
    method = fields.only(
        "recompute-method", (None, *METHODS), f"expected {in_words(METHODS)}", METHODS[-1]
    )
    count = fields.count("recompute-num-layers", 1)
    modules = fields.take("recompute-modules", "core_attn")
    if fields.take("moe-layer-recompute") is not None:
        modules, what = "moe", what or "selective"
    if what not in (None, "full", "selective"):
        raise reading.refused("--recompute-granularity", what, "expected full or selective")
    parts = modules.split()
    if what == "selective" and not set(parts) <= set(MODULES):
        raise reading.refused("--recompute-modules", modules, f"expected {in_words(MODULES)}")
    if what == "full":
        reading.plan["recompute"] = Layers(method, count).rule
    elif what is not None:
        reading.plan["recompute"] = "+".join(dict.fromkeys(parts))


def _read_types(fields: Fields) -> None:
    options = fields.reading.options
    lower = [n for n in ("bf16", "fp16") if fields.take(n) is not None]
    if len(lower) > 1:
        raise fields.reading.error(
            "`--bf16` and `--fp16` contradict each other", "keep one of them"
        )
    precision = {"bf16": "bfloat16", "fp16": "float16"}[lower[0]] if lower else "float32"
    options["precision"] = of_megatron(fields, precision)
    wide = fields.take("accumulate-allreduce-grads-in-fp32") is not None
    narrow = fields.take("grad-reduce-in-bf16") is not None
    if lower and (wide or (precision == "bfloat16" and not narrow)):
        options |= {"reduce_type": "float32", "accumulate_type": "float32"}
    kind = fields.only("optimizer", ("adam", "sgd"), "expected adam or sgd", "adam")
    if kind == "sgd" and fields.number("sgd-momentum", 0.9):
        kind = "momentum"
    options["optimizer"] = kind


# The model


def _leave_model(fields: Fields) -> None:
    """Note the flags of a model, where another one is given."""
    found = [name for name in fields.left if name in _OF_MODELS]
    if found:
        fields.reading.notes.append(f"the model is another one, so not read: {', '.join(found)}")
    for name in found:
        del fields.left[name]


def _read_model(fields: Fields) -> None:
    if "num-layers" not in fields.left:
        fields.reading.notes.append("the file describes no model (`--num-layers`)")
        return
    reading, sizes = fields.reading, fields.reading.sizes
    hidden, heads = fields.count("hidden-size"), fields.count("num-attention-heads")
    own: dict[str, Any] = {
        "layers": fields.count("num-layers"),
        "hidden": hidden,
        "heads": heads,
        "sequence": fields.count("seq-length"),
        "vocabulary": _vocabulary(fields),
    }
    reading.sizes = {**own, **sizes}
    gated, rotary = (
        fields.take(n) is not None for n in ("swiglu", "use-rotary-position-embeddings")
    )
    positions = fields.take("position-embedding-type", "rope" if rotary else "learned_absolute")
    norm = fields.take("normalization", "LayerNorm")
    form = gated, positions, norm
    if positions == "rope":  # a word of older scripts, which has no effect then
        fields.drop(("no-position-embedding",))
    if form == (True, "rope", "RMSNorm") and "num-experts" in fields.left:
        _read_llama(fields, hidden, heads)
        _read_experts(fields)
    elif form == (True, "rope", "RMSNorm"):
        _read_llama(fields, hidden, heads)
    elif form == (False, "learned_absolute", "LayerNorm"):
        _read_gpt(fields, hidden, heads)
    else:
        raise reading.error(
            f"no model of the zoo has swiglu {'on' if gated else 'off'}, positions `{positions}` "
            f"and `{norm}` together",
            "there are swiglu, rope and RMSNorm (llama), or none, learned_absolute and LayerNorm",
        )


def _vocabulary(fields: Fields) -> int:
    """Return the vocabulary, filled up as Megatron does for its tensor ranks."""
    reading = fields.reading
    if "padded-vocab-size" in fields.left:
        return fields.count("padded-vocab-size")
    kind = fields.left.get("tokenizer-type")
    if {"vocab-file", "merge-file"} <= set(fields.left):
        kind = "GPT2BPETokenizer"
    if "vocab-size" not in fields.left and isinstance(kind, str) and kind in _WORDS:
        of, words = _WORDS[kind]
        fields.left["vocab-size"] = words
        reading.notes.append(f"the tokenizer is taken as that of {of}: {words} words")
    if "vocab-size" not in fields.left:
        raise reading.error(
            "there is no `--vocab-size`: the tokenizer decides it when the script runs",
            "add `--vocab-size`",
        )
    words = fields.count("vocab-size")
    each = fields.count("make-vocab-size-divisible-by", _PADDED)
    multiple = lcm(each * int(reading.plan.get("tensor", 1)), 1)
    filled = -(-words // multiple) * multiple
    if filled != words:
        reading.notes.append(f"the vocabulary of {words} is filled up to {filled}")
    return filled


def _read_llama(fields: Fields, hidden: int, heads: int) -> None:
    reading = fields.reading
    reading.model = "llama"
    grouped = fields.take("group-query-attention") is not None
    groups = fields.count("num-query-groups", heads)
    if groups != heads and not grouped:
        raise reading.refused(
            "--num-query-groups", groups, "it needs `--group-query-attention`, or has no effect"
        )
    head = fields.count("kv-channels", hidden // heads)
    reading.sizes |= {
        "kv_heads": groups if grouped else heads,
        "inner": fields.count("ffn-hidden-size"),
        "base": fields.number("rotary-base", 10_000.0),
        "tied": fields.take("untie-embeddings-and-output-weights") is None,
        "qkv_bias": fields.take("add-qkv-bias") is not None,
        "qk_norm": fields.take("qk-layernorm") is not None,
    }
    if head * heads != hidden:
        reading.sizes["head"] = head
    if fields.take("disable-bias-linear") is None:
        raise reading.error(
            "linear layers have biases, and those of `llama` have none",
            "add `--disable-bias-linear`",
        )
    fields.only("rotary-percent", ("1.0", "1"), "all features are turned", "1.0")
    for name in ("hidden-dropout", "attention-dropout"):
        if fields.number(name, 0.1):
            raise reading.error(
                f"`--{name}` is 0.1 unless given, and `llama` has no dropout", f"add `--{name} 0`"
            )


def _read_experts(fields: Fields) -> None:
    """Read the experts of a decoder, whose other parts are those of `llama`."""
    reading, sizes = fields.reading, fields.reading.sizes
    for name, none in (("tied", False), ("qkv_bias", False), ("qk_norm", False), ("head", None)):
        value = sizes.pop(name, none)
        if value != none:
            raise reading.error(f"`mixtral` of the zoo has no form with `{name}={value}`")
    reading.model = "mixtral"
    sizes["experts"] = fields.count("num-experts")
    sizes["top_k"] = fields.count("moe-router-topk", 2)
    if sizes["top_k"] > sizes["experts"]:
        raise reading.error(
            f"`--moe-router-topk` is {sizes['top_k']}, and there are {sizes['experts']} experts"
        )
    sizes["capacity"] = 0  # Megatron drops no token without `--moe-expert-capacity-factor`
    kinds = ("aux_loss", "none")
    kind = fields.only("moe-router-load-balancing-type", kinds, "expected aux_loss", "aux_loss")
    share = fields.number("moe-aux-loss-coeff", 0.0)
    sizes["balance"] = share if kind == "aux_loss" else 0.0
    sizes["inner"] = fields.count("moe-ffn-hidden-size", sizes["inner"])  # all layers have experts


def _read_gpt(fields: Fields, hidden: int, heads: int) -> None:
    reading = fields.reading
    reading.model = "gpt"
    reading.sizes |= {
        "tied": fields.take("untie-embeddings-and-output-weights") is None,
        "dropout": fields.number("hidden-dropout", 0.1),
    }
    if fields.count("ffn-hidden-size", 4 * hidden) != 4 * hidden:
        raise reading.error(f"`--ffn-hidden-size` is not {4 * hidden}, four times the hidden size")
    if fields.count("kv-channels", hidden // heads) * heads != hidden:
        raise reading.error("`--kv-channels` times the heads is not the hidden size")
    for name in ("group-query-attention", "disable-bias-linear", "qk-layernorm", "squared-relu"):
        if fields.take(name) is not None:
            raise reading.error(f"`--{name}` is not supported for `gpt`")
    share = fields.number("attention-dropout", 0.1)
    if share:
        reading.notes.append(
            f"`--attention-dropout` ({share:g}) is left out: attention is one kernel without it"
        )

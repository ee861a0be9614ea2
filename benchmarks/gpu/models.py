"""Models of transformers for one GPU: functions that return a module and its inputs."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3MoeConfig,
    ViTConfig,
    ViTForImageClassification,
)

Made = tuple[Any, dict[str, Tensor]]


def llama(batch: int = 4, length: int = 2048) -> Made:
    """Eight narrow layers."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        use_cache=False,
    )
    return LlamaForCausalLM(config), _words(batch, length, 32000)


def llama_wide(batch: int = 1, length: int = 4096) -> Made:
    """Four layers of Llama-3 8B."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        use_cache=False,
    )
    return LlamaForCausalLM(config), _words(batch, length, 32000)


def qwen(batch: int = 2, length: int = 4096) -> Made:
    """Twelve layers of Qwen2 1.5B, with biases."""
    config = Qwen2Config(
        vocab_size=32768,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=2,
        use_cache=False,
    )
    return Qwen2ForCausalLM(config), _words(batch, length, 32768)


def qwen3(batch: int = 2, length: int = 4096, layers: int = 8) -> Made:
    """Eight layers with normalised queries and keys."""
    config = Qwen3Config(
        vocab_size=32768,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=8192,
    )
    return _causal(config, batch, length)


def qwen3_two() -> Made:
    """Two such layers."""
    return qwen3(layers=2)


def neox(batch: int = 4, length: int = 2048) -> Made:
    """Eight layers of GPT-NeoX, with heads of 80 and biases."""
    config = GPTNeoXConfig(
        vocab_size=50432,
        hidden_size=2560,
        intermediate_size=10240,
        num_hidden_layers=8,
        num_attention_heads=32,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    )
    return _causal(config, batch, length)


def llama_long(batch: int = 1, length: int = 16384) -> Made:
    """Four layers on one long sequence."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=32768,
    )
    return _causal(config, batch, length)


def qwen3moe_small(batch: int = 1, length: int = 1024) -> Made:
    """Two layers of Qwen3-30B-A3B, 1.4e9 parameters, on few tokens."""
    config = Qwen3MoeConfig(
        vocab_size=32768,
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        output_router_logits=False,
    )
    return _causal(config, batch, length)


def mixtral_small(batch: int = 1, length: int = 2048) -> Made:
    """One layer of Mixtral 8x7B."""
    config = MixtralConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=None,
    )
    return _causal(config, batch, length)


def _causal(config: Any, batch: int, length: int) -> Made:
    config.use_cache = False
    return AutoModelForCausalLM.from_config(config), _words(batch, length, config.vocab_size)


def gpt2_medium(batch: int = 8, length: int = 1024, vocabulary: int = 50257) -> Made:
    """Half of GPT-2 medium; its vocabulary is no multiple of 8."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_layer=12,
        n_embd=1024,
        n_head=16,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return GPT2LMHeadModel(config), _words(batch, length, vocabulary)


def gpt2_padded() -> Made:
    """The same with a vocabulary of a multiple of 128."""
    return gpt2_medium(vocabulary=50304)


def bert(batch: int = 32, length: int = 512, vocabulary: int = 30522) -> Made:
    """BERT base; its vocabulary is no multiple of 8."""
    config = BertConfig(
        vocab_size=vocabulary, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return BertForMaskedLM(config), _words(batch, length, vocabulary)


def bert_padded() -> Made:
    """The same with a vocabulary of a multiple of 128."""
    return bert(vocabulary=30592)


def vit(batch: int = 64) -> Made:
    """ViT base, of 224 by 224 pixels."""
    config = ViTConfig(num_labels=1000, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    pixels = torch.randn(batch, 3, 224, 224)
    return ViTForImageClassification(config), {
        "pixel_values": pixels,
        "labels": torch.randint(0, 1000, (batch,)),
    }


def _words(batch: int, length: int, vocabulary: int) -> dict[str, Tensor]:
    words = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": words, "labels": words}

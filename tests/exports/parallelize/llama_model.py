"""A small Llama of transformers in float64."""

import torch
import transformers
from parallel_models import HIDDEN, VOCABULARY
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


class _WideFloats(TorchFunctionMode):
    """Computes in float64 what a module of transformers writes out in float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        args, kwargs = pytree.tree_map(
            lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {})
        )
        return func(*args, **kwargs)


class Llama(nn.Module):
    """A small Llama of transformers, which returns its loss."""

    def __init__(self):
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
        self.network = transformers.LlamaForCausalLM(config)

    def forward(self, ids, labels):
        with _WideFloats():
            return self.network(input_ids=ids, labels=labels).loss

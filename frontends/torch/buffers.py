"""Buffers of modules on the device `meta`, computed by the module's own initialization.

A model that is made under ``torch.device("meta")`` has no elements at all; its parameters need none
to be planned, but constants such as the frequencies of rotary embeddings decide which operators the
program has.
"""

from collections.abc import Mapping
from copy import deepcopy

import torch


def with_elements(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the buffers on the device `meta` that the module can compute, by name.

    Modules of transformers compute buffers in `_init_weights`, others in `reset_parameters`; a part
    is initialized if it has buffers and no parameters.
    """
    found: dict[str, torch.Tensor] = {}
    for path, part in module.named_modules():
        buffers = dict(part.named_buffers(recurse=False))
        absent = [name for name, tensor in buffers.items() if tensor.device.type == "meta"]
        if absent and not list(part.parameters(recurse=False)):
            made = _initialized(module, part)
            names = {name: f"{path}.{name}" if path else name for name in absent}
            found.update({full: made[name] for name, full in names.items() if name in made})
    return {name: tensor for name, tensor in found.items() if name in tensors}


def _initialized(module: torch.nn.Module, part: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers of an initialized copy of a part."""
    whole = getattr(module, "_init_weights", None)
    own = getattr(part, "reset_parameters", None)
    if whole is None and own is None:
        return {}
    copy = deepcopy(part).to_empty(device="cpu", recurse=False)
    for tensor in copy.buffers(recurse=False):
        tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
    with torch.no_grad():
        if whole is not None:
            whole(copy)
        else:
            copy.reset_parameters()
    return {
        name: tensor for name, tensor in copy.named_buffers(recurse=False) if not _is_unset(tensor)
    }


def _is_unset(tensor: torch.Tensor) -> bool:
    """Return whether the initialization has left some elements as they were marked."""
    if tensor.is_floating_point():
        return bool(tensor.isnan().any())
    return bool((tensor == -1).any())

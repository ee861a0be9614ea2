"""The private names of PyTorch that the import of modules needs, all of them.

PyTorch has no public one for what they are. They are looked up when the frontend is imported, so
that a version without one is told in a sentence.
"""

from typing import Any

import torch

from shardwright.ir.errors import PackageError


def _lacking(name: str) -> PackageError:
    return PackageError(
        f"PyTorch {torch.__version__} has no `{name}`, which the import of modules needs",
        hint="install a version of PyTorch that README.md names",
    )


try:
    from torch import _C, _ops
    from torch._functorch import apis as apis
    from torch._functorch import eager_transforms as eager_transforms
    from torch.fx.experimental import proxy_tensor, sym_node, symbolic_shapes
    from torch.nn.attention import flex_attention as flex_attention
    from torch.utils import _python_dispatch, _pytree, weak
except ImportError as error:
    raise _lacking(str(error.name)) from None


def _found(owner: Any, path: str) -> Any:
    """Return what a name inside of a module or a class is.

    Raises
    ------
    PackageError
        If this version of PyTorch has none.
    """
    item = owner
    for name in path.split("."):
        if not hasattr(item, name):
            raise _lacking(f"{getattr(owner, '__name__', type(owner).__name__)}.{path}")
        item = getattr(item, name)
    return item


tree_leaves, tree_map_only = _found(_pytree, "tree_leaves"), _found(_pytree, "tree_map_only")
tree_flatten, tree_unflatten = _found(_pytree, "tree_flatten"), _found(_pytree, "tree_unflatten")
tree_map = _found(_pytree, "tree_map")

# Operators of exported graphs: one overload of an operator, and those that run functions.
OpOverload: Any = _found(_ops, "OpOverload")
HigherOrderOperator: Any = _found(_ops, "HigherOrderOperator")
COMPOSED = _found(_C, "DispatchKey.CompositeImplicitAutograd")
_found(torch, "ops.aten.add.Tensor._schema.arguments")

# Conditions that depend on elements, where an export asks for their value.
SymNode: Any = _found(sym_node, "SymNode")
_found(SymNode, "guard_bool")
Undecided: type[Exception] = _found(symbolic_shapes, "GuardOnDataDependentSymNode")
_found(torch, "distributions.Distribution._validate_args")

# What runs without being traced while a module is exported.
untraced = _found(proxy_tensor, "disable_proxy_modes_tracing")
without_functions = _found(_C, "DisableTorchFunction")

# What `torch.func` runs its transforms by.
_found(apis, "vmap_impl")
for _name in ("grad_impl", "grad_and_value_impl", "_vjp_with_argnums", "_jvp_with_argnums"):
    _found(eager_transforms, _name)

# What runs on tensors with elements while tensors without them are traced.
without_modes = _found(_python_dispatch, "_disable_current_modes")
ByTensor: Any = _found(weak, "WeakIdKeyDictionary")

# What `flex_attention` asks and runs.
_found(flex_attention, "flex_attention_hop")
_found(flex_attention, "_validate_device")
_found(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG")
_found(flex_attention, "_LARGE_SPARSE_BLOCK_SIZE")
_found(flex_attention, "_identity")
_found(flex_attention, "noop_mask")

_found(torch, "Tensor._version")
_found(torch.fx, "Tracer._filter_traceback_frames")  # the lines that exported nodes keep

# Hooks that tensors and modules have, and functions inside of the transforms of `torch.func`.
_found(torch, "Tensor._backward_hooks")
_found(torch, "Tensor._post_accumulate_grad_hooks")
_found(torch, "nn.modules.module.BackwardHook")
_found(torch.nn.Linear(1, 1), "_is_full_backward_hook")
_found(torch.nn.Linear(1, 1), "_backward_hooks")
set_grad_enabled: Any = _found(_C, "_set_grad_enabled")
_in_functorch: Any = _found(_C, "_are_functorch_transforms_active")


def schema_of(target: Any) -> Any:
    """Return the schema of an operator: its name, its arguments, and what it writes to."""
    return target._schema


def memory_of(tensor: torch.Tensor) -> int:
    """Return what tensors that share their elements have in common."""
    return int(tensor.untyped_storage()._cdata)


def writes_to(tensor: torch.Tensor) -> int:
    """Return how often PyTorch has seen a tensor being written to; it forgets that of inference."""
    return 0 if tensor.is_inference() else tensor._version


def hooks_of(tensor: torch.Tensor) -> list[Any]:
    """Return the hooks of the gradient of a tensor."""
    return [*(tensor._backward_hooks or {}).values()]


def accumulation_hooks_of(tensor: torch.Tensor) -> list[Any]:
    """Return the hooks of a parameter that run when it has its gradient."""
    return [*(tensor._post_accumulate_grad_hooks or {}).values()]


def legacy_hooks(module: torch.nn.Module) -> list[Any]:
    """Return the backward hooks of a module that are not full ones."""
    return [] if module._is_full_backward_hook else [*module._backward_hooks.values()]


def in_functorch() -> bool:
    """Return whether a transform of `torch.func` is being applied."""
    return bool(_in_functorch())

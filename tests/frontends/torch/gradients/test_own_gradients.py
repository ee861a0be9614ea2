"""Functions with a backward pass of their own, hooks and checkpoints: gradients are autograd's."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import own_gradients as own  # noqa: E402
import torch_compare as compare  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError, OptionError  # noqa: E402
from shardwright.ir.text import parse, to_text  # noqa: E402

RIGHT = (
    "straight_through_kept_apply",
    "reversal",
    "clipped_by_norm",
    "linear_with_bias",
    "setup_context_two_results",
    "two_results_one_read",
    "non_differentiable_result",
    "once_differentiable",
    "gradient_ignored",
    "none_for_a_gradient",
    "gradient_in_place",
    "autograd_in_backward",
    "largest_gradients",
    "constant_added",
    "function_made_inside",
    "function_without_gradients",
    "tensor_hooks_in_order",
    "tensor_hook_late",
    "tensor_hook_removed",
    "tensor_hook_reads_values",
    "tensor_hook_then_written",
    "parameter_hooks_all",
    "parameter_hook_tied",
    "accumulation_hook_clips",
    "module_backward_hooks_both",
    "module_backward_hook_of_two",
    "checkpoint_reentrant",
    "set_grad_enabled",
    "module_hook_and_penalty",
    "penalty_by_hooked",
)
# What a refusal says, by the case; the line of the module comes after it.
REFUSED = {
    "mark_dirty": "`InPlace` writes to its argument (`mark_dirty`)",
    "jvp_alone": "`Jvp` has no backward pass",
    "unmaterialized": "`Unmaterialized` is given None for gradients of results that are not read "
    "(`set_materialize_grads(False)`), which an export cannot tell",
    "node_hook": "a hook of a node of autograd (`grad_fn`) cannot be imported",
    "tensor_hook_without_gradients": "a hook of a tensor is registered where gradients are off",
    "parameter_hook_in_forward": "the module registers a hook of a parameter whenever it runs, "
    "which PyTorch keeps for the next time",
    "parameter_hook_reads_itself": "a function or a hook reads the parameter `a.weight` by itself, "
    "and not as a part of the module, so that it would be a constant",
    "accumulation_hook_steps": "a hook writes to the parameter `a.weight` after its gradient is "
    "accumulated",
    "module_backward_hook_of_results": "a hook reads the gradient of another tensor, which cannot "
    "be imported",
    "penalty_of_hooked": "a hook of a tensor is registered after a gradient through the tensor is "
    "computed, or removed before training",
    "hook_removed_after_a_gradient": "a hook of a tensor is registered after a gradient through "
    "the tensor is computed, or removed before training",
    "module_backward_hook_old": "`b` has a backward hook of the old kind",
    "requires_grad_inside": "the module changes whether a parameter requires a gradient "
    "whenever it runs",
    "saved_tensor_hooks": "`saved_tensors_hooks` may change what the backward pass reads, which "
    "cannot be imported",
}


@pytest.mark.parametrize("name", RIGHT)
def test_gradients_are_those_of_autograd(name: str) -> None:
    torch.manual_seed(0)
    found = compare.gradients_differ(*own.CASES[name]())
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing


@pytest.mark.parametrize("plan", ["data=4,zero=3", "tensor=2,data=2"])
@pytest.mark.parametrize("name", ["clipped_by_norm", "parameter_hook_norm", "largest_gradients"])
def test_gradients_are_complete_where_ranks_have_parts_of_them(name: str, plan: str) -> None:
    torch.manual_seed(0)
    module, inputs = own.CASES[name]()
    assert max(compare.on_ranks(module, inputs, 4, plan=plan, cluster="cpu")) < 1e-9


@pytest.mark.parametrize("name", ["clipped_rows", "parameter_hook_norm", "parameter_hooks_all"])
def test_micro_batches_change_the_gradient_of_the_whole_batch(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = own.CASES[name]()
    found = compare.on_ranks(module, inputs, 2, micro_batches=2, cluster="cpu")
    assert max(found) < 1e-9


def test_a_norm_over_all_samples_has_no_micro_batches() -> None:
    module, inputs = own.CASES["clipped_by_norm"]()
    with pytest.raises(OptionError, match="which is computed of all samples, in a pass over"):
        compare.on_ranks(module, inputs, 2, micro_batches=2, cluster="cpu")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_is_refused_by_name(name: str) -> None:
    module, inputs = own.CASES[name]()
    with pytest.raises(ModelError) as error:
        import_module(module, inputs)
    assert error.value.what == REFUSED[name]
    assert error.value.hint


def test_a_program_with_gradients_of_its_own_is_its_text() -> None:
    graph = import_module(*own.CASES["largest_gradients"]()).graph
    assert "on_gradient" in to_text(graph)
    assert parse(to_text(graph)) == graph

"""What a training software keeps of a model beside what its program does, by its parts.

The sizes are those of `cost_model.efficiency.memory_as_run`, which reads them off the buffers of a
program; here there is none, and they follow from the shapes of a layer and of the loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.cost_model.cluster import Device
from shardwright.cost_model.efficiency.memory_as_run import (
    GRADIENT,
    RESERVE,
    WORKSPACE,
    attention_scores,
    libraries_bytes,
)
from shardwright.cost_model.efficiency.software import Software
from shardwright.ir.graph import Graph
from shardwright.operators.models.precision import LOSSES

_GATHERS = 2  # over tensor ranks in a layer: what attention reads, and the products after it


@dataclass(frozen=True)
class ModelSizes:
    """Elements of one sample by which a software keeps more or less, without tensor ranks.

    Parameters
    ----------
    scores : float
        Of the scores of attention of a layer.
    logits : float
        Of the logits.
    """

    scores: float
    logits: float

    @staticmethod
    def of(layer: Graph, model: Graph, samples: int) -> "ModelSizes":
        """Return the sizes of a model by a layer and by all of it, each of some samples."""
        losses = [node for node in model.nodes if node.operator in LOSSES and node.operands]
        logits = (model.values[node.operands[0]].type.elements for node in losses)
        scores = sum(nbytes for _, nbytes in attention_scores(layer, 1.0))
        return ModelSizes(scores / samples, max(logits, default=0) / samples)


@dataclass(frozen=True)
class KeptTensors:
    """What a software keeps on a rank; by the sample where no other is said.

    Parameters
    ----------
    activations : float
        Bytes of the activations of a layer over those of the program.
    layer_bytes : float
        What each layer saves beside them: scores, and what it gathers.
    head_bytes : float
        At the loss, at most.
    gradient_bytes : float
        Of a trained element, whose gradients of one micro-batch are kept whole; else 0.
    workspace_bytes : float
        Beside tensors, whatever the samples.
    buffer_bytes : float
        The largest buffer of scores, which lasts.
    reserved : float
        What the allocator reserves over what is allocated.
    """

    activations: float
    layer_bytes: float
    head_bytes: float
    gradient_bytes: float
    workspace_bytes: float
    buffer_bytes: float
    reserved: float

    @staticmethod
    def of(
        software: Software, device: Device, sizes: ModelSizes, passed_bytes: float, tensor: int
    ) -> "KeptTensors | None":
        """Return what a software keeps on some tensor ranks; None where its account is unknown.

        Parameters
        ----------
        software : Software
            The software.
        device : Device
            The device, with the workspaces of libraries on it.
        sizes : ModelSizes
            The sizes of the model.
        passed_bytes : float
            What a layer passes to the next, on one of the tensor ranks.
        tensor : int
            Number of the ranks.
        """
        kept = software.memory
        if kept is None:
            return None
        scores = sizes.scores / tensor
        layer = kept.scores.value * scores if software.attention == "separate" else 0.0
        if kept.gathered == "saved":
            layer += _GATHERS * (tensor - 1) * passed_bytes
        each = 0.0 if kept.score_buffer is None else kept.score_buffer.value
        return KeptTensors(
            kept.activations.value,
            layer,
            kept.logits.value * sizes.logits / tensor,
            GRADIENT if kept.gradients == "whole" else 0.0,
            kept.workspace.value + libraries_bytes(kept, device),
            each * scores,
            kept.reserved.value,
        )

    def memory(self, kinds: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return the kinds of memory with workspaces, and with what the allocator reserves."""
        found = dict(kinds) | {WORKSPACE: self.workspace_bytes + samples * self.buffer_bytes}
        return found | {RESERVE: (self.reserved - 1) * sum(found.values())}

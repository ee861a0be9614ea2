"""Running traced definitions in tests."""

from dataclasses import replace

import numpy as np

from shardwright.communication import world
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import numpy_dtype
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.mirror_shared_values import MirrorSharedValues
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.tracing import trace


def random_inputs(definition, seed=0):
    random = np.random.default_rng(seed)
    return {
        spec.name: random.integers(0, spec.high, spec.type.shape)
        if spec.high
        else random.normal(size=spec.type.shape).astype(numpy_dtype(spec.type.dtype))
        for spec in definition.inputs
    }


def outputs_of(definition, inputs=None):
    """Run the forward program on one device, in float64."""
    communicator = LocalCommunicator(Mesh(()))
    executor = Executor(definition.graph, communicator, float_dtype="float64")
    state = initialize(definition.graph, 0, communicator, definition.initial, "float64")
    outputs = executor.step(inputs or random_inputs(definition), state).outputs
    return [outputs[name][0] for name in definition.graph.outputs]


def trained(definition, parts, steps=2):
    """Train on all ranks, from what each holds of each parameter; return losses and parameters."""
    size = definition.world
    mesh = Mesh((MeshAxis("world", size),)) if size > 1 else Mesh(())
    graph = Differentiate().run(MirrorSharedValues(size).run(definition.graph))
    graph = AppendOptimizer.of(definition.optimizer or Optimizer()).run(graph)
    communicator = LocalCommunicator(mesh)
    graph = replace(graph, mesh=mesh)
    executor = Executor(graph, communicator, float_dtype="float64")
    state = initialize(graph, 0, communicator, float_dtype="float64")
    state.update((name, dict(enumerate(own))) for name, own in parts.items())
    inputs = random_inputs(definition)
    losses = [executor.step(inputs, state).outputs[definition.loss] for _ in range(steps)]
    return losses, {name: state[name] for name in parts}


def traced(network, *inputs, ranks=1, **options):
    """Trace a network that `network` makes, in a world of so many ranks."""
    with world(ranks):
        return trace(network(), inputs, **options)

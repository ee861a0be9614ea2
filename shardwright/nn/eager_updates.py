"""Updates of parameters outside of a training step: from gradients with values, at once."""

from collections.abc import Sequence
from dataclasses import replace

from shardwright.dataflow.cotangents import gradient_name
from shardwright.dataflow.update_rules import with_rules
from shardwright.eager import drawn
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Value
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array
from shardwright.operators.models.optimizer import STEP
from shardwright.operators.models.optimizer import Optimizer as Rule
from shardwright.parameter import Parameter
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.tensor import Tensor

Update = tuple[Parameter, dict[str, Attribute]]


class EagerUpdates:
    """The program that updates parameters, with the states of the optimizer.

    Parameters
    ----------
    rule : Rule
        The rule.
    updates : sequence of (Parameter, dict)
        The parameters with the settings of their groups.
    loss_scale : float
        What gradients are divided by.

    Raises
    ------
    ModelError
        If the rule depends on how a network reads its parameters.
    """

    def __init__(self, rule: Rule, updates: Sequence[Update], loss_scale: float = 1.0) -> None:
        if rule.settings.get("lazy"):
            raise ModelError(
                "an optimizer that updates touched rows alone is applied outside of a training "
                "step, where it does not know them",
                hint="write `@jit` before the function that calls it, or use `Adam`",
            )
        if rule.kind == "muon":
            raise ModelError(
                "`Muon` is applied outside of a training step, where it does not know which "
                "parameters are hidden matrices",
                hint="write `@jit` before the function that calls it, or use `AdamW`",
            )
        self._parameters = [parameter for parameter, _ in updates]
        build = Builder(None)
        self._names = [f"p{i}" for i in range(len(updates))]
        for name, parameter in zip(self._names, self._parameters, strict=True):
            build.parameter(Value(name, parameter.type), {"initializer": "data"})
            build.input(Value(gradient_name(name), parameter.type))
        own = {name: own for name, (_, own) in zip(self._names, updates, strict=True) if own}
        program = build.graph("updates", ())
        rules = with_rules(replace(rule, overrides=own), program)
        graph = AppendOptimizer.of(rules, loss_scale).run(program)
        self._executor = Executor(graph, LocalCommunicator())
        known = {name: _value(p) for name, p in zip(self._names, self._parameters, strict=True)}
        self._state = initialize(graph, 0, LocalCommunicator(), known)

    @property
    def steps(self) -> int:
        """The number of updates so far, where a learning rate follows it."""
        return int(self._state[STEP][0])

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """Update the parameters by their gradients, in their order.

        Raises
        ------
        ModelError
            If the gradients have other shapes.
        """
        kinds = [parameter.type for parameter in self._parameters]
        if [gradient.shape for gradient in gradients] != [kind.shape for kind in kinds]:
            raise ModelError(
                f"an optimizer of {len(kinds)} parameters is given {len(gradients)} gradients, "
                f"expected one for each parameter, in their order and of their shapes",
                hint="give `value_and_grad` the parameters of the optimizer as `weights`",
            )
        fed = {
            gradient_name(name): gradient.asnumpy().astype(_value(parameter).dtype)
            for name, gradient, parameter in zip(
                self._names, gradients, self._parameters, strict=True
            )
        }
        for name, parameter in zip(self._names, self._parameters, strict=True):
            self._state[name] = {0: _value(parameter)}
        self._executor.step(fed, self._state)
        for name, parameter in zip(self._names, self._parameters, strict=True):
            parameter.set_data(self._state[name][0])


def _value(parameter: Parameter) -> Array:
    """Return the value of a parameter, drawn where it has none yet."""
    if parameter.has_value:
        return parameter.asnumpy()
    return drawn(parameter.name, parameter.initializer, parameter.type)

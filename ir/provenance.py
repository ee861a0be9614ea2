"""Provenance: which operator of the model a node belongs to, and what part it plays.

Every pass hands provenance on. So what an operator costs, with its gradient and its communication,
and why a collective is there, is read off the program.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal[
    "forward",
    "redistribution",
    "mirror",
    "offload",
    "seed",
    "backward",
    "recompute",
    "reload",
    "accumulation",
    "gradient_redistribution",
    "fusion",
    "update",
]
Phase = Literal["forward", "backward", "update"]
ParameterRole = Literal["weight", "buffer", "state"]
ROLES: tuple[Role, ...] = get_args(Role)
COPIES: frozenset[Role] = frozenset({"redistribution", "mirror"})
"""Roles of nodes whose result is the tensor itself, in another layout."""
_PHASES: Mapping[Role, Phase] = {
    "forward": "forward",
    "redistribution": "forward",
    "mirror": "forward",
    "offload": "forward",
    "update": "update",
}


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a node comes from.

    Parameters
    ----------
    operator : str
        The operator of the model that the node belongs to, by the name of its node; empty where it
        belongs to none.
    role : str
        ``forward``: the operator itself. ``redistribution``: brings `tensor` to the layout in which
        the operator reads it, exchanges of halos included. ``mirror``: marks where `tensor` enters
        split work. ``offload``: copies `tensor` to host memory. ``seed``: the gradient of the loss
        by itself, or its scale. ``backward``: the gradient of the operator. ``recompute``: makes
        `tensor` again for the gradient. ``reload``: copies `tensor` back from host memory.
        ``accumulation``: adds up the gradients that several readers of `tensor` return.
        ``gradient_redistribution``: brings the gradient of `tensor` to its layout. ``fusion``:
        reduces several gradients at once, first that of `tensor`. ``update``: the optimizer's
        update of `tensor`.
    tensor : str
        The tensor of the model that the role speaks of; empty where there is none.
    target : str
        On an intermediate step of a redistribution, the value that its last step makes.
    """

    operator: str = ""
    role: Role = "forward"
    tensor: str = ""
    target: str = ""

    @property
    def phase(self) -> Phase:
        """The part of a training step that the node belongs to."""
        return _PHASES.get(self.role, "backward")

    def text(self, name: str) -> str:
        """Return the text of the provenance of a node called `name`; empty for a model's own."""
        if self == Provenance(name):
            return ""
        parts = [f"from {self.operator}"] if self.operator else []
        parts += [f"as {self.role}"] if self.role != "forward" else []
        parts += [f"of {self.tensor}"] if self.tensor else []
        parts += [f"to {self.target}"] if self.target else []
        return " ".join(parts)

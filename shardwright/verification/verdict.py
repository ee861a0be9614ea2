"""The verdict on a plan: a proof at full size, and a comparison of numbers.

A small plan is run and compared with the program of one device. Of a large plan, every operator is
run in its layouts on small shapes (the shrunken run).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from shardwright.compiler.plans.plan import Plan
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph, Node
from shardwright.operators.info import info_of
from shardwright.proof import Proof, prove
from shardwright.proof.samples import Samples, run_samples
from shardwright.runtime import Communicator, LocalCommunicator
from shardwright.verification.comparison import Verification, made_once, verify_plan
from shardwright.verification.rounding import Rounding

# Plans beyond one of these are not run: floating-point operations and nodes of a step on all
# ranks together, and bytes in float64.
_MOST_FLOPS, _MOST_NODES, _MOST_BYTES = 1e11, 1e6, 4 * 2**30


@dataclass(frozen=True)
class Verdict:
    """The outcome of verifying a plan.

    Parameters
    ----------
    proof : Proof
        Whether its program computes the training step of its model, at full size.
    numbers : Verification or None
        The comparison of its numbers with those of one device; None where it was not run.
    samples : Samples or None
        The shrunken run; None where the plan itself was run, or is not proven.
    """

    proof: Proof
    numbers: Verification | None
    samples: Samples | None

    def __repr__(self) -> str:
        words = {True: "equal", False: f"different at {self.first_difference}", None: "not run"}
        return (
            f"<Verdict: {self.proof.outcome}; {words[self.equal]}, {self.tensors} tensors, largest "
            f"relative error {self.max_relative_error:.2g}>"
        )

    @property
    def compared(self) -> Literal["full", "shrunken"] | None:
        """Which numbers were compared: of the plan, of its operators on small shapes, or none."""
        if self.numbers is not None:
            return "full"
        return None if self.samples is None else "shrunken"

    @property
    def equal(self) -> bool | None:
        """Whether all numbers that were compared agree; None where none were."""
        comparison = self.numbers or self.samples
        return None if comparison is None else comparison.equal

    @property
    def is_right(self) -> bool | None:
        """Whether the plan is right; None if neither proof nor comparison was possible."""
        known = [said for said in (self.proof.proven, self.equal) if said is not None]
        return all(known) if known else None

    @property
    def max_relative_error(self) -> float:
        """The largest relative error of the comparison; infinite without one."""
        comparison = self.numbers or self.samples
        return inf if comparison is None else comparison.max_relative_error

    @property
    def first_difference(self) -> str | None:
        """The first tensor, or node of the shrunken run, that does not agree."""
        comparison = self.numbers or self.samples
        return None if comparison is None else comparison.first_difference

    @property
    def reason(self) -> str | None:
        """The reason of the first difference."""
        if self.samples is not None and self.samples.first_difference is not None:
            return "its slices, on small shapes, do not make up what it computes of whole tensors"
        return None if self.numbers is None else self.numbers.reason

    @property
    def tensors(self) -> int:
        """How many tensors, or nodes of the shrunken run, were compared."""
        if self.numbers is not None:
            return self.numbers.tensors
        return 0 if self.samples is None else self.samples.compared

    @property
    def rounding(self) -> Rounding | None:
        """The rounding of the plan in its own types; None where it was not measured."""
        return None if self.numbers is None else self.numbers.rounding

    @property
    def errors(self) -> dict[str, float]:
        """The relative error of each tensor of the plan."""
        return {} if self.numbers is None else dict(self.numbers.errors)


def judge(
    plan: Plan,
    steps: int = 3,
    *,
    full: bool = False,
    progress: Callable[[str], None] | None = None,
    communicator: Communicator | None = None,
) -> Verdict:
    """Prove a plan, and compare numbers.

    Several processes prove it once, run their own ranks, and return the same verdict.

    Parameters
    ----------
    plan : Plan
        The plan; its program may have been edited.
    steps : int
        Steps to train and compare.
    full : bool
        Run the plan however large it is.
    progress : callable, optional
        Called after every step with a line of progress.
    communicator : Communicator, optional
        Hosts ranks of the plan; by default all of them in this process.
    """
    communicator = communicator or LocalCommunicator(plan.mesh)
    proof = made_once(communicator, lambda: prove(plan), Proof)
    if full or is_small(plan):
        numbers = verify_plan(plan, steps, progress=progress, communicator=communicator)
        return Verdict(proof, numbers, None)
    if not proof.proven or plan.program.mesh is None:
        return Verdict(proof, None, None)
    samples = made_once(communicator, lambda: run_samples(plan.program), Samples)
    return Verdict(proof, None, samples)


def is_small(plan: Plan) -> bool:
    """Return whether a plan can be run in this process, on all ranks, in seconds."""
    program, devices = plan.program, plan.mesh.size
    if len(program) * devices > _MOST_NODES:
        return False
    if plan.document.memory.peak_bytes * 2 * devices > _MOST_BYTES:
        return False
    return sum(_flops(program, node) for node in program) <= _MOST_FLOPS


def _flops(program: Graph, node: Node) -> float:
    try:
        return info_of(program, node).flops
    except (ShardwrightError, KeyError):  # an edited program: the comparison tells what is wrong
        return 0.0

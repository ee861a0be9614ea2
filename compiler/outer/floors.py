"""Bounds of configurations before any search: their computation, evenly divided.

With C seconds of one device for a whole step, no plan on N devices takes less than C / N: no slice
is less than 1/N of its tensor, and the roofline is no less than its part of compute and of memory
time. In a pipeline a device group has N / S devices, and the busiest takes no less than the mean.

The bubble adds to it where each group has one stage whose micro-batch is a forward and a backward
segment. Let a pass of stage s over a micro-batch take p_s, and M be the number of micro-batches.
Stage s begins after the first micro-batch has passed the stages before it, computes M passes, and
the gradient of the last micro-batch passes the stages before it again. So for every s and M > 1
(one micro-batch is no loop, and stages that need nothing of each other need not wait)

    step >= p_0 + ... + p_(s-1) + M p_s.

Its weighted mean with weights proportional to (1 - 1/M)^(S-1-s) has equal coefficients, so

    step >= (p_0 + ... + p_(S-1)) / (1 - (1 - 1/M)^S),

and the sum of the p_s is at least the S / (M N) of one pass of one device over the whole batch.
"""

from dataclasses import dataclass

from shardwright.compiler.outer.configuration import Configuration

_OF_TWO_PARTS = (None, "1f1b", "gpipe")  # schedules without segments of weights


def has_two_parts(configuration: Configuration) -> bool:
    """Return whether each device group has one stage, of a forward and a backward segment."""
    return configuration.chunks == 1 and configuration.schedule in _OF_TWO_PARTS


@dataclass(frozen=True)
class ComputationFloor:
    """What one device computes, without communication.

    Parameters
    ----------
    devices : int
        Number of devices.
    step_seconds : float
        Of all of a step, on one device.
    staged_seconds : float
        Of all of a step, in a program with stages.
    pass_seconds : float
        Of what runs for each micro-batch in a program with stages, for the whole batch at once.
    """

    devices: int
    step_seconds: float
    staged_seconds: float = 0.0
    pass_seconds: float = 0.0

    def of(self, configuration: Configuration) -> float:
        """Return a lower bound on the step of every plan of a configuration.

        Examples
        --------
        Two micro-batches pass 4 stages one after the other; with many, the bubble vanishes. Of one,
        stages that need nothing of each other need not wait.

        >>> floor = ComputationFloor(8, 8.0, 8.0, 8.0)
        >>> [round(floor.of(Configuration(None, count, 4)), 3) for count in (1, 2, 64)]
        [1.0, 2.133, 1.024]
        """
        stages, count = configuration.stages, configuration.micro_batches
        if stages == 1:
            return self.step_seconds / self.devices
        even = self.staged_seconds / self.devices
        if count == 1 or not has_two_parts(configuration):
            return even
        share = stages / (count * self.devices)
        bubble = 1 - (1 - 1 / count) ** stages
        return max(even, share * self.pass_seconds / bubble)

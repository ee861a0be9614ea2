"""How long a training takes and what it costs, with the time that failures cost.

A failure of one device stops all of them: N devices that fail once in `m` seconds each fail once in
``M = m / N``. Then the work since the last checkpoint is lost, and restarting takes R. With a
checkpoint of C seconds after every t seconds of work, failures at random make the work take
``M exp(R/M) (exp((t + C)/M) - 1) / t`` times as long, and the t that makes this least is about

    sqrt(2 C M) (1 + sqrt(C/2M) / 3 + C/2M / 9) - C      where C < 2 M, else M

References
----------
Young, "A first order approximation to the optimum checkpoint interval", 1974. Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", 2006, equations 20 and 37.
"""

from dataclasses import dataclass
from math import exp, expm1, inf, sqrt

HOUR, DAY = 3600.0, 86400.0

DEVICE_HOURS = 54 * 24 * 16384 / 419
"""Hours between two failures of one device: 419 unexpected interruptions in 54 days on 16,384 H100
(Llama 3, 2024, section 3.3.4), those of hosts and of the network included. On 1,024 devices with
checkpoints of 10 s a training takes 1.4 % longer; 2.2 % at half of it, 0.9 % at twice."""
STORED_PER_SECOND = 2e12 / 16384
"""Bytes of a checkpoint that a device writes in a second: 2 TB/s sustained by the storage of the
same 16,384. A 70B model on 64 devices takes 113 s, and its training 0.9 % longer; 1.3 % at half of
it, 0.7 % at twice."""
RESTART_SECONDS = 600.0
"""Seconds from a failure to the first step after it: to detect it and to run diagnostic tests took
less than 10 minutes on average (Jiang et al., NSDI 2024: MegaScale, section 6.3), and synchronous
training on 100,000 devices stood still for 10 minutes ("Training LLMs with Fault Tolerant HSDP on
100,000 GPUs", 2026, abstract). On 16,384 devices with checkpoints of 3 s a training takes 8.0 %
longer, 5.2 % at half of it, 14.0 % at twice; that of Llama 3 lost less than 10 %."""


@dataclass(frozen=True)
class Failures:
    """What failures cost a training.

    Parameters
    ----------
    devices : int
        Number of devices, of which a failure of one stops all.
    checkpoint_seconds : float
        Seconds that a checkpoint takes, in which nothing is trained.
    device_hours : float
        Mean hours between two failures of one device.
    restart_seconds : float
        Seconds from a failure to the first step after it, without the steps that are done again.
    """

    devices: int
    checkpoint_seconds: float
    device_hours: float = DEVICE_HOURS
    restart_seconds: float = RESTART_SECONDS

    @property
    def apart_seconds(self) -> float:
        """Mean seconds between two failures."""
        return self.device_hours * HOUR / self.devices

    @property
    def interval_seconds(self) -> float:
        """Seconds of work after which a checkpoint is written.

        Examples
        --------
        >>> round(Failures(16384, 3.0).interval_seconds)
        256
        """
        written, apart = self.checkpoint_seconds, self.apart_seconds
        if written >= 2 * apart:
            return apart
        ratio = written / (2 * apart)
        return sqrt(2 * written * apart) * (1 + sqrt(ratio) / 3 + ratio / 9) - written

    @property
    def slowdown(self) -> float:
        """How many times as long a training takes, infinite where it would not end.

        Examples
        --------
        >>> round(Failures(16384, 3.0).slowdown, 3), round(Failures(64, 100.0).slowdown, 4)
        (1.08, 1.0086)
        """
        apart, interval = self.apart_seconds, self.interval_seconds
        try:
            lost = apart * exp(self.restart_seconds / apart)
            return lost * expm1((interval + self.checkpoint_seconds) / apart) / interval
        except (OverflowError, ZeroDivisionError):
            return inf


@dataclass(frozen=True)
class Training:
    """A training of a number of tokens.

    Parameters
    ----------
    seconds : float
        How long it takes.
    money : float or None
        What its devices cost; None where no price is given.
    """

    seconds: float
    money: float | None

    @property
    def days(self) -> float:
        """How many days it takes."""
        return self.seconds / DAY

    def slowed(self, times: float) -> "Training":
        """Return the training that takes so many times as long."""
        return Training(self.seconds * times, None if self.money is None else self.money * times)


def training(
    step_seconds: float, tokens_of_step: int, tokens: float, devices: int, price: float | None
) -> Training:
    """Return how long it takes to train on tokens, in whole steps or parts of one.

    Parameters
    ----------
    step_seconds : float
        A step.
    tokens_of_step : int
        Tokens of a step.
    tokens : float
        All tokens.
    devices : int
        Number of devices.
    price : float, optional
        Of a device for an hour.

    Examples
    --------
    >>> training(1.0, 1000, 3.6e6, 8, 2.0)
    Training(seconds=3600.0, money=16.0)
    """
    seconds = tokens / tokens_of_step * step_seconds
    return Training(seconds, None if price is None else seconds / HOUR * devices * price)

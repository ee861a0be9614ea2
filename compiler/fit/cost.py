"""How long a training takes, and what it costs."""

from dataclasses import dataclass

_HOUR, _DAY = 3600.0, 86400.0


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
        return self.seconds / _DAY


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
    return Training(seconds, None if price is None else seconds / _HOUR * devices * price)

"""Settings of all datasets: the processes that make samples, and what is made ahead."""

from dataclasses import dataclass


@dataclass
class Settings:
    """The settings of all datasets.

    Parameters
    ----------
    workers : int
        Processes that make samples where a dataset does not say it; 0: the process that trains.
    prefetch : int
        Samples, or batches, that each of them makes ahead.
    autotune : bool
        Whether the number of processes follows the measured waits.
    interval : int
        Samples, or batches, from one measurement to the next.
    tuned_file : str, optional
        Begin of the name of the file to which the tuned numbers are written.
    """

    workers: int = 0
    prefetch: int = 2
    autotune: bool = False
    interval: int = 8
    tuned_file: str | None = None


SETTINGS = Settings()

"""Settings of all datasets: the processes that make samples, and what is made ahead."""

from dataclasses import dataclass

from shardwright.eager import get_seed


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
    seed : int, optional
        Seed of the order of samples and of what transformations draw; that of `set_seed` unless
        given.
    """

    workers: int = 0
    prefetch: int = 2
    autotune: bool = False
    interval: int = 8
    tuned_file: str | None = None
    seed: int | None = None

    def get_seed(self) -> int:
        """Return the seed of datasets."""
        return get_seed() if self.seed is None else self.seed


SETTINGS = Settings()

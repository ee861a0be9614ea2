"""Delayed initialization of parameters."""

from typing import Self


class DelayedInitialization:
    """Let parameters that are made inside begin with values only when their model is compiled.

    All parameters do so here: a rank draws its slices of them, and never the whole. The object may
    be called or not: ``with no_init_parameters:`` and ``with no_init_parameters():`` are the same.
    """

    def __call__(self) -> Self:
        """Return the object."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


no_init_parameters = DelayedInitialization()

__all__ = ["DelayedInitialization", "no_init_parameters"]

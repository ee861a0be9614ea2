"""Errors that are those of MindSpore, too: a script catches `RuntimeError` or `ValueError`."""

from collections.abc import Iterator
from contextlib import contextmanager

from shardwright.ir.errors import ModelError, OptionError, ShardwrightError


@contextmanager
def as_mindspore() -> Iterator[None]:
    """Let an error be one of MindSpore's, too.

    It is a `RuntimeError`, as those of MindSpore's compiler; that of an argument a `ValueError`,
    of an argument of another type a `TypeError`, and of a position that is none an `IndexError`.
    """
    try:
        yield
    except ShardwrightError as error:
        if isinstance(error, RuntimeError):
            raise
        kinds: tuple[type[Exception], ...] = (type(error), RuntimeError)
        if isinstance(error, ModelError | OptionError):
            kinds = (*kinds, ValueError)
        for cause in _causes(error):
            if isinstance(cause, ShardwrightError) and cause.as_python not in (None, *kinds):
                kinds = (*kinds, cause.as_python)  # type: ignore[arg-type]
        both = type(type(error).__name__, kinds, {"__module__": __name__})
        raise both(error.what, error.where, error.hint) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__

"""Sizes of inputs that are not the same in all batches."""

from shardwright.ir.errors import OptionError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, POSITIVE_INTEGER, check_flag


class Symbol:
    """A size of dimensions; where it stands several times it is one size.

    Parameters
    ----------
    max, min : int
        The greatest and the least size; 0 for any.
    divisor, remainder : int
        The size is a multiple of the divisor, plus the remainder.
    unique : bool
        Must be False: a symbol is one size wherever it stands.

    Examples
    --------
    >>> Symbol(divisor=8) == 32, Symbol(divisor=8) == 20
    (True, False)
    """

    def __init__(
        self,
        max: int = 0,
        min: int = 0,
        divisor: int = 1,
        remainder: int = 0,
        unique: bool = False,
    ) -> None:
        for name, value in (("max", max), ("min", min), ("remainder", remainder)):
            NOT_NEGATIVE_INTEGER.check(name, value)
        POSITIVE_INTEGER.check("divisor", divisor)
        check_flag("unique", unique)
        if unique:
            raise OptionError("`unique` is True, expected False: a symbol is one size")
        if remainder >= divisor or (max and max < min):
            raise OptionError(
                f"a size from {min} to {max}, of {divisor} and {remainder} more: expected a "
                f"remainder below the divisor, and `max` of at least `min`"
            )
        self.max, self.min, self.divisor, self.remainder = max, min, divisor, remainder

    def __eq__(self, size: object) -> bool:
        if not isinstance(size, int):
            return self is size
        below = not self.max or size <= self.max
        return below and size >= self.min and size % self.divisor == self.remainder

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Symbol(divisor={self.divisor}, remainder={self.remainder})"


__all__ = ["Symbol"]

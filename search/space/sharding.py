"""Rules of how parameters and optimizer states are divided, as MindSpore's ``hsdp`` says them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from math import prod
from typing import Self

from shardwright.ir.errors import OptionError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.ir.values import (
    NOT_NEGATIVE,
    GivenTwiceError,
    check_choice,
    check_names,
    given_once,
    number_in,
    wrong_value,
)
from shardwright.search.space.space import Storage

LEVELS = ("level1", "level2", "level3")
EVERY_COPY = -1  # in place of a size, as in MindSpore: as many ranks as there are


@dataclass(frozen=True)
class OptimizerSharding:
    """How finely parameters are stored, and when they are gathered and their gradients reduced.

    Parameters
    ----------
    shard_size : int
        Number of ranks that a parameter is divided among, beyond what its reader divides; -1 for as
        many as there are. Parameters that cannot be divided so are not divided.
    threshold : float
        Size in KiB from which on a parameter is divided: that of the whole parameter.
    level : str, optional
        ``level1``: gathered once in a step, and saved for backward; the gradients of micro-batches
        are accumulated whole. ``level2``: they are reduced and divided in every micro-batch.
        ``level3``: moreover parameters are regathered in backward. If not given, the search
        chooses.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    shard_size: int = EVERY_COPY
    threshold: float = 0.0
    level: str | None = None

    def __post_init__(self) -> None:
        size = self.shard_size
        if isinstance(size, bool) or not isinstance(size, int) or (size != EVERY_COPY and size < 1):
            raise wrong_value("shard_size", size, "-1, or an integer of at least 1")
        NOT_NEGATIVE.check("threshold", self.threshold)
        if self.level is not None:
            check_choice("optimizer_level", self.level, LEVELS)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the rule in a text such as ``shard_size=4,threshold=64,level=level2``.

        Raises
        ------
        OptionError
            If it is none.
        """
        pairs = [item.partition("=") for item in text.replace(" ", "").split(",")]
        try:
            settings = given_once((key, number_in(value)) for key, _, value in pairs)
        except GivenTwiceError as error:
            raise OptionError(f"`optimizer_parallel`: {error}", hint="give it once") from error
        check_names("`optimizer_parallel` has no setting", settings, [f.name for f in fields(cls)])
        return cls(**settings)

    def check_mesh(self, mesh: Mesh) -> None:
        """Refuse a number of ranks that no axes of a mesh make up.

        Raises
        ------
        OptionError
            If there are none.
        """
        sizes = [axis.size for axis in mesh.of_ranks.axes]
        made = {prod(c) for n in range(len(sizes) + 1) for c in combinations(sizes, n)}
        if self.shard_size not in (EVERY_COPY, *made):
            raise OptionError(
                f"`shard_size` is {self.shard_size}, the axes of the mesh {mesh.of_ranks} make "
                f"groups of {', '.join(map(str, sorted(made)))}",
                hint="give a mesh with an axis of this size",
            )

    def allowed(
        self, options: Sequence[Storage], tensor: TensorType, mesh: Mesh, passes: float
    ) -> list[Storage]:
        """Return the storage options of a parameter that the rule allows."""
        found: list[Storage] = []
        for used in dict.fromkeys(option.used for option in options):
            own = [option for option in options if option.used == used]
            stored = self._allowed(own, used, tensor, mesh)
            found += [o for o in stored if self._is_of_level(o, passes)] or stored
        return found

    def _allowed(
        self, options: list[Storage], used: Layout | None, tensor: TensorType, mesh: Mesh
    ) -> list[Storage]:
        """Return the options for one layout of the reader; without one for readers of their own."""
        whole = used or Layout.replicated(tensor.rank)
        below = tensor.nbytes < self.threshold * 1024
        undivided = [option for option in options if option.layout == whole]
        if below or self.shard_size == 1:
            return undivided or options
        if self.shard_size == EVERY_COPY:
            most = max(len(option.layout.split_axes) for option in options)
            return [option for option in options if len(option.layout.split_axes) == most]
        held = set(whole.split_axes)
        divided = [
            option
            for option in options
            if mesh.extent(a for a in option.layout.split_axes if a not in held) == self.shard_size
        ]
        return divided or undivided or options

    def _is_of_level(self, option: Storage, passes: float) -> bool:
        if self.level is None or option.used in (None, option.layout):
            return True
        reduced = self.level != "level1" and passes > 1
        return (option.regathered, option.reduced_in_passes) == (self.level == "level3", reduced)


UNDIVIDED = OptimizerSharding(shard_size=1)
"""The rule of parameters that are not to be divided further than their reader does."""

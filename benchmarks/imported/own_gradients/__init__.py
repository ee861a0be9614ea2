"""Small modules whose gradients are not those of their operators alone, by what they use."""

from collections.abc import Callable
from typing import Any

import torch_second

from own_gradients.choices import CHOICES
from own_gradients.control import CONTROL
from own_gradients.functions import FUNCTIONS
from own_gradients.hooks import HOOKS
from own_gradients.indexing import INDEXING
from own_gradients.layers import Case, Cases
from own_gradients.losses import LOSSES
from own_gradients.mixtures import MIXTURES
from own_gradients.numbers import NUMBERS
from own_gradients.numerics import NUMERICS
from own_gradients.parts import PARTS
from own_gradients.regions import REGIONS
from own_gradients.sequences import SEQUENCES
from own_gradients.space import SPACE
from own_gradients.states import STATES
from own_gradients.tensors import TENSORS
from own_gradients.transforms import TRANSFORMS
from own_gradients.written_layers import WRITTEN_LAYERS


def _wide(make: Callable[[], Any]) -> Callable[[], Case]:
    def case() -> Case:
        module, inputs = make()
        return module.double(), tuple(t.double() if t.is_floating_point() else t for t in inputs)

    return case


SECOND = {f"second_{name}": _wide(make) for name, make in torch_second.CASES.items()}
CASES: Cases = FUNCTIONS | HOOKS | REGIONS | TENSORS | CONTROL | TRANSFORMS | SECOND
CASES |= WRITTEN_LAYERS | LOSSES | INDEXING | SEQUENCES | STATES | NUMERICS
CASES |= CHOICES | NUMBERS | SPACE | MIXTURES | PARTS

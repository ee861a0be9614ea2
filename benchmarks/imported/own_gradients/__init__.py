"""Small modules whose gradients are not those of their operators alone, by what they use."""

from collections.abc import Callable
from typing import Any

import torch_second

from own_gradients.control import CONTROL
from own_gradients.functions import FUNCTIONS
from own_gradients.hooks import HOOKS
from own_gradients.layers import Case, Cases
from own_gradients.posted import POSTED
from own_gradients.regions import REGIONS
from own_gradients.tensors import TENSORS
from own_gradients.transforms import TRANSFORMS


def _wide(make: Callable[[], Any]) -> Callable[[], Case]:
    def case() -> Case:
        module, inputs = make()
        return module.double(), tuple(t.double() if t.is_floating_point() else t for t in inputs)

    return case


SECOND = {f"second_{name}": _wide(make) for name, make in torch_second.CASES.items()}
CASES: Cases = FUNCTIONS | HOOKS | REGIONS | TENSORS | CONTROL | TRANSFORMS | SECOND | POSTED

"""Recipes of low precision: in which types products are computed, and what their scales are of.

One table, which operators, prices, exports and readers of other systems' files read. A recipe
quantizes the operands of the products of repeated blocks with their weights, forward and backward;
attention, embeddings, the router of experts and the head stay in the type of the policy. Values are
quantized where a product reads them, so what is kept for the gradient, and what is gathered of
parameters, stays in that type; copies in low types live as long as their product.

References
----------
Micikevicius et al., "FP8 formats for deep learning", 2022; Rouhani et al., "Microscaling data
formats for deep learning", 2023; DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.3;
NVIDIA, "Pretraining large language models with NVFP4", 2025. Names and defaults are those of
Transformer Engine's recipes (`transformer_engine/common/recipe`), of torchao's
(`torchao/float8/config.py`) and of Megatron's flags.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

Element = Literal["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
Scale = Literal["float32", "float32_before", "float32_power", "e8m0", "e4m3"]
FLOAT8, FLOAT4 = "float8", "float4"
RATES: Final = (FLOAT8, FLOAT4)
"""Names of the peak rates of products of low precision in the file of a device."""
ELEMENT_BYTES: Final = {"float8_e4m3fn": 1.0, "float8_e5m2": 1.0, "float4_e2m1fn": 0.5}
_SCALE_BYTES: Final = {
    "float32": 4.0,
    "float32_before": 4.0,
    "float32_power": 4.0,
    "e8m0": 1.0,
    "e4m3": 1.0,
}


@dataclass(frozen=True)
class Scaling:
    """How an operand of a product is quantized.

    Parameters
    ----------
    element : str
        The type of its elements.
    depth : int
        How many neighbours along the contracted dimension share a scale; 0 for all of them.
    across : int
        How many of its other dimension share it; 0 for all of them.
    scale : str
        The type of a scale: ``float32``, or ``float32_before``, by the largest numbers of the steps
        before; a ``float32_power`` of two, or one of 8 bits, ``e8m0``, the least with which nothing
        overflows; or ``e4m3``, times a float32 number for the tensor.
    """

    element: Element
    depth: int
    across: int
    scale: Scale

    @property
    def reads_twice(self) -> bool:
        """Whether the largest number of the whole tensor is needed before the first is cast."""
        return self.scale == "e4m3" or (self.is_of_tensor and self.scale != "float32_before")

    @property
    def is_of_tensor(self) -> bool:
        """Whether all numbers share a scale, so that a copy serves along both dimensions."""
        return not (self.depth or self.across)

    @property
    def bytes_each(self) -> float:
        """Bytes of an element, with its part of a scale; those of rows and tensors are few."""
        block = self.depth * self.across
        return ELEMENT_BYTES[self.element] + (_SCALE_BYTES[self.scale] / block if block else 0.0)


@dataclass(frozen=True)
class Recipe:
    """A recipe of low precision.

    Parameters
    ----------
    name : str
        Its name, which is that of the precision.
    rows, weight, gradient : Scaling
        How activations, weights, and gradients of activations are quantized.
    rate : str
        The peak rate of its products in the file of a device, one of `RATES`.
    multiple : int
        What divides both sides of a weight whose products are quantized; others stay as they are.
    torchao : str
        What torchao calls it; empty where it has none.
    megatron : tuple of (str, str)
        The flags of Megatron that say it, each with its value; empty where none do.
    products_of : str
        The recipe whose products are the same kernels, so that a device has both or neither; empty
        where there is none.
    leaves_ends : bool
        Whether it can leave out the first and the last block. Delayed scaling cannot: its scales
        are found of all blocks at once.
    """

    name: str
    rows: Scaling
    weight: Scaling
    gradient: Scaling
    rate: str
    multiple: int = 16
    torchao: str = ""
    megatron: tuple[tuple[str, str], ...] = ()
    products_of: str = ""
    leaves_ends: bool = True

    def scaling(self, kind: str) -> Scaling:
        """Return how an operand of a kind is quantized: of `OPERANDS`."""
        return {"rows": self.rows, "weight": self.weight, "gradient": self.gradient}[kind]


Casts = Literal["each", "shared", "kept"]
CASTS: Final[tuple[Casts, ...]] = get_args(Casts)
"""How copies are made: each product makes its own, equal ones are made once, or they are kept."""
OPERANDS: Final = ("rows", "weight", "gradient")
"""What an operand of a quantized product is."""
_DEEPSEEK, _MX, _NVFP4 = 128, 32, 16  # neighbours that share a scale


def _recipes() -> tuple[Recipe, ...]:
    whole = Scaling("float8_e4m3fn", 0, 0, "float32")
    row = Scaling("float8_e4m3fn", 0, 1, "float32_power")
    line = Scaling("float8_e4m3fn", _DEEPSEEK, 1, "float32_power")
    square = Scaling("float8_e4m3fn", _DEEPSEEK, _DEEPSEEK, "float32_power")
    micro = Scaling("float8_e4m3fn", _MX, 1, "e8m0")
    short = Scaling("float4_e2m1fn", _NVFP4, 1, "e4m3")
    tile = Scaling("float4_e2m1fn", _NVFP4, _NVFP4, "e4m3")
    steep = Scaling("float8_e5m2", 0, 0, "float32")
    known, known_steep = (replace(one, scale="float32_before") for one in (whole, steep))
    return (
        Recipe(
            "fp8-current",
            *(whole, whole, steep),
            rate=FLOAT8,
            torchao="tensorwise",
            megatron=(("fp8-format", "hybrid"), ("fp8-recipe", "tensorwise")),
        ),
        Recipe(
            "fp8-delayed",
            *(known, known, known_steep),
            rate=FLOAT8,
            megatron=(("fp8-format", "hybrid"), ("fp8-recipe", "delayed")),
            products_of="fp8-current",
            leaves_ends=False,
        ),
        Recipe("fp8-rowwise", *(row, row, row), rate=FLOAT8, torchao="rowwise"),
        Recipe(
            "fp8-blockwise",
            *(line, square, line),
            rate=FLOAT8,
            megatron=(("fp8-format", "e4m3"), ("fp8-recipe", "blockwise")),
        ),
        Recipe(
            "mxfp8",
            *(micro, micro, micro),
            rate=FLOAT8,
            multiple=_MX,
            megatron=(("fp8-format", "e4m3"), ("fp8-recipe", "mxfp8")),
        ),
        Recipe(
            "nvfp4",
            *(short, tile, short),
            rate=FLOAT4,
            megatron=(("fp4-format", "e2m1"), ("fp4-recipe", "nvfp4")),
        ),
    )


RECIPES: Final = {recipe.name: recipe for recipe in _recipes()}
"""The recipes by name."""

"""Recipes of low precision in the files of Megatron and of torchtitan."""

from typing import Any

from shardwright.frontends.configs.reading import Fields
from shardwright.operators.models.precision import FIRST_LAST
from shardwright.operators.models.recipes import RECIPES

_FLAGS = ("fp8-format", "fp8-recipe", "fp4-format", "fp4-recipe")
_RECIPE_OF = {"fp8": "delayed", "fp4": "nvfp4"}  # where the format alone is given
_GATHERS = ("fp8-param-gather", "fp8-param", "fp4-param-gather", "fp4-param")
_OF_DELAYED = ("fp8-margin", "fp8-interval")
_ENDS = ("num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16")
_HEAD = "output"
# Converters of linear layers; those of `quantize.grouped_mm` convert products of experts alone.
_KIND_OF = {
    f"{where}{kind}": kind for where in ("", "quantize.linear.") for kind in ("float8", "mx")
}
_MX = ("mxfp8_cublas", "mxfp8", "mxfp8_emulated")
_OF_TORCHAO = {one.torchao: name for name, one in RECIPES.items() if one.torchao}


def of_megatron(fields: Fields, precision: str) -> str:
    """Return the recipe that flags of Megatron say; the precision where they say none.

    Raises
    ------
    ModelError
        If it is none of `RECIPES`, or parameters are gathered in its type.
    """
    reading = fields.reading
    for name in _GATHERS:
        if fields.take(name) is not None:
            raise reading.error(
                f"`--{name}`: parameters are gathered in bfloat16 here",
                "remove it; the plan then gathers two bytes of each",
            )
    given = {name: str(fields.take(name)) for name in _FLAGS if name in fields.left}
    if not given:
        return precision  # flags of the first and the last layer are then left, and refused
    kind = "fp8" if "fp8-format" in given else "fp4"
    if f"{kind}-format" not in given:
        name = next(iter(given))
        what = f"`--{name}` has no effect without `--{name[:3]}-format`"
        raise reading.error(what, "add that, or remove it")
    asked = {f"{kind}-recipe": _RECIPE_OF[kind]} | given
    known = {name: dict(one.megatron) for name, one in RECIPES.items() if one.megatron}
    found = next((name for name, flags in known.items() if flags == asked), None)
    if found is None:
        said = " ".join(f"--{name} {value}" for name, value in asked.items())
        ways = "; ".join(" ".join(f"--{k} {v}" for k, v in one.items()) for one in known.values())
        raise reading.error(f"`{said}` is not supported", f"expected one of: {ways}")
    if precision != "bfloat16":
        raise reading.error(f"`--{kind}-format` is without `--bf16`", "add that flag")
    fields.drop(_OF_DELAYED, ("fp8-amax-",))
    return found + _ends_of(fields, found)


def _ends_of(fields: Fields, recipe: str) -> str:
    """Return what a precision adds to a recipe whose first and last layer stay in bfloat16."""
    if fields.take("first-last-layers-bf16") is None:
        return ""
    for name in _ENDS:
        count = fields.take(name)
        if count not in (None, "1", 1):
            what = f"`--{name}` is {count}"
            raise fields.reading.error(what, "expected 1: one layer at each end stays in bfloat16")
    if not RECIPES[recipe].leaves_ends:
        raise fields.reading.error(
            f"`--first-last-layers-bf16` is beside `{recipe}`, which Megatron refuses",
            "use another recipe, or remove the flag",
        )
    return FIRST_LAST


def of_torchtitan(model: Fields, tables: dict[str, Any]) -> str | None:
    """Return the recipe that the converters of a file of torchtitan say; None where there is none.

    Parameters
    ----------
    model : Fields
        The table of the model, which names converters.
    tables : mapping
        All tables of the file.

    Raises
    ------
    ModelError
        If a converter is none of linear layers in float8 or mx, converts the head too, or gathers
        parameters in eight bits; or its recipe is not known.
    """
    converters = model.take("converters", [])
    if converters in ([], ""):
        return None
    names = converters if isinstance(converters, list) else [converters]
    kind = _KIND_OF.get(str(names[0]))
    if len(names) > 1 or kind is None:
        raise model.reading.error(
            f"`converters` is `{converters}`", f"expected none, or one of {', '.join(_KIND_OF)}"
        )
    table: Any = tables
    for part in str(names[0]).split("."):
        table = table.get(part, {}) if isinstance(table, dict) else {}
    own = Fields(model.reading, dict(table) if isinstance(table, dict) else {})
    why = "parameters are gathered in bfloat16 here: turn it off"
    own.only("enable_fsdp_float8_all_gather", (False,), why, False)
    own.only("precompute_float8_dynamic_scale_for_fsdp", (False,), why, False)
    own.only("emulate", (False,), "expected false", False)
    kept = own.take("filter_fqns", [_HEAD] if kind == "mx" else [])
    if kept != [_HEAD]:
        raise model.reading.refused(
            "filter_fqns",
            kept,
            f'expected ["{_HEAD}"]: the head stays in bfloat16 here, and all '
            "other products of layers are quantized",
        )
    own.drop(("force_recompute_fp8_weight_in_bwd",))
    if kind == "mx":
        own.only("recipe_name", _MX, f"expected {_MX[0]}", _MX[0])
        own.drop(("mxfp8_dim1_cast_kernel_choice",))
        found = "mxfp8"
    else:
        ways = f"expected {' or '.join(_OF_TORCHAO)}"
        found = _OF_TORCHAO[own.only("recipe_name", _OF_TORCHAO, ways, "tensorwise") or ""]
    own.end("it has no such key here")
    return found

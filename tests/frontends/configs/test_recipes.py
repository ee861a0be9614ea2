"""Recipes of low precision in scripts of Megatron; those of torchtitan are in `test_torchtitan`."""

import pytest

from shardwright.frontends import configs
from shardwright.ir.errors import ModelError
from tests.frontends.configs.test_configs import SCRIPT, written


@pytest.mark.parametrize(
    ("flags", "recipe"),
    [
        ("--fp8-format hybrid --fp8-recipe tensorwise --fp8-amax-history-len 4", "fp8-current"),
        ("--fp8-format hybrid --fp8-amax-history-len 1024", "fp8-delayed"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "fp8-blockwise"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--fp4-format e2m1", "nvfp4"),
        ("--fp4-format e2m1 --first-last-layers-bf16", "nvfp4+first-last-bf16"),
        (
            "--fp8-format e4m3 --fp8-recipe mxfp8 --first-last-layers-bf16 "
            "--num-layers-at-start-in-bf16 1",
            "mxfp8+first-last-bf16",
        ),
        ("", "bfloat16"),
    ],
)
def test_flags_of_low_precision_become_recipes(flags, recipe, tmp_path):
    text = f"{SCRIPT.rstrip()} {flags}\n"
    found = configs.read_plan(written(tmp_path, "train.sh", text), with_model=True)
    assert found.options["precision"] == recipe
    if flags:
        name = written(tmp_path, "train.sh", text.replace(" --bf16", ""))
        with pytest.raises(ModelError, match="-format` is without `--bf16`"):
            configs.read_plan(name, with_model=True)


@pytest.mark.parametrize(
    ("added", "match"),
    [
        (
            "--bf16 --fp8-format e4m3",
            "`--fp8-recipe delayed --fp8-format e4m3` is not supported",
        ),
        (
            "--bf16 --fp8-format hybrid --fp8-recipe mxfp8",
            "--fp8-format hybrid` is not supported",
        ),
        ("--fp8-recipe mxfp8", "`--fp8-recipe` has no effect without `--fp8-format`"),
        (
            "--fp8-format e4m3 --fp8-param-gather",
            "`--fp8-param-gather`: parameters are ",
        ),
        ("--first-last-layers-bf16", "the flag `--first-last-layers-bf16` is not supported"),
        (
            "--fp4-format e2m1 --first-last-layers-bf16 --num-layers-at-end-in-bf16 8",
            "`--num-layers-at-end-in-bf16` is 8",
        ),
        (
            "--fp8-format hybrid --first-last-layers-bf16",
            "`--first-last-layers-bf16` is beside `fp8-delayed`, which Megatron refuses",
        ),
    ],
)
def test_other_flags_of_low_precision_are_refused(added, match, tmp_path):
    name = written(tmp_path, "train.sh", f"{SCRIPT.rstrip()} {added}\n")
    with pytest.raises(ModelError, match=match):
        configs.read_plan(name, with_model=True)

"""The proof of steps in micro-batches: values accumulate over an axis that is run in time."""

import pytest

from shardwright.api import compile
from shardwright.ir.text import parse, to_text
from shardwright.proof import UpdateRule, prove_program

MODEL = "mlp:batch=8,inputs=12,hidden=16"


@pytest.fixture(scope="module")
def plan():
    return compile(
        MODEL, 2, mode="data_parallel", micro_batches=2, optimizer="sgd", cluster="cpu"
    ).plan


def proven(plan, text: str) -> bool | None:
    settings = plan.document.optimizer.settings
    return prove_program(plan.model, parse(text), UpdateRule("sgd", settings)).proven


def accumulations(text: str) -> list[str]:
    """Return the lines that accumulate."""
    return [line for line in text.splitlines() if "axes=('micro',)" in line]


def test_the_step_is_proven(plan) -> None:
    text = to_text(plan.program)
    assert len(accumulations(text)) == 7  # six parameters and the loss
    assert proven(plan, text)


@pytest.mark.parametrize("at", range(7))
def test_no_accumulation_is_left_out_or_done_twice(plan, at: int) -> None:
    text = to_text(plan.program)
    line = accumulations(text)[at]
    assert not proven(plan, text.replace(line, line.replace("all_reduce", "mirror")))
    assert not proven(plan, text.replace("axes=('micro',)", "axes=('x',)", at + 1))
    name, kind = (part.strip() for part in line.split("=")[0].split(":"))
    once = line.replace(f"{name}:", f"{name}.once:")
    again = f"{name}: {kind} = add({name}.once, {name}.once)"
    assert not proven(plan, text.replace(line, f"{once}\n  {again}"))
    late = text.replace(line, once).replace(f"({name})", f"({name}.late)")
    first = next(line for line in late.splitlines() if f"({name}.late)" in line)
    again = again.replace(f"{name}:", f"{name}.late:")
    assert not proven(plan, late.replace(first, f"  {again}\n{first}"))


def test_what_accumulates_is_not_read_in_a_pass(plan) -> None:
    text = to_text(plan.program)
    lines = text.splitlines()
    update = next(line for line in lines if "sgd_update" in line)
    operands = update.split("(")[1].split(")")[0].split(", ")
    gradient = next(line for line in lines if line.startswith(f"  {operands[1]}:"))
    moved = [line for line in lines if line != update]
    moved.insert(moved.index(gradient) + 1, update)
    last = max(i for i, line in enumerate(moved) if "axes=('micro',)" in line)
    early = moved.index(update) < last
    assert proven(plan, "\n".join(moved) + "\n") is not early
    single = text.replace(f"{operands[0]}, {operands[1]}", f"{operands[0]}, {operands[0]}")
    assert not proven(plan, single)

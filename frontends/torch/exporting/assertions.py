"""Assertions that modules and PyTorch write in Python: an export goes on as if they held.

Of what a module asserts nothing is imported. An export stops where a branch depends on elements; if
all that the branch does is to raise an error, the program is what comes when it is not taken.
"""

import ast
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from unittest.mock import patch

import torch

from shardwright.frontends.torch.private import SymNode, Undecided

# Parts of PyTorch, and of this frontend, that ask for the conditions of others.
_TRACING = ("torch._", "torch.fx.", "torch.utils.", "shardwright.frontends.torch.")
# What turns a condition round inside of it, or may be read after it.
_KEEPING = (ast.Not, ast.NamedExpr, ast.Lambda)


# Functions of finite values, by what they are.
_FINITE = {"isfinite": True, "isinf": False, "isnan": False}


@contextmanager
def passing_assertions() -> Iterator[None]:
    """Let conditions of assertions that depend on elements have the value that raises nothing."""
    original = SymNode.guard_bool

    def guard_bool(node: SymNode, file: str, line: int) -> bool:
        try:
            return original(node, file, line)
        except Undecided:
            passing = _passing_value(_caller())
            if passing is None:
                raise
            return passing

    with (
        patch.object(SymNode, "guard_bool", guard_bool),
        patch.object(torch.distributions.Distribution, "_validate_args", False),
    ):
        yield


def _caller() -> FrameType | None:
    """Return the innermost frame that computes: of the module, or of PyTorch's layers and losses.

    Tensors and traces are PyTorch's own, and ask for others.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame and _traces(frame):
        frame = frame.f_back
    return frame


def _traces(frame: FrameType) -> bool:
    """Return whether a frame asks for the condition of another one."""
    module = str(frame.f_globals.get("__name__", ""))
    is_mode = frame.f_code.co_name == "__torch_function__"
    return is_mode or module == "torch" or module.startswith(_TRACING)


def _passing_value(frame: FrameType | None) -> bool | None:
    """Return what a condition must be for the statement that asks to raise nothing.

    None where the statement does more than to raise, or where the condition may be kept.
    """
    if frame is not None and (finite := _finite_value(frame)) is not None:
        return finite
    found = None if frame is None else _test_of(frame)
    if found is None:
        return None
    condition, holds = found
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        condition, holds = condition.operand, not holds
    kept = any(isinstance(one, _KEEPING) for one in ast.walk(condition))
    return None if kept else holds


def _test_of(frame: FrameType) -> tuple[ast.expr, bool] | None:
    """Return the condition of an assertion that a frame is in, and its value if none is raised."""
    line, _, column, _ = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if line is None or column is None:
        return None
    for node in _statements("".join(linecache.getlines(frame.f_code.co_filename))):
        if isinstance(node, ast.Assert) or _only_raises(node):
            test = node.test
            end = (test.end_lineno or 0, test.end_col_offset or 0)
            if (node.lineno, node.col_offset) <= (line, column) < end:
                return test, isinstance(node, ast.Assert)
    return None


def _finite_value(frame: FrameType) -> bool | None:
    """Return what a condition on whether values are finite is, if they are; None for others."""
    line, _, column, _ = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if line is None or column is None:
        return None
    for node in _statements("".join(linecache.getlines(frame.f_code.co_filename))):
        test = node.test
        end = (test.end_lineno or 0, test.end_col_offset or 0)
        if (node.lineno, node.col_offset) <= (line, column) < end:
            called = [one.func for one in ast.walk(test) if isinstance(one, ast.Call)]
            names = [one.attr for one in called if isinstance(one, ast.Attribute)]
            asked = [name for name in names if name in _FINITE]
            rest = [name for name in names if name not in (*_FINITE, "all", "any")]
            if len(values := {_FINITE[name] for name in asked}) == 1 and not rest:
                return values.pop() if len(names) == len(called) else None
    return None


@lru_cache(maxsize=8)
def _statements(source: str) -> tuple[ast.Assert | ast.If, ...]:
    """Return all assertions and branches of a file; none of what is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, (ast.Assert, ast.If)))


def _only_raises(branch: ast.If) -> bool:
    return len(branch.body) == 1 and isinstance(branch.body[0], ast.Raise) and not branch.orelse

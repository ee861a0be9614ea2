"""Where a node of an exported graph comes from: the module, and the line of the user's code."""

import linecache
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import unwrap
from pathlib import Path
from types import CodeType
from unittest.mock import patch

import torch
from torch import fx

_PYTORCH = Path(torch.__file__).parent
_OURS = Path(__file__).resolve().parent
_STANDARD = Path(traceback.__file__).parent
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.*)')


def module_path(node: fx.Node) -> str:
    """Return the path of the innermost module of a node: ``model/layers/0/self_attn``."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    path = str(paths[-1]) if paths else ""
    return re.sub(r"[^\w./-]", "_", path.split("@")[0]).replace(".", "/")


@contextmanager
def whole_traces(inner: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let exported nodes keep the lines of functions that `forward` calls, until the end.

    Parameters
    ----------
    inner : mapping of str to str, optional
        The lines of operators in graphs that are run again, by the code that PyTorch runs.
    """
    original = fx.Tracer._filter_traceback_frames

    def frames_of(tracer: fx.Tracer, summary: traceback.StackSummary) -> traceback.StackSummary:
        run = [(inner or {}).get((one.line or "").partition(";")[0]) for one in summary]
        traces = [trace for trace in run if trace]
        own = _parsed(traces[-1]) if traces else _own(summary)
        return traceback.StackSummary.from_list(own) if own else original(tracer, summary)

    with patch.object(fx.Tracer, "_filter_traceback_frames", frames_of):
        yield


def source_line(node: fx.Node) -> str | None:
    """Return the line of the module's code that a node comes from: ``model.py:12: x + y``."""
    frames = _parsed(str(node.meta.get("stack_trace") or ""))
    return _said(_own(frames) or frames)


def _parsed(trace: str) -> list[traceback.FrameSummary]:
    """Return the frames of a text of them."""
    found = list(_FRAME.finditer(trace))
    ends = [frame.start() for frame in found[1:]] + [len(trace)]
    frames = []
    for frame, end in zip(found, ends, strict=True):
        code = [line.strip() for line in trace[frame.end() : end].splitlines()[1:2]]
        where = (frame["file"], int(frame["line"]), frame["name"])
        frames.append(traceback.FrameSummary(*where, lookup_line=False, line="".join(code)))
    return frames


def line_of(error: Exception) -> str | None:
    """Return the last line of the module's code that an error passed through."""
    return _said(_own(traceback.extract_tb(error.__traceback__)))


def line_of_call() -> str | None:
    """Return the line of the module's code that is being run."""
    return _said(_own(traceback.extract_stack()))


def line_of_function(function: Callable[..., object]) -> str | None:
    """Return the line where a function is defined; None for one that has no lines."""
    code: CodeType | None = getattr(unwrap(function), "__code__", None)
    if code is None:
        return None
    line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}: {line}"


def _own(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the lines of the module's code, without what called this package."""
    kinds = [_kind(frame.filename) for frame in frames]
    begin = kinds.index("ours") if "ours" in kinds else 0
    both = zip(frames[begin:], kinds[begin:], strict=True)
    return [frame for frame, kind in both if kind in ("library", "own")]


def _said(frames: Sequence[traceback.FrameSummary]) -> str | None:
    """Return the innermost line, and the line of the user's code or of `forward` that calls it."""
    if not frames:
        return None
    own = [frame for frame in frames if _kind(frame.filename) == "own"]
    caller = own[-1] if own else frames[-1]
    if caller is frames[-1]:
        caller = next((one for one in reversed(own) if one.name == "forward"), caller)
    lines = [frames[-1]] if caller is frames[-1] else [frames[-1], caller]
    told = (f"{Path(one.filename).name}:{one.lineno}: {one.line}" for one in lines)
    return ", called in ".join(dict.fromkeys(told))


@cache
def _kind(name: str) -> str:
    """Return whose code a file has: ours, PyTorch's, an installed library's, or the user's own."""
    file = Path(name)
    if not file.is_file():
        return "none"  # functions that PyTorch has made, such as `<eval_with_key>.3`
    if file.resolve().is_relative_to(_OURS):
        return "ours"
    if file.is_relative_to(_PYTORCH):
        return "pytorch"
    is_library = "site-packages" in file.parts or file.is_relative_to(_STANDARD)
    return "library" if is_library else "own"


def place(node: fx.Node) -> str | None:
    """Return the module and the line of a node, for messages."""
    path, line = module_path(node), source_line(node)
    parts = [f"`{path.replace('/', '.')}`"] if path else []
    return ", ".join(parts + ([line] if line else [])) or None

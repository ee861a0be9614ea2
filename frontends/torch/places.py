"""Where a node of an exported graph comes from: the module, and the line of the user's code."""

import re
import traceback
from pathlib import Path

import torch
from torch import fx

_PYTORCH = Path(torch.__file__).parent
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def module_path(node: fx.Node) -> str:
    """Return the path of the innermost module of a node: ``model/layers/0/self_attn``."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    path = str(paths[-1]) if paths else ""
    return re.sub(r"[^\w./-]", "_", path.split("@")[0]).replace(".", "/")


def source_line(node: fx.Node) -> str | None:
    """Return the last line of the module's code that a node comes from: ``model.py:12: x + y``."""
    trace = str(node.meta.get("stack_trace") or "")
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return None
    # Functions that PyTorch has traced before have files such as `<eval_with_key>.3`.
    frames = [frame for frame in frames if not frame["file"].startswith("<")] or frames
    own = [frame for frame in frames if _is_of_user(Path(frame["file"]))]
    last = (own or frames)[-1]
    lines = trace[last.end() :].splitlines()
    code = lines[1].strip() if len(lines) > 1 else ""
    return f"{Path(last['file']).name}:{last['line']}" + (f": {code}" if code else "")


def line_of(error: Exception) -> str | None:
    """Return the last line of the module's code that an error passed through."""
    return _last_line(traceback.extract_tb(error.__traceback__))


def line_of_call() -> str | None:
    """Return the line of the module's code that is being run."""
    return _last_line(traceback.extract_stack())


def _last_line(frames: traceback.StackSummary) -> str | None:
    for frame in reversed(frames):
        file = Path(frame.filename)
        if file.is_file() and _is_of_user(file):
            return f"{file.name}:{frame.lineno}: {frame.line}"
    return None


def _is_of_user(file: Path) -> bool:
    """Return whether a file is neither PyTorch's nor of this package."""
    is_ours = file.resolve().is_relative_to(Path(__file__).resolve().parent)
    return not is_ours and not file.is_relative_to(_PYTORCH)


def place(node: fx.Node) -> str | None:
    """Return the module and the line of a node, for messages."""
    path, line = module_path(node), source_line(node)
    parts = [f"`{path.replace('/', '.')}`"] if path else []
    return ", ".join(parts + ([line] if line else [])) or None

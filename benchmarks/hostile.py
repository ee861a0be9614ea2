"""Give every command files that were made to do harm: ``python benchmarks/hostile.py``.

Each case is made in a copy of a folder with a plan and a checkpoint of it, and a user's command
runs on it in a process of its own, forked from one in which the product is loaded. It is refused if
the command ends with one sentence (and warnings), writes nothing, tells nothing of a file outside,
and takes, with what a start takes, at most 2 s of the processor and 300 MB.

Names are no reason to refuse a plan: it is exported, and what was written is imported; nothing of a
name may run. The text of a program has a line for each node: names of modules lose their line
ends and apostrophes.
"""

import argparse
import importlib
import importlib.util
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hostile_cases import Case, cases
from machine import machine

from shardwright.api import compile, read_plan, run
from shardwright.compiler.plans.files import write_plan
from shardwright.tools.main import main as command

ROOT = Path(__file__).parents[1]
_SECONDS = 2.0  # of the processor
_MEGABYTES = 300.0
# Seconds on the clock after which a command that waits is stopped: a pipe holds it for ever.
_WAITS = 60
# Bytes of addresses: a command that takes memory without bound fails, and not this machine.
_MOST = 8 << 30
_SECRET = "what only the owner may read"
_ERROR, _WARNING = "shardwright: ", "shardwright: warning: "
_MODEL = "mlp:batch=4,hidden=8"


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Parameters
    ----------
    code : int
        The exit code; -9 if it was stopped.
    said : str
        What it said, on both streams.
    seconds : float
        Of the processor.
    megabytes : float
        The most memory that it had.
    changed : tuple of str
        Files that are new, gone or of another size, logs apart.
    """

    code: int
    said: str
    seconds: float
    megabytes: float
    changed: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """One of the words of the table's heads."""
        if self.code == -9:
            return "without end"
        if "Traceback" in self.said or self.code < 0:
            return "traceback"
        if self.code == 0:
            return "accepted"
        if _SECRET in self.said or self.changed:
            return "reads or writes elsewhere"
        *warnings, error = self.said.splitlines() or [""]
        if not all(line.startswith(_WARNING) for line in warnings) or not error.startswith(_ERROR):
            return "more than a sentence"
        if self.megabytes > _MEGABYTES:
            return "too much memory"
        return "too slow" if self.seconds + _start() > _SECONDS else "refused"


def end(arguments: Sequence[str], folder: Path) -> Ending:
    """Run a command in a folder, and return how it ended."""
    before = _sizes(folder)
    code, said, used = _forked(lambda: command(list(arguments)), folder)
    changed = sorted(name for name, _ in before.items() ^ _sizes(folder).items())
    return Ending(
        code,
        said.replace(f"{folder}/", ""),
        used.ru_utime + used.ru_stime,
        used.ru_maxrss * 1024 / 1e6,
        tuple(dict.fromkeys(changed)),
    )


def _forked(act: Callable[[], int], folder: Path) -> tuple[int, str, resource.struct_rusage]:
    """Do something in a process of its own; return its exit code, what it said and what it used."""
    said = folder.parent / "said"
    child = os.fork()
    if not child:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (_MOST, _MOST))
            os.chdir(folder)
            output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = act()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + _WAITS
    while not (waited := os.wait4(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(waited[1]), said.read_text(errors="replace"), waited[2]


def _sizes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.lstat().st_size if path.is_file() else -1
        for path in folder.parent.rglob("*")
        if path.is_relative_to(folder) and not {"logs", "__pycache__"} & {*path.parts}
    }


def prepare(folder: Path) -> None:
    """Put a plan, its checkpoints, and a secret into an empty folder."""
    compilation = compile(_MODEL, 2, cluster="cpu")
    compilation.write(folder / "plan")
    for _ in run(compilation, 1, save=folder / "state.npz"):
        pass
    saving = ("run", "plan", "--steps", "1", "--checkpoints", "saved", "--save-every", "1")
    assert end(saving, folder).code == 0
    shutil.rmtree(folder / "plan/logs", ignore_errors=True)
    (folder / "secret").write_text(_SECRET)


@cache
def _start() -> float:
    """Return the seconds of the processor that a command takes to start, the least of three."""
    return min(_one_start() for _ in range(3))


def _one_start() -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "shardwright", "run", "/nowhere"]
    process = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def tried(case: Case, prepared: Path) -> Ending:
    """Make a case in a copy of the prepared folder, and run its command."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "here"
        shutil.copytree(prepared, folder)
        case.make(folder)
        return end(case.command, folder)


# Names

_RUNS = 'import os; os.mkdir("ran")'
_NAMES = (
    f'm"""\n{_RUNS}\n"""',
    f"m'''\r{_RUNS}\r'''",
    f'm\\"""\\\n{_RUNS}\n#',
    f"m\u2028{_RUNS}\x85{_RUNS}\x0c{_RUNS}",
    f'm"\n{_RUNS}\n"',
    "m\n\n[training]\nlocal_batch_size = 1",
    "m\n  $(mkdir ran)\n`mkdir ran`; mkdir ran",
    "m {0} {summary} %s ${HOME}",
    "../../ran",
)
_TARGETS = ("torch", "jax", "parallelize", "megatron", "hf")


def named(folder: Path, text: str) -> None:
    """Write the plan anew with a text as the name of its model, its cluster and its modules.

    The text of a program has a line for each node, so the names of modules are the text in a line.
    """
    line = "".join(c if c.isprintable() else " " for c in text).replace("'", '"')
    plan = read_plan(folder / "plan")
    cluster = plan.document.cluster.model_copy(update={"name": text})
    document = plan.document.model_copy(update={"model": text, "cluster": cluster})
    nodes = tuple(replace(n, scope=f"{n.scope}/{line}") for n in plan.program.nodes)
    shutil.rmtree(folder / "plan")
    program = replace(plan.program, nodes=nodes)
    write_plan(folder / "plan", replace(plan, document=document, program=program))


def exported(text: str, target: str, prepared: Path) -> tuple[str, str]:
    """Export a plan with a hostile name, import what came of it, and return what happened."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "here"
        shutil.copytree(prepared, folder)
        named(folder, text)
        exporting = ["export", "plan", "--to", target, "--out", "out"]
        code, said, _ = _forked(lambda: command(exporting), folder)
        if code:
            refused = code == 2 and "Traceback" not in said
            return "refused" if refused else "traceback", said
        code, said, _ = _forked(_import_all, folder)
        if any(path.name == "ran" for path in Path(parent).rglob("*")):
            return "ran", said
        return ("cannot be imported" if code else "harmless"), said


def _import_all() -> int:
    """Import every package, run every module, and parse every script that was exported."""
    for path in sorted(Path("out").rglob("*.py")):
        inner = (path.parent.parent / "__init__.py").exists()
        if path.name == "__init__.py" and not inner:
            sys.path.insert(0, str(path.parent.parent.resolve()))
            importlib.import_module(path.parent.name)
            importlib.import_module(f"{path.parent.name}.program")
        elif not (path.parent / "__init__.py").exists():
            runpy.run_path(str(path), run_name="imported")
    for path in sorted(Path("out").rglob("*.sh")):
        subprocess.run(["bash", "-n", str(path)], check=True)
    return 0


# The page


def _rows(endings: Sequence[tuple[Case, Ending]]) -> str:
    lines, group = [], ""
    for case, ending in endings:
        if case.group != group:
            group = case.group
            commands = {other.command for other, _ in endings if other.group == group}
            others = ", or what reads such a file" if len(commands) > 1 else ""
            lines += ["", f"## {group[0].upper()}{group[1:]}", ""]
            lines += [
                f"`shardwright {' '.join(case.command)}`{others}",
                "",
                "| what | outcome | processor, s | memory, MB | what it says |",
                "|---|---|---|---|---|",
            ]
        said = ending.said.removeprefix("shardwright: ").strip().replace("|", "\\|")
        said = said.replace("\n", " ").replace("`", "")
        shown = "".join(c if c.isprintable() else "?" for c in said)
        figures = f"{ending.seconds:.1f} | {ending.megabytes:.0f}"
        lines.append(f"| {case.name} | {ending.outcome} | {figures} | {_short(shown)} |")
    return "\n".join(lines)


def _tail(ending: Ending) -> str:
    said = ending.said.strip()
    return said[-1500:] if ending.outcome == "traceback" else _short(said)


def _short(text: str) -> str:
    return text if len(text) <= 240 else f"{text[:240]} ..."


def main() -> None:
    """Try all cases, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--only", default="", help="cases whose name holds this; writes no page")
    parser.add_argument("--group", default="", help="of this group; writes no page")
    arguments = parser.parse_args()
    for name in ("run", "compile", "estimate", "fit", "opt", "export"):
        importlib.import_module(f"shardwright.tools.{name}")
    importlib.import_module("shardwright.plugins")
    part = bool(arguments.only or arguments.group)
    endings = []
    names: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as parent:
        prepared = Path(parent)
        prepare(prepared)
        for case in cases():
            if arguments.only not in case.name or not case.group.startswith(arguments.group):
                continue
            ending = tried(case, prepared)
            endings.append((case, ending))
            figures = f"{ending.outcome}, {ending.seconds:.1f} s, {ending.megabytes:.0f} MB"
            print(f"{case.group}: {case.name}\n   {figures}: {_tail(ending)}", flush=True)
        if not part or arguments.group == "names":
            targets = [t for t in _TARGETS if t not in _needs_torch()]
            for target in targets:
                for text in _NAMES:
                    outcome, said = exported(text, target, prepared)
                    names[target, outcome] += 1
                    print(f"{target} of {text!r}: {outcome} {_short(said[-300:])}", flush=True)
    counts = Counter((case.group, ending.outcome) for case, ending in endings)
    wrong = sum(n for (_, outcome), n in counts.items() if outcome != "refused")
    wrong += sum(n for (_, outcome), n in names.items() if outcome not in ("harmless", "refused"))
    summary = [f"{n} {group}: {outcome}" for (group, outcome), n in counts.items()]
    print(*summary, *(f"{n} names to {t}: {o}" for (t, o), n in names.items()), sep="\n")
    if not part:
        arguments.out.write_text(page(endings, counts, names))
    sys.exit(bool(wrong))


def _needs_torch() -> tuple[str, ...]:
    absent = [name for name in ("torch", "jax") if importlib.util.find_spec(name) is None]
    return (*absent, "parallelize") if "torch" in absent else tuple(absent)


def page(
    endings: Sequence[tuple[Case, Ending]],
    counts: Counter[tuple[str, str]],
    names: Counter[tuple[str, str]],
) -> str:
    """Return the page of results."""
    outcomes = sorted({outcome for _, outcome in counts}, key=lambda o: (o != "refused", o))
    title = f"# {len(endings)} hostile files\n\n{(__doc__ or '').split(chr(10), 2)[2].strip()}\n\n"
    refused = sum(ending.outcome == "refused" for _, ending in endings)
    slowest = max(ending.seconds for _, ending in endings)
    most = max(ending.megabytes for _, ending in endings)
    text = (
        f"{title}{refused} of {len(endings)} are refused. The slowest took {slowest:.1f} s, beside "
        f"{_start():.1f} s of a start, the largest {most:.0f} MB. On {machine()}.\n\n"
    )
    text += f"| of | {' | '.join(outcomes)} |\n|{'---|' * (len(outcomes) + 1)}\n"
    for group in dict.fromkeys(case.group for case, _ in endings):
        cells = " | ".join(str(counts[group, outcome]) for outcome in outcomes)
        text += f"| {group} | {cells} |\n"
    text += "\n## Names\n\n"
    text += (
        f"{len(_NAMES)} texts that are code in some language, as names of the model, the cluster "
    )
    text += "and the modules.\n\n| exported to | outcome | names |\n|---|---|---|\n"
    for (target, outcome), count in names.items():
        text += f"| {target} | {outcome} | {count} |\n"
    return text + _rows(endings) + "\n"


if __name__ == "__main__":
    main()

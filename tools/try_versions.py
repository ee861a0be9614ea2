"""Run the tests with the lowest, the constrained and the newest versions of other packages.

``python -m shardwright.tools.try_versions lowest constrained newest`` in a clone makes an
environment for each, installs the package with its extras, and runs the tests that use other
packages. ``--write`` puts the results into the table that warnings, ``shardwright --version`` and
README.md quote. It downloads several GB for each version of PyTorch.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardwright.ir.errors import OptionError
from shardwright.ir.versions import PACKAGES, TABLE, Environment, environments

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("test", "torch", "transformers", "jax", "flax", "mpi", "server")
# The folders and files of tests in which other packages than those of the core take part.
TESTS = (
    "tests/exports",
    "tests/frontends",
    "tests/runtime/test_mpi.py",
    "tests/shardwright/server",
    "tests/tools/check",
)
CHOICES = {
    "lowest": "the lower bounds of pyproject.toml",
    "constrained": "constraints.txt, the versions of continuous integration",
    "newest": "whatever pip finds",
}
_BEGIN, _END = "<!-- tested versions -->\n", "<!-- end of tested versions -->\n"


def lower_bounds(project: Mapping[str, object]) -> Iterator[str]:
    """Yield a constraint ``package==version`` for every lower bound of a project.

    Examples
    --------
    >>> list(lower_bounds({"dependencies": ["numpy>=2.0"], "optional-dependencies": {}}))
    ['numpy==2.0']
    """
    extras: Mapping[str, Sequence[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    core: Sequence[str] = project["dependencies"]  # type: ignore[assignment]
    for requirement in dict.fromkeys([*core, *(one for extra in extras.values() for one in extra)]):
        if found := re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement):
            yield f"{found[1]}=={found[2]}"


def constraints(name: str) -> str:
    """Return the text of the constraints by which versions are chosen."""
    if name == "lowest":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        return "\n".join(lower_bounds(project)) + "\n"
    return (ROOT / "constraints.txt").read_text() if name == "constrained" else ""


def tried(name: str, python: str, folder: Path) -> Environment:
    """Make an environment, run the tests in it, and return their result.

    Raises
    ------
    OptionError
        If the environment cannot be made, or the tests end without a count.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = folder / "constraints.txt"
    chosen.write_text(constraints(name))
    _run([python, "-m", "venv", str(folder / "venv")], folder / "install.log")
    binary = str(folder / "venv" / "bin" / "python")
    package = f"{ROOT}[{','.join(EXTRAS)}]"
    install = [binary, "-m", "pip", "install", "--quiet", "--constraint", str(chosen)]
    _run([*install, "--editable", package], folder / "install.log")
    # Whatever is outside of the tested range is what is tried here.
    tests = [binary, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "-m", ""]
    untested = ["-W", "ignore:.*was not tested with this release"]
    _run([*tests, *untested, *TESTS], folder / "tests.log", allowed=(0, 1))
    counts = _counts((folder / "tests.log").read_text())
    return Environment(name, _python(binary), _versions(binary), *counts)


def _run(command: Sequence[str], log: Path, allowed: Sequence[int] = (0,)) -> None:
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=file, cwd=ROOT, check=False).returncode
    if code not in allowed:
        raise OptionError(
            f"`{' '.join(command[:5])} ...` ended with exit code {code}",
            str(log),
            "read that file for the reason",
        )


def _counts(text: str) -> tuple[int, int, int]:
    """Return the numbers of passed, failed and skipped tests in the output of pytest."""
    last = text.strip().splitlines()[-1]
    found = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    if "passed" not in found:
        raise OptionError(f"the tests ended with `{last}`, expected numbers of tests")
    failed = sum(found.get(word, 0) for word in ("failed", "error", "errors"))
    return found["passed"], failed, found.get("skipped", 0)


def _python(binary: str) -> str:
    return subprocess.check_output([binary, "--version"], text=True).split()[1]


def _versions(binary: str) -> dict[str, str]:
    listed = subprocess.check_output([binary, "-m", "pip", "list", "--format", "json"], text=True)
    found = {row["name"].lower(): row["version"] for row in json.loads(listed)}
    return {package: found[package] for package in PACKAGES if package in found}


def with_result(known: Sequence[Environment], new: Environment) -> tuple[Environment, ...]:
    """Return the environments with a new result, which replaces the one of its name and Python."""

    def key(one: Environment) -> tuple[str, str]:
        return one.name, ".".join(one.python.split(".")[:2])

    found = [one for one in known if key(one) != key(new)] + [new]
    order = {name: place for place, name in enumerate(CHOICES)}
    return tuple(sorted(found, key=lambda one: (order[one.name], key(one)[1])))


def markdown(known: Sequence[Environment]) -> str:
    """Return the table of README.md."""
    rows = [
        f"| | Python | {' | '.join(PACKAGES)} | tests |",
        f"|---|---|{'---|' * len(PACKAGES)}---|",
    ]
    for one in known:
        versions = " | ".join(one.versions.get(package, "-") for package in PACKAGES)
        result = f"{one.passed} passed" + (f", {one.failed} failed" if one.failed else "")
        rows.append(f"| {one.name} | {one.python} | {versions} | {result} |")
    return "\n".join(rows) + "\n"


def readme_with(text: str, known: Sequence[Environment]) -> str:
    """Return the text of README.md with the table of the environments."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{markdown(known)}\n{_END}{after}"


def write(known: Sequence[Environment]) -> None:
    """Write the table of results, and the one of README.md."""
    rows = ",\n".join(json.dumps(one._asdict()) for one in known)
    TABLE.write_text(f"[\n{rows}\n]\n")
    readme = ROOT / "README.md"
    readme.write_text(readme_with(readme.read_text(), known))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the chosen versions; the exit code is 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="try_versions", description=__doc__)
    told = "; ".join(f"{name}: {what}" for name, what in CHOICES.items())
    parser.add_argument("names", nargs="+", choices=CHOICES, metavar="NAME", help=told)
    parser.add_argument("--python", default=sys.executable, help="the Python of the environments")
    parser.add_argument("--folder", type=Path, required=True, help="where environments are made")
    parser.add_argument("--write", action="store_true", help="write the tables of the repository")
    given = parser.parse_args(arguments)
    known = environments()
    for name in given.names:
        folder = given.folder / f"{name}-{Path(given.python).name}"
        result = tried(name, given.python, folder)
        known = with_result(known, result)
        print(markdown([result]), end="", flush=True)
    if given.write:
        write(known)
    return int(any(one.failed for one in known if one.name in given.names))


if __name__ == "__main__":
    print(f"Python {platform.python_version()} on {platform.system()}", file=sys.stderr)
    raise SystemExit(main())

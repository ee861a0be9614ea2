"""Take the power from every writer of files: ``python benchmarks/power_loss.py``.

What a writer asks of the system is recorded by `strace`, with all bytes, and replayed on a model of
a disk. There a file has the bytes of its last `fsync`, and a folder the names of its last `fsync`;
a rename is there whole or not at all. After each call the power is gone: what is left are

- the synced bytes and names alone,
- all names, but of each file the synced bytes alone,
- twice, some of the names and of the bytes that were not synced, drawn at random.

Then the next command must read what was there before or what was to be there, whole; and when it
has written in its turn, nothing but its files may be there. After the last call all that is left is
what was to be there. Equal remains are tried once.
"""

import argparse
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from kills import Series, in_child, judged, stopped
from machine import machine
from writers import Writer, all_writers, names_in

from tests.simulator.disk import Disk, Folder, put

_CALLS = (
    "openat,write,pwrite64,writev,lseek,ftruncate,?fallocate,rename,renameat,?renameat2,link,"
    "linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync"
)
_OPTIONS = ("-y", "-xx", "-s", str(2**26))
_LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)(?:<(.*?)>)?(?: .*)?$")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_PLACE = re.compile(r"(-?\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2}|[^>])*)>")


# The record of a writer


def _plain(text: str) -> str:
    """Return the text of a literal of `strace`."""
    raw = re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), text)
    return raw.encode("latin-1").decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def replay(disk: Disk, line: str) -> bool:
    """Do on the disk what a line says; return whether that changes or syncs something."""
    match = _LINE.match(line)
    if match is None or int(match[3]) < 0:
        return False
    call, arguments = match[1], match[2]
    places = [_plain(p).removesuffix(" (deleted)") for _, p in _PLACE.findall(arguments)]
    first = Path(places[0]) if places else Path("/")
    bare = _PLACE.sub(r"\1", arguments)
    texts = _TEXT.findall(bare)
    bases = places or [str(Path.cwd())]
    paths = [Path(bases[min(i, len(bases) - 1)]) / _plain(text) for i, text in enumerate(texts)]
    if call == "openat":
        if "O_DIRECTORY" not in arguments:
            place = Path(_plain(match[4])) if match[4] else paths[0]
            disk.open(place, creates="O_CREAT" in arguments, empties="O_TRUNC" in arguments)
        return "O_CREAT" in arguments or "O_TRUNC" in arguments
    if call in ("write", "pwrite64"):
        offset = int(bare.rsplit(",", 1)[1]) if call == "pwrite64" else None
        disk.write(first, _bytes(texts[0])[: int(match[3])], offset)
    elif call == "lseek":
        disk.seek(first, int(match[3]))
    elif call in ("fsync", "fdatasync"):
        disk.sync(first)
    elif call.startswith("rename"):
        disk.rename(paths[0], paths[1], exchanges="RENAME_EXCHANGE" in arguments)
    elif call.startswith(("unlink", "rmdir")):
        disk.change((disk.at(paths[0]), None))
    elif call.startswith("mkdir"):
        disk.change((disk.at(paths[0]), Folder()))
    else:
        raise ValueError(f"`{call}` is not in the model")
    return call != "lseek"


def series(writer: Writer, folder: Path) -> Series:
    """Take the power from a writer after each of its calls."""
    old, done, log = folder / "old", folder / "trial", folder / "calls"
    old.mkdir()
    writer.begin(old)
    states = {in_child(lambda: writer.found(old))[1]: "old"}
    shutil.copytree(old, done)
    disk = Disk(done)
    code, said = stopped(lambda: writer.write(done), _CALLS, log, options=_OPTIONS)
    assert code == 0, said
    states[in_child(lambda: writer.found(done))[1]] = "new"
    assert len(states) == 2, states
    expected = names_in(done)
    written = {str(p.relative_to(done)): p.read_bytes() for p in done.rglob("*") if p.is_file()}
    shutil.rmtree(done)
    draw, tried = random.Random(0), set[str]()
    found = Series(0, 0, Counter(), [])
    lines = log.read_text().splitlines()
    for line in lines:
        if not replay(disk, line):
            continue
        found.calls += 1
        remains = [disk.left(None, names=False), disk.left(None, names=True)]
        remains += [disk.left(draw, names=False) for _ in range(2)]
        for left in remains:
            _try(writer, left, (states, expected), tried, found, folder / "trial", line[:80])
    whole = {name: content for name, content in disk.left(random.Random(0), names=True).items()}
    now = {name: content for name, content in whole.items() if content is not None}
    assert now.keys() == written.keys(), "the model has other files than the disk"
    for names in (False, True):
        put(disk.left(None, names=names), folder / "trial")
        said = in_child(lambda: writer.found(folder / "trial"))[1]
        shutil.rmtree(folder / "trial")
        if states.get(said) != "new":
            found.wrong.append("after the last call the new state is not synced")
            found.outcomes["lost"] += 1
    return found


def _try(
    writer: Writer,
    left: dict[str, bytes | None],
    right: tuple[dict[str, str], frozenset[str]],
    tried: set[str],
    found: Series,
    trial: Path,
    line: str,
) -> None:
    """Try what the next commands do with what is left, if it is new."""
    key = sha256(repr(left).encode()).hexdigest()
    if key in tried:
        return
    tried.add(key)
    found.tried += 1
    put(left, trial)
    wrong = judged(writer, trial, *right, (0, "", "killed"), found.outcomes)
    if wrong:
        found.wrong.append(f"{wrong} (after {line})")
        print(f"   {found.wrong[-1][:400]}", flush=True)
    shutil.rmtree(trial)


def main() -> None:
    """Run all series, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="writers with this name; writes no page")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    rows, wrong = [], []
    for writer in all_writers():
        if arguments.only not in writer.name:
            continue
        with tempfile.TemporaryDirectory() as parent:
            found = series(writer, Path(parent))
        numbers = (found.calls, found.tried, *(found.outcomes[o] for o in _OUTCOMES))
        rows.append(f"| {writer.name} | {' | '.join(map(str, numbers))} |")
        print(rows[-1], flush=True)
        wrong += [f"- {writer.name}: {text}" for text in found.wrong]
    if not arguments.only:
        arguments.out.write_text(_page(rows, wrong))
    sys.exit(bool(wrong))


def _page(rows: Sequence[str], wrong: Sequence[str]) -> str:
    text = f"# Writers without power\n\n{(__doc__ or '').split(chr(10), 2)[2].strip()}\n\n"
    text += f"On {machine()}.\n\n"
    text += f"| written | calls | tried | {' | '.join(_OUTCOMES)} |\n"
    text += f"|{'---|' * (3 + len(_OUTCOMES))}\n" + "\n".join(rows) + "\n"
    return text + "".join(f"\n{line}" for line in wrong)


_OUTCOMES = ("old", "new", "unreadable", "next refused", "litter", "lost")

if __name__ == "__main__":
    main()

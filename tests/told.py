"""What a command has told beside its output."""


def without_untested(stderr: str) -> str:
    """Return what a command told, but not that a package is newer than those tested."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if "was not tested with this release" not in line)

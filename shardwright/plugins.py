"""Plugins: Python files and installed packages that register operators, passes, searches, profiles.

A plugin is code that calls the registering decorators when it is imported. In Python, importing it
is enough; the command line loads the files that ``--plugin`` names, and the entry points of
installed packages in the group ``shardwright.plugins``.
"""

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from shardwright.ir.errors import PluginError, ShardwrightError
from shardwright.ir.values import checked
from shardwright.user_files import imported

GROUP = "shardwright.plugins"
"""Entry points of this group are loaded by every command."""


@checked
def load_plugin(path: str | Path) -> None:
    """Run a Python file that registers something; running it again replaces what it registered.

    Raises
    ------
    PluginError
        If there is no such file, or it fails.
    """
    path = Path(path)
    if not path.is_file():
        raise PluginError(
            f"there is no file `{path}`",
            hint="name a Python file that registers operators, passes, searches or cost profiles",
        )
    with imported(path, PluginError):
        pass


def load_installed_plugins() -> tuple[str, ...]:
    """Load the plugins of installed packages and return their names.

    Raises
    ------
    PluginError
        If one cannot be imported; names it and its package.
    """
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    for point in points:
        _load(point)
    return tuple(point.name for point in points)


def _load(point: EntryPoint) -> None:
    try:
        point.load()
    except ShardwrightError:
        raise
    except Exception as error:
        package = point.dist.name if point.dist else point.value
        raise PluginError(
            f"the plugin `{point.name}` of the package {package} cannot be imported: "
            f"{type(error).__name__}: {error}",
            hint=f"repair the package, or uninstall it (pip uninstall {package})",
        ) from error

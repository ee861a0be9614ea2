"""The documentation as a site: ``sphinx-build -W -c docs/site . build/site`` in the root.

The pages are those of `docs/`, as they are read in the repository. Their order and names are those
of `docs/README.md`: each of its sections becomes a part of the navigation. Two pages get their text
here: that of all commands, and that of the names which users import.
"""

import inspect
import os
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import shardwright
from shardwright.tools.console.arguments import Parser
from shardwright.tools.main import COMMANDS

CONTENTS = "docs/README"
MODULES = ("nn", "ops", "train", "dataset", "communication", "parallel", "zoo")
WIDTH = 84  # columns of the help of a command: what a page shows without scrolling

project = "shardwright"
version = release = shardwright.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]
root_doc = CONTENTS
include_patterns = ["*.md", "docs/**.md", "benchmarks/**.md"]
suppress_warnings = ["toc.not_included"]  # results that other pages link to
html_theme = "furo"
html_title = f"shardwright {version}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["index.html"]  # leads to the contents
default_role = "code"  # in docstrings, names stand in single quotes
autodoc_typehints = "none"  # numpydoc has the types
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config"}  # of pydantic
numpydoc_show_class_members = False  # `autoclass` shows them
myst_heading_anchors = 4
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True


def with_navigation(text: str) -> str:
    """Return the contents with a table of contents after each section, of the pages it links to."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    for i, part in enumerate(parts):
        pages = "".join(re.findall(r"^- .*$", part, re.MULTILINE))
        links = re.findall(r"\[([^]]+)\]\(([\w./-]+)\.md\)", pages)
        if links:
            title = part.partition("\n")[0].removeprefix("## ")
            entries = "\n".join(f"{name} <{page}>" for name, page in links)
            parts[i] += f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n\n"
    return "".join(parts)


def all_help() -> Iterator[str]:
    """Give the help of each command, as a section."""
    os.environ["COLUMNS"] = str(WIDTH)
    for name in COMMANDS:
        parser = Parser(prog=f"shardwright {name}")
        import_module(f"shardwright.tools.{name}").add_arguments(parser)
        yield f"## `{name}`\n\n```text\n{parser.format_help()}```\n"


def public(module: ModuleType) -> list[str]:
    """Return the names that a module gives: those it lists, or those it defines."""
    own = (name for name, value in vars(module).items() if _is_of(module, value))
    return [name for name in getattr(module, "__all__", own) if not name.startswith("_")]


def _is_of(module: ModuleType, value: object) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def documented(module: ModuleType, names: list[str]) -> Iterator[str]:
    """Give the directive that documents each function and class among the names."""
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value):
            yield f".. autoclass:: {module.__name__}.{name}\n   :members:\n"
        elif inspect.isfunction(value):
            yield f".. autofunction:: {module.__name__}.{name}\n"


def all_python() -> Iterator[str]:
    """Give the documentation of the names that users import, a section for each module."""
    modules = [import_module(f"shardwright.{name}") for name in MODULES]
    known = {id(getattr(module, name)) for module in modules for name in public(module)}
    for module in (shardwright, *modules):
        names = public(module)
        if module is shardwright:
            names = [name for name in names if id(getattr(module, name)) not in known]
        text = "\n".join(documented(module, names))
        yield f"## {module.__name__}\n\n```{{eval-rst}}\n{text}\n```\n"


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill the contents and the two pages whose text is made here."""
    if name == CONTENTS:
        source[0] = with_navigation(source[0])
    elif name == "docs/site/commands":
        source[0] += "\n" + "\n".join(all_help())
    elif name == "docs/site/python":
        source[0] += "\n" + "\n".join(all_python())


def setup(app: Sphinx) -> None:
    """Let Sphinx call what fills the pages."""
    app.connect("source-read", fill)
    app.add_lexer("ir", TextLexer)

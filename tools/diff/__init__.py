"""``shardwright diff``: what changed from a plan to another, and why the one is faster."""

import argparse
import re
from pathlib import Path

from shardwright.api import read_plan
from shardwright.compiler.page.page import check_page, write_text
from shardwright.ir.values import NOT_NEGATIVE, wrong_value
from shardwright.tools.console.options import HTML, add_verbose
from shardwright.tools.console.tables import print_line
from shardwright.tools.diff.diff_document import diff_document
from shardwright.tools.diff.diff_report import print_diff
from shardwright.tools.diff.page import diff_page
from shardwright.tools.diff.sides import Side
from shardwright.tools.reports.documents import print_document

PAGE = "diff.html"
_FLAG = "--max-slower"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("old", type=Path, metavar="OLD", help="folder of a plan")
    parser.add_argument("new", type=Path, metavar="NEW", help="folder of the plan after a change")
    parser.add_argument(
        _FLAG,
        type=_share,
        metavar="PERCENT",
        help="exit code 1 only where the step of NEW is slower than that of OLD by more: `1%%`",
    )
    parser.add_argument(
        "--html",
        type=Path,
        nargs="?",
        const=HTML,
        metavar="FILE",
        help=f"write a page (without FILE: {PAGE} in the folder of NEW)",
    )
    add_verbose(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _share(text: str) -> float:
    """Return a percentage as a share."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if match is None:
        raise wrong_value(_FLAG, text, "a percentage such as `1%`")
    share = float(match[1]) / 100
    NOT_NEGATIVE.check(_FLAG, share)
    return share


def run(arguments: argparse.Namespace) -> int:
    """Compare two plans.

    Returns
    -------
    int
        0 where they are equal, 1 where they differ; with `--max-slower` 1 where the new one is
        slower by more, else 0.
    """
    page = arguments.new / PAGE if arguments.html == HTML else arguments.html
    old, new = (Side(str(path), read_plan(path)) for path in (arguments.old, arguments.new))
    if page is not None:
        check_page(page)
    document = diff_document(old, new, arguments.max_slower)
    if page is not None:
        write_text(page, diff_page(document))
    if arguments.json:
        print_document(document)
    else:
        print_diff(document, arguments.verbose)
        if page is not None:
            print_line("page", str(page))
    if arguments.max_slower is not None:
        return int(document["too_slow"])
    return int(not document["equal"])

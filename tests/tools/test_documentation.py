"""What the documents say to type, the command line understands."""

import json
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from shardwright.cost_model.cluster import Cluster
from shardwright.tools.console.arguments import Parser
from shardwright.tools.main import COMMANDS, EXAMPLES, _load_plugins, main
from shardwright.zoo import load

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *DECISIONS]


def commands():
    """Give every command in a document or in the help: where, and what."""
    for path in DOCUMENTS:
        for line in re.findall(r"^\$ shardwright (.*)$", path.read_text(), re.MULTILINE):
            if "--plugin" not in line:  # run by `test_pages`
                yield path.name, line
        for line in re.findall(r"`shardwright (\w+ [^`]*)`", path.read_text()):
            yield path.name, line
    for command, examples in EXAMPLES.items():
        for example in examples:
            yield "help", f"{command} {example.partition('  ')[0]}"


@pytest.mark.usefixtures("own_operators")
@pytest.mark.parametrize(("place", "line"), list(commands()))
def test_commands_are_understood(place, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    name, *arguments = shlex.split(line)
    assert name in COMMANDS
    parser = Parser(prog=name)
    import_module(f"shardwright.tools.{name}").add_arguments(parser)
    parser.parse_args(_load_plugins(arguments))


def links(path):
    """Return the files that a page links to."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    return {(path.parent / target).resolve() for target in targets}


@pytest.mark.parametrize(
    "path",
    [ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")] + DOCUMENTS,
)
def test_links_lead_somewhere(path):
    for target in links(path):
        assert target.exists(), target


def test_the_contents_have_every_page():
    contents, decisions = ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md"
    listed = links(contents) | links(decisions)
    assert {*(ROOT / "docs").rglob("*.md")} - listed == {contents}
    assert len(DECISIONS) > 5


WAYS = re.findall(r"^\| (.*?) \| (.* → .*) \|$", (ROOT / "docs" / "where-is.md").read_text(), re.M)


@pytest.mark.parametrize(("question", "way"), WAYS)
def test_a_way_leads_to_its_answer(question, way):
    *names, symbol = re.findall(r"\[`?([^]`]+)`?\]", way)
    *pages, module = [ROOT / "docs" / target for target in re.findall(r"\]\(([^)]+)\)", way)]
    assert len(pages) == len(names) <= 4
    for page, following in zip(pages, [*pages[1:], module], strict=True):
        assert following.resolve() in links(page), f"{page.name} has no link to {following}"
    text = module.read_text()
    for name in symbol.split("."):  # a method stands below its class
        found = re.search(rf"^ *(class |def |){name}\b[(:= ]", text, re.MULTILINE)
        assert found, f"{module} does not define {name}"
        text = text[found.end() :]


def test_there_are_ten_ways():
    assert len(WAYS) == 10


def test_architecture_names_files_that_there_are():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`(\w+/[\w/]+\.py)`", text):
        assert (ROOT / name).is_file(), name


GLOSSARY = re.findall(
    r"^\| ([\w -]+?) \| .+ \| \[`[\w/.]+`\]\(\.\./([\w/.]+)\) \|$",
    (ROOT / "docs" / "glossary.md").read_text(),
    re.MULTILINE,
)


def words(text):
    return re.sub(r"[\s_-]+", " ", text.lower())


@pytest.mark.parametrize(("term", "module"), GLOSSARY)
def test_the_term_is_in_its_module(term, module):
    assert words(term) in words((ROOT / module).read_text())


def test_the_glossary_has_the_terms_of_the_field():
    terms = {term for term, _ in GLOSSARY}
    assert len(GLOSSARY) == len(terms) > 40
    assert {"liveness", "transient", "peak memory", "orbit", "interning", "provenance"} <= terms


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_the_keys_of_documents_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    told = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "scripts.md").read_text()))
    for line in ("compile mlp --devices 2 --out plan", "verify plan", "run plan --steps 1"):
        assert main([*line.split(), "--json"]) == 0
        assert set(json.loads(capsys.readouterr().out)) <= told


def block(path, language):
    """Return the first block of code in a language."""
    found = re.search(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_model_in_the_documents_is_one(tmp_path):
    file = tmp_path / "my_model.py"
    file.write_text(block("docs/models.md", "python"))
    assert load(f"{file}:network:hidden=64").parameter_count == 785 * 64 + 65 * 10


def test_the_cluster_in_the_documents_is_one(tmp_path):
    file = tmp_path / "my_cluster.yaml"
    file.write_text(block("docs/clusters.md", "yaml"))
    assert Cluster.load(file).size == 8

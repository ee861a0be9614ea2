"""Programs with pipeline stages for PyTorch: every message arrives. Needs no PyTorch."""

import re
from ast import literal_eval
from collections import Counter, defaultdict, deque
from functools import cache

import pytest

import shardwright as sw
from shardwright.exports.table import export
from shardwright.exports.torch.groups import StagedProgram
from shardwright.ir.errors import ShardwrightError

GPT = "gpt:layers=4,hidden=32,heads=4,batch=8,sequence=16,vocabulary=64"
PLANS = [
    "pipeline=4,micro_batch=1",
    "pipeline=2,data=2,zero=1,micro_batch=1,recompute=full",
    "pipeline=2,data=2,zero=1,micro_batch=1,recompute=full:uniform=2",
    "pipeline=2,chunks=2,tensor=2,sequence_parallel,micro_batch=2",
    "pipeline=4,micro_batch=1,schedule=zero_bubble",
    "pipeline=2,data=2,micro_batch=1,schedule=gpipe",
    "pipeline=2,data=2,micro_batch=4",
]


class UndeliveredError(Exception):
    """A message that does not arrive, or arrives where another is awaited."""


@cache
def exported(plan, model=GPT):
    """Return a plan and the texts of the modules of its package."""
    compiled = sw.compile(model, 4, optimizer="adam", cluster="cpu", plan=plan).plan
    files = export(compiled, "torch").files
    texts = {name: text for name, text in files.items() if re.match(r"group_|program", name)}
    for name, text in texts.items():
        compile(text, name, "exec")
    return compiled, texts


def segments(text):
    """Return the lines that a device group runs before, in and after its passes."""
    function = text[text.index("def forward_backward") :]
    before, _, rest = function.partition("    def micro_batch()")
    inside, _, after = rest.partition("    mesh.run(")
    found, lines = {}, []
    for line in inside.splitlines():
        if ended := re.match(r' {8}yield "(\w+)"', line):
            found[ended[1]], lines = lines, []
        lines.append(line)
    return before.splitlines(), found, after.splitlines()


def order(text):
    """Return the blocks of lines that a group runs, in order, with their micro-batches."""
    before, inside, after = segments(text)
    actions = re.search(r'ORDER = """(.*?)"""', text, re.DOTALL)
    yield before, ""
    for action in actions[1].split() if actions else ():
        segment, _, number = action.partition(".")
        yield inside[segment], number
    yield after, ""


def deliver(texts, names):
    """Run the messages of all groups, each of which waits for what it receives.

    `names` has the tensor that each one that is received is.
    """
    channels = defaultdict(deque)
    groups = [
        deque((line, number) for lines, number in order(text) for line in lines)
        for name, text in sorted(texts.items())
        if name.startswith("group_")
    ]
    moved = True
    while moved:
        moved = False
        for group in groups:
            while group and _runs(*group[0], channels, names):
                group.popleft()
                moved = True
    if any(groups):
        raise UndeliveredError([group[0] for group in groups if group])
    if any(channels.values()):
        raise UndeliveredError(dict(channels))


def _runs(line, number, channels, names):
    """Return whether a line runs now: it does not wait for a message."""
    if sent := re.search(r"mesh\.send\((.+), ('.+')\)$", line):
        for channel in literal_eval(f"({sent[2]},)"):
            channels[channel].append((sent[1], number))
    if received := re.search(r"(\w+) = mesh\.receive\('(.+?)'", line):
        if not channels[received[2]]:
            return False
        found = channels[received[2]].popleft()
        if found != (names[received[1]], number):
            raise UndeliveredError((line, found))
    return True


def transferred(plan):
    """Return the expression of the tensor that each variable of a transfer is."""
    writer = StagedProgram(plan)
    nodes = [node for node in plan.program.nodes if node.operator == "transfer"]
    return {writer.expressions.name(n.name): writer.expressions.read(n.operands[0]) for n in nodes}


@pytest.mark.long
@pytest.mark.parametrize("plan", PLANS)
def test_every_message_arrives_where_it_is_awaited(plan):
    compiled, texts = exported(plan)
    deliver(texts, transferred(compiled))
    lines = Counter(re.findall(r" = (?:\w+)\.(\w+)\(", "".join(texts.values())))
    expected = Counter(node.operator for node in compiled.program.nodes)
    for kind in ("all_gather", "reduce_scatter", "matmul"):
        assert lines[kind] >= expected[kind]


def changed(text, pattern, to, which=0):
    """Return a text with one of the lines that match a pattern changed."""
    found = list(re.finditer(pattern, text, re.MULTILINE))[which]
    return text[: found.start()] + found.expand(to) + text[found.end() :]


@pytest.mark.parametrize(
    ("module", "pattern", "to"),
    [
        ("group_0.py", r"^ *mesh\.send\(.*\n", ""),
        ("group_1.py", r"^ *\w+ = mesh\.receive\(.*\n", ""),
        ("group_1.py", r"^( *mesh\.send\(.*\n)", r"\1\1"),
        ("group_1.py", r"F1\.0 F1\.1", "F1.1 F1.0"),
        ("group_1.py", r"(mesh\.send\()\w+", r"\1another"),
        ("group_1.py", r"receive\('F0 -> F1'", "receive('B2 -> B1'"),
    ],
)
def test_a_message_that_is_missing_or_another_is_found(module, pattern, to):
    compiled, texts = exported("pipeline=4,micro_batch=1,schedule=gpipe")
    names = transferred(compiled)
    deliver(texts, names)
    other = {**texts, module: changed(texts[module], pattern, to)}
    with pytest.raises(UndeliveredError):
        deliver(other, names)


def test_two_messages_of_a_channel_in_another_order_are_found():
    sizes = "hidden=16,heads=4,kv_heads=2,inner=16,experts=2,batch=4,sequence=8,vocabulary=32"
    plan = "pipeline=2,chunks=2,data=2,micro_batch=1"
    compiled, texts = exported(plan, f"mixtral:layers=4,{sizes}")
    names = transferred(compiled)
    deliver(texts, names)
    pattern = r"(\w+) = mesh\.receive\('after 0 -> after 1'"
    first, second = re.findall(pattern, texts["group_1.py"])
    swapped = {first: second, second: first}
    texts["group_1.py"] = re.sub(
        r"\w+(?= = mesh\.receive\()", lambda m: swapped.get(m[0], m[0]), texts["group_1.py"]
    )
    with pytest.raises(UndeliveredError):
        deliver(texts, names)


@pytest.mark.parametrize("order", ["zero_bubble_v", "dualpipe_v"])
def test_passes_in_several_orders_are_refused(order):
    """Of the last micro-batches a group in a V puts gradients of weights off."""
    plan = f"pipeline=2,chunks=2,micro_batch=1,schedule={order}"
    with pytest.raises(ShardwrightError, match=f"in another order in the schedule `{order}`"):
        exported(plan)

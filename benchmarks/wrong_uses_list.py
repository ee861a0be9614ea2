"""Wrong uses of the command line, of Python, of files, of the environment and of the machine."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Use:
    """One wrong use, made in a folder that holds a user's files.

    Parameters
    ----------
    group : str
        Of what kind it is.
    text : str
        What the user writes: a command line, a shell script with `|`, `;` or `=`, or Python.
    python : bool
        Whether it is Python.
    shell : bool
        Whether it needs a shell: a limit of the machine, a signal, or a variable.
    files : dict of str to str
        Files that are there before, by path.
    edits : dict of str to (str, str)
        Files of the plan in ``plan`` in which a text is replaced by another, before.
    """

    group: str
    text: str
    python: bool = False
    shell: bool = False
    files: dict[str, str] = field(default_factory=dict)
    edits: dict[str, tuple[str, str]] = field(default_factory=dict)


def commands(group: str, *texts: str) -> list[Use]:
    """Return uses of the command line."""
    return [Use(group, text) for text in texts]


def programs(group: str, *texts: str) -> list[Use]:
    """Return uses of Python."""
    return [Use(group, text, python=True) for text in texts]


def scripts(group: str, *texts: str) -> list[Use]:
    """Return uses that need a shell."""
    return [Use(group, text, shell=True) for text in texts]


def models(*lines: str) -> dict[str, str]:
    """Return a file of a model that goes wrong in the given lines."""
    beginning = (
        "import shardwright as sw",
        "from shardwright import nn, ops",
        "X = (sw.InputSpec('x', sw.TensorType('float32', (4, 6))),)",
    )
    return {"wrong.py": "\n".join([*beginning, *lines, ""])}


CLUSTER = """name: mine
device:
  name: chip
  peak_flops: {float32: 1.0e+12}
  memory_bandwidth: 1.0e+11
  memory_bytes: 1000000000
  launch_seconds: 1.0e-6
levels:
  - {name: node, size: 8, bandwidth: 1.0e+9, latency: 1.0e-6}
"""
ON_MINE = "compile mlp --devices 8 --cluster mine.yaml"


def cluster(before: str, after: str) -> Use:
    """Return the use of a cluster file with a text replaced by another."""
    assert before in CLUSTER
    return Use("cluster files", ON_MINE, files={"mine.yaml": CLUSTER.replace(before, after)})


OPTIONS = commands(
    "options",
    "complie mlp --devices 8",
    "compile",
    "compile mlp",
    "compile mlp --devices eight",
    "compile mlp --devices 0",
    "compile mlp --devices 3000",
    "compile mlp --devices 24 --stages 8",
    "compile mlp --devices 8 --memry 3",
    "compile mlp --devices 8 --memory 0",
    "compile mlp --devices 8 --memory nan",
    "compile mlp --devices 8 --memory 0.0000001",
    "compile mlp --devices 8 --batch 2.5",
    "compile mlp --devices 8 --batch 7 --mode data_parallel",
    "compile mlp --devices 8 --mesh 3x2",
    "compile mlp --devices 8 --mesh round",
    "compile mlp --devices 8 --mesh 8x",
    "compile mlp --devices 8 --mesh a=2,a=4",
    "compile mlp --devices 8 --mode automatic",
    "compile mlp --devices 8 --search quick",
    "compile mlp --devices 8 --search data_parallel --mode semi_auto_parallel",
    "compile mlp --devices 8 --cost-model foo",
    "compile mlp --devices 8 --gap -1",
    "compile mlp --devices 8 --gap 1",
    "compile mlp --devices 8 --effort 0",
    "compile mlp --devices 8 --effort 1e-9",
    "compile mlp --devices 8 --fusion -64",
    "compile mlp --devices 1 --mode stand_alone --fusion 64",
    "compile mlp --devices 8 --optimizer adm",
    "compile mlp --devices 8 --learning-rate -1",
    "compile mlp --devices 8 --loss-scale 1e400",
    "compile mlp --devices 8 --seed -1",
    "compile mlp --devices 8 --gradients-mean",
    "compile mlp --devices 8 --dataset-strategy whole",
    "compile mlp --devices 8 --ranks 3-1",
    "compile mlp --devices 8 --ranks 0,9",
    "compile mlp --devices 8 --ranks all",
    "compile mlp --devices 8 --full --verbose",
    "bench strategies mlp --devices 2 --mode data_parallel",
    "bench solver nowhere.json",
    "bench everything mlp",
    "dump mlp --memory 3",
    "dump mlp --devices 2 --after magic",
    "dump mlp --devices 2 --rank 2",
    "dump mlp --devices 2 --rank -1",
    "dump mlp --format yaml",
    "dump plan --after partition",
    "run plan --steps 0",
    "run plan --seed -1",
    "run plan --save-every 2",
    "run plan --backend cluster",
    "verify plan --steps -3",
)
MODELS = [
    *commands(
        "models",
        "compile mpl --devices 8",
        "compile mlp:hiden=3 --devices 8",
        "compile mlp:hidden --devices 8",
        "compile mlp:hidden=64,hidden=32 --devices 8",
        "compile mlp:hidden=-3 --devices 8",
        "compile mlp:hidden=many --devices 8",
        "compile mlp:batch=99999999999999999999 --devices 8",
        "compile mlp:batch=8 --batch 8 --devices 8",
        "compile mlp:dtype=foo --devices 8",
        "compile gpt:heads=7 --devices 8",
        "compile gpt:dropout=2 --devices 8",
        "compile nowhere.py:network --devices 8",
        "compile src/model.py --devices 8",
        "compile src/model.py:nothing --devices 8",
        "compile nowhere.onnx --devices 8",
        "compile notes.txt --devices 8",
    ),
    Use("models", "compile notes.onnx --devices 2", files={"notes.onnx": "no model"}),
    *(
        Use("models", "compile wrong.py:network --devices 2", files=models(*lines))
        for lines in (
            ("def network(:",),
            ("def network():", "    return 3"),
            ("def network():", "    return nn.Dense(6, 4), X"),
            ("def network():", "    return nn.Dense(5, 4), X"),
            ("def network():", "    return (lambda x: ops.rleu(x)), X"),
            ("def network():", "    return (lambda x: x.asnumpy()), X"),
            ("def network():", "    raise KeyError('weights')"),
            (
                "layer = nn.Dense(6, 4)",
                "def network():",
                "    return (lambda x: ops.stop_gradient(layer(x)).mean()), X",
            ),
        )
    ),
]
FILES = [
    *commands(
        "files",
        "run nowhere",
        "run src",
        "verify notes.txt",
        "run plan --data nowhere",
        "run plan --data src",
        "run plan --resume nowhere.npz",
        "run plan --resume notes.txt",
        "run plan --save src --steps 1",
        "run plan --save nowhere/state.npz --steps 1",
        "run plan --logs notes.txt --steps 1",
        "compile mlp --devices 2 --out src",
        "compile mlp --devices 2 --out notes.txt",
        "compile mlp --devices 2 --out notes.txt/plan",
        "compile mlp --devices 2 --dump-ir notes.txt",
        "compile mlp --devices 2 --trace nowhere/step.json",
        "compile mlp --devices 2 --trace src",
        "compile mlp --devices 2 --strategies nowhere.json",
        "compile mlp --devices 2 --strategies notes.txt",
        "compile mlp --devices 2 --cluster nowhere.yaml",
        "compile mlp --devices 2 --cluster notes.txt",
        "bench solver notes.txt",
    ),
    Use("files", "compile mlp --devices 2 --strategies p.json", files={"p.json": "[1, 2]"}),
    Use("files", "compile mlp --devices 2 --strategies p.json", files={"p.json": '{"x": [[2]]}'}),
    Use(
        "files",
        "compile mlp --devices 2 --strategies p.json",
        files={"p.json": '{"matmul_0": [[3, 1], [1, 1]]}'},
    ),
    Use(
        "files",
        "compile mlp --devices 2 --strategies p.json",
        files={"p.json": '{"matmul_0": "all"}'},
    ),
    Use("files", "run plan", edits={"plan/plan.json": ('"devices": 2', '"devices": 3')}),
    Use("files", "run plan", edits={"plan/plan.json": ("{", "{{")}),
    Use("files", "run plan", edits={"plan/plan.json": ('"seed": 0', '"seed": -1')}),
    Use("files", "run plan", edits={"plan/plan.json": ("shardwright plan", "another plan")}),
    Use("files", "run plan", edits={"plan/program.ir": ("matmul", "matmull")}),
    Use("files", "verify plan", edits={"plan/program.ir": ("matmul", "matmull")}),
    Use("files", "verify plan", edits={"plan/model.ir": ("matmul", "matmull")}),
]
CLUSTERS = [
    Use("cluster files", ON_MINE, files={"mine.yaml": "name: [mine\n"}),
    Use("cluster files", ON_MINE, files={"mine.yaml": "name: mine\n"}),
    Use("cluster files", ON_MINE, files={"mine.yaml": "- mine\n"}),
    cluster("size: 8", "size: 0"),
    cluster("size: 8", "size: eight"),
    cluster("size: 8", "sise: 8"),
    cluster("bandwidth: 1.0e+9", "bandwidth: -1"),
    cluster("bandwidth: 1.0e+9", "bandwidth: .nan"),
    cluster("float32: 1.0e+12", "float33: 1.0e+12"),
    cluster("float32: 1.0e+12", "float16: 1.0e+12"),
    cluster("memory_bytes: 1000000000", "memory_bytes: 0"),
    cluster("  - {", "  - {name: node, size: 2, bandwidth: 1, latency: 0}\n  - {"),
]
PYTHON = programs(
    "Python",
    "sw.compile('mlp', '4')",
    "sw.compile('mlp', 4, memory_limt=3)",
    "sw.compile('mlp', 4, cost_model='foo')",
    "sw.compile('mlp', 4, gap=-1)",
    "sw.compile('mlp', 4, fusion='64')",
    "sw.compile('mlp', 4, memory_limit=0)",
    "sw.compile('mlp', 4, optimizer='adm')",
    "sw.compile('mlp', 4, mesh=(2, 2))",
    "sw.compile(sw.nn.Dense(2, 2), 4)",
    "sw.compile('mlp', 4, strategies={'matmul_0': 3})",
    "sw.verify('plan', steps='3')",
    "list(sw.run('plan', steps=0))",
    "sw.dump('plan', after='partition')",
    "sw.AutoParallel(sw.nn.Dense(2, 2), 'full_auto')",
    "sw.AutoParallel(sw.nn.Dense(2, 2), devices=0)",
    "sw.nn.SGD([{'params': [sw.Parameter('ones', shape=2)], 'rate': 1}])",
    "sw.nn.SGD([{'lr': 0.1}])",
    "sw.nn.Adam([sw.Parameter('ones', shape=2)], beta1=1.0)",
    "sw.nn.Dense(2, 2).set_train(2)",
    "sw.dataset.ArrayDataset({'x': [1, 2]}).repeat(-1)",
    "import os; os.environ['SHARDWRIGHT_WORLD'] = 'two'; sw.communication.get_rank()",
    "sw.Model(sw.nn.Dense(2, 2)).train(-1, sw.dataset.ArrayDataset({'x': [1, 2]}))",
)
ENVIRONMENT = scripts(
    "environment",
    "SHARDWRIGHT_SAVE_GRAPHS=4 shardwright compile mlp --devices 2",
    "SHARDWRIGHT_SAVE_GRAPHS=1 SHARDWRIGHT_SAVE_GRAPHS_PATH=notes.txt "
    "shardwright compile mlp --devices 2",
)
MACHINE = scripts(
    "machine",
    "shardwright models > /dev/full",
    "shardwright dump plan > /dev/full",
    "ulimit -f 2; shardwright compile mlp --devices 2 --out plan",
    "ulimit -f 2; shardwright compile mlp --devices 2 --out new",
    "ulimit -f 2; shardwright compile mlp --devices 2 --trace step.json --out plan",
    "ulimit -f 1; shardwright run plan --steps 2 --save state.npz",
    "ulimit -f 1; shardwright compile mlp --devices 2 --dump-ir graphs",
    "timeout --preserve-status -s INT 4 shardwright compile gpt3-175b --devices 1024 --out plan",
    "timeout --preserve-status -s INT 4 shardwright run plan --steps 1000000",
    "timeout --preserve-status -s INT 4 shardwright verify plan --steps 1000000",
    "timeout --preserve-status -s INT 4 shardwright bench strategies gpt --devices 8",
    "shardwright operators | head -n 0; exit ${PIPESTATUS[0]}",
)
USES = [
    *OPTIONS,
    *MODELS,
    *FILES,
    *CLUSTERS,
    *PYTHON,
    *ENVIRONMENT,
    *MACHINE,
]

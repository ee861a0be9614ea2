"""An option that would have no effect, or is given twice, is refused; nothing is written."""

from pathlib import Path

import pytest

import shardwright as sw
from shardwright.ir.errors import OptionError
from shardwright.tools.main import main

CSV = "operator,amount,seconds\nmatmul,1e9,1e-3\nmatmul,2e9,2e-3\nrelu,1e6,1e-4\n"
ELSEWHERE = "calibrate --cluster h100-pod --csv operators.csv"
TWICE = '{"matmul_0": [[2, 1], [1, 1]], "matmul_0": [[1, 1], [2, 1]]}'
DEEP = "[" * 99_999


@pytest.fixture(scope="module")
def compilation() -> sw.Compilation:
    """Return a small model on two devices."""
    return sw.compile("mlp:hidden=8,inputs=8,batch=4", 2, cluster="cpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilation: sw.Compilation) -> Path:
    """Work in a folder of a plan and some files."""
    monkeypatch.chdir(tmp_path)
    compilation.write("plan")
    (tmp_path / "empty").mkdir()
    files = {"operators.csv": CSV, "twice.json": TWICE, "deep.json": DEEP}
    files["collective.csv"] = CSV + "all_gather,1e9,1e-3\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "estimate mlp --devices 2 --plan data=2 --explain-search",
            "unrecognized arguments: --explain-search; see `shardwright estimate --help`",
        ),
        (
            "bench strategies mlp --devices 2 --explain-search",
            "unrecognized arguments: --explain-search; see `shardwright bench --help`",
        ),
        (
            "dump mlp --devices 2 --after partition --explain-search",
            "`--explain-search` has no effect, graphs alone are printed; leave it out",
        ),
        (
            "dump mlp --devices 2",
            "`--devices` has no effect, the model is printed as it was traced; leave it out",
        ),
        (
            "dump mlp --mode data_parallel",
            "`--mode` has no effect, the model is printed as it was traced; leave it out",
        ),
        *(
            (
                f"compile mlp --devices 2 --json {flag}",
                f"`{flag}` is about the report, `--json` prints a document; leave one of them out",
            )
            for flag in ("--full", "--verbose", "--trained")
        ),
        (
            "compile mlp --devices 2 --out empty --trace empty/plan.json",
            "`--trace` names a file of the plan, `empty/plan.json`; name another file",
        ),
        (
            "compile mlp --devices 2 --out plan --html plan/../plan/strategies.json",
            "`--html` names a file of the plan, `plan/../plan/strategies.json`; name another file",
        ),
        (
            "run plan --keep 2",
            "`--keep` has no effect without `--checkpoints`; add `--checkpoints DIR`",
        ),
        ("operators relu --coverage", "an operator and `--coverage` are given; leave one out"),
        ("operators relu --markdown x.md", "an operator and `--markdown` are given; leave one out"),
        (
            "operators --coverage --markdown x.md",
            "`--coverage` and `--markdown` are given; leave one out",
        ),
        (
            f"{ELSEWHERE} --out new.yaml --steps 5",
            "`--steps` has no effect, nothing is measured here; leave it out",
        ),
        (
            "calibrate --out new.yaml --fast",
            "`--fast` has no effect in one process, which measures no reductions; leave it out, or "
            "start it with `mpiexec -n N`",
        ),
        (
            f"{ELSEWHERE} --out new.json",
            "`--out` is `new.json`, the cluster file is YAML; name it `new.yaml`",
        ),
        (
            f"{ELSEWHERE} --out new",
            "`--out` is `new`, the cluster file is YAML; name it `new.yaml`",
        ),
        (
            f"{ELSEWHERE} --out .",
            "the cluster file cannot be written: a folder is there (in .)",
        ),
        (
            "calibrate --cluster h100-pod --csv collective.csv --out new.yaml",
            "`all_gather` communicates, and is measured under `collectives` of a level (in "
            "collective.csv, line 5)",
        ),
        # Settings that are given twice.
        (
            "compile mlp --devices 2 --gather-fusion allgather=64,allgather=3",
            "`gather_fusion` gives `allgather` twice; give it once",
        ),
        (
            "compile mlp --devices 2 --fusion algorithm=1,times=2,times=3",
            "`--fusion` gives `times` twice; give it once",
        ),
        (
            "compile mlp --devices 2 --cost-model mindspore --cost-weights alpha=1,alpha=2",
            "`cost_weights` gives `alpha` twice; give it once",
        ),
        (
            "compile mlp --devices 2 --hsdp shard_size=2,shard_size=1",
            "`optimizer_parallel`: `shard_size` is given twice; give it once",
        ),
        (
            "compile mlp --devices 2 --strategies twice.json",
            "`matmul_0` is given twice (in twice.json); give it once",
        ),
        (
            "estimate mlp --devices 2 --plan twice.json",
            "the file must be JSON: `matmul_0` is given twice (in twice.json)",
        ),
        (
            "estimate mlp --devices 2 --plan deep.json",
            "the file must be JSON, it is nested too deeply (in deep.json)",
        ),
    ],
)
def test_it_is_refused(
    command: str, sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.rglob("*"))
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"shardwright: {sentence}\n")
    assert sorted(here.rglob("*")) == before


def test_what_is_kept_of_no_checkpoints_is_refused(compilation: sw.Compilation) -> None:
    with pytest.raises(OptionError, match="`keep` has no effect without `checkpoints`"):
        list(sw.run(compilation, steps=1, keep=2))


def test_a_hand_written_program_is_dumped_for_its_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Path(__file__).parents[1] / "hybrid_model.py"
    command = ["dump", f"{model}:split_batch", "--devices", "2", "--mode", "hybrid_parallel"]
    assert main(command) == 0
    assert "all_reduce" in capsys.readouterr().out

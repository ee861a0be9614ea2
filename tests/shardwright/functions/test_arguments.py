"""Wrong arguments of the functions of the package are refused in a sentence."""

from pathlib import Path

import pytest

import shardwright as sw
from shardwright.ir.errors import OptionError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.runtime import LocalCommunicator


def compiled(**options: object) -> sw.Compilation:
    """Compile a small model for two devices."""
    return sw.compile("mlp:hidden=8,inputs=8,batch=8", 2, cluster="cpu", **options)


COMPILATION = compiled()
FOUR = LocalCommunicator(Mesh((MeshAxis("x", 4, 0),)))


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (
            lambda: compiled(input_layouts={"imag": Layout.replicated(2)}),
            "`input_layouts` has no input `imag`; did you mean `image`?",
        ),
        (
            lambda: compiled(input_layouts={"image": "x"}),
            "`image` of `input_layouts` is the text `x`, expected a `Layout`",
        ),
        (
            lambda: compiled(progress=True),
            "`progress` is True, expected a function of seconds, cost and bound",
        ),
        (lambda: sw.verify(COMPILATION, full=1), "`full` is 1, expected True or False"),
        (
            lambda: sw.verify(COMPILATION, communicator=3),
            "`communicator` is 3, expected a communicator",
        ),
        (
            lambda: sw.verify(COMPILATION, communicator=FOUR),
            "`communicator` is of 4 ranks, the plan has 2",
        ),
        (
            lambda: list(sw.run(COMPILATION, 1, communicator=[])),
            "`communicator` is [], expected a communicator",
        ),
        (
            lambda: list(sw.run(COMPILATION, 1, stop=True)),
            "`stop` is True, expected a function that says whether training ends",
        ),
        (
            lambda: list(sw.run(COMPILATION, 1, log_directory=3)),
            "`log_directory` is 3, expected the path of a file",
        ),
        (lambda: sw.dump(COMPILATION, rank=True), "`rank` is True, expected an integer of at"),
        (lambda: sw.dump(COMPILATION, rank=1.5), "`rank` is 1.5, expected an integer of at least"),
        (
            lambda: sw.dump(COMPILATION, after="partition", rank=0),
            "a rank is bound after the last pass; leave `after` out",
        ),
    ],
)
def test_a_wrong_argument_is_refused(action, sentence):
    with pytest.raises(OptionError) as caught:
        action()
    assert str(caught.value).startswith(sentence)


def test_the_folder_of_logs_may_be_text(tmp_path: Path):
    list(sw.run(COMPILATION, 1, log_directory=str(tmp_path / "logs")))
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank.0", "rank.1"]

"""How long GPT-3 trains on the devices of MindSpore's design document: the table of docs/fit.md."""

import json
from pathlib import Path

import pytest

from shardwright.tools.main import main
from tests.extent import first

PAGE = (Path(__file__).parents[3] / "docs" / "fit.md").read_text("utf-8")
TOKENS, BATCH, SEQUENCE, DAY, YEAR = 300e9, 1536, 2048, 86400.0, 365.25


@pytest.mark.parametrize(
    ("devices", "cluster", "plan", "shown"),
    first(
        0,
        [
            (1024, "a100-selene", "tensor=8,pipeline=16", "32 days"),
            (512, "v100-pod:figures=datasheet", "tensor=8,pipeline=16", "111 days"),
            (8, "v100-pod:figures=datasheet", "tensor=8", "17.9 years"),
        ],
    ),
)
def test_days_of_300_billion_tokens(devices, cluster, plan, shown, capsys):
    """Eight V100 have no room for the model: the step there is one with memory enough."""
    plan += ",micro_batch=1,recompute=full"
    precision = "float16" if cluster.startswith("v100") else "bfloat16"
    where = ["--devices", str(devices), "--cluster", cluster, "--precision", precision]
    how = ["--batch", str(BATCH), "--software", "megatron", "--plan", plan, "--json"]
    code = main(["estimate", "gpt3-175b", *where, *how])
    document = json.loads(capsys.readouterr().out)
    days = document["overlapped_step_seconds"] * TOKENS / (BATCH * SEQUENCE) / DAY
    found = f"{days:.0f} days" if days < YEAR else f"{days / YEAR:.1f} years"
    assert found == shown
    assert (code, document["fits"]) == ((3, False) if devices == 8 else (0, True))
    assert any(
        f"| {devices:,} " in line and f"`{plan}`" in line and shown in line
        for line in PAGE.splitlines()
    )

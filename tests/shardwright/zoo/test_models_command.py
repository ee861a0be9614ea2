"""The command `models`: what a decoder is made of."""

import json
from pathlib import Path

import pytest

from shardwright.tools.main import main


def test_a_preset_is_told_layer_by_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "nemotron-3-nano"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "nemotron-3-nano: 31,577,937,344 parameters, of which a token goes through 3,580,073,408",
        "52 layers of 2,688 features, 131,072 words",
    ]
    assert [line.split()[0] for line in lines[4:] if line[:1].isdigit()] == ["23", "23", "6"]
    assert lines[-2:] == [
        "published: 31.6B / 3.6B parameters, Nemotron 3 Nano (NVIDIA, 2025): active parameters "
        "with embeddings",
        "fields from: NVIDIA-NeMo/Megatron-Bridge, "
        "src/megatron/bridge/recipes/nemotronh/h100/nemotron_3_nano.py",
    ]


def test_fields_of_a_file_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"model_type": "mistral", "hidden_size": 64, "intermediate_size": 96}
    fields |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({**fields, "vocab_size": 50}))
    assert main(["models", f"{tmp_path}:layers=2,sliding_window=16"]) == 0
    told = capsys.readouterr().out
    assert "2 layers of 64 features, 50 words" in told
    assert "4 heads of 16 features, 2 of keys, a window of 16" in told


def test_decoders_are_listed_with_the_published_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models"]) == 0
    (row,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("qwen3-30b-a3b "))
    assert row.split()[:6] == ["qwen3-30b-a3b", "30,532,122,624", "3.35", "30.5B", "/", "3.3B"]


def test_what_is_no_decoder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "mlp"]) == 2
    assert capsys.readouterr().err == (
        "shardwright: `mlp` is no decoder of the table, no `config.json` and no folder that holds "
        "one; `shardwright models` lists all models and their sizes\n"
    )

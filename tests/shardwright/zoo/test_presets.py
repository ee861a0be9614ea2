"""Decoders that have names: as many parameters as transformers' modules, and as published."""

from dataclasses import replace

import pytest

from shardwright.frontends.configs.architecture import Architecture
from shardwright.zoo import assumed_precision, load, presets
from shardwright.zoo.decoder import decoder
from shardwright.zoo.presets import counted, read

UNITS = {"B": 1e9, "T": 1e12}
# The names of some families round, or count otherwise: words twice, or not at all.
OFF = {"active": 0.3, "all": 0.06}


def architecture(name: str) -> Architecture:
    found = read(name, {}).architecture
    assert found is not None
    return found


def published(text: str) -> float:
    return float(text[:-1]) * UNITS[text[-1]]


@pytest.mark.parametrize("name", presets())
def test_parameters_are_about_the_published_ones(name: str) -> None:
    own = presets()[name]
    total, active = counted(architecture(name))
    assert total == pytest.approx(published(own.parameters), rel=OFF["all"])
    if own.active:
        assert active == pytest.approx(published(own.active), rel=OFF["active"])
    else:
        assert active == total
    assert own.source
    assert own.published_in


@pytest.mark.parametrize("name", presets())
def test_parameters_are_those_of_the_module_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    fields = dict(presets()[name].fields)
    kind = fields.pop("model_type")
    kind = "deepseek_v3" if kind == "kimi_k2" else kind  # the class that its own code derives from
    config = transformers.AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    own = {id(parameter): parameter.numel() for parameter in module.parameters()}
    assert counted(architecture(name))[0] == sum(own.values())


@pytest.mark.parametrize("name", ["gemma3-4b", "deepseek-v2-lite", "gpt-oss-20b", "qwen3-30b-a3b"])
def test_parameters_are_counted_as_the_program_has_them(name: str) -> None:
    found = architecture(name)
    short = replace(found, layers=found.layers[:7])
    assert counted(short)[0] == decoder(short, batch=1, sequence=16).parameter_count


def test_a_preset_takes_sizes_and_fields() -> None:
    sizes = "batch=2,sequence=8,layers=1,hidden=64,heads=4,kv_heads=2,inner=32,vocab_size=50"
    definition = load(f"llama3-8b:{sizes}")
    assert definition.inputs[0].type.shape == (2, 8)
    assert definition.parameter_count == 2 * 50 * 64 + 3 * 64 + 64 * (64 + 2 * 32 + 64 + 3 * 32)
    assert definition.precision == "bfloat16"


def test_the_type_of_all_parameters_assumes_nothing_else() -> None:
    name = "llama3-8b:batch=2,sequence=8,layers=1,hidden=64,heads=4,kv_heads=2,dtype=bfloat16"
    definition = load(name)
    assert definition.precision is None is assumed_precision(name)
    assert definition.optimizer is None
    assert {p.value.type.dtype for p in definition.graph.parameters} == {"bfloat16"}

"""Exports the small models in `tests/frontends/fixtures`, as `onnx_models_export.py` does.

    python benchmarks/imported/onnx_fixtures.py tests/frontends/fixtures

Needs PyTorch and transformers. The files keep of the notes of the exporter what an import reads.
"""

import sys
import warnings
from pathlib import Path

import onnx
import onnx_models_export as export
import torch
import transformers
from torch import nn

_TRACED = "pkg.torch.onnx.fx_node"
KEPT = (
    "pkg.torch.export.graph_signature.InputSpec.kind",
    "pkg.torch.onnx.original_node_name",
    "pkg.onnxscript.optimizer.folded_from",
    _TRACED,
    "pkg.torch.onnx.name_scopes",
)
TINY = {"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12}


class Segmenter(nn.Module):
    """A convolution, a normalization and a token, to scores [sample, class, row, column]."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 4, 1, 1))
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.normalization = nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        y = torch.relu(self.normalization(self.convolution(x)))
        return self.head(y + self.token.expand(x.shape[0], -1, -1, -1))


def _decoder(kind: str, **options: int) -> export.Made:
    config = transformers.AutoConfig.for_model(kind, num_attention_heads=4, **TINY, **options)
    config.use_cache = False
    tokens = torch.randint(export.FIRST, TINY["vocab_size"], (export.BATCH, 4))
    return transformers.AutoModelForCausalLM.from_config(config), {"input_ids": tokens}


FIXTURES = {
    "llama": lambda: _decoder("llama", num_key_value_heads=2),
    "gpt2": lambda: _decoder("gpt2", n_embd=8, n_layer=2, n_head=4, n_positions=6, n_inner=12),
    "lstm": lambda: (export.Recurrent(nn.LSTM), {"x": torch.randn(2, 3, 6)}),
    "segmenter": lambda: (Segmenter(), {"x": torch.randn(2, 3, 5, 5)}),
    "graph": lambda: (
        export.GraphNetwork(),
        {"x": torch.randn(6, 4), "edges": torch.randint(0, 6, (2, 20))},
    ),
}

# Long files that show nothing that others do not.
LEFT_OUT = ("gpt2.script", "lstm.dynamo-plain", "lstm.script-plain", "graph.dynamo-plain")


def shorten(path: Path) -> None:
    """Remove from a file what an import does not read."""
    model = onnx.load(path)
    shown = {v.name: v for v in model.graph.value_info if v.metadata_props}
    stored = {tensor.name for tensor in model.graph.initializer}
    del model.graph.value_info[:]
    model.graph.value_info.extend(v for name, v in shown.items() if name in stored)
    for item in (*model.graph.node, *model.graph.value_info):
        notes = {note.key: note.value for note in item.metadata_props if note.key in KEPT}
        del item.metadata_props[:]
        item.doc_string = ""
        if "%p_" not in notes.get(_TRACED, "%p_"):
            del notes[_TRACED]
        for key, value in notes.items():
            item.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


def main(folder: str) -> None:
    """Export all of them."""
    warnings.simplefilter("ignore")
    export.MODELS = FIXTURES
    for name in FIXTURES:
        export.export(name, Path(folder))
    for path in Path(folder).glob("*.onnx"):
        if path.stem in LEFT_OUT:
            path.unlink()
        else:
            shorten(path)


if __name__ == "__main__":
    main(*sys.argv[1:])

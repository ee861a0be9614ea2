"""Eight devices that train an exported mixture of experts; see `test_mixture.py`."""

import sys
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import shardwright as sw
from shardwright.exports.table import export, write_export

BATCH, LENGTH, HIDDEN, INNER, EXPERTS, TOP = 8, 4, 8, 12, 8, 3
CASES = {
    "experts": "data=8,expert=8",  # one expert a device, fewer than a token chooses
    "experts_and_tensor": "tensor=2,data=4,expert=4,zero=1",
}


def mixture(params, x, bias):
    """Return a loss of a mixture; a bias of the scores says who is chosen."""
    tokens = x.reshape(-1, HIDDEN)
    scores = jax.nn.softmax(tokens @ params["router"] + bias)
    weights, chosen = jax.lax.top_k(scores, TOP)
    flat = chosen.reshape(-1)
    order, sizes = jnp.argsort(flat), jnp.bincount(flat, length=EXPERTS)
    inner = jax.lax.ragged_dot(tokens[order // TOP], params["up"], sizes)
    made = jax.lax.ragged_dot(jax.nn.gelu(inner), params["down"], sizes)
    made = made * weights.reshape(-1)[order][:, None]
    found = jnp.zeros_like(tokens).at[order // TOP].add(made)
    return jnp.square(found.reshape(x.shape) - x).mean()


def main(folder):
    random = np.random.default_rng(0)
    shapes = {
        "router": (HIDDEN, EXPERTS),
        "up": (EXPERTS, HIDDEN, INNER),
        "down": (EXPERTS, INNER, HIDDEN),
    }
    params = {name: jnp.asarray(random.normal(0, 0.3, shape)) for name, shape in shapes.items()}
    x = jnp.asarray(random.normal(size=(BATCH, LENGTH, HIDDEN)))
    biases = {  # all tokens to three experts, the others have none
        "as they come": jnp.zeros(EXPERTS),
        "alike": jnp.asarray([9.0, 0, 0, 8, 0, 0, 0, 7]),
        "ties": jnp.zeros(EXPERTS).at[2:].set(-40.0),
    }
    step = jax.jit(jax.value_and_grad(mixture))
    for name, plan in CASES.items():
        example = (params, x, biases["alike"])
        made = sw.compile(mixture, 8, example_inputs=example, plan=plan, optimizer="sgd").plan
        write_export(folder / f"package_{name}", export(made, "jax"))
        text = (folder / f"package_{name}" / "program.py").read_text()
        assert "rows.grouped_outer(" in text
        assert "mesh.all_to_all_rows(" in text
        trainer = import_module(f"package_{name}").Trainer(params)
        for routing, bias in biases.items():
            _, right = step(params, x, bias)
            found = trainer.gradients(x, bias)
            for parameter, gradient in right.items():
                scale = float(jnp.abs(gradient).max()) + 1e-12
                difference = float(jnp.abs(found[parameter] - gradient).max()) / scale
                assert difference < 1e-9, (name, routing, parameter, difference)
        loss, _ = step(params, x, bias)
        assert abs(float(trainer.step(x, bias)) - float(loss)) < 1e-9 * abs(float(loss))
        print(name, flush=True)
    print("done")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, sys.argv[1])
    main(Path(sys.argv[1]))

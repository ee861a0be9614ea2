"""Four processes that train exported packages with pipeline stages; see `test_stages.py`."""

import sys
from ast import literal_eval
from copy import deepcopy
from importlib import import_module

import torch
import torch.distributed as dist
from processes import RANKS, close, on_processes
from staged_models import made
from torch.distributed import checkpoint

RATE, STEPS = 0.01, 3


def trains(folder, name):
    """Check that a package does what the module does."""
    module, inputs = made()
    trainer = import_module(f"package_{name}").Trainer(module)
    alone = deepcopy(module)
    optimizer = torch.optim.SGD(alone.parameters(), lr=RATE)
    under_way = watch(trainer.mesh)
    for _ in range(STEPS):
        gradients, others = trainer.gradients(**inputs)
        trainer.update(gradients, others)
        (loss,) = trainer.outputs.values()
        optimizer.zero_grad()
        right = alone(**inputs)
        right.backward()
        close(loss, right.detach())
        check_gradients(trainer, gradients, dict(alone.named_parameters()))
        optimizer.step()
    expected = literal_eval((folder / f"package_{name}" / "counts.txt").read_text())
    counts = {kind: n // STEPS for kind, n in trainer.mesh.counts.items() if n}
    assert counts == expected[trainer.mesh.group], (counts, expected)
    # In flight are 4 of the 8 micro-batches, each with at most 4 messages of a process.
    assert name != "zero_bubble" or max(under_way) <= 4 * 4 + 1
    check_checkpoint(folder / f"saved_{name}", trainer, module, inputs)
    trainer.write_back()
    for parameter, tensor in module.named_parameters():
        close(tensor.detach(), alone.state_dict()[parameter])


def watch(mesh):
    """Return a list that gets the number of messages under way after each one that is sent."""
    counts, send = [0], mesh.send

    def watched(*message):
        send(*message)
        counts.append(len(mesh._sends))

    mesh.send = watched
    return counts


def check_gradients(trainer, gradients, wanted):
    """Check the gradients of the parameters of this process; all processes have all."""
    names = [None] * RANKS
    dist.all_gather_object(names, sorted(gradients))
    assert {n for own in names for n in own} == wanted.keys()
    largest = max(float(p.grad.abs().max()) for p in wanted.values())
    for parameter, part in gradients.items():
        close(trainer.whole(parameter, part), wanted[parameter].grad, 1e-6 * largest)


def check_checkpoint(folder, trainer, module, inputs):
    """Check that a trainer that loads the checkpoint of another goes on as that one would."""
    checkpoint.save(trainer.state_dict(), checkpoint_id=folder)
    # The weights before training; those of other stages need not be there.
    pairs = module.named_parameters()
    other = type(trainer)({n: p if n in trainer.state else p.to("meta") for n, p in pairs})
    state = other.state_dict()
    checkpoint.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    before = {name: trainer.whole(name) for name in trainer.program.PARAMETERS}
    found = other.gradients(**inputs)[0]
    for name, part in trainer.gradients(**inputs)[0].items():
        close(found[name], part)
    for name, whole in before.items():
        close(other.whole(name), whole)
    other.load_state_dict(before)
    assert all(torch.equal(other.state[name], part) for name, part in trainer.state.items())
    times = other.operator_times(steps=1, **inputs).splitlines()
    assert any(line.startswith("matmul,") for line in times)
    other.write_back()


if __name__ == "__main__":
    on_processes(sys.argv[2:], trains)

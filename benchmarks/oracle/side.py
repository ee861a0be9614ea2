"""Compute cases in MindSpore or here: ``python side.py NAMESPACE FOLDER < jobs.json``.

NAMESPACE is ``mindspore`` or ``shardwright.mindspore``: the same expressions are evaluated in both.
Needs numpy alone beside it, for it runs in the environment of either. Values of inputs and
parameters follow from names. Each job leaves ``NUMBER.npz``: arrays by name, or why there are none.
"""

import ast
import importlib
import json
import re
import signal
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

SPEC = re.compile(r"(\w+)=([filb])\[([\d, ]*)\](?:\(([^()]*)\))?")
PLACES = ("nn", "ops", "mint", "dataset", "dataset.vision", "dataset.transforms", "train", "amp")
PLACES += ("common.initializer", "mint.nn", "mint.nn.functional")
SECONDS = 60  # for one case: a tenth of a second is usual; twice as many change nothing
STEPS = 10  # of an optimizer


class Side:
    """The names that expressions use, in one of both systems."""

    def __init__(self, namespace):
        self.name = namespace
        self.ms = importlib.import_module(namespace)
        self.modules = {}
        for place in PLACES:
            with suppress(ImportError):
                self.modules[place] = importlib.import_module(f"{namespace}.{place}")
        self.ms.set_context(mode=self.ms.PYNATIVE_MODE)
        self.scope = {
            "ms": self.ms,
            "np": np,
            "Tensor": self.ms.Tensor,
            "ds": self.modules["dataset"],
        }
        self.scope |= {place: item for place, item in self.modules.items() if "." not in place}
        self.scope["vision"] = self.modules.get("dataset.vision")
        self.scope["transforms"] = self.modules.get("dataset.transforms")
        self.scope["initializer"] = self.modules["common.initializer"]
        self.scope["X"] = drawn("X", "f", (10, 3))
        self.scope["Y"] = np.arange(10, dtype=np.int32)
        pictures = np.random.RandomState(0).randint(0, 256, (3, 8, 8, 3))
        self.scope["PICTURES"] = pictures.astype(np.uint8)
        self.scope["ONE"] = np.float32(1)
        self.scope["squares"] = lambda x: (x * x).sum()
        self.scope["measured"] = self.measured

    def measured(self, metric, *given):
        """Return what a metric says of two batches: scores and classes, unless others are given."""
        metric.clear()
        for batch in ("first", "second"):
            scores = drawn(batch, "f", (6, 7)), drawn(batch, "i", (6,), (0, 7))
            metric.update(*(self.ms.Tensor(item) for item in given or scores))
        return metric.eval()

    def names(self, wanted=None):
        """Return the public names by module; of those that are wanted the ones that are here."""
        places = {place: self.modules.get(place) for place in PLACES}
        places["Tensor"] = self.ms.Tensor
        if wanted is not None:
            return {
                place: [n for n in names if has(places.get(place), n)]
                for place, names in wanted.items()
            }
        public = {
            place: getattr(item, "__all__", None) or dir(item)
            for place, item in places.items()
            if item
        }
        return {
            place: [
                n
                for n in names
                if not n.startswith("_") and callable(getattr(places[place], n, None))
            ]
            for place, names in public.items()
        }


def has(item, name):
    """Return whether a module or class has a name, which may be made when it is asked for."""
    try:
        return item is not None and hasattr(item, name)
    except Exception:  # a refusal in a sentence
        return False


def drawn(name, kind, shape, limits=None, dtype="float32"):
    """Return values that depend on a name alone."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if kind == "b":
        return random.rand(*shape) < 0.5
    if kind in "il":
        low, high = limits or (0, 4)
        return random.randint(low, high, shape).astype(np.int32 if kind == "i" else np.int64)
    values = random.randn(*shape) if limits is None else random.uniform(*limits, shape)
    return np.asarray(values, dtype)


def inputs_of(job):
    """Return the tensors of a case by name, as arrays."""
    found = {}
    for name, kind, sizes, limits in SPEC.findall(job["inputs"]):
        shape = tuple(int(size) for size in sizes.replace(",", " ").split())
        given = tuple(float(limit) for limit in limits.split(",")) if limits else None
        found[name] = drawn(f"{job['expression']} {name}", kind, shape, given, job["dtype"])
    return found


def split(expression):
    """Return what is made once, ``nn.Dense(3, 4)`` of ``nn.Dense(3, 4)(x)``, and the call of it."""
    tree = ast.parse(expression, mode="eval")
    if not isinstance(tree.body, ast.Call) or not isinstance(tree.body.func, ast.Call):
        return None, compile(tree, expression, "eval")
    made = ast.Expression(tree.body.func)
    tree.body.func = ast.Name("made", ast.Load())
    ast.fix_missing_locations(tree)
    return compile(made, expression, "eval"), compile(tree, expression, "eval")


def flat(made):
    """Return the tensors and numbers of a result, in order."""
    if isinstance(made, (tuple, list)):
        return [item for part in made for item in flat(part)]
    return [made]


def array(item):
    """Return a tensor or a number as an array; anything else as its text."""
    made = np.array(item.asnumpy() if hasattr(item, "asnumpy") else item)
    return np.array(str(item)) if made.dtype == object else made


def held(side, construct, parameter):
    """Return a cell that has a parameter, which is not trained."""

    class Net(side.scope["nn"].Cell):
        def __init__(self):
            super().__init__()
            tensor = side.ms.Tensor(parameter)
            self.p = side.ms.Parameter(tensor, name="p", requires_grad=False)

        def construct(self, *tensors):
            return construct(self, *tensors)

    return Net()


def parameters_of(side, cell):
    """Return the parameters of a cell by name, after giving them values that follow from names."""
    if not hasattr(cell, "get_parameters"):
        return {}
    found = dict(side.scope["nn"].SequentialCell(cell).parameters_and_names())
    for name, parameter in found.items():
        limits = (0.5, 1.5) if re.search("var|gamma", name) else (-0.6, 0.6)
        dtype, shape = str(parameter.dtype).lower(), tuple(parameter.shape)
        if "float" in dtype:
            last = f"{name.split('.')[-1]} {shape}"
            parameter.set_data(side.ms.Tensor(drawn(last, "f", shape, limits, dtype)))
    return found


def operator(side, job, keep):
    """Keep the results of an expression, and the gradients of a weighted sum of the real ones."""
    given, scope = inputs_of(job), dict(side.scope)
    parameter = given.pop("p", None)
    make, call = split(job["expression"])
    made = None if make is None else eval(make, scope)
    parameters = parameters_of(side, made)
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    if "training" in job["inputs"]:
        made.set_train()

    def forward(*tensors):
        return flat(eval(call, {**scope, "made": made, **dict(zip(given, tensors, strict=True))}))

    tensors = [side.ms.Tensor(item) for item in given.values()]
    if parameter is not None:
        forward = held(
            side,
            lambda net, *tensors: tuple(
                flat(
                    eval(
                        call,
                        {
                            **scope,
                            "made": made,
                            "net": net,
                            **dict(zip(given, tensors, strict=True)),
                        },
                    )
                )
            ),
            parameter,
        )
    results = flat(forward(*tensors))
    for i, item in enumerate(results):
        keep[f"result {i}"] = array(item)
    real = [i for i in range(len(results)) if keep[f"result {i}"].dtype.kind == "f"]
    chosen = [i for i, item in enumerate(given.values()) if item.dtype.kind == "f"]
    if job["forward"] or not real or not (chosen or trained):
        return
    weights = {
        i: side.ms.Tensor(
            drawn(f"weight {i}", "f", keep[f"result {i}"].shape, None, keep[f"result {i}"].dtype)
        )
        for i in real
    }

    def loss(*tensors):
        found = forward(*tensors)
        total = None
        for i in real:
            part = found[i] * weights[i]
            part = part.sum() if keep[f"result {i}"].ndim else part
            total = part if total is None else total + part
        return total

    parameters_of(side, made)  # a pass in training changes some
    positions, by = tuple(chosen) or None, list(trained.values()) or None
    gradients = side.ms.grad(loss, positions, by)(*tensors)
    both = gradients if chosen and trained else (gradients, ()) if chosen else ((), gradients)
    names = list(given)
    of_inputs = both[0] if isinstance(both[0], (tuple, list)) else (both[0],)
    for i, gradient in zip(chosen, of_inputs, strict=True):
        keep[f"gradient of {names[i]}"] = array(gradient)
    of_weights = both[1] if isinstance(both[1], (tuple, list)) else list(both[1])
    for name, gradient in zip(trained, of_weights, strict=True):
        keep[f"gradient of {name}"] = array(gradient)
    for name, parameter in parameters.items():
        if name not in trained:
            keep[f"{name} after"] = array(parameter)


def optimizer(side, job, keep):
    """Keep parameters after each of some steps by gradients that are given."""

    class Net(side.scope["nn"].Cell):
        def __init__(self):
            super().__init__()

            def initial(name, *shape):
                value = drawn(name, "f", shape, (-1, 1), job["dtype"])
                return side.ms.Parameter(side.ms.Tensor(value), name=name)

            self.weight = initial("weight", 3, 4)
            self.bias = initial("bias", 4)
            self.gamma = initial("gamma", 4)

    net = Net()
    scope = {**side.scope, "net": net, "params": net.trainable_params()}
    made = eval(job["expression"], scope)
    for step in range(STEPS):
        made(
            tuple(
                side.ms.Tensor(drawn(f"{p.name} {step}", "f", tuple(p.shape), None, job["dtype"]))
                for p in net.trainable_params()
            )
        )
        for name, parameter in net.parameters_and_names():
            keep[f"{name} after {step + 1}"] = array(parameter)


def schedule(side, job, keep):
    """Keep the learning rates of some steps."""
    made = eval(job["expression"], dict(side.scope))
    if isinstance(made, (list, tuple)):
        keep["rates"] = np.array(made, np.float64)
        return
    steps = [side.ms.Tensor(step, side.ms.int32) for step in range(13)]
    keep["rates"] = np.array([made(step).asnumpy() for step in steps])


def data(side, job, keep):
    """Keep the samples of two epochs; sorted where they are shuffled."""
    made = eval(job["expression"], dict(side.scope))
    keep["size"] = np.array(made.get_dataset_size())
    for epoch in range(2):
        rows = [
            {k: np.asarray(v) for k, v in row.items()}
            for row in made.create_dict_iterator(num_epochs=2, output_numpy=True)
        ]
        if "shuffled" in job["inputs"]:
            rows.sort(key=lambda row: [np.asarray(v).tobytes() for v in row.values()])
        for i, row in enumerate(rows):
            for name, value in row.items():
                keep[f"{name} of {i} in epoch {epoch}"] = value


def values(side, job, keep):
    """Keep the value of an expression: a metric, a list."""
    for i, item in enumerate(flat(eval(job["expression"], dict(side.scope)))):
        keep[f"value {i}"] = array(item)


KINDS = {
    "operators": operator,
    "optimizers": optimizer,
    "schedules": schedule,
    "datasets": data,
    "values": values,
}


def main():
    """Compute the jobs; print the number of each before it."""
    namespace, folder = sys.argv[1], Path(sys.argv[2])
    document = json.load(sys.stdin)
    side = Side(namespace)
    if "names" in document:
        (folder / "names.json").write_text(json.dumps(side.names(document["names"])))
    for job in document["jobs"]:
        print(job["number"], flush=True)
        signal.alarm(SECONDS)
        keep = {}
        try:
            KINDS[job["kind"]](side, job, keep)
        except Exception as error:
            lines = [line.strip() for line in str(error).split("\n") if line.strip(" -")]
            keep["error"] = np.array(f"{type(error).__name__}: {' '.join(lines)[:300]}")
        np.savez(folder / f"{job['number']}.npz", **{k: v for k, v in keep.items()})
        signal.alarm(0)


if __name__ == "__main__":
    main()

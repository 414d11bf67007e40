"""Every program that the tests record, with its feeds and what the same code computes at once.

`python -m tests.recorded FOLDER` loads the programs that were saved there and writes what they compute.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

import varlen_rnn as vr
from tests import test_program_examples as examples
from tests.test_operators import CASES
from tests.test_programs import OPTIMIZERS, Model, batches, both_ways, declare
from varlen_rnn.program.checker import compute_trial, describe_trial, examples_of
from varlen_rnn.tape.operator import OPERATORS
from varlen_rnn.tape.values import plain


class Recorded(NamedTuple):
    """A program, the feeds of its runs, what each run fetches, and what eager code computes instead."""

    program: vr.Program
    feeds: list
    fetches: list
    wanted: list
    seed: int = 0


def operator(trial, unknown_rows):
    """Return the program of an operator and its gradient on one of its examples."""
    shown, gradients, weights = compute_trial(trial)
    program, feed, fetches = describe_trial(trial, weights, unknown_rows)
    wanted = [plain(output.value) for output in shown] + [gradient for gradient in gradients if gradient is not None]
    return Recorded(program, [feed], fetches, [wanted])


def composition(name, unknown_rows):
    """Return the program of a composition of operators and its gradient."""
    program, inputs, described, values, leaves, out = both_ways(name, unknown_rows)
    fetches = [described.name, *(f"{x.name}@GRAD" for x in inputs if x.grad is not None)]
    feed = dict(zip((x.name for x in inputs), values, strict=True))
    return Recorded(program, [feed], fetches, [[out.value, *(x.grad for x in leaves if x.grad is not None)]])


def steps():
    """Return the program of a recurrence written step by step over a plan."""

    def run(x, boot):
        plan = vr.sort_by_seq_len(x)
        state, outputs = vr.init_memories(boot, plan), []
        for t, size in enumerate(sizes):
            state = vr.nn.functional.tanh(vr.segment_inputs(x, plan, t) + state[:size])
            outputs.append(state)
        y = vr.concat_outputs(outputs, plan)
        (y * y).sum().backward()
        return y

    rng = np.random.default_rng(0)
    given = {"x": vr.create_lod_tensor(rng.random((6, 2)), [[2, 0, 3, 1]]), "boot": rng.random((4, 2))}
    sizes = vr.sort_by_seq_len(given["x"]).batch_sizes
    leaves = [vr.Variable(value, requires_grad=True) for value in given.values()]
    y = run(*leaves)
    with vr.program_guard() as program:
        described = run(*(declare(name, value) for name, value in given.items()))
    wanted = [y.value, *(leaf.grad for leaf in leaves)]
    return Recorded(program, [given], [described.name, "x@GRAD", "boot@GRAD"], [wanted])


def training(name):
    """Return the program of some training steps."""
    losses, feeds = [], []
    vr.manual_seed(1)
    model = Model()
    optimizer = OPTIMIZERS[name](model.parameters())
    vr.manual_seed(2)
    for ids, labels in batches():
        loss = vr.nn.functional.cross_entropy(model(ids), labels)
        optimizer.minimize(loss)
        losses.append([loss.value])
        feeds.append({"ids": ids, "labels": labels})
    return Recorded(train_program(OPTIMIZERS[name])[0], feeds, ["loss"], losses, seed=2)


def train_program(optimizer):
    """Return the program of a training step, and the model; its loss is named, and so are its logits."""
    vr.manual_seed(1)
    model = Model()
    with vr.program_guard() as program:
        logits = model(vr.feed_data("ids", [-1], "int64", lod_level=1))
        loss = vr.nn.functional.cross_entropy(logits, vr.feed_data("labels", [-1], "int64"))
        logits.name, loss.name = "logits", "loss"
        optimizer(model.parameters()).minimize(loss)
    return program, model


def example(name):
    """Return the program of an example's training step."""
    step_of_example = examples.begin(name)
    feeds = [{"ids": ids, "labels": labels} for ids, labels in examples.batches()]
    vr.manual_seed(2)
    losses = [[examples.step(*step_of_example, *feed.values()).value] for feed in feeds]
    program, _, _, loss = examples.record(name)
    return Recorded(program, feeds, [loss], losses, seed=2)


def inference():
    """Return the program of a model's logits."""
    program, model = train_program(OPTIMIZERS["adam"])
    model.eval()
    with vr.no_grad():
        wanted = [[model(ids).value] for ids, _ in batches()]
    return Recorded(program.prune(["logits"]), [{"ids": ids} for ids, _ in batches()], ["logits"], wanted)


def data_types():
    """Return a program with a constant of every data type."""
    types = ["bool", "int16", "int32", "int64", "float16", "float32", "float64", "uint8", "int8"]
    constants = [np.arange(3).astype(dtype) for dtype in types]
    with vr.program_guard() as program:
        for dtype, constant in zip(types, constants, strict=True):
            vr.Variable(constant)[:2].name = f"of_{dtype}"
    return Recorded(program, [{}], [f"of_{dtype}" for dtype in types], [[constant[:2] for constant in constants]])


def everything():
    """Return `(name, function)` pairs; each function records a program."""
    for unknown, rows in ((True, "unknown rows"), (False, "known rows")):
        for name, op in OPERATORS.items():
            for trial in examples_of(op) if not (unknown and op.in_place) else ():
                yield f"{name} {trial.number}, {rows}", lambda t=trial, u=unknown: operator(t, u)
        for name in CASES:
            yield f"composed {name}, {rows}", lambda n=name, u=unknown: composition(n, u)
    for name in examples.TRAINING:
        yield f"example {name}", lambda n=name: example(n)
    for name in OPTIMIZERS:
        yield f"training with {name}", lambda n=name: training(n)
    yield "steps", steps
    yield "inference", inference
    yield "data types", data_types


def compute(program, record):
    """Return what the runs of a program compute, as arrays by name."""
    vr.manual_seed(record.seed)
    return as_arrays(vr.Executor().run(program, feed, record.fetches) for feed in record.feeds)


def as_arrays(runs):
    """Return all that the results of some runs are made of, as arrays by name."""
    arrays = {}
    for run, results in enumerate(runs):
        for number, result in enumerate(results):
            name = f"{run}.{number}"
            if isinstance(result, vr.SelectedRows):
                arrays |= {f"{name} rows": result.rows, f"{name} value": result.value}
                continue
            arrays[name] = result.offsets if isinstance(result, vr.SortedSeqs) else np.asarray(result)
            levels = result.structure.levels if isinstance(result, vr.LoDTensor) else ()
            arrays |= {f"{name} level {k}": level for k, level in enumerate(levels)}
    return arrays


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for number, (_, record) in enumerate(everything()):
        loaded = vr.Program.load(folder / f"{number}.safetensors")
        vr.save(folder / f"{number}.results", results=compute(loaded, record()))

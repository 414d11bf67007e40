"""What products in bfloat16 cost in accuracy: errors beside float64, and right answers of trained networks.

    python -m benchmarks.bfloat16            # print the lines
    python -m benchmarks.bfloat16 --write    # write them to results/bfloat16.txt

An error is the norm of a difference from float64 over the norm, of outputs, gradients of rows, and gradients of the
weights, the largest of them.  PyTorch's layer is converted by `.bfloat16()` and padded, and so are the operands of its
attention.  Networks are trained once in float32 and once in bfloat16, from the same seeds and batches.
"""

import importlib.util
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from benchmarks import sequence
from benchmarks.engines import BFLOAT16, OURS, build, installed
from benchmarks.layers.case import Case, Inputs
from benchmarks.layers.ours import precision_of_host
from benchmarks.lengths import equal, lognormal
from benchmarks.machine import publish_as_asked
from benchmarks.parity import difference
from benchmarks.processes import ROOT
from benchmarks.quality.sets import SETS
from benchmarks.suites.recurrent import MAIN_SIZES

FILE = Path(__file__).parent / "results" / "bfloat16.txt"
PRECISIONS, SEEDS = ("fp32", "bf16-avx512"), 3
ESTIMATED = "digits", "names"  # sets of benchmarks.quality


def exact(case):
    """Return what a training step of our layer gives in float64."""
    inputs = Inputs(case)
    layer = getattr(vr.nn, case.cell)(case.input_size, case.hidden_size, dtype=np.float64)
    layer.load_state_dict({name: weight.astype(np.float64) for name, weight in inputs.weights.items()})
    x = vr.Variable(vr.create_lod_tensor(inputs.x.astype(np.float64), [case.lengths]), requires_grad=True)
    y = layer(x)[0]
    y.backward(inputs.d_y.astype(np.float64))
    found = {"y": y, "d_x": x.grad} | {name: weight.grad for name, weight in layer.named_parameters()}
    return {name: np.asarray(value) for name, value in found.items()}


def errors(case):
    """Yield a line of errors for each engine."""
    reference = exact(case)
    for name in installed((OURS, BFLOAT16, "torch padded bfloat16")):
        engine = build("layers", name, vars(case), 1)
        found = engine.arrays(engine.training())
        apart = {part: difference(reference[part], found[part].astype(np.float64)) for part in reference}
        weights = max(error for part, error in apart.items() if part.startswith("weight"))
        yield f"  {name}: y {apart['y']:.1e}, d_x {apart['d_x']:.1e}, weights {weights:.1e}"


def attended(case, dtype):
    """Return the outputs and gradients of a training step of our attention, at the precision in force."""
    inputs = sequence.case.Inputs(case)
    rows = {name: vr.create_lod_tensor(array.astype(dtype), [case.lengths]) for name, array in inputs.arrays.items()}
    leaves = {name: vr.Variable(its, requires_grad=True) for name, its in rows.items()}
    y = vr.nn.functional.scaled_dot_product_attention(*leaves.values())
    y.backward(inputs.d_y.astype(dtype))
    return {"y": np.asarray(y)} | {f"d_{name}": np.asarray(leaf.grad) for name, leaf in leaves.items()}


def attended_by_torch(case):
    """Return the outputs and gradients of a training step of PyTorch's attention, all in bfloat16."""
    from benchmarks.sequence import pytorch

    class Bfloat16(pytorch.Padded):
        def held(self, array, lengths=None):
            return super().held(array, lengths).bfloat16()

        def rows(self, value, lengths):
            return super().rows(value.float(), lengths)

    operator = Bfloat16(case, 1)
    return operator.arrays(operator.training())


def errors_of_attention(case):
    """Yield a line of errors for each engine; queries, keys and values have heads already."""
    reference, found = attended(case, np.float64), {OURS: attended(case, np.float32)}
    with vr.float32_matmul_precision(precision_of_host()):
        found[BFLOAT16] = attended(case, np.float32)
    if installed(["torch padded"]):
        found["torch padded bfloat16"] = attended_by_torch(case)
    for name, its in found.items():
        apart = (f"{part} {difference(exact, its[part].astype(np.float64)):.1e}" for part, exact in reference.items())
        yield f"  {name}: {', '.join(apart)}"


def of_example(seed):
    """Return the share of names that the network of `examples/classify_names.py` tells right."""
    path = ROOT / "examples" / "classify_names.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    settings = example.SETTINGS | {"seed": seed}
    trainer, test = example.trainer_of(example.read(None), settings, vr.distributed.connect())
    trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, vr.training.Progress)]
    trainer.fit(steps=settings["epochs"] * trainer.steps_per_epoch)
    return example.accuracy(trainer.model, test)


def of_estimator(name, seed):
    """Return the share of sequences of a set that a recurrent classifier tells right."""
    from varlen_rnn import sklearn

    (X, y), (X_test, y_test) = SETS[name].load(None)
    return sklearn.SequenceClassifier(model="recurrent", random_state=seed).fit(X, y).score(X_test, y_test)


def shares(name):
    """Return the shares of right answers at each precision, one per seed."""
    found = {}
    for precision in PRECISIONS:
        with vr.float32_matmul_precision(precision):
            one = of_example if name == "classify_names" else lambda seed: of_estimator(name, seed)
            found[precision] = [one(seed) for seed in range(SEEDS)]
    return found


def lines_of_attention():
    """Yield the lines of attention's errors."""
    yield "errors of a training step of attention beside float64, 32 sequences, 8 heads of 64"
    for kind, lengths in (("equal", equal(32, 80)), ("lognormal", lognormal(32))):
        yield f" {kind}"
        yield from errors_of_attention(sequence.Case("attention", lengths, kind))


def lines():
    """Yield the lines of the result."""
    vr.set_num_threads(1)
    yield "errors of a training step beside float64"
    for batch_size, features, units in MAIN_SIZES:
        for kind, lengths in (("equal", equal(batch_size, 80)), ("lognormal", lognormal(batch_size))):
            yield f" LSTM {batch_size},{features},{units} {kind}"
            yield from errors(Case("LSTM", features, units, lengths, kind))
    yield from lines_of_attention()
    yield "shares of right answers on held-out sequences, seeds 0 to 2"
    for name in ("classify_names", *ESTIMATED):
        found = shares(name)
        each = "; ".join(
            f"{p} {', '.join(f'{s:.4f}' for s in its)}, mean {np.mean(its):.4f}" for p, its in found.items()
        )
        yield f"  {name}: {each}; difference {np.mean(found[PRECISIONS[1]]) - np.mean(found['fp32']):+.4f}"


if __name__ == "__main__":
    publish_as_asked(lines(), FILE, __doc__)

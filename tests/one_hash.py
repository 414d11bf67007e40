"""One hash of training runs in float32, on any processor: `python -m tests.one_hash [--level LEVEL] [NAME...]`.

    python -m tests.one_hash                                    # a line for each run, and the hash of all
    python -m tests.one_hash --level x86-64-v3                  # with all code compiled for a level
    tests/on_arm64 FOLDER                                       # on an emulated arm64
    python -m tests.one_hash --write                            # record the digests in benchmarks/results/one_hash.json

A run is a few steps of training.  Its digest is of all losses, gradients of the last step, and weights.  Other runs are
functions on a grid, with gradients.  No run calls a function that NumPy, SciPy or the C library computes.
"""

import argparse
import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from varlen_rnn.cells import LN_GRU, LN_LSTM, gru_cell, lstm_cell
from varlen_rnn.errors import InputError
from varlen_rnn.runtime.cache import this_environment
from varlen_rnn.runtime.cache.level import check_level, runs_here, variables_of

F, nn = vr.nn.functional, vr.nn
LENGTHS = [0, 3, 17, 1, 0, 40, 2, 5, 60, 1, 9]
FEATURES, TAGS, STEPS = 9, 5, 3
ROWS = sum(LENGTHS)
RUNS = {}
FILE = Path(__file__).parent.parent / "benchmarks" / "results" / "one_hash.json"


def numbers(*shape, seed=0):
    """Return float32 numbers between -2 and 2, which any machine draws alike: from integers."""
    drawn = np.random.default_rng(seed).integers(-(2**15), 2**15, shape)
    return (drawn / 2**14).astype(np.float32)


def rows(features=FEATURES, lengths=LENGTHS, seed=0):
    """Return rows that take a gradient."""
    data = numbers(sum(lengths), features, seed=seed)
    return vr.Variable(vr.create_lod_tensor(data, [lengths]), requires_grad=True)


def ids(high, lengths=LENGTHS, seed=1):
    """Return rows of ids, 1 to `high - 1`."""
    return vr.create_lod_tensor(np.random.default_rng(seed).integers(1, high, sum(lengths)), [lengths])


def run(optimizer, **options):
    """Return a decorator for a function that returns modules, and a function of the step's loss."""

    def declare(build):
        def digest():
            vr.manual_seed(3)
            modules, loss_of = build()
            parameters = [p for module in modules for p in module.parameters()]
            rule, found = getattr(vr.optim, optimizer)(parameters, **options), []
            for _ in range(STEPS):
                rule.zero_grad()
                loss = loss_of()
                loss.backward()
                vr.optim.clip_grad_norm_(parameters, 1.0)
                rule.step()
                found.append(loss.value)
            return digest_of([*found, *(p.grad for p in parameters), *(p.data for p in parameters)])

        RUNS[build.__name__.replace("_", " ")] = digest
        return build

    return declare


def digest_of(values):
    """Return the first 16 hexadecimal digits of the SHA-256 of values, in order."""
    total = hashlib.sha256()
    for value in values:
        array = np.asarray(getattr(value, "value", value))
        total.update(f"{array.shape} {array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def towards_target(layer, width):
    """Return a layer with a linear one behind, and its loss: the squared distance from a target."""
    head, x, target = nn.Linear(width, TAGS), rows(), numbers(ROWS, TAGS, seed=2)

    def loss():
        outputs = layer(x)
        return F.mse_loss(head(outputs[0] if isinstance(outputs, tuple) else outputs), target)

    return [layer, head], loss


@run("Adam", lr=0.01)
def lstm_of_two_layers_and_directions():
    return towards_target(nn.LSTM(FEATURES, 70, num_layers=2, bidirectional=True, dropout=0.2), 140)


@run("Momentum", lr=0.01, momentum=0.9)
def lstm_with_options():
    return towards_target(nn.Recurrent(lstm_cell(peepholes=True, cell_clip=0.5), FEATURES, 33), 33)


@run("RMSprop", lr=0.01)
def gru():
    return towards_target(nn.GRU(FEATURES, 37), 37)


@run("SGD", lr=0.1, momentum=0.9, nesterov=True)
def rnn():
    return towards_target(nn.RNN(FEATURES, 50, nonlinearity="relu"), 50)


@run("AdamW", lr=0.01)
def normalised_lstm():
    return towards_target(nn.Recurrent(LN_LSTM, FEATURES, 70), 70)


@run("Adadelta")
def normalised_gru():
    return towards_target(nn.Recurrent(LN_GRU, FEATURES, 45), 45)


@run("Adam", lr=0.01)
def step_of_ones_own():
    wide, head, x, target = nn.Linear(FEATURES, 20), nn.Linear(20, TAGS), rows(), numbers(ROWS, TAGS, seed=2)
    layer = nn.DynamicRNN(lambda x, h: (F.tanh(x + h),) * 2)
    return [wide, head], lambda: F.mse_loss(head(layer(wide(x), [(20,)])[0]), target)


@run("AdamW", lr=0.01)
def attention_of_three_heads():
    layer, head, x, target = nn.MultiheadAttention(24, 3), nn.Linear(24, TAGS), rows(24), numbers(ROWS, TAGS, seed=2)
    return [layer, head], lambda: F.mse_loss(head(layer(x, x, x, is_causal=True)), target)


@run("Adagrad", lr=0.1)
def additive_attention():
    lengths = [40, 0, 33, 70, 1]
    layer, x, keys = nn.AdditiveAttention(12, 12, 20), rows(12, lengths), rows(12, lengths[::-1], seed=4)
    return [layer], lambda: F.mse_loss(layer(x, keys, keys), numbers(sum(lengths), 12, seed=2))


@run("Adagrad", lr=0.1)
def tags_by_crf():
    layer, head, crf, x = nn.GRU(FEATURES, 20, bidirectional=True), nn.Linear(40, TAGS), nn.LinearChainCRF(TAGS), rows()
    return [layer, head, crf], lambda: crf(head(layer(x)[0]), ids(TAGS)).mean()


@run("SGD", lr=0.1)
def ctc_of_raw_scores():
    layer, head, x = nn.LSTM(FEATURES, 20), nn.Linear(20, TAGS), rows()
    targets = ids(TAGS, [0, 1, 5, 0, 0, 9, 1, 2, 20, 1, 3])
    return [layer, head], lambda: nn.CTCLoss(zero_infinity=True)(head(layer(x)[0]), targets)


@run("Adam", lr=0.01)
def classes_of_rows():
    layer, head, x, labels = nn.GRU(FEATURES, 20), nn.Linear(20, TAGS), rows(), ids(TAGS)

    def loss():
        scores = head(layer(x)[0])
        focused, tags = F.focal_loss(scores, labels, gamma=1.5), np.float32(labels.data[:, None] == np.arange(TAGS))
        return F.cross_entropy(scores, labels) + focused + F.binary_cross_entropy_with_logits(scores, tags)

    return [layer, head], loss


@run("Adam", lr=0.01)
def words_convolutions_and_pools():
    table, near, ahead, norm = nn.Embedding(50, 24), nn.SequenceConv(24, 30, 3), nn.RowConv(30, 2), nn.LayerNorm(30)
    moments, words = nn.BatchNorm1d(30), ids(50)

    def loss():
        x = moments(norm(F.relu(ahead(near(table(words))))))
        pooled = [vr.sequence_pool(x, kind) for kind in ("mean", "max", "last")]
        return (F.concat(pooled, axis=1) ** 2).mean() + (vr.sequence_softmax(x) * numbers(ROWS, 30)).sum()

    return [table, near, ahead, norm, moments], loss


@run("Adam", lr=0.01)
def delta_net():
    return towards_target(nn.DeltaNet(FEATURES, 36, 3), 36)


@run("AdamW", lr=0.01)
def gated_delta_net():
    return towards_target(nn.GatedDeltaNet(FEATURES, 40, 2, bidirectional=True), 80)


@run("RMSprop", lr=0.01)
def gated_linear_attention():
    return towards_target(nn.GatedLinearAttention(FEATURES, 36, 2), 36)


@run("Momentum", lr=0.01, momentum=0.9)
def mamba2():
    return towards_target(nn.Mamba2(FEATURES, 36, 3, d_state=20), 36)


@run("Adam", lr=0.01)
def mlstm():
    return towards_target(nn.MLSTM(FEATURES, 36, 2), 36)


@run("SGD", lr=0.01)
def states_that_heads_share():
    """Also each row of a state has a decay; states begin with numbers, have normalisers, and are computed twice."""
    wide, head, x, target = nn.Linear(FEATURES, 115), nn.Linear(36, TAGS), rows(), numbers(ROWS, TAGS, seed=2)
    state = numbers(len(LENGTHS), 2, 13, 9, seed=3), numbers(len(LENGTHS), 2, 13, seed=4)

    def loss():
        q, k, v, decay, beta = F.split(wide(x), [52, 26, 9, 26, 2], axis=1)
        of_heads = (q, 4), (k, 2), (v, 1), (decay, 2)
        q, k, v, decay = (part.reshape(-1, heads, part.shape[1] // heads) for part, heads in of_heads)
        given = k * 0.3, v, -F.softplus(decay), F.sigmoid(beta), state
        (y, norms), _ = vr.linear_attention(q, *given, delta=True, normalise=True, recompute=True)
        return F.mse_loss(head(y.reshape(-1, 36)), target) + (norms * norms).mean()

    return [wide, head], loss


def layers_at(precision):
    """Return layers of several kinds, and a loss whose products have a precision."""
    wide, narrow = nn.LSTM(FEATURES, 70, bidirectional=True), nn.Recurrent(gru_cell(reset_after=False), 140, 37)
    attention, head, x, target = nn.MultiheadAttention(37, 1), nn.Linear(37, TAGS), rows(), numbers(ROWS, TAGS, seed=2)

    @vr.float32_matmul_precision(precision)
    def loss():
        y = narrow(wide(x)[0])[0]
        return F.mse_loss(head(attention(y, y, y, is_causal=True)), target)

    return [wide, narrow, attention, head], loss


@run("Adam", lr=0.01)
def layers_in_bf16():
    return layers_at("bf16")


@run("Adam", lr=0.01)
def layers_in_bf16_by_avx512():
    return layers_at("bf16-avx512")


GRID = np.linspace(-20, 20, 4000, dtype=np.float32)  # without 0, where the gradient of a root is infinite
FUNCTIONS = {
    "exp": F.exp, "log": lambda x: F.log(x.abs() + 1e-3), "sqrt": lambda x: F.sqrt(x.abs()), "tanh": F.tanh,
    "sigmoid": F.sigmoid, "silu": F.silu, "gelu": F.gelu, "elu": F.elu, "softplus": F.softplus,
    "pow": lambda x: (x.abs() + 1e-3) ** 1.7, "softmax": lambda x: F.softmax(x.reshape(-1, 1).reshape(-1, 10)),
    "cross entropy": lambda x: F.cross_entropy(x.reshape(-1, 10), np.arange(400) % 10, reduction="none"),
    "binary cross entropy": lambda x: F.binary_cross_entropy_with_logits(x, np.float32(GRID > 3), reduction="none"),
    "focal loss": lambda x: F.focal_loss(x.reshape(-1, 10), np.arange(400) % 10, reduction="none"),
}  # fmt: skip


def of_function(function):
    """Return the digest of a function's results on a grid, and of its gradient there."""
    x = vr.Variable(GRID.copy(), requires_grad=True)
    y = function(x)
    (y * numbers(*y.shape)).sum().backward()
    return digest_of([y, x.grad])


RUNS |= {name: functools.partial(of_function, function) for name, function in FUNCTIONS.items()}


def main(arguments):
    """Print a line for each chosen run, and the hash of all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs; all of them if there is none")
    parser.add_argument("--level", help="compile for this level of processors, in another process")
    parser.add_argument("--write", action="store_true", help=f"record the digests in {FILE.name}")
    chosen = parser.parse_args(arguments)
    names = chosen.names
    if chosen.level:
        return run_for_level(chosen.level, [*names, *["--write"] * chosen.write])
    found = {name: digest() for name, digest in RUNS.items() if name in names or not names}
    for name, digest in found.items():
        print(f"{digest}  {name}", flush=True)
    print(f"one hash: {hashlib.sha256(' '.join(found.values()).encode()).hexdigest()}", flush=True)
    processor = this_environment().description.split(", ")[-1]
    print(f"NumPy {np.__version__}, {platform.machine()}, kernels for {processor}")
    if chosen.write:
        FILE.write_text(json.dumps({"numpy": np.__version__, "digests": found}, indent=1) + "\n")
    return 0


def run_for_level(level, arguments):
    """Run this module in a process that compiles all of its code for a level; return its exit code."""
    if not runs_here(check_level(level, "--level")):
        raise InputError("--level", expected="a level that this processor can run", got=level)
    command = [sys.executable, "-m", "tests.one_hash", *arguments]
    return subprocess.run(command, env=os.environ | variables_of(level), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Training steps of small models, eager and bound by `vr.bound`, beside `jax.jit`: time of one thread, and equal bits.

    python -m benchmarks.bound_step            # print the lines
    python -m benchmarks.bound_step --write    # write them to results/bound_step.txt

A dense table of 100 embeddings, an LSTM, the last row of each sequence, cross entropy of 5 classes, Adam.  Sequences
have 5 to 20 rows; each batch is new.  Times are of the processor, medians of rounds.  Of two threads, they are of the
clock, and the least of short rounds, because any other process takes a core from two threads first.  `jax.jit` runs in
a process of its own, on padded batches with a mask, compiled for one shape.
"""

import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from benchmarks.machine import publish
from benchmarks.processes import options

FILE = Path(__file__).parent / "results" / "bound_step.txt"
SIZES = {"8 sequences, 32 units": (8, 32, 32), "32 sequences, 64 units": (32, 32, 64)}
BATCHES, ROUNDS, COMPARED, LONGEST = 100, 15, 1000, 20


def training(units=32, features=32):
    """Return a step function of ids and labels, and the parameters that it trains."""
    vr.manual_seed(0)
    table, lstm = vr.nn.Embedding(100, features, sparse=False), vr.nn.LSTM(features, units)
    output = vr.nn.Linear(units, 5)
    parameters = [p for module in (table, lstm, output) for p in module.parameters()]
    optimizer = vr.optim.Adam(parameters, lr=1e-3)

    def step(ids, labels):
        optimizer.zero_grad()
        y, _ = lstm(table(ids))
        loss = vr.nn.functional.cross_entropy(output(vr.sequence_pool(y, "last")), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step, parameters


def batches(rng, count=8, number=BATCHES):
    """Return pairs of ids and labels."""
    found = []
    for _ in range(number):
        lengths = rng.integers(5, LONGEST + 1, count).tolist()
        ids = vr.create_lod_tensor(rng.integers(0, 100, sum(lengths)), [lengths])
        found.append((ids, rng.integers(0, 5, count)))
    return found


def microseconds(step, given, clock=time.process_time):
    """Return the time of a step, in microseconds."""
    began = clock()
    for batch in given:
        step(*batch)
    return (clock() - began) / len(given) * 1e6


def lines(name):
    """Return the lines of one size."""
    count, features, units = SIZES[name]
    rng = np.random.default_rng(1)
    (eager, own), (plain, others) = (training(units, features) for _ in range(2))
    bound = vr.bound(plain)
    different = 0
    for batch in batches(rng, count, COMPARED):
        different += eager(*batch).value.data.tobytes() != bound(*batch).value.data.tobytes()
    equal = all(np.array_equal(a.value.data, b.value.data) for a, b in zip(own, others, strict=True))
    times = []
    for _ in range(ROUNDS):
        given = batches(rng, count)
        times.append((microseconds(eager, given), microseconds(bound, given)))
    of_eager, of_bound = map(statistics.median, zip(*times, strict=True))
    found = [
        name,
        f"{different} of {COMPARED} losses differ; parameters are {'equal' if equal else 'different'}",
        bound.explain(),
        f"eager {of_eager:.0f} us, bound {of_bound:.0f} us, {of_eager / of_bound:.1f} times",
    ]
    of_jax = _of_jax(name)
    return found + ([] if of_jax is None else [f"jax.jit, padded {of_jax:.0f} us, {of_jax / of_bound:.1f} times bound"])


def of_threads(name):
    """Return a line that says how much faster two threads train two models than one thread trains one."""
    count, features, units = SIZES[name]
    steps = [vr.bound(training(units, features)[0]) for _ in range(2)]
    given = batches(np.random.default_rng(2), count)
    times: list[list[float]] = [[], []]

    def work(step):
        vr.set_num_threads(1)
        for batch in given:
            step(*batch)

    for step in 8 * steps:
        work(step)
    for _ in range(8 * ROUNDS):
        for some, found in zip((steps[:1], steps), times, strict=True):
            threads = [threading.Thread(target=work, args=(step,)) for step in some]
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            found.append(time.perf_counter() - began)
    return f"two threads, two models, {name}: {2 * min(times[0]) / min(times[1]):.2f} times the rate of one"


def time_first_boxes():
    """Return the milliseconds of the first two calls that bind a step in this process, each of a model of its own."""
    vr.set_num_threads(1)
    found = []
    for _ in range(2):
        step, times = vr.bound(training()[0]), []
        for batch in batches(np.random.default_rng(1)):
            times.append(microseconds(step, [batch]) / 1000)
            if "without Python" in step.explain():
                break
        found.append(times[-1])
    return found


def of_first_boxes():
    """Return a line with the time to bind the smaller step, in new processes that find all kernels in the cache."""
    command = [sys.executable, "-m", "benchmarks.bound_step", "--first"]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(6)]
    times = [list(map(float, run.stdout.split()[-2:])) for run in runs[1:]]  # the first may compile kernels
    first, second = map(statistics.median, zip(*times, strict=True))
    what = "the call that binds, with its dry runs and both of its compared runs"
    return f"{next(iter(SIZES))}: {what}, takes {first:.0f} ms in a new process, {second:.0f} ms for the next model"


def _of_jax(name):
    """Return the microseconds of a step of JAX, or None if it is not installed."""
    flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "benchmarks.bound_step", "--jax", name]
    done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def time_jax(name):
    """Return the microseconds of a step of JAX in this process."""
    import jax
    from jax import numpy as jnp

    count, features, units = SIZES[name]
    rng = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(rng.uniform(-1, 1, shape).astype(np.float32) / np.sqrt(units))

    def loss_of(weights, ids, lengths, labels):
        table, of_x, of_h, bias, out, of_out = weights
        gates = table[ids] @ of_x + bias

        def cell(states, given):
            (h, c), (row, t) = states, given
            i, f, g, o = jnp.split(row + h @ of_h, 4, -1)
            new = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            mask = (t < lengths)[:, None]
            return (jnp.where(mask, jax.nn.sigmoid(o) * jnp.tanh(new), h), jnp.where(mask, new, c)), None

        zero = jnp.zeros((count, units), jnp.float32)
        (h, _), _ = jax.lax.scan(cell, (zero, zero), (gates.transpose(1, 0, 2), jnp.arange(LONGEST)))
        return -jax.nn.log_softmax(h @ out + of_out)[jnp.arange(count), labels].mean()

    def step(state, *batch):
        weights, first, second, t = state
        loss, gradients = jax.value_and_grad(loss_of)(weights, *batch)
        t += 1
        first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True)]
        second = [0.999 * v + 0.001 * g * g for v, g in zip(second, gradients, strict=True)]
        weights = [
            w - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
            for w, m, v in zip(weights, first, second, strict=True)
        ]
        return (weights, first, second, t), loss

    given = []
    for ids, labels in batches(rng, count):
        lengths = np.array(ids.recursive_sequence_lengths()[0], np.int32)
        padded = np.zeros((count, LONGEST), np.int32)
        padded[np.arange(LONGEST) < lengths[:, None]] = ids.data
        given.append((padded, lengths, labels.astype(np.int32)))
    weights = [draw(100, features), draw(features, 4 * units), draw(units, 4 * units), draw(4 * units)]
    weights += [draw(units, 5), draw(5)]
    state = weights, [0 * w for w in weights], [0 * w for w in weights], jnp.float32(0)
    run, times = jax.jit(step, donate_argnums=0), []
    for _ in range(ROUNDS + 1):
        began = time.process_time()
        for batch in given:
            state, loss = run(state, *batch)
        loss.block_until_ready()
        times.append((time.process_time() - began) / len(given) * 1e6)
    return statistics.median(times[1:])


def all_lines():
    """Yield the lines of the result."""
    vr.set_num_threads(1)
    for name in SIZES:
        yield from lines(name)
    yield of_first_boxes()
    yield from map(of_threads, SIZES)


if __name__ == "__main__":
    first = {"action": "store_true", "help": "only time the first calls that bind, in this process"}
    given = options(__doc__, first=first, jax={"metavar": "NAME", "help": "only time JAX in this process"})
    if given.first:
        print(*time_first_boxes())
    elif given.jax:
        print(time_jax(given.jax))
    else:
        publish(all_lines(), FILE if given.write else None)

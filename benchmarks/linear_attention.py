"""Linear attention over ragged rows, and by chunks in PyTorch: padded, in groups of like length, a sequence at a time.

    python -m benchmarks.linear_attention            # print the lines
    python -m benchmarks.linear_attention --write    # and replace results/linear_attention.txt

4 heads of 64 numbers, lognormal lengths; gated delta, and gated with a normaliser, as in an mLSTM.  A training step is
the sum of the outputs' squares and all gradients.  PyTorch's code is written from the equations, in chunks of 64 rows;
of 2 to 16 groups of like length, the number with the fastest step counts.  Each engine runs in a process of its own.
Times are medians: of the processor with one thread, and of the clock with two.

Memory is the most that the process takes in training steps beyond the memory that it held before them, when it had
taken a step of three short sequences.  The rate of a forward pass counts the products of single steps, 3 for each
number of a state with the delta rule and otherwise 2, against the processor's multiply-add rate.
"""

import json
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.lengths import equal, lognormal
from benchmarks.processes import options, output_of
from benchmarks.transducer import resident

FILE = Path(__file__).parent / "results" / "linear_attention.txt"
HEADS, SIZE, CHUNK, GROUPS, SHORT = 4, 64, 64, (2, 4, 8, 16), (40, 3, 1)
STEPS, MOST_SECONDS = 7, 1.0  # calls that are timed: at least 2, and no more than take so many seconds
LENGTHS = {"64 of median 60": lognormal(64, 60), "16 of median 480": tuple(8 * rows for rows in lognormal(16))}
CELLS = "gated delta", "normalised"
EQUAL = equal(16, 512)  # for onnxruntime, whose operator has no lengths


def inputs(lengths):
    """Return query, key, value, decay and beta; keys have length 1."""
    rng, rows = np.random.default_rng(0), sum(lengths)
    query, key, value = (rng.standard_normal((rows, HEADS, SIZE)) for _ in range(3))
    key /= np.linalg.norm(key, axis=2, keepdims=True)
    rates = -rng.gamma(1, 0.1, (rows, HEADS)), rng.uniform(0, 1, (rows, HEADS))
    return [x.astype(np.float32) for x in (query, key, value, *rates)]


def even(lengths):
    """Return as many lengths with the same sum, which differ by at most 1."""
    rows, count = sum(lengths), len(lengths)
    return [rows // count + (i < rows % count) for i in range(count)]


def squares(y):
    """Return the sum of the squares of the outputs, which can be a pair."""
    return sum((x * x).sum() for x in (y if isinstance(y, tuple) else (y,)))


def ragged(cell, lengths, recompute=False):
    """Return a forward pass of varlen_rnn, and a step, which returns the loss and the gradients."""
    import varlen_rnn as vr

    rows = [vr.create_lod_tensor(x, [list(lengths)]) for x in inputs(lengths)]
    options = {"delta": cell == "gated delta", "normalise": cell == "normalised", "recompute": recompute}

    def forward():
        with vr.no_grad():
            return vr.linear_attention(*rows, **options)

    def step():
        given = [vr.Variable(x, requires_grad=True) for x in rows]
        loss = squares(vr.linear_attention(*given, **options)[0])
        loss.backward()
        return loss.item(), [np.asarray(x.grad) for x in given]

    return forward, step


def chunked(q, k, v, g, b, delta):
    """Return outputs (batch, heads, time, size) of PyTorch; rows behind the end of a sequence have keys of 0."""
    import torch

    state, outputs, last = q.new_zeros(*q.shape[:2], SIZE, v.shape[-1]), [], q.shape[2]
    for begin in range(0, last, CHUNK):
        rows = slice(begin, min(begin + CHUNK, last))
        queries, keys, values, rate = q[:, :, rows], k[:, :, rows], v[:, :, rows], b[:, :, rows, None]
        total = g[:, :, rows].cumsum(2)
        pairs = total[..., :, None] - total[..., None, :]
        lower = torch.ones(pairs.shape[-2:], dtype=torch.bool).tril()
        between, since = pairs.masked_fill(~lower, -torch.inf).exp(), total.exp()[..., None]
        if delta:
            system = (between * (keys @ keys.mT)).tril(-1) * rate.mT
            right = values - since * (keys @ state)
            values = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        written = rate * values
        outputs.append(SIZE**-0.5 * (since * (queries @ state) + (between * (queries @ keys.mT)) @ written))
        left = between[..., -1, :, None] * keys
        state = since[:, :, -1:] * state + left.mT @ written
    return torch.cat(outputs, 2)


def padded(cell, lengths, groups):
    """Return the same functions of PyTorch; each of `groups` has the numbers of its sequences."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    leaves = [torch.from_numpy(x).requires_grad_() for x in inputs(lengths)]

    def run(is_step):
        loss, parts = 0.0, [x.split(list(lengths)) for x in leaves]
        for group in groups:
            given = [pad_sequence([part[i] for i in group], batch_first=True).transpose(1, 2) for part in parts]
            if cell == "normalised":
                given[2] = torch.cat([given[2], torch.ones_like(given[2][..., :1])], -1)
            y = chunked(*given, cell == "gated delta")
            if is_step:
                inside = torch.arange(y.shape[2]) < torch.tensor([lengths[i] for i in group])[:, None]
                part = (y.masked_fill(~inside[:, None, :, None], 0) ** 2).sum()
                part.backward()
                loss += part.item()
        return loss

    def forward():
        with torch.no_grad():
            run(False)

    def step():
        loss = run(True)
        found = [x.grad.numpy() for x in leaves]
        for x in leaves:
            x.grad = None
        return loss, found

    return forward, step


def padded_in(count):
    """Return the function of an engine that pads `count` groups of like length; None for a group a sequence."""

    def make(cell, lengths):
        order = np.argsort(lengths, kind="stable")
        return padded(
            cell,
            lengths,
            [list(map(int, part)) for part in np.array_split(order, min(count or len(order), len(order)))],
        )

    return make


ENGINES = {
    "ragged rows": ragged,
    "ragged rows, recomputed": lambda cell, lengths: ragged(cell, lengths, recompute=True),
    "PyTorch, padded": padded_in(1),
    **{f"PyTorch, {count} padded groups": padded_in(count) for count in GROUPS},
    "PyTorch, a sequence at a time": padded_in(None),
}


def seconds_of(*functions, clock=time.process_time):
    """Return the median seconds of a call of each function; the functions take turns."""
    found, began = [], time.process_time()
    while len(found) < 2 or (len(found) < STEPS and time.process_time() - began < MOST_SECONDS):
        ends = [clock()]
        for function in functions:
            function()
            ends.append(clock())
        found.append(np.diff(ends))
    return [statistics.median(of) for of in zip(*found, strict=True)]


def measure(engine, cell, lengths, threads):
    """Return figures of an engine by their names: seconds, bytes, and of ours with one thread the rate and ratios."""
    clock = time.process_time if threads == 1 else time.perf_counter
    is_ours = engine.startswith("ragged")
    if not is_ours:
        import torch

        torch.set_num_threads(threads)
    for function in ENGINES[engine](cell, SHORT):  # compiles, and starts what libraries start late
        function()
    forward, step = ENGINES[engine](cell, LENGTHS[lengths])
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    loss, gradients = step()
    norm = float(np.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in gradients)))
    del gradients
    (of_step,), peak = seconds_of(step, clock=clock), resident("VmHWM") - before
    (of_forward,) = seconds_of(forward, clock=clock)
    found = {"loss": loss, "norm": norm, "forward": of_forward, "step": of_step, "bytes": peak}
    if engine == "ragged rows" and threads == 1:
        found |= of_ours(cell, LENGTHS[lengths], forward, step)
    return found


def of_ours(cell, lengths, forward, step):
    """Return the rate of a forward pass, and seconds of ragged and of as many rows of equal lengths, in turns."""
    from benchmarks import peak

    other_forward, other_step = ragged(cell, even(lengths))
    peak.run(peak.STEPS, 0.5, 1.0)  # compiles
    seconds, of_peak = seconds_of(forward, lambda: peak.run(peak.STEPS, 0.5, 1.0))
    products = (3 if cell == "gated delta" else 2) * sum(lengths) * HEADS * SIZE**2
    rate = products / seconds / (peak.STEPS * peak.CHAINS * peak.LANES / of_peak)
    other_forward(), other_step()
    pairs = seconds_of(forward, other_forward), seconds_of(step, other_step)
    return {"rate": rate, "to_even": [mine / other for mine, other in pairs]}


def onnxruntime_of(cell):
    """Return a forward pass of onnxruntime's LinearAttention for sequences of equal length."""
    import onnx
    import onnxruntime

    count, rows = len(EQUAL), EQUAL[0]
    given = inputs(EQUAL)
    if cell == "normalised":
        *given, beta = given  # the rule has no rates
        given[2] = np.concatenate([given[2], np.ones_like(given[2][..., :1])], 2) * beta[..., None]
    feeds = {f"x{i}": x.reshape(count, rows, -1) for i, x in enumerate(given)}
    state = np.zeros((count, HEADS, SIZE, given[2].shape[2]), np.float32)
    names = ["x0", "x1", "x2", "state", "x3", *(["x4"] if cell == "gated delta" else [])]
    node = onnx.helper.make_node(
        "LinearAttention", names, ["y", "last"], q_num_heads=HEADS, kv_num_heads=HEADS,
        update_rule="gated_delta" if cell == "gated delta" else "gated",
    )  # fmt: skip
    info = lambda name, shape: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    feeds["state"] = state
    graph = onnx.helper.make_graph(
        [node],
        "graph",
        [info(name, x.shape) for name, x in feeds.items()],
        [info(name, None) for name in ("y", "last")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 27)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)[0].reshape(count * rows, HEADS, -1)


def measure_equal(engine, cell):
    """Return seconds of a forward pass over sequences of equal length, and the norm of its outputs."""
    if engine == "onnxruntime":
        forward = onnxruntime_of(cell)
        found = forward()
    else:
        forward, _ = ragged(cell, EQUAL)
        y = forward()[0]
        found = np.concatenate([y[0], np.asarray(y[1])[..., None]], 2) if isinstance(y, tuple) else np.asarray(y)
    return {"forward": seconds_of(forward)[0], "norm": float(np.linalg.norm(found))}


def run(threads, *what):
    """Return the figures of a process of its own."""
    words = "-m", "benchmarks.linear_attention", "--threads", str(threads), "--one", *what
    return json.loads(output_of(*words, threads=threads))


def lines_of(cell, lengths, threads):
    """Yield the lines of a cell, a batch and a number of threads."""
    its, found = LENGTHS[lengths], {}
    kind = "one thread" if threads == 1 else f"{threads} threads"
    yield f"{cell}, {lengths}, {kind}: {sum(its):,} rows, {len(its) * max(its):,} padded"
    for engine in ENGINES:
        found[engine] = it = run(threads, engine, cell, lengths)
        times = f"forward {it['forward'] * 1e3:.1f} ms, step {it['step'] * 1e3:.1f} ms, {it['bytes'] / 2**20:.0f} MiB"
        yield f"  {engine}: {times}, loss {it['loss']:.5g}, gradients {it['norm']:.5g}"
    ours = found["ragged rows"]
    best = min((name for name in found if name.endswith("groups")), key=lambda name: found[name]["step"])
    for engine in ("PyTorch, padded", best, "PyTorch, a sequence at a time"):
        parts = (f"{name} {found[engine][name] / ours[name]:.1f}" for name in ("forward", "step", "bytes"))
        yield f"  times ours, {engine}: {', '.join(parts)}"
    if threads == 1:
        forward, step = ours["to_even"]
        yield f"  forward: {ours['rate']:.3f} of the multiply-add rate, counted on single steps' products"
        yield f"  times as many rows of equal lengths: forward {forward:.2f}, step {step:.2f}"


def lines_of_equal(cell):
    """Yield the line of onnxruntime."""
    ours, theirs = (run(1, engine, cell, "equal") for engine in ("ragged rows", "onnxruntime"))
    yield (
        f"{cell}, {len(EQUAL)} of {EQUAL[0]} rows, one thread, forward: {ours['forward'] * 1e3:.1f} ms, onnxruntime "
        f"{theirs['forward'] * 1e3:.1f} ms, {theirs['forward'] / ours['forward']:.1f} times ours, norms of outputs "
        f"{ours['norm']:.5g} and {theirs['norm']:.5g}"
    )


def main():
    """Print the figures, and write them if asked to."""
    part = {"type": int, "help": "only lines of this part; with --write, append them, if it is not 0"}
    one = {"nargs": 3, "help": "print the figures of an engine, a cell and lengths, as JSON"}
    given = options(__doc__, part=part, one=one, threads={"type": int, "default": 1, "help": "of --one"})
    if given.one:
        engine, cell, lengths = given.one
        is_equal = lengths == "equal"
        print(json.dumps(measure_equal(engine, cell) if is_equal else measure(engine, cell, lengths, given.threads)))
        return
    from benchmarks.machine import describe

    parts = [lines_of(cell, lengths, threads) for threads in (1, 2) for cell in CELLS for lengths in LENGTHS]
    parts += [lines_of_equal(cell) for cell in CELLS]
    found = [] if given.part else [str(describe(1))]
    for part in parts if given.part is None else [parts[given.part]]:
        for line in part:
            found.append(line)
            print(line, flush=True)
    if given.write:
        with FILE.open("a" if given.part else "w") as file:
            file.write("\n".join(found) + "\n")


if __name__ == "__main__":
    main()

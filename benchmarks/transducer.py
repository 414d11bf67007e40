"""A step of a joint network and the transducer loss: over ragged rows, in pieces of them, and padded in PyTorch.

    python -m benchmarks.transducer            # print the lines
    python -m benchmarks.transducer --write    # and replace results/transducer.txt

64 sequences of lognormal lengths, a label for four frames; frames and rows of the predictor have 128 features, the
joint network is tanh and a linear layer to 64 classes.  A step computes the mean loss and all gradients.  Each engine
runs in a process of its own, with one thread.  Memory is the most that the process takes during steps beyond what it
held before the first one, so code that the first step loads counts, too.
"""

import itertools
import json
import resource
import statistics
from pathlib import Path

import numpy as np

from benchmarks.lengths import lognormal
from benchmarks.processes import options, output_of

FILE = Path(__file__).parent / "results" / "transducer.txt"
BATCH, FEATURES, CLASSES, STEPS = 64, 128, 64, 5
PIECE = 8192  # lattice rows of a piece, about
FRAMES = lognormal(BATCH)
LABELS = tuple(frames // 4 for frames in FRAMES)


def inputs():
    """Return frames, rows of the predictor, labels, and the weight of the joint network."""
    rng = np.random.default_rng(0)
    rows = (sum(FRAMES), FEATURES), (sum(LABELS) + BATCH, FEATURES), (CLASSES, FEATURES)
    frames, predicted, weight = (rng.standard_normal(shape).astype(np.float32) for shape in rows)
    return frames, predicted, rng.integers(1, CLASSES, sum(LABELS)), weight / np.sqrt(np.float32(FEATURES))


def ragged(is_in_pieces):
    """Return a step of varlen_rnn."""
    import varlen_rnn as vr
    from varlen_rnn.nn import functional as F

    frames, predicted, labels, weight = inputs()
    ends = [vr.create_lod_tensor(frames, [list(FRAMES)])]
    ends.append(vr.create_lod_tensor(predicted, [[count + 1 for count in LABELS]]))
    labels = vr.create_lod_tensor(labels, [list(LABELS)])
    joint = vr.nn.Linear(FEATURES, CLASSES)
    joint.weight.data[...] = weight
    joint.bias.data[...] = 0
    lattices = np.cumsum([frames * (count + 1) for frames, count in zip(FRAMES, LABELS, strict=True)])
    cuts = [0, *np.flatnonzero(np.diff(lattices // PIECE)) + 1, BATCH] if is_in_pieces else [0, BATCH]

    def step():
        joint.zero_grad()
        total = 0.0
        for first, end in itertools.pairwise(cuts):
            leaves = [vr.Variable(rows.slice(0, first, end), requires_grad=True) for rows in ends]
            logits = joint(F.lattice_rows(*leaves).tanh())
            loss = F.transducer_loss(logits, labels.slice(0, first, end), reduction="sum") / BATCH
            loss.backward()
            total += loss.item()
        return total, float(np.abs(np.asarray(joint.weight.grad)).sum())

    return step


def padded():
    """Return a step of PyTorch, with the recursion along the lattice's diagonals, all sequences at once."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    frames, predicted, labels, weight = map(torch.from_numpy, inputs())
    encoder = pad_sequence(frames.split(FRAMES), batch_first=True).requires_grad_()
    predictor = pad_sequence(predicted.split([count + 1 for count in LABELS]), batch_first=True).requires_grad_()
    symbols = pad_sequence(labels.split(LABELS), batch_first=True)
    joint = torch.nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        joint.weight.copy_(weight)
        joint.bias.zero_()
    last = torch.tensor(FRAMES) - 1, torch.tensor(LABELS)
    width = predictor.shape[1]
    diagonals = encoder.shape[1] + width - 1
    of_frame = torch.arange(diagonals)[:, None] - torch.arange(width)  # the frame of each place of a diagonal
    is_inside = (of_frame >= 0) & (of_frame < encoder.shape[1])
    of_frame = of_frame.clamp(0, encoder.shape[1] - 1)
    everyone, places = torch.arange(BATCH), torch.arange(width)

    def step():
        joint.zero_grad()
        logs = joint((encoder[:, :, None] + predictor[:, None]).tanh()).log_softmax(-1)
        scores = logs[..., 0], logs[:, :, :-1].gather(-1, symbols[:, None, :, None].expand(-1, logs.shape[1], -1, 1))
        blank, label = scores[0], torch.nn.functional.pad(scores[1][..., 0], (0, 1), value=-1e30)
        blank = blank[:, of_frame, places].masked_fill(~is_inside, -1e30).unbind(1)
        label = label[:, of_frame, places].masked_fill(~is_inside, -1e30).unbind(1)
        reached = torch.full((BATCH, width), -1e30)
        reached[:, 0] = 0.0
        all_reached = [reached]
        for by_blank, by_label in zip(blank[:-1], label[:-1], strict=True):
            moved = torch.nn.functional.pad((reached + by_label)[:, :-1], (1, 0), value=-1e30)
            reached = torch.logaddexp(reached + by_blank, moved)
            all_reached.append(reached)
        ends = last[0] + last[1], everyone, last[1]
        loss = -(torch.stack(all_reached)[ends] + logs[everyone, last[0], last[1], 0]).mean()
        loss.backward()
        return loss.item(), joint.weight.grad.abs().sum().item()

    return step


ENGINES = {
    "ragged rows": lambda: ragged(False),
    f"ragged rows, pieces of about {PIECE:,}": lambda: ragged(True),
    "padded, PyTorch": padded,
}


def resident(field):
    """Return a figure of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def measure(engine):
    """Return the figures of an engine: loss, sum of the gradient of the weight, processor seconds, peak bytes."""
    step = ENGINES[engine]()
    before = resident("VmRSS")
    step()  # compiles, and starts what libraries start late
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    seconds = []
    for _ in range(STEPS):
        began = resource.getrusage(resource.RUSAGE_SELF)
        loss, gradient = step()
        ended = resource.getrusage(resource.RUSAGE_SELF)
        seconds.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
    return loss, gradient, statistics.median(seconds), resident("VmHWM") - before


def lines():
    """Yield the lines of the result."""
    cells = sum(frames * (count + 1) for frames, count in zip(FRAMES, LABELS, strict=True))
    in_all = BATCH * max(FRAMES) * (max(LABELS) + 1)
    yield f"{cells:,} rows of lattices, {in_all:,} padded: {in_all / cells:.1f} times"
    for engine in ENGINES:
        loss, gradient, seconds, peak = json.loads(output_of("-m", "benchmarks.transducer", "--engine", engine))
        yield f"{engine}: {seconds:.3f} s of CPU, {peak / 2**20:.0f} MiB, loss {loss:.4f}, gradient {gradient:.3f}"


def main():
    """Print the figures, and write them if asked to."""
    given = options(__doc__, engine={"choices": ENGINES, "help": "print the figures of one engine, as JSON"})
    if given.engine:
        print(json.dumps(measure(given.engine)))
        return
    from benchmarks.machine import publish

    publish(lines(), FILE if given.write else None)


if __name__ == "__main__":
    main()

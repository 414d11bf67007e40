"""A frame of audio through silero-vad's detector: our stream, bound, beside onnxruntime, with one thread and two.

    python -m benchmarks.frames                # print the lines
    python -m benchmarks.frames --write        # write them to results/frames.txt
    python -m benchmarks.frames --file PATH    # another copy of silero_vad.onnx

The file is part of the package silero-vad (`pip install silero-vad onnxruntime`); without it, a line says so.  Both
take the same 576 samples of noise for each stream, with states that they carry from frame to frame.  Their
probabilities are compared first.  With one thread, times are of the processor.  With two threads, each with streams of
its own, they are seconds that pass, over the frames of both, in rounds that other processes did not disturb if there
are any.  All are medians of rounds in which both engines take turns.
"""

import importlib.util
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import varlen_rnn as vr
import varlen_rnn.onnx
from benchmarks.clock import seconds_in_turns
from benchmarks.machine import publish
from benchmarks.processes import options
from benchmarks.quiet import Watch, undisturbed, wait_for_quiet

FILE = Path(__file__).parent / "results" / "frames.txt"
FRAMES, ROUNDS, RATE, SAMPLES = 200, 11, 16000, 576
STREAMS = 1, 8  # of each call
PASSES = 5  # over the frames in a round of two threads
QUIET_SECONDS = 1.0  # the longest wait for a moment in which nothing else runs


def find():
    """Return the path of the detector of the installed package, or None."""
    found = importlib.util.find_spec("silero_vad")
    return found and found.origin and Path(found.origin).parent / "data" / "silero_vad.onnx"


def ours(path, streams):
    """Return a function of a frame of each stream, (streams, 576) float32, that returns probabilities of speech."""
    program = vr.onnx.load(path, fixed={"sr": RATE, "input": (None, SAMPLES)})
    stream = program.stream(states={"state": "stateN"}, num_sequences=streams)
    return lambda frame: stream({"input": frame})[0]


def theirs(path, streams):
    """Return such a function of onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    state, rate = np.zeros((2, streams, 128), np.float32), np.array(RATE)

    def run(frame):
        nonlocal state
        found, state = session.run(None, {"input": frame, "state": state, "sr": rate})
        return found

    return run


def lines(path):
    """Yield the lines of the results."""
    vr.set_num_threads(1)
    rng = np.random.default_rng(0)
    for streams in STREAMS:
        runs, others = ([make(path, streams) for make in (ours, theirs)] for _ in range(2))
        frames = [(0.1 * rng.standard_normal((streams, SAMPLES))).astype(np.float32) for _ in range(FRAMES)]
        found = [np.array([run(frame) for frame in frames]) for run in runs]
        side = "a frame of one stream" if streams == 1 else f"a frame, in calls with frames of {streams} streams"
        yield f"{side}: probabilities differ by at most {np.abs(found[0] - found[1]).max():.0e}"
        through = lambda run, frames=frames: [run(frame) for frame in frames]
        works = [lambda run=run, through=through: through(run) for run in runs]
        yield shown(f"{side}, one thread", seconds_in_turns(works, ROUNDS), streams * FRAMES)
        seconds = seconds_of_threads(runs, others, through)
        yield shown(f"{side}, two threads", seconds, 2 * PASSES * streams * FRAMES)


def seconds_of_threads(some, others, through):
    """Return the seconds that two threads take to run some passes, for each engine: medians of undisturbed rounds."""
    work = lambda run: [through(run) for _ in range(PASSES)]
    seconds, busy = np.zeros((2, 2, ROUNDS))
    with ThreadPoolExecutor(2) as pool:
        for number in range(ROUNDS):
            for engine, both in enumerate(zip(some, others, strict=True)):
                wait_for_quiet(QUIET_SECONDS)
                watch, began = Watch(os.getpid()), time.perf_counter()
                list(pool.map(work, both))
                seconds[engine, number], busy[engine, number] = time.perf_counter() - began, watch.others()
    return [np.median(undisturbed(*of_engine)) for of_engine in zip(seconds, busy, strict=True)]


def shown(what, seconds, frames):
    """Return the line of a comparison, ours first."""
    here, there = (1e6 * of_frames / frames for of_frames in seconds)
    return f"{what}: bound program {here:.0f} us, onnxruntime {there:.0f} us, ratio {here / there:.2f}"


if __name__ == "__main__":
    given = options(__doc__, file={"type": Path, "help": "the detector"})
    path = given.file or find()
    if path is None:
        print("silero-vad is not installed, and no --file is given: nothing is measured")
    else:
        publish(lines(path), FILE if given.write else None)

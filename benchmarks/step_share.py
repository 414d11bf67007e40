"""`python -m benchmarks.step_share`: what share of a training step of examples/classify_names.py is compiled code.

A whole step is the batch, forward and backward pass, clipping, Adam, the schedule.  Its time is the median over turns
without a profile; that of compiled functions, of waits for the other thread's share of them, and of NumPy is read
off a profile, whose own cost falls on Python's part alone.
"""

import cProfile
import gc
import pathlib
import pstats
import statistics
import sys
import time

STEPS, TURNS = 100, 7


def main():
    """Print and measure."""
    trainer = made()
    trainer.fit(steps=STEPS)  # compiles, or loads, what is compiled
    turns, shares = [], []
    for _ in range(TURNS):
        began = time.perf_counter()
        trainer.fit(steps=trainer.step + STEPS)
        turns.append((time.perf_counter() - began) / STEPS * 1e3)
        shares.append(inside(trainer))
    step = statistics.median(turns)
    kernels, waits, of_numpy = (statistics.median(column) for column in zip(*shares, strict=True))
    alone = kernels + waits + of_numpy
    print(f"a step takes {step:.2f} ms: kernels {kernels:.2f}, waits for them {waits:.2f}, NumPy {of_numpy:.2f}")
    print(f"speed of a step beside its kernels alone: {alone / step:.2f}")


def made():
    """Return the example's trainer without its progress bar and validation."""
    sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
    import classify_names

    import varlen_rnn as vr

    trainer, _ = classify_names.trainer_of(vr.data.unicode_names(), classify_names.SETTINGS)
    trainer.callbacks = [one for one in trainer.callbacks if isinstance(one, vr.training.Schedule)]
    trainer.validate = None
    return trainer


def inside(trainer):
    """Return the milliseconds per step in compiled functions, waiting for threads, and in NumPy's functions."""
    from varlen_rnn.runtime.numba_internals import CPUDispatcher

    profile = cProfile.Profile()
    profile.enable()
    trainer.fit(steps=trainer.step + STEPS)
    profile.disable()
    codes = [one.py_func.__code__ for one in gc.get_objects() if isinstance(one, CPUDispatcher)]
    compiled = {(code.co_filename, code.co_firstlineno, code.co_name) for code in codes}
    kernels = waits = of_numpy = 0.0
    for function, (_, _, own, _, _) in pstats.Stats(profile).stats.items():
        kernels += own if function in compiled else 0.0
        waits += own if "SimpleQueue" in function[2] else 0.0
        of_numpy += own if function[0] == "~" and "numpy" in function[2] else 0.0
    return [seconds / STEPS * 1e3 for seconds in (kernels, waits, of_numpy)]


if __name__ == "__main__":
    main()

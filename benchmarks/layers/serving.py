"""Our layers for inference, with weights that are packed once: prepared, and as streams of rows."""

import numpy as np

import varlen_rnn as vr
from benchmarks.layers.case import Inputs


class Prepared:
    """A prepared layer on arrays."""

    def __init__(self, case, threads):
        vr.set_num_threads(threads)
        inputs = Inputs(case)
        self.layer = getattr(vr.nn, case.cell)(case.input_size, case.hidden_size)
        self.layer.load_state_dict(inputs.weights)
        self.run, self.x, self.offsets = self.layer.prepare(), inputs.x, np.cumsum([0, *case.lengths])

    def inference(self):
        """Return the outputs."""
        return {"y": self.run(self.x, offsets=self.offsets)[0]}

    def arrays(self, results):
        """Return results, which are arrays."""
        return results


class Stream(Prepared):
    """A stream of one sequence, which begins anew: each step is its first."""

    def __init__(self, case, threads):
        super().__init__(case, threads)
        self.stream = self.layer.stream()

    def inference(self):
        """Return the outputs of the first row."""
        self.stream.reset()
        return {"y": self.stream(self.x)}

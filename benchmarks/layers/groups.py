"""PyTorch's layers as practitioners run them on unequal lengths: sorted, and padded in groups of neighbours.

A step runs the groups one after another, and the gradients of the weights are summed.  How many groups are best depends
on the batch and the machine, so an engine tries each number at the first step of a mode and keeps the fastest.
"""

import contextlib
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.clock import seconds_per_step
from benchmarks.layers.case import Inputs
from benchmarks.rectangle import Rectangle

NUMBERS, TURNS = (2, 4, 8, 16), 3


class Group(NamedTuple):
    """A padded, time-major rectangle of some sequences, and where its rows stand among those of the batch."""

    rectangle: Rectangle
    rows: np.ndarray
    x: torch.Tensor
    d_y: torch.Tensor


class Groups:
    """A layer on groups of neighbouring lengths.

    The groups of every number stand ready, so neither sorting nor padding is part of a step.
    """

    def __init__(self, case, threads):
        torch.set_num_threads(threads)
        inputs = Inputs(case)
        self.layer = getattr(torch.nn, case.cell)(case.input_size, case.hidden_size)
        self.layer.load_state_dict({name: torch.from_numpy(array) for name, array in inputs.weights.items()})
        self.shape, self.run = (case.rows, case.hidden_size), self.layer
        numbers = sorted({min(number, len(case.lengths)) for number in NUMBERS})
        self.groups = {number: _groups(inputs, case.lengths, number) for number in numbers}
        self.notes = {}

    def inference(self):
        """Return the outputs of each group."""
        return self._step("inference", self._infer)

    def training(self):
        """Return the outputs and the gradients of rows, of each group, and those of the weights, of all groups."""
        return self._step("training", self._train)

    def arrays(self, results):
        """Return results as arrays, those of the groups as rows of the batch."""
        arrays = {name: value.numpy() for name, value in results.items() if not isinstance(value, list)}
        for name in ("y", "d_x"):
            if name in results:
                groups = self.groups[len(results[name])]
                arrays[name] = np.empty((self.shape[0], results[name][0].shape[-1]), np.float32)
                for group, value in zip(groups, results[name], strict=True):
                    arrays[name][group.rows] = group.rectangle.unpad(value.detach().float().numpy())
        return arrays

    def _step(self, mode, step):
        """Run a step with the number of groups that is fastest in this mode; find it at the first."""
        if mode not in self.notes:
            taken = {number: [] for number in self.groups}
            for _ in range(TURNS):
                for number, groups in self.groups.items():
                    taken[number].append(seconds_per_step(lambda groups=groups: step(groups)))
            least = {number: min(its) for number, its in taken.items()}
            self.notes[mode] = {"groups": min(least, key=least.get), "seconds of groups": least}
        return step(self.groups[self.notes[mode]["groups"]])

    def _infer(self, groups):
        with torch.inference_mode(), self.precision():
            return {"y": [self.run(group.x)[0] for group in groups]}

    def _train(self, groups):
        outputs, weights = [], dict(self.layer.named_parameters())
        for leaf in (*weights.values(), *(group.x for group in groups)):
            leaf.grad = None
        for group in groups:
            with self.precision():
                outputs.append(self.run(group.x)[0])
            outputs[-1].backward(group.d_y.to(outputs[-1].dtype))
        gradients = {name: weight.grad for name, weight in weights.items()}
        return {"y": outputs, "d_x": [group.x.grad for group in groups], **gradients}

    precision = staticmethod(contextlib.nullcontext)


class Bfloat16(Groups):
    """The same with products in bfloat16, as `torch.autocast` makes them: weights and their sums stay float32."""

    @staticmethod
    def precision():
        """Return the context of a forward pass."""
        return torch.autocast("cpu", dtype=torch.bfloat16)


class Compiled(Groups):
    """The same, compiled: `torch.compile` leaves a recurrent layer alone unless it is told to unroll the steps.

    A shape is compiled by itself, so all steps run once when the engine is built.
    """

    def __init__(self, case, threads):
        super().__init__(case, threads)
        torch._dynamo.config.allow_rnn = True
        self.run = torch.compile(self.layer, dynamic=False)
        for groups in self.groups.values():
            self._train(groups)
            self._infer(groups)


def _groups(inputs, lengths, number):
    """Return groups of as many sequences each, about, the shortest first."""
    lengths, found = np.asarray(lengths), []
    starts = np.cumsum(lengths) - lengths
    for members in np.array_split(np.argsort(lengths, kind="stable"), number):
        rows = np.concatenate([np.arange(starts[each], starts[each] + lengths[each]) for each in members])
        rectangle = Rectangle(lengths[members])
        x, d_y = (torch.from_numpy(rectangle.pad(array[rows])) for array in (inputs.x, inputs.d_y))
        found.append(Group(rectangle, rows, x.requires_grad_(), d_y))
    return found

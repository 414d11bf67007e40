"""PyTorch on sequences of unequal length: padded with masks, on rows alone, and in nested tensors of layout jagged.

The batch stands ready in the form of each, with its masks and the indices of padded batches; those of rows that move
are made in each step.
"""

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from benchmarks.sequence.case import FUTURE, KINDS, Inputs


class Operator:
    """An operator, its inputs, and the gradient of its result; a method per operator."""

    engine = None
    without_gradient = torch.inference_mode

    def __init__(self, case, threads):
        torch.set_num_threads(threads)
        self.case, self.inputs = case, Inputs(case)
        self.lengths, self.steps = torch.from_numpy(self.inputs.lengths), max(case.lengths)
        self.prepare()
        self.leaves = {name: self.held(array).requires_grad_() for name, array in self.inputs.arrays.items()}
        self.call = getattr(self, case.operator.replace(" ", "_"))
        if self.engine not in KINDS[case.operator].forward:
            self.d_y, self.training = self.held(self.inputs.d_y, case.out_lengths), self.step

    def prepare(self):
        """Make what follows from the lengths."""

    def held(self, array, lengths=None):
        """Return an array in the form of this engine."""
        return torch.from_numpy(array)

    def inference(self):
        """Return the result."""
        with self.without_gradient():
            return {"y": self.call(*self.leaves.values())}

    def step(self):
        """Return the result and the gradients of all inputs."""
        y = self.call(*self.leaves.values())
        gradients = torch.autograd.grad(y, list(self.leaves.values()), self.d_y)
        return {"y": y, **{f"d_{name}": d for name, d in zip(self.leaves, gradients, strict=True)}}

    def arrays(self, results):
        """Return results as arrays of rows."""
        return {
            name: self.rows(value, self.case.out_lengths if name == "y" else self.case.lengths)
            for name, value in results.items()
        }

    def rows(self, value, lengths):
        """Return a value as an array, that of a batch as rows."""
        return value.detach().numpy()


class Rows(Operator):
    """Rows one after another: what PyTorch has for these without padding."""

    engine = "torch rows"

    def prepare(self):
        """Make offsets and a mask."""
        offsets = np.concatenate([[0], np.cumsum(self.inputs.lengths)])
        self.offsets = torch.from_numpy(offsets)
        self.inside = torch.arange(self.steps) < self.lengths[:, None]

    def expand(self, x):
        """Return the two rows of each sequence, again and again."""
        pairs = x.view(len(self.lengths), -1)
        return pairs.repeat_interleave(self.lengths, 0, output_size=self.case.rows).view(-1, x.shape[1])

    def expand_as(self, x):
        """Return a row per sequence for each of its rows."""
        return x.repeat_interleave(self.lengths, 0, output_size=self.case.rows)

    def pool_sum(self, x):
        """Return sums of sequences."""
        return torch.segment_reduce(x, "sum", offsets=self.offsets)

    def pool_max(self, x):
        """Return maxima of sequences."""
        return torch.segment_reduce(x, "max", offsets=self.offsets)

    def moved(self, x):
        """Return rows that an index names."""
        return x.index_select(0, torch.from_numpy(self.inputs.index))

    first_step = last_step = reverse = slice = moved

    def concat(self, x, z):
        """Return both inputs' rows of each sequence."""
        return self.moved(torch.cat([x, z]))

    def pad(self, x):
        """Return a padded batch."""
        return pad_sequence(x.split(self.case.lengths), batch_first=True)

    def unpad(self, x):
        """Return the rows of a padded batch."""
        return x[self.inside]


class Padded(Operator):
    """A rectangle of `(sequences, steps, ...)`, and a mask of the steps that exist."""

    engine = "torch padded"

    def prepare(self):
        """Make masks and indices; equal lengths need no mask."""
        self.inside = torch.arange(self.steps) < self.lengths[:, None]
        self.outside = ~self.inside[..., None]
        self.ragged = bool(self.outside.any())
        self.labels = torch.from_numpy(self.inputs.labels)
        self.targets = torch.from_numpy(self.inputs.targets)
        self.index = self.places()
        self.seen = torch.zeros(self.outside.shape[:2]).masked_fill(~self.inside, -torch.inf)[:, None, None]

    def places(self):
        """Return the step that stands at each step of the result, in a batch of one input or of two side by side."""
        if self.inputs.index is None or self.case.operator.endswith("step"):
            return None
        lengths, length = self.inputs.lengths, np.array(self.case.out_lengths)
        starts = np.cumsum(lengths) - lengths
        of_input, row = np.divmod(self.inputs.index, self.case.rows)
        step = row - np.repeat(starts, length) + of_input * self.steps
        return self.held(step, self.case.out_lengths)[..., None]

    def held(self, array, lengths=None):
        """Return a batch of rows as a rectangle, and all else as it is."""
        lengths = self.case.lengths if lengths is None else lengths
        if len(array) != sum(lengths):
            if self.case.operator == "expand":
                array = array.reshape(len(lengths), 2, -1)
            return torch.from_numpy(array)
        padded = np.zeros((len(lengths), max(lengths), *array.shape[1:]), array.dtype)
        padded[np.arange(max(lengths)) < np.array(lengths)[:, None]] = array
        return torch.from_numpy(padded)

    def rows(self, value, lengths):
        """Return the rows of a rectangle."""
        array = value.detach().numpy()
        if self.case.operator == "expand" and array.shape[1] == 2:
            return array.reshape(-1, array.shape[2])
        if array.shape[:2] != (len(lengths), max(lengths)):
            return array
        return array[np.arange(max(lengths)) < np.array(lengths)[:, None]]

    def masked(self, x, value):
        """Return a batch with this value in its padding."""
        return x.masked_fill(self.outside, value) if self.ragged else x

    def expand(self, x):
        """Return the two rows of each sequence, again and again."""
        return x.repeat(1, self.steps, 1)

    def expand_as(self, x):
        """Return a row per sequence at each step."""
        return x[:, None].repeat(1, self.steps, 1)

    def pool_sum(self, x):
        """Return sums of sequences."""
        return self.masked(x, 0.0).sum(1)

    def pool_max(self, x):
        """Return maxima of sequences."""
        return self.masked(x, -torch.inf).amax(1)

    def first_step(self, x):
        """Return first rows."""
        return x[:, 0]

    def last_step(self, x):
        """Return last rows."""
        return x[torch.arange(len(self.lengths)), self.lengths - 1]

    def softmax(self, x):
        """Return the softmax over the steps that exist."""
        return self.masked(x, -torch.inf).softmax(1)

    def cumsum(self, x):
        """Return running sums."""
        return x.cumsum(1)

    def conv(self, x, weight):
        """Return the product of windows with a weight, of a batch whose padding is zeros."""
        kernel = weight.view(-1, x.shape[2], weight.shape[1]).permute(2, 1, 0)
        return F.conv1d(x.transpose(1, 2), kernel, padding="same").transpose(1, 2)

    def row_conv(self, x, weight):
        """Return sums of windows, weighed element by element, of a batch whose padding is zeros."""
        x = F.pad(x.transpose(1, 2), (0, FUTURE))
        return F.conv1d(x, weight.t()[:, None], groups=x.shape[1]).transpose(1, 2)

    def moved(self, *x):
        """Return rows that an index names, within each sequence."""
        x = torch.cat(x, 1) if len(x) > 1 else x[0]
        return x.gather(1, self.index.expand(-1, -1, x.shape[2]))

    concat = reverse = slice = moved

    def ctc_loss(self, logits):
        """Return the loss of each sequence."""
        log_probs = F.log_softmax(logits, -1).transpose(0, 1)
        return F.ctc_loss(log_probs, self.labels, self.lengths, self.targets, reduction="none")

    def linear_chain_crf(self, emission, transition):
        """Return minus the log-likelihood of each sequence: a loop over the steps of all."""
        start, end, follows = transition[0], transition[1], transition[2:]
        alpha = start + emission[:, 0]
        for step in range(1, self.steps):
            ahead = torch.logsumexp(alpha[:, :, None] + follows, 1) + emission[:, step]
            alpha = torch.where(self.inside[:, step, None], ahead, alpha)
        labels = self.held(self.inputs.labels)
        score = emission.gather(2, labels[..., None])[..., 0]
        score[:, 1:] += follows[labels[:, :-1], labels[:, 1:]]
        last = labels[torch.arange(len(labels)), self.lengths - 1]
        score = torch.where(self.inside, score, 0.0).sum(1) + start[labels[:, 0]] + end[last]
        return torch.logsumexp(alpha + end, 1) - score

    def attention(self, query, key, value):
        """Return what queries find among the keys that exist."""
        heads = (each.transpose(1, 2) for each in (query, key, value))
        mask = self.seen if self.ragged else None
        return F.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2)


class Jagged(Operator):
    """A nested tensor of layout jagged: rows one after another, and their offsets."""

    engine = "torch jagged"
    without_gradient = torch.no_grad  # views of nested tensors fail in inference mode

    def prepare(self):
        """Make the offsets, which all tensors of the batch share."""
        self.offsets = F.pad(self.lengths.cumsum(0), (1, 0))
        self.zeros = self.nested(torch.zeros(self.case.rows, 1))

    def nested(self, rows):
        """Return rows as a nested tensor."""
        low, high = min(self.case.lengths), max(self.case.lengths)
        return torch.nested.nested_tensor_from_jagged(rows, self.offsets, min_seqlen=low, max_seqlen=high)

    def held(self, array, lengths=None):
        """Return a batch of rows as a nested tensor, and all else as it is."""
        tensor = torch.from_numpy(array)
        return self.nested(tensor).detach() if len(array) == self.case.rows else tensor

    def rows(self, value, lengths):
        """Return the rows of a nested tensor."""
        return (value.values() if value.is_nested else value).detach().numpy()

    def expand_as(self, x):
        """Return a row per sequence for each of its rows."""
        return x[:, None] + self.zeros

    def pool_sum(self, x):
        """Return sums of sequences."""
        return x.sum(1)

    def pool_max(self, x):
        """Return maxima of sequences."""
        return x.amax(1)

    def softmax(self, x):
        """Return the softmax over the rows of each sequence."""
        return x.softmax(1)

    def pad(self, x):
        """Return a padded batch."""
        return x.to_padded_tensor(0.0)

    def attention(self, query, key, value):
        """Return what queries find among the keys of their sequence."""
        heads = (each.transpose(1, 2) for each in (query, key, value))
        return F.scaled_dot_product_attention(*heads).transpose(1, 2)

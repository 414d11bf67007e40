"""What the document says whatever the figures are: how they were measured."""

HEAD = """# Benchmarks

Made by `python -m benchmarks report` from the lines in `benchmarks/results/`; `python -m benchmarks` measures them.
"""

METHOD = """## How

Each engine runs in a process of its own, on inputs that all processes make from the same seed, float32, with the same
number of threads. First their results are compared (outputs; in training the gradients of rows and of all weights; of
whole models the losses and the first gradients, for Adam hides how large a gradient is); a line without agreement has
no figures. Then they take turns: a round repeats a step for at least a tenth of a second while the other processes
wait, after as long that does not count, for threads that slept may begin on one core. Just before and just after a
round of ours, its process measures the multiply-add rate of the processor, in the same way: each thread runs chains of
multiply-adds on vector registers, enough of them to keep all units busy, and reads no memory, so no product can be
faster. (On an EPYC of the Zen 4 generation it is 1.00 vectors of 64 bytes per cycle and core, as its two units of 32
bytes allow.) Before that it multiplies two 2048 x 2048 matrices with NumPy (sgemm), which is shown and divides nothing:
a BLAS is slow on processors that it does not know. After each request a process waits, a second at most, until its
threads take less than a quarter of a core, for while those of a BLAS spin they take cores from what comes next.
A round begins when nothing else runs, or after five seconds; figures are medians of the rounds in which others took
less than a quarter of a core, during the step and the measurements around it, waits included, or of all rounds if there
is no such round.

* A step of training is forward and backward: gradients of the rows and of all weights, no optimizer. *of peak* counts
  the products only, `2 rows (D + H) gates H` forward and three times as much in training, over rows that exist, and
  divides by the multiply-add rate in the same round, the mean of before and after; the figure is the median of these
  shares. The machine's speed drifts from minute to minute: a step and what is measured beside it see nearly the same.
  A dash stands in lines that were measured before this rate was.
* Ratios are times over ours: above 1, `varlen_rnn` is faster.
* *torch packed* is `pack_padded_sequence`, the layer, `pad_packed_sequence`; *torch padded* runs the layer on the whole
  rectangle, with zero gradients in the padding; *onnxruntime* gets the lengths beside the rectangle, inference only;
  *varlen_rnn padded* is our kernels on the rectangle; *torch groups* sorts and pads in groups ("Padding in groups"
  says how), and *groups* is the number that was fastest. PyTorch and onnxruntime find their rectangles ready,
  time-major and longest first, and our plan is kept with the batch: neither padding nor sorting is part of their steps
  or ours. Only our padded twin pads in each step.
* OpenMP's threads spin at their barriers, as they do unless told otherwise: PyTorch is fastest so, but where anything
  else runs its times explode. Hence the quiet moments.
* *lognormal* is median 60, sigma 0.8, *pareto* is from 10 with exponent 1.2, both as quantiles within 5 to 400 steps;
  *equal* is 80 steps; *names*, *sentences* and *functions* are random batches of the embedded data sets.
"""

NOTES = {
    "recurrent": "",
    "groups": """What practitioners run on unequal lengths: they sort a batch, cut it into groups of as many sequences
each, pad each group to its longest, run one after another and sum the gradients of the weights. *torch groups* tries 2,
4, 8 and 16 groups at its first step of each mode, three rounds each, and keeps the fastest, whose number is under
*groups*; *over each number* is what it found then, over our time. All groups stand ready as rectangles: neither sorting
nor padding is part of a step. *torch groups bfloat16* is the same under `torch.autocast`: its results are compared with
a tolerance of 0.03, those of float32 with 0.00001. *torch groups compiled* is the same under `torch.compile` with
`torch._dynamo.config.allow_rnn`, without which PyTorch 2.13 leaves a recurrent layer as it is; *late* is what did not
compile in a minute, for the compiler unrolls all steps of each rectangle.
""",
    "efficiency": """The products of a training step, in operations per second, over the multiply-add rate in the same
round (*of peak*): the median of the rounds' shares, and the quartiles between which half of them lie. *of sgemm* is the
same over the rate of sgemm. Our layer alone is timed, in 15 rounds per line; PyTorch's padded layer computes the same
once, before, and a line where the two disagree has no figures. *rounds* are those that count.
""",
    "cells": """A training step of cells beside the built-in ones. *of peak* counts the products of a cell's own
weights; *of built-in* is that share over the share of the built-in layer of its family, which takes turns with it: a
GRU for names that begin with gru, else an LSTM. *CIFG* is the user's cell of [cells.md](cells.md), in `nn.Recurrent`;
names in lower case are those of `cells.find_cell`; *DynamicRNN* runs a step of ordinary operators: that of an LSTM, and
one that attends to 32 rows of a captured sequence. PyTorch's times over ours, on the padded rectangle: *torch loop* is
a loop of Python around `LSTMCell`, `GRUCell`, `RNNCell`, or around the equations by hand, with the inputs of all steps
projected before it; the other two compile, with `torch.compile`, a step of that loop, or all of it; *late* is what did
not compile in a minute.
""",
    "sequence": """Nanoseconds per row of the batch, and the time of others over ours: 64 sequences with rows of 64
numbers, of 32 classes for `ctc_loss` (its `log_softmax` is in the step, and each target has a quarter of the steps), of
16 tags for `linear_chain_crf`; attention has 32 sequences and 8 heads of 64. Windows of `conv` are 3 rows, those of
`row_conv` 4; `expand` repeats sequences of 2 rows, `slice` takes half of each. *torch padded* runs on the rectangle
with masks, or without them where all lengths are equal: `scaled_dot_product_attention` with a mask of keys, `gather`
where rows move, a loop over steps for `linear_chain_crf`. *torch rows* is what PyTorch has for rows without padding:
`repeat_interleave`, `segment_reduce`, `index_select`, `pad_sequence`; *torch jagged* is `torch.nested` with layout
jagged, *NumPy* `reduceat`, `repeat`, `take`, forward only. Indices of rows that move are made in each step, for the
next batch has other lengths; masks, and the indices of *torch padded*, stand ready. A dash is what an engine does not
have, or computes wrongly: PyTorch 2.13 has no gradient of a jagged sum, and a wrong one of a jagged softmax over the
rows.
""",
    "torch": """A layer of `varlen_rnn.torch` under PyTorch's autograd: *rows* with offsets, *jagged* nested tensors
made of them in each step, *packed* and *padded* as PyTorch's own beside it, the same layer after
`varlen_rnn.torch.replace`; all times over our own layer's, whose plan is kept from step to step, as it is nowhere else
here. What *packed* takes longer than *padded* is `pack_padded_sequence` and `pad_packed_sequence` themselves.
*one step* is a batch of one time step with initial states, as in a loop that decodes: *in torch, step* after `replace`,
*torch step* without.
""",
    "serving": """Microseconds of a call with weights packed once, and the time of others over that: *stream* is
one row of one sequence, from zeros, to which it is reset in the same call; *prepared* is a layer on rows with offsets,
of which it makes a plan in each call. *torch cell* is `LSTMCell`, `GRUCell` or `RNNCell`.
""",
    "end_to_end": """Embedding of 64, LSTM of 128, mean over each sequence, linear, cross entropy, Adam; batches of 32
in random order, sequences cut at 1,000 tokens.
""",
    "small": "",
    "overhead": """Microseconds of an operator on a handful of rows beyond its *own call*: NumPy's expression, or what
of the engine stands below the operator, `recurrence.forward` for *recurrent*, `gemm.product` for *matmul*. That is
Python that makes arrays and shares work, around a compiled function; *compiled* is the function alone, on arguments
that are ready, and the Python between the two is in no column to their right. An operator is run without a gradient,
recorded for one, and in a program; *describing* is all that it takes to record it in a program that knows its
parameters. *recurrent* is an LSTM of 32 units on 4 sequences of 5 steps. The ways take turns, and the lowest round of
each counts, for whatever else runs only adds to one.
""",
    "memory": """How far the resident set of a process rises during its first training step of this size, MiB. Steps
of a layer of the same cell with 32 units, on 16 sequences, have loaded the code before, of every engine alike; what was
freed before the step has gone back to the system. *gates, states* is what the gates and states of all rows fill: a
gradient needs them.
""",
    "startup": """Fresh processes; each package's import over those before it, then a first training step of a small
LSTM, and after it that of a GRU, the *second cell*. *cold* compiles every kernel, *warm* finds them on disk,
*installed* in the installation, with an empty cache. *compiled* counts the kernels that both steps compiled.
""",
    "scaling": "",
    "distributed": """Gradients of two LSTM layers of 128 units over an embedding, exchanged by an engine, gloo or
MPI: ranks of one thread, each with its part of a batch, and one process of as many threads, in turns on the same
batches. All are processes of their own, and sleep while it is not their turn. *by work*, *by
counts* and *round robin* give the speed of ranks over the speed of one process, for three divisions of a batch: by
predicted work, which is ours; as many neighbours for each rank; in turn, longest first. *CPU*: the CPU seconds of one
thread over the seconds of all ranks. Below, lookups in a table of 100,000 rows of 64 columns: *bytes a row* that a rank
sends for each row that it has touched.
""",
}
TITLES = {
    "recurrent": "Layers",
    "groups": "Padding in groups",
    "efficiency": "Share of the multiply-add rate",
    "cells": "Any cell",
    "sequence": "Operators on sequences",
    "torch": "Inside PyTorch",
    "serving": "One row at a time, and little work",
    "end_to_end": "Whole models",
    "small": "Small work",
    "overhead": "Operators",
    "memory": "Memory",
    "startup": "Start-up",
    "scaling": "Scaling",
    "distributed": "Ranks",
}

"""What the document says whatever the figures are: how they were measured."""

HEAD = """# Benchmarks

Made by `python -m benchmarks report` from the lines in `benchmarks/results/`; `python -m benchmarks` measures them.
Above each table stands when, where and with which versions it was measured.
"""

METHOD = """## How

**Engines and agreement.** Each engine runs in a process of its own, in float32, with the same number of threads. All
processes make the same inputs from one seed. First their results are compared: outputs; in training the gradients of
rows and of all weights; for whole models the losses and the first gradients, because Adam hides how large a gradient
is. If results do not agree, a line has no figures.

**Rounds.** Then the engines take turns. A round repeats a step for at least a tenth of a second while the other
processes wait. The same time before it does not count, because threads that slept may begin on one core. After each
request a process waits, at most a second, until its threads use less than a quarter of a core, because spinning threads
of a BLAS would take cores from the next engine. A round begins when nothing else runs, or after five seconds. Figures
are medians of the rounds in which other processes used less than a quarter of a core, during the step and the
measurements around it, waits included. If there is no such round, they are medians of all rounds.

**The yardstick.** Just before and just after each round of ours, its process measures the multiply-add rate of the
processor. Each thread runs chains of multiply-adds on vector registers, enough of them to keep all units busy, and
reads no memory, so no product can be faster. (On an EPYC of the Zen 4 generation, the rate is 1.00 vectors of 64 bytes
per cycle and core, as its two units of 32 bytes allow.) Before that, the process multiplies two 2048 x 2048 matrices
with NumPy (sgemm). This rate is only shown, because a BLAS is slow on processors that it does not know.

* A training step is forward and backward: gradients of the rows and of all weights, without an optimizer.
* *of peak* counts only the products, over rows that exist: `2 rows (D + H) gates H` operations forward and three times
  as many in training. It divides them by the multiply-add rate, the mean of before and after the round. The figure is
  the median of these shares, because the machine's speed drifts from minute to minute, and a step and the measurements
  beside it see nearly the same speed. A dash is a line that was measured before this rate was.
* Ratios are times over ours: above 1, `varlen_rnn` is faster.
* *torch packed* is `pack_padded_sequence`, the layer and `pad_packed_sequence`; *torch padded* runs the layer on the
  whole rectangle, with zero gradients in the padding; *torch groups* sorts and pads in groups ("Padding in groups"
  explains it), and *groups* is the fastest number of groups; *onnxruntime* gets lengths and the rectangle, for
  inference only; *varlen_rnn padded* is our kernels on the rectangle.
* PyTorch and onnxruntime get rectangles that are ready, time-major and longest first, and our plan is kept with the
  batch. So neither padding nor sorting is part of their steps or ours. Only our padded twin pads in each step.
* OpenMP's threads spin at their barriers, which is the default. PyTorch is fastest in this way, but its times explode
  if anything else runs. So rounds wait for quiet moments.
* *lognormal* lengths have median 60 and sigma 0.8, *pareto* lengths begin at 10 with exponent 1.2, both as quantiles
  within 5 to 400 steps; *equal* is 80 steps; *names*, *sentences* and *functions* are random batches of the embedded
  data sets.
"""

NOTES = {
    "readme": """The README's table has these lines, and the first line of [Memory](#memory). They are measured by
themselves, in minutes, with the newest release of PyTorch that could be installed.
""",
    "recurrent": "",
    "groups": """This is the usual way to run unequal lengths: sort a batch, cut it into groups of equally many
sequences, pad each group to its longest sequence, run one group after another and sum the gradients of the weights.
*torch groups* tries 2, 4, 8 and 16 groups at its first step of each mode, three rounds each, and keeps the fastest
number, which is under *groups*. *over each number* has the times of that trial over our time. All groups are ready as
rectangles, so neither sorting nor padding is part of a step. *torch groups bfloat16* is the same under
`torch.autocast`; its results are compared with a tolerance of 0.03, float32 results with 0.00001. *torch groups
compiled* is the same under `torch.compile` with `torch._dynamo.config.allow_rnn`; without it, PyTorch 2.13 does not
compile a recurrent layer. *late* means that it did not compile in a minute, because the compiler unrolls all steps of
each rectangle.
""",
    "bf16": """Products round both factors to bfloat16 ([precision.md](precision.md) says how). Our precision is
`"bf16"` on a host with AMX, and `"bf16-avx512"` on other hosts. *of float32* is our time in bfloat16 over our time in
float32. The columns of peers have times over ours in bfloat16. Times on one thread are CPU time. Before any time
counts, results are compared with ours in float32, with a tolerance of 0.01 for ours in bfloat16 and of 0.03 for
PyTorch's. *torch padded bfloat16* and *torch packed bfloat16* are layers on rows that `.bfloat16()` has
converted, and give results in bfloat16; this is a little faster than `torch.autocast`, which *torch groups bfloat16*
uses. On lognormal lengths, packed layers are left out, because a step takes them seconds.
""",
    "efficiency": """*of peak* is the rate of the products of a training step over the multiply-add rate in the same
round: the median over rounds, and the quartiles. *of sgemm* is the same over the rate of sgemm. Only our layer is
timed, in 15 rounds per line. PyTorch's padded layer computes the same once before, and a line without agreement has no
figures. *rounds* is the number of rounds that count.
""",
    "cells": """The table has a training step of cells beside the built-in layers. *of peak* counts the products of a
cell's own weights. *of built-in* is this share over the share of the built-in layer, which takes turns with the cell: a
GRU for names that begin with gru, otherwise an LSTM. *CIFG* is the user's cell of [cells.md](cells.md), in
`nn.Recurrent`; names in lower case are names of `cells.find_cell`; *DynamicRNN* runs a step of ordinary operators: an
LSTM, and a step that attends to 32 rows of a captured sequence. The other columns are PyTorch's times over ours, on the
padded rectangle. *torch loop* is a Python loop around `LSTMCell`, `GRUCell` or `RNNCell`, or around the equations by
hand, with the inputs of all steps projected before it. The last two columns compile a step of that loop, or the whole
loop, with `torch.compile`; *late* means that it did not compile in a minute.
""",
    "sequence": """The table has nanoseconds per row of the batch, and the time of other engines over ours. The batch
has 64 sequences with rows of 64 numbers, for `ctc_loss` of 32 classes (its `log_softmax` is part of the step, and each
target has a quarter of the steps), for `linear_chain_crf` of 16 tags; attention has 32 sequences and 8 heads of 64.
Windows of `conv` have 3 rows, windows of `row_conv` 4; `expand` repeats sequences of 2 rows, and `slice` takes half of
each sequence. *torch padded* runs on the rectangle with masks, or without masks if all lengths are equal:
`scaled_dot_product_attention` with a mask of keys, `gather` to move rows, a loop over steps for `linear_chain_crf`.
*torch rows* is PyTorch's own for rows without padding: `repeat_interleave`, `segment_reduce`, `index_select`,
`pad_sequence`. *torch jagged* is `torch.nested` with layout jagged; *NumPy* is `reduceat`, `repeat` and `take`, forward
only. Indices of rows that move are made in each step, because the next batch has other lengths. Masks, and the indices
of *torch padded*, are ready beforehand. A dash is an operator that an engine does not have or computes wrongly: PyTorch
2.13 has no gradient of a jagged sum, and a wrong gradient of a jagged softmax over the rows.
""",
    "torch": """The table has a layer of `varlen_rnn.torch` under PyTorch's autograd: *rows* with offsets, *jagged*
nested tensors made of them in each step, and *packed* and *padded*, the same layer after `varlen_rnn.torch.replace`,
beside PyTorch's own. All times are over the time of our own layer, which alone keeps its plan from step to step. The
difference of *packed* and *padded* is `pack_padded_sequence` and `pad_packed_sequence` themselves. *one step* is a
batch of one time step with initial states, as in a decoding loop: *in torch, step* after `replace`, and *torch step*
without it.
""",
    "serving": """The table has microseconds of a call with weights packed once, and the time of other engines over
that. *stream* is one row of one sequence, from zeros; the same call resets it. *prepared* is a layer on rows with
offsets, for which it makes a plan in each call. *torch cell* is `LSTMCell`, `GRUCell` or `RNNCell`.
""",
    "end_to_end": """The model is an embedding of 64, an LSTM of 128, the mean over each sequence, a linear layer, cross
entropy and Adam, on batches of 32 in random order; sequences are cut at 1,000 tokens.
""",
    "policies": """An update is four passes of proximal policy optimisation: an LSTM, scores of actions and an expected
return, their loss, the norm of the gradient cut, and Adam. *N,T,H* are environments, steps of each, and units. Episodes
begin inside of rollouts. *torch padded* and *torch packed* cut rollouts where episodes begin, and pad the parts; they
get them ready, as do sb3-contrib and TorchRL. *torch loop over steps* resets states in a loop, and pads nothing. Our
update is a step bound by `vr.bound`. Environments are left out, and times are CPU time.
""",
    "small": "",
    "overhead": """The table has the microseconds that an operator on a handful of rows takes beyond its *own call*:
NumPy's expression, or the engine's function below the operator, `recurrence.forward` for *recurrent* and `gemm.product`
for *matmul*. An *own call* is Python that makes arrays and shares work, around a compiled function. *compiled* is the
compiled function alone, on arguments that are ready; the Python around it is in no column to the right. An operator
runs without a gradient, recorded for one, and in a program; *describing* is the time to record it in a program that
knows its parameters. *recurrent* is an LSTM of 32 units on 4 sequences of 5 steps. The ways take turns, and the lowest
round of each counts, because other processes can only add time.
""",
    "memory": """The table has the MiB by which the resident set of a process rises during its first training step of
this size. Before that, steps of a layer of the same cell with 32 units, on 16 sequences, load the code of each engine,
and freed memory goes back to the system. *gates, states* is the size of the gates and states of all rows, which a
gradient needs.
""",
    "startup": """Each line is a fresh process: the import of each package beyond the imports before it, then a first
training step of a small LSTM, and after it a first step of a GRU, the *second cell*. *cold* compiles every kernel,
*warm* finds them on disk, *installed* finds them in the installation, with an empty cache. *compiled* counts the
kernels that both steps compiled.
""",
    "scaling": "",
    "distributed": """The model is two LSTM layers of 128 units over an embedding. Ranks of one thread, each with its
part of a batch, exchange gradients by gloo or MPI. One process with as many threads takes turns with them on the same
batches. A process sleeps while it is not its turn. *by work*, *by counts* and *round robin* give the speed of ranks
over the speed of one process, for three divisions of a batch: by predicted work, which is ours; equally many neighbours
for each rank; and in turn, longest first. *CPU* is the CPU seconds of one thread over the seconds of all ranks. Below
are lookups in a table of 100,000 rows of 64 columns: *bytes a row* is the number of bytes that a rank sends per row
that it touched.
""",
}
TITLES = {
    "readme": "The README's lines",
    "recurrent": "Layers",
    "groups": "Padding in groups",
    "bf16": "Products in bfloat16",
    "efficiency": "Share of the multiply-add rate",
    "cells": "Any cell",
    "sequence": "Operators on sequences",
    "torch": "Inside PyTorch",
    "serving": "One row at a time, and little work",
    "end_to_end": "Whole models",
    "policies": "Policies with memory",
    "small": "Small work",
    "overhead": "Operators",
    "memory": "Memory",
    "startup": "Start-up",
    "scaling": "Scaling",
    "distributed": "Ranks",
}

OTHERS = """## Other measurements

These have scripts of their own; their results say when and where they were measured.

| measured | by | results, page |
|---|---|---|
"""
OF_OTHERS = {  # {a measurement: its module, its file of results, the page that quotes it}
    "Fits of estimators to small sets, bound and eager": ("benchmarks.small_fits", "small_fits.txt", "training.md"),
    "Bound training steps, beside eager ones and `jax.jit`": ("benchmarks.bound_step", "bound_step.txt", "programs.md"),
    "A call of a prepared layer, beside onnxruntime": ("benchmarks.prepared_call", "prepared_call.txt", "serving.md"),
    "A frame of silero-vad, beside onnxruntime": ("benchmarks.frames", "frames.txt", "onnx.md"),
    "Packages, before `replace` and after it": ("benchmarks.clients", "clients.jsonl", "clients.md"),
    "Tests of packages, with our layers": ("benchmarks.clients.own_tests", "clients_tests.jsonl", "clients.md"),
    "Returns of policies with memory": ("benchmarks.policies.returns", "policy_returns.txt", "policies.md"),
    "Layers with heads": ("benchmarks.heads", "heads.txt", "layers.md"),
    "Layers with matrix states": ("benchmarks.linear_attention", "linear_attention.txt", "matrix_states.md"),
    "Language models of equal size": ("benchmarks.language_models", "language_models.txt", "language_models.md"),
    "Answers by keys": ("benchmarks.recall", "recall.txt", "matrix_states.md"),
    "Transducer loss": ("benchmarks.transducer", "transducer.txt", "training.md"),
    "Estimators, beside skorch": ("benchmarks.estimators", "estimators.txt", "coming_from_sklearn.md"),
    "Estimators, beside simple baselines": ("benchmarks quality", "quality.jsonl", "quality.md"),
    "A table of 8 GiB": ("benchmarks.large_table", "large_table.txt", "training.md"),
    "Ranks that are killed or slow": ("benchmarks.survival", "survival.txt", "scaling.md"),
    "Many ranks, by a model": ("benchmarks scale", "scale.txt", "scaling.md"),
    "Functions of float32": ("benchmarks.float32_functions", "float32_functions.txt", "reproducibility.md"),
    "Float32 where PyTorch is nearest": ("benchmarks.level", "level.txt", "performance.md"),
    "Products of bfloat16 parts, simulated": ("benchmarks.split_products", "split_products.txt", "performance.md"),
    "Errors and accuracy in bfloat16": ("benchmarks.bfloat16", "bfloat16.txt", "precision.md"),
    "Memory of a step in bfloat16": ("benchmarks.bfloat16_memory", "bfloat16_memory.txt", "precision.md"),
    "Layers in bfloat16 on an emulated processor with AMX": ("tests.amx_layers", "amx_layers.txt", "precision.md"),
    "CUDA launches, without a GPU": ("tests.launch_times", "launches.txt", "gpu.md"),
    "Kernels that an installation compiles": ("tests.installation", "installation.txt", "installation.md"),
}

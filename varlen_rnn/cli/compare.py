"""The command `compare LENGTHS`: measure the cost of padding on the user's lengths, and name the fastest way."""

import contextvars

import numpy as np

from varlen_rnn.cli.lengths import read_lengths
from varlen_rnn.cli.measure import cost, cut, largest_difference, measure, runs_of
from varlen_rnn.cli.packed import Packed
from varlen_rnn.cli.report import ALIKE, number, print_rows, print_times, verdict
from varlen_rnn.cli.workload import LAYERS
from varlen_rnn.data.batches import POOL
from varlen_rnn.errors import OutOfRangeError, check_int
from varlen_rnn.random import manual_seed
from varlen_rnn.runtime.precision import get_float32_matmul_precision
from varlen_rnn.runtime.threads import get_num_threads, set_num_threads_here

MOST_BYTES = 4 * 2**30  # the most for a padded batch, because the system may kill a process that needs more

# For each integer option: its default, its least value, and its meaning.
OPTIONS = {
    "input_size": (256, 1, "features of a row"),
    "hidden_size": (256, 1, "units of the layer"),
    "batch_size": (32, 1, "sequences of a batch"),
    "batches": (POOL, 1, "batches to measure; with fewer, sequences of a bucket differ more in length"),
    "threads": (None, 1, "threads of the kernels, and of PyTorch"),
    "seed": (0, 0, "decides the order of the sequences"),
}
_MOST = 2**31 - 1


def add_to(commands):
    """Add the command `compare` to the commands of a parser."""
    text = (
        "Measure a training step of one recurrent layer on batches of your lengths: unpadded, padded, padded in "
        "batches of like length, padded in groups of a batch, and PyTorch's (packed and in groups) where it is "
        "installed; then say which to use."
    )
    parser = commands.add_parser("compare", help="measure the cost of padding on your own lengths", description=text)
    parser.add_argument(
        "lengths", metavar="LENGTHS", help="a text or .npy file of integers, or a .jsonl or .csv data file"
    )
    parser.add_argument("--cell", choices=LAYERS, default="lstm", help="default lstm")
    for name, (default, least, what) in OPTIONS.items():
        text = f"{what}, at least {least}; default {'all cores' if default is None else default}"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N", help=text)
    parser.add_argument("--field", default="text", help="the field of the sequence in a data file; default text")
    parser.add_argument("--tokens", choices=["characters", "words", "list"], default="characters",
                        help="how texts of a data file are divided into tokens; default characters")  # fmt: skip
    parser.set_defaults(run=lambda arguments: contextvars.copy_context().run(_run, arguments))


def _run(arguments):
    """Run the command; its caller uses a new context, so that the number of threads and the seed stay local."""
    if arguments.threads is None:
        arguments.threads = get_num_threads()
    options = {name: check_int(getattr(arguments, name), name, least) for name, (_, least, _) in OPTIONS.items()}
    for name, value in options.items():
        if value > _MOST:
            raise OutOfRangeError(name, expected=f"at most {_MOST:,}", got=f"a number of {len(str(value))} digits")
    set_num_threads_here(options["threads"])
    manual_seed(options["seed"])
    lengths = read_lengths(arguments.lengths, arguments.field, arguments.tokens)
    batches = cut(lengths, options["batch_size"], shuffle=True, bucket=False, seed=options["seed"])
    bucketed = cut(lengths, options["batch_size"], shuffle=True, bucket=True, seed=options["seed"])
    print_rows(arguments.lengths, lengths, options["batch_size"], cost(batches), cost(bucketed))
    _measure(arguments.cell, [batch for batch in batches if batch.any()][: options["batches"]], options)


def _measure(cell, batches, options):
    sizes = options["input_size"], options["hidden_size"]
    _check_memory(batches, *sizes)
    layer = LAYERS[cell](*sizes)
    precision = get_float32_matmul_precision()
    rounds = "" if precision == "fp32" else f" with products in {precision}"
    print(f"\n{layer}, float32{rounds}, {number(options['threads'], 'thread')}")
    mean = f"the mean of {number(len(batches), 'batch', 'batches')}, each the median of {runs_of(len(batches))} runs"
    print(f"A step is forward and backward; {mean}.")
    print(f"Less than {ALIKE - 1:.0%} between two ways decides nothing.")
    # The buckets contain the sequences of the measured batches, so that all measurements see the same rows.
    bucketed = cut(np.concatenate(batches), options["batch_size"], shuffle=False, bucket=True)
    try:
        with Packed(cell, *sizes, options["threads"], batches) as packed:
            measured = measure(layer, batches, bucketed, packed)
            version = packed.version if precision == "fp32" else f"{packed.version}, in float32"
            note = f"Packed sequences and torch groups are those of PyTorch {version}."
    except OSError as error:
        measured, note = measure(layer, batches, bucketed), f"Packed sequences are not measured. {error}"
    print_times(measured)
    print(note)
    difference = largest_difference(layer, batches[0])
    print(f"In the first batch, outputs unpadded and padded differ by {difference:.0e} at most.")
    print(verdict(measured))


def _check_memory(batches, input_size, hidden_size):
    """Raise if inputs, outputs, saved values and gradients of the largest padded batch exceed `MOST_BYTES`."""
    rows = max(cost([batch]).padded_rows for batch in batches)
    of_rows, of_weights = 4 * rows * (2 * input_size + 8 * hidden_size), 32 * hidden_size * (input_size + hidden_size)
    needed = of_rows + of_weights
    if needed <= MOST_BYTES:
        return
    got, limit = f"about {needed / 2**30:,.0f} GiB", f"{MOST_BYTES // 2**30} GiB at most"
    if of_weights > of_rows:
        what, got, hint = "hidden_size, input_size", f"{got}, mostly for weights", "choose smaller sizes"
        raise OutOfRangeError(what, expected=f"a layer and a padded batch of {limit}", got=got, hint=hint)
    hint = "choose a smaller --batch-size, or cut long sequences into pieces"
    raise OutOfRangeError(
        "lengths", expected=f"padded batches of {limit}", got=f"{got} for {number(rows, 'row')}", hint=hint
    )

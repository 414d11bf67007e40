"""One layer over sizes, lengths and cells, in training and inference."""

from benchmarks.layers import Case
from benchmarks.lengths import DATA_SETS, equal, lognormal, of_data_set, pareto
from benchmarks.suites.layers import Point

# Sequences, features, units.  The first three are what a training run looks like, and what the bars ask for.
MAIN_SIZES = [(64, 256, 256), (32, 512, 512), (128, 512, 512)]
OTHER_SIZES = [(32, 128, 128), (8, 256, 256), (1, 256, 256)]
STEPS = 80  # of equal lengths: about the mean of the lognormal ones


def points(quick, threads):
    """Return the points: every size with equal and lognormal lengths, the other lengths at the first size."""
    if quick:
        return [Point(Case("LSTM", 32, 32, lognormal(8), "lognormal"), threads)]
    cases = [
        case
        for cell in ("LSTM", "GRU")
        for batch_size, *width in [*MAIN_SIZES, *OTHER_SIZES]
        for case in equal_and_lognormal(cell, batch_size, *width)
    ]
    batch_size, *width = MAIN_SIZES[0]
    cases += equal_and_lognormal("RNN", batch_size, *width)
    for cell in ("LSTM", "GRU"):
        cases.append(Case(cell, *width, pareto(batch_size), "pareto"))
        cases += [Case(cell, *width, of_data_set(batch_size, name), name) for name in DATA_SETS]
    return [Point(case, threads) for case in cases]


def equal_and_lognormal(cell, batch_size, input_size, hidden_size):
    """Return the cases of a size: equal lengths, and lognormal ones if there are several."""
    cases = [Case(cell, input_size, hidden_size, equal(batch_size, STEPS), "equal")]
    if batch_size > 1:  # one sequence is always as long as itself
        cases.append(Case(cell, input_size, hidden_size, lognormal(batch_size), "lognormal"))
    return cases

"""Print the results of the command `compare`: rows with and without padding, measured times, and a verdict."""

import numpy as np

ALIKE = 1.1  # a smaller ratio of times counts as equal, because other work on the machine can cause it
PADDED = 1.005  # a smaller padding ratio prints as 1.00 and counts as no padding
SAME_WORK = "Nothing is padded here: unpadded, padded and bucketed do the same work, so their differences are noise."


def number(count, noun, plural=None):
    """Return a count and its noun as text, with the noun in the plural unless the count is 1."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def print_rows(name, lengths, batch_size, padded, bucketed):
    """Print how many rows the whole file has without padding, with padding, and in padded buckets."""
    shortest, longest = lengths.min(), lengths.max()
    spread = number(longest, "row")
    if shortest < longest:
        spread = f"{shortest:,} to {spread}, median {np.median(lengths):,g}"
    print(f"{name}: {number(len(lengths), 'sequence')} of {spread}; batches of {batch_size}\n")
    print(f"{'':10}{'rows':>16}{'ratio':>8}")
    for way, rows in (("unpadded", padded.rows), ("padded", padded.padded_rows), ("bucketed", bucketed.padded_rows)):
        print(f"{way:10}{rows:>16,}{rows / padded.rows:>8.2f}")
    less = number(padded.padded_rows - padded.rows, "row")
    print(f"Padding ratio {padded.padded_rows / padded.rows:.2f}: without padding, {less} less.")
    print("Bucketed is padded too, in batches of like length.")


def print_times(measured):
    """Print rows, time and peak memory of a step for each way; PyTorch's memory is not measured."""
    base = measured["unpadded"]
    print(f"{'':12}{'rows/step':>14}{'ms/step':>12}{'ratio':>8}{'peak MiB':>12}")
    for way, (rows, seconds, peak, _) in measured.items():
        memory = "" if peak is None else f"{peak / 2**20:,.1f}"
        print(f"{way:12}{rows:>14,.0f}{seconds * 1e3:>12,.2f}{seconds / base.seconds:>8.2f}{memory:>12}".rstrip())
    numbers = " and ".join(f"{its.groups} for {way}" for way, its in measured.items() if its.groups)
    print(f"Groups are padded too: a batch sorted by length, cut and run in turn; the fastest number was {numbers}.")
    saved = round((measured["padded"].peak - base.peak) / 2**20, 1)
    than = f"{abs(saved):,.1f} MiB {'less' if saved > 0 else 'more'}" if saved else "as much memory"
    print(f"Without padding, the largest step takes {than}.")


def verdict(measured):
    """Return a recommendation: which way to use, and how much faster it is.

    Examples
    --------
    >>> from varlen_rnn.cli.measure import Measured
    >>> verdict({"unpadded": Measured(9, 2.0, 1), "padded": Measured(20, 3.0, 2), "bucketed": Measured(10, 2.02, 2)})
    'Use unpadded: 1.50 times as fast as padded, as fast as bucketed.'
    >>> verdict({"unpadded": Measured(9, 2.0, 1), "padded": Measured(20, 3.0, 2), "bucketed": Measured(10, 1.6, 2)})
    'Use bucketed: 1.25 times as fast as unpadded.'
    """
    seconds = {way: measurement.seconds for way, measurement in measured.items()}
    unpadded, note = seconds.pop("unpadded"), ""
    if measured["padded"].rows < PADDED * measured["unpadded"].rows:
        for way in ("padded", "bucketed", "groups"):
            seconds.pop(way, None)
        note = f"{SAME_WORK}\n"
        if not seconds:
            return f"{note}Use unpadded, which runs batches of any lengths."
    best = min(seconds, key=seconds.get)
    if seconds[best] * ALIKE < unpadded:
        return f"{note}Use {best}: {unpadded / seconds[best]:.2f} times as fast as unpadded."
    ratios = {way: taken / unpadded for way, taken in seconds.items()}
    rivals = (f"{'' if ratio < ALIKE else f'{ratio:.2f} times '}as fast as {way}" for way, ratio in ratios.items())
    return f"{note}Use unpadded: {', '.join(rivals)}."

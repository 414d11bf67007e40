"""Lines of results, as suites write them."""

from benchmarks.engines import OURS

RATES = {"multiply_add_rates": [100.0], "sgemm_rates": [80.0]}


def line_of(size=(64, 256, 256), mode="training", lengths="lognormal", section=None, ours=1.0, **seconds):
    """Return a line of a layer's suite; where our step takes 1 s, it reaches 90% of the multiply-add rate."""
    times = {OURS: ours} | {name.replace("_", " "): value for name, value in seconds.items()}
    figures = {name: {"seconds": value, "rounds": [value], "others": [0.0]} | RATES for name, value in times.items()}
    names = {"section": section, "cell": "LSTM", "size": size, "lengths": lengths, "rows": 1000, "padded_rows": 4000}
    return names | {"mode": mode, "threads": 2, "flops": 90, "engines": figures}

"""The policy with memory of examples/recurrent_policy.py on T-mazes: steps until it has learned, and its return then.

    python -m benchmarks.policies.returns            # print the lines
    python -m benchmarks.policies.returns --write    # and replace results/policy_returns.txt

The settings are the example's, which were chosen on other seeds.  A policy has learned if it has a mean return of 3.9
in 500 new episodes after at most 300,000 steps; 4 is the best return, and without memory the mean is 1.95.
"""

import re
from pathlib import Path

from benchmarks.machine import publish_as_asked
from benchmarks.processes import output_of

FILE = Path(__file__).parents[1] / "results" / "policy_returns.txt"
SEEDS, ENOUGH, LIMIT = range(5), 3.9, 300_000


def lines():
    """Yield a line for each seed, and a line with the number of seeds that have learned."""
    learned = 0
    for seed in SEEDS:
        printed = output_of("examples/recurrent_policy.py", "--seed", str(seed), "--steps", str(LIMIT))
        steps, rate, found = re.findall(r"(\d+) steps were played; (\d+) rows .*\n.*episodes\s+(\S+)", printed)[0]
        learned += float(found) >= ENOUGH
        yield f"seed {seed}: {int(steps):,} steps, mean return {found}, {int(rate):,} rows trained a second"
    yield f"{learned} of {len(SEEDS)} seeds have a mean return of {ENOUGH} within {LIMIT:,} steps"


if __name__ == "__main__":
    publish_as_asked(lines(), FILE, __doc__)

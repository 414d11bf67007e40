"""docs/benchmarks.md and its pictures, from the results of the last full run."""


def write_report(results, docs): ...

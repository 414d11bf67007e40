"""docs/benchmarks.md and its pictures, from the results of the last full run."""

from benchmarks.report.document import write_report

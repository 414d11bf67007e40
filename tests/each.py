"""Many cases in one test: its message lists all that fail, and collecting stays quick."""

import pytest


def check_each(cases, check):
    """Call `check` with each case; then fail with a line for each case that failed.

    Examples
    --------
    >>> check_each([2, 1, 0], lambda number: 1 / number)
    Traceback (most recent call last):
    AssertionError: 1 of 3 cases
    0: ZeroDivisionError: division by zero
    """
    cases, failures = list(cases), []
    for case in cases:
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            failures.append(f"{case}: {type(error).__name__}: {error}")
    if failures:
        raise AssertionError("\n".join([f"{len(failures)} of {len(cases)} cases", *failures]))

"""Quick tests that passed in the last run in this folder: `pytest --unless-passed` leaves them out."""

import pytest

KEY = "varlen_rnn/passed"  # in pytest's cache
# The gate counts what the latter launch.  It does not judge a run that deselects tests, so the tests that are left out
# here are not called deselected.
KEPT = "slow", "needs_device"


class Passed:
    """Notes which tests pass, and leaves out those that the last run noted, unless they are slow or launch kernels."""

    def __init__(self, config):
        self.config = config
        self.passed, self.others = set(), set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        if self.config.option.unless_passed:
            before = set(self.config.cache.get(KEY, ()))
            items[:] = [item for item in items if item.nodeid not in before or any(map(item.get_closest_marker, KEPT))]

    def pytest_runtest_logreport(self, report):
        if report.passed:
            self.passed |= {report.nodeid} if report.when == "call" else set()
        else:
            self.others.add(report.nodeid)

    def pytest_sessionfinish(self):
        if not hasattr(self.config, "workerinput") and hasattr(self.config, "cache"):
            self.config.cache.set(KEY, sorted(self.passed - self.others))

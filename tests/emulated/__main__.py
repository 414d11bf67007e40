"""Say whether this machine has an emulated device; `.ci/run` begins with it, because tests without one are skipped."""

import sys

from tests.emulated.device import missing

sys.exit(missing())

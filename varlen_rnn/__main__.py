"""Run the command line: `python -m varlen_rnn`."""

import sys

from varlen_rnn.cli import main

sys.exit(main())

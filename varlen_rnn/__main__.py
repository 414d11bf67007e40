"""`python -m varlen_rnn`: the command line."""

import sys

from varlen_rnn.cli import main

sys.exit(main())

"""What needs PyTorch is not collected where that is missing: doctests import their modules."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["varlen_rnn/torch/*"]

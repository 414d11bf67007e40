"""How long a test waits before it says that something hangs."""

HANGS = 900  # seconds; a loaded machine may take ten times as long as an idle one

"""Export programs for inference as C libraries, which need no Python."""

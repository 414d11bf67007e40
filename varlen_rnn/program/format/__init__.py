"""Bytes from strangers: programs and values in files and on pipes, which are read as untrusted input."""

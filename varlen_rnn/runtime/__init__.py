"""How code runs on this machine: compiled kernels and their cache, threads, memory, and where arrays live."""

"""Run code on this machine: compiled kernels and their cache, threads, memory, and devices."""

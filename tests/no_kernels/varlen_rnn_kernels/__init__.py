"""An empty package that hides installed kernels, for processes that find it first on their path."""

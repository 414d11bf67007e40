"""The compiler of a cell's equations: trace them once, derive their gradient, choose the numbers to save for it."""

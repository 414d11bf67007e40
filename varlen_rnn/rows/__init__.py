"""The structure of a batch: level-of-detail offsets over rows, plans that sort sequences by length, and sparse rows."""

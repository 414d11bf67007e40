"""The structure of a batch: LoD offsets over rows, plans that sort sequences by length, and sparse rows."""

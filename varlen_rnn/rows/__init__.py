"""The structure of a batch: LoDs (offsets of sequences), plans that sort sequences by length, and sparse rows."""

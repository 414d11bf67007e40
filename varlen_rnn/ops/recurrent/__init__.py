"""The recurrent layer as an operator: its inputs and their checks, masks, and recomputation."""

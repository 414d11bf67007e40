"""Recurrent layers: whole sequences, single steps, streams, carried states, and inference on packed weights."""

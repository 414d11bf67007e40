"""Speed, memory and start-up of varlen_rnn beside PyTorch and onnxruntime: `python -m benchmarks`."""

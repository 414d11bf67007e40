"""Names of PyTorch and NumPy that people type but this library lacks, with the code to write instead.

Each hint is Python code, relative to the package: `nn.functional.tanh(x)` means `varlen_rnn.nn.functional.tanh(x)`.
", or " separates alternatives, and ", because " begins a reason.  `tests/test_foreign.py` runs each alternative; its
function `given` defines names such as `x`.  A name of another public module or of a Variable needs no entry.

To add a hint for a name that is typed often, add a line; docs/coming_from_pytorch.md has rarer names.
"""

_ARRAY = "Variable(array)"
_PADDED = "sequence_pad(x, 0.0)"
_READ = "LoDTensor.from_sequences(sequences)"
_BATCHES = "data.batches(sequences, labels, batch_size=32, shuffle=True)"
_CONCAT = "nn.functional.concat(variables, axis)"
_ENTROPY = "nn.functional.cross_entropy(logits, labels)"
_BINARY = "nn.functional.binary_cross_entropy_with_logits(logits, targets)"
_ASSIGN = "parameter.assign(array)"

# Functions of PyTorch or NumPy whose names are also methods of their arrays.
_EITHER = {
    "amax": "x.max(axis)",
    "bmm": "x @ weight",
    "chunk": "nn.functional.split(x, size, axis)",
    "clamp": "x.clip(min, max)",
    "dot": "x @ weight",
    "double": "x.astype(np.float64)",
    "eq": "nn.functional.equal(x, y)",
    "flatten": "x.reshape(-1)",
    "flip": "x[::-1], or sequence_reverse(x)",
    "float": "x.astype(np.float32)",
    "half": "x.numpy().astype(np.float16), because operators compute in float32 and float64",
    "int": "x.astype(np.int32)",
    "isnan": "np.isnan(x.numpy())",
    "logsigmoid": "nn.functional.log_sigmoid(x)",
    "long": "x.astype(np.int64)",
    "masked_fill": "nn.functional.where(mask, number, x)",
    "matmul": "x @ weight",
    "norm": "(x * x).sum().sqrt()",
    "permute": "x.transpose(axis0, axis1)",
    "pow": "x ** exponent",
    "repeat": "nn.functional.concat([x] * count, axis)",
    "sort": "nn.functional.topk(x, x.shape[axis], axis)",
    "square": "x * x",
    "tile": "nn.functional.concat([x] * count, axis)",
}

METHODS = _EITHER | {
    "clone": "x, or Variable(x.numpy().copy()), because no operator changes x",
    "contiguous": "x, because operators take any order of memory",
    "copy": "x, or Variable(x.numpy().copy()), because no operator changes x",
    "copy_": _ASSIGN,
    "cuda": 'x.to("cuda")',
    "data": "x.value.data",
    "dim": "x.ndim",
    "expand": "x + y, because shapes broadcast",
    "fill_": _ASSIGN,
    "relu": "nn.functional.relu(x)",
    "softmax": "nn.functional.softmax(x)",
    "tolist": "x.numpy().tolist()",
    "topk": "nn.functional.topk(x, k, axis)",
    "type": "x.astype(dtype)",
    "view": "x.reshape(shape)",
    "zero_": _ASSIGN,
}

FUNCTIONS = _EITHER | {
    "FloatTensor": _ARRAY,
    "LongTensor": _ARRAY,
    "Tensor": _ARRAY,
    "arange": "Variable(np.arange(stop))",
    "array": _ARRAY,
    "asarray": _ARRAY,
    "as_tensor": _ARRAY,
    "autograd": "loss.backward(), or inspect_gradients(loss)",
    "cat": _CONCAT,
    "concatenate": _CONCAT,
    "cuda": 'device("cuda")',
    "float32": "np.float32",
    "float64": "np.float64",
    "from_numpy": _ARRAY,
    "full": "Variable(np.full(shape, number, np.float32))",
    "gather": "x[ids]",
    "inference_mode": "no_grad()",
    "int64": "np.int64",
    "kernels": "import varlen_rnn.kernels.pool",
    "nested": _READ,
    "onnx": "import varlen_rnn.onnx",
    "ones": "Variable(np.ones(shape, np.float32))",
    "ones_like": "Variable(np.ones(x.shape, x.dtype))",
    "randn": "Variable(np.random.default_rng(seed).standard_normal(shape, np.float32))",
    "sklearn": "import varlen_rnn.sklearn",
    "tensor": _ARRAY,
    "torch": "import varlen_rnn.torch",
    "utils": _BATCHES,
    "zeros": "Variable(np.zeros(shape, np.float32))",
    "zeros_like": "Variable(np.zeros(x.shape, x.dtype))",
}

# {module: {name: hint}}; each module also has the hints of `FUNCTIONS`.
MODULES = {
    "varlen_rnn": {},
    "varlen_rnn.nn": {
        "BCELoss": _BINARY,
        "BCEWithLogitsLoss": _BINARY,
        "Conv1d": "nn.SequenceConv(size, size)",
        "CrossEntropyLoss": _ENTROPY,
        "DataParallel": "distributed.replicate(model, optimizer)",
        "Flatten": "x.reshape(len(x), -1)",
        "Identity": "nn.Sequential()",
        "L1Loss": "nn.functional.l1_loss(x, targets)",
        "MSELoss": "nn.functional.mse_loss(x, targets)",
        "MaxPool1d": 'sequence_pool(x, "max")',
        "NLLLoss": _ENTROPY,
        "TransformerEncoderLayer": "nn.MultiheadAttention(size, num_heads)",
        "init": _ASSIGN,
        "utils": f"optim.clip_grad_norm_(parameters, max_norm), or {_READ}, or {_PADDED}",
    },
    "varlen_rnn.nn.functional": {
        "binary_cross_entropy": _BINARY,
        "linear": "x @ weight.T + bias",
        "nll_loss": _ENTROPY,
        "pad": _PADDED,
    },
    "varlen_rnn.optim": {"clip_grad_value_": "for p in parameters: p.grad = np.clip(p.grad, -1.0, 1.0)"},
    "varlen_rnn.metrics": {
        "Precision": "counts = metrics.ConfusionMatrix(2).compute(); np.diag(counts) / counts.sum(axis=0)",
        "Recall": "counts = metrics.ConfusionMatrix(2).compute(); np.diag(counts) / counts.sum(axis=1)",
    },
    "varlen_rnn.data": {
        "DataLoader": _BATCHES,
        "DistributedSampler": "data.batches(sequences, batch_size=32).part(rank, size)",
        "TensorDataset": _BATCHES,
        "random_split": "dataset.split(0.1)",
        "utils": _BATCHES,
    },
}

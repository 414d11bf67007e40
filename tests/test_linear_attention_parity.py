"""Linear attention against flash-linear-attention, transformers and mlstm_kernels, where they are installed.

Their functions for the CPU take a sequence at a time.  Outputs, last states, and the gradients of all inputs agree to
1e-5 of their norm, in float32.  No extra of the package installs these packages: `pip install --no-deps
flash-linear-attention fla-core mlstm_kernels`, `einops`, `omegaconf`, `dacite`, `rich` and `transformers`.
"""

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

LENGTHS, HEADS, DEPTH, WIDE = [70, 1, 33], 2, 16, 24


def naive(folder, name):
    """Return a function of fla's `naive.py` of a folder; the package itself needs a GPU's compiler."""
    spec = importlib.util.find_spec("fla")
    if spec is None:
        pytest.skip("flash-linear-attention is not installed")
    pytest.importorskip("einops")
    path = Path(spec.submodule_search_locations[0]) / "ops" / folder / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_{folder}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def delta_rule(q, k, v, beta, state):
    run = naive("delta_rule", "delta_rule_recurrence")
    y, last = run(*(x.transpose(1, 2) for x in (q, k, v, beta)), initial_state=state)
    return y.transpose(1, 2), last


def simple_gla(q, k, v, decay, state):
    run = naive("simple_gla", "naive_recurrent_simple_gla")
    return run(q, k, v, decay, initial_state=state, output_final_state=True)


def gla(q, k, v, decay, state):
    run = naive("gla", "naive_recurrent_gla")
    return run(q, k, v, decay, initial_state=state, output_final_state=True)


def kda(q, k, v, decay, beta, state):
    run = naive("kda", "naive_recurrent_kda")
    return run(q, k, v, decay, beta, initial_state=state, output_final_state=True)


def gated_delta(q, k, v, decay, beta, state):
    run = naive("gated_delta_rule", "naive_recurrent_gated_delta_rule")
    return run(q, k, v, beta, decay, initial_state=state, output_final_state=True)


def qwen(name):
    """Return a function of transformers' Qwen3-Next."""

    def run(q, k, v, decay, beta, state):
        module = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
        return getattr(module, name)(q, k, v, decay, beta, initial_state=state, output_final_state=True)

    return run


# For each function: the operands by the names of `linear_attention`, and whether it has the delta rule.
CASES = {
    "fla, delta": (delta_rule, ("beta",), True),
    "fla, simple GLA": (simple_gla, ("decay",), False),
    "fla, GLA": (gla, ("decays",), False),
    "fla, KDA": (kda, ("decays", "beta"), True),
    "fla, gated delta": (gated_delta, ("decay", "beta"), True),
    "transformers, steps": (qwen("torch_recurrent_gated_delta_rule"), ("decay", "beta"), True),
    "transformers, chunks": (qwen("torch_chunk_gated_delta_rule"), ("decay", "beta"), True),
}


def drawn(names):
    """Return float32 operands by their names, and first states; keys have length 1."""
    rng, rows = np.random.default_rng(0), sum(LENGTHS)
    query, key, value = (rng.standard_normal((rows, HEADS, size)) for size in (DEPTH, DEPTH, WIDE))
    key /= np.linalg.norm(key, axis=2, keepdims=True)
    more = {
        "decay": -rng.gamma(1, 0.2, (rows, HEADS)), "decays": -rng.gamma(1, 0.2, (rows, HEADS, DEPTH)),
        "beta": rng.uniform(0, 1, (rows, HEADS)),
    }  # fmt: skip
    state = rng.standard_normal((len(LENGTHS), HEADS, DEPTH, WIDE))
    found = {"query": query, "key": key, "value": value, **{n.rstrip("s"): more[n] for n in names}, "state": state}
    return {name: x.astype(np.float32) for name, x in found.items()}


def ours(arrays, run):
    """Return outputs, last states, and the gradients of the sum of their squares."""
    of = lambda name, x: vr.LoDTensor(x, [] if name == "state" else vr.LoD.from_lengths([LENGTHS]))
    given = {name: vr.Variable(of(name, x), requires_grad=True) for name, x in arrays.items()}
    y, last = run(given)
    ((y * y).sum() + (last * last).sum()).backward()
    return [np.asarray(x) for x in (y, last, *(x.grad for x in given.values()))]


def theirs(arrays, run):
    """Return the same of a function that takes one sequence, with a batch axis of 1."""
    given = {name: torch.from_numpy(x).requires_grad_() for name, x in arrays.items()}
    parts = [x.split(LENGTHS) for name, x in given.items() if name != "state"]
    found = [run(*(part[i][None] for part in parts), given["state"][[i]]) for i in range(len(LENGTHS))]
    y, last = torch.cat([y[0] for y, _ in found]), torch.cat([last for _, last in found])
    ((y * y).sum() + (last * last).sum()).backward()
    return [x.detach().numpy() for x in (y, last, *(x.grad for x in given.values()))]


def check(found, wanted):
    for mine, right in zip(found, wanted, strict=True):
        assert np.linalg.norm(mine - right) < 1e-5 * np.linalg.norm(right)


@pytest.mark.parametrize(("function", "names", "delta"), CASES.values(), ids=CASES)
def test_is_the_function_of_another_package(function, names, delta):
    arrays = drawn(names)
    check(ours(arrays, lambda given: vr.linear_attention(**given, delta=delta)), theirs(arrays, function))


def test_is_the_mlstm_of_mlstm_kernels():
    """`nn.MLSTM` has these lines, too: a stabiliser m, and the outputs divided by the norms."""
    kernels = pytest.importorskip("mlstm_kernels.torch.recurrent.native_sequence")
    rng, rows = np.random.default_rng(0), sum(LENGTHS)
    arrays = drawn(())
    del arrays["state"]
    i, f = rng.standard_normal((rows, HEADS)), rng.standard_normal((rows, HEADS)) + 2
    log_f = -np.logaddexp(0, -f.astype(np.float32).astype(np.float64))
    m, decay, begins = np.zeros((rows, HEADS)), np.zeros((rows, HEADS)), np.cumsum([0, *LENGTHS])
    for t in range(rows):
        before = np.zeros(HEADS) if t in begins else m[t - 1]
        m[t] = np.maximum(log_f[t] + before, i[t].astype(np.float32))
        decay[t] = log_f[t] + before - m[t]
    beta = np.exp(i.astype(np.float32) - m)
    of = lambda x: vr.create_lod_tensor(x.astype(np.float32), [LENGTHS])
    rows_of = [of(x) for x in (*arrays.values(), decay, beta)]
    (y, norms), (last, normalisers) = vr.linear_attention(*rows_of, normalise=True)
    y = np.asarray(y) / (np.maximum(np.abs(np.asarray(norms)), np.exp(-m)) + 1e-6)[..., None]
    for number, begin in enumerate(begins[:-1]):
        part = slice(begin, begins[number + 1])
        given = [torch.from_numpy(x[part].astype(np.float32))[None].transpose(1, 2) for x in (*arrays.values(), i, f)]
        wanted, states = kernels.mlstm_recurrent_sequence__native_fw(*given, return_last_states=True)
        state, normaliser, stabiliser = (x[0].numpy() for x in states)
        check([y[part], m[part][-1]], [wanted[0].transpose(0, 1).numpy(), stabiliser.reshape(HEADS)])
        check([np.asarray(last)[number], np.asarray(normalisers)[number]], [state, normaliser.reshape(HEADS, DEPTH)])

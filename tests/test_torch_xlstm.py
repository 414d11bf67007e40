"""The sLSTM and mLSTM of xlstm, transformers and TiRex, after `replace`: packed sequences are as alone in the package.

Tests of the packages need them, and are skipped without; the others compare stand-ins of their classes with NumPy.
"""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from oracles import cells as oracle

from varlen_rnn.errors import ProgramError, ShapeError

torch = pytest.importorskip("torch")

import varlen_rnn.torch as vt  # noqa: E402

OFFSETS = [0, 3, 3, 8, 9, 20]
PARTS = [(begin, end) for begin, end in itertools.pairwise(OFFSETS) if end > begin]
HEADS, UNITS = 2, 6


def stand_in(module, name, **attributes):
    """Return a module of a class with the full name of a package's class, whose own code does not run."""

    def forward(self, *args):
        raise NotImplementedError

    made = type(name, (torch.nn.Module,), {"__module__": module, "__qualname__": name, "forward": forward})()
    for key, value in attributes.items():
        setattr(made, key, torch.nn.Parameter(value) if isinstance(value, torch.Tensor) else value)
    return vt.replace(made)


def random(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def tirex_cell():
    head = UNITS // HEADS
    kernel, bias = random(HEADS, head, 4 * head).detach(), random(4 * UNITS).detach()
    return stand_in("tirex.models.slstm.cell", "sLSTMCell", _recurrent_kernel_=kernel, _bias_=bias, backend="torch")


def in_numpy(cell, gates, states):
    """Return the outputs and last states of TiRex's cell for one sequence, in units of heads side by side."""
    kernel, bias = (parameter.detach().numpy() for parameter in (cell._recurrent_kernel_, cell._bias_))
    kernel, bias = kernel.reshape(HEADS, UNITS // HEADS, 4, -1), bias.reshape(HEADS, 4, -1)
    outputs = np.zeros((len(gates), UNITS))
    for row, of_gates in enumerate(gates):
        x = dict(zip("ifzo", of_gates.reshape(4, UNITS), strict=True))

        def product(name, h):
            gate = "ifzo".index(name)
            per_head = np.einsum("nd,nde->ne", h.reshape(HEADS, -1), kernel[:, :, gate]) + bias[:, gate]
            return per_head.ravel()

        states = oracle.slstm("sigmoid")(x, product, states, {})
        outputs[row] = states[0]
    return outputs, np.array(states)


def test_tirex_in_numpy():
    torch.manual_seed(0)
    cell, gates, states = tirex_cell(), random(1, OFFSETS[-1], 4 * UNITS), random(4, 5, UNITS)
    with torch.no_grad():
        states[2].exp_()
    with vt.packed(OFFSETS):
        y, last = cell(gates, states)
        assert torch.autograd.gradcheck(lambda *given: cell(*given), (gates, states), fast_mode=True)
        for parameter in cell.parameters():
            (found,) = torch.autograd.grad(y.square().sum() + last.sum(), parameter, retain_graph=True)
            step = torch.randn_like(parameter)
            sums = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.add_(step, alpha=sign * 1e-6)
                    moved_y, moved_last = cell(gates, states)
                    sums.append(float(moved_y.square().sum() + moved_last.sum()))
                    parameter.sub_(step, alpha=sign * 1e-6)
            np.testing.assert_allclose(float((found * step).sum()), (sums[0] - sums[1]) / 2e-6, rtol=1e-6)
    assert y.shape == (1, HEADS, OFFSETS[-1], UNITS // HEADS)
    for number, (begin, end) in enumerate(itertools.pairwise(OFFSETS)):
        wanted, states_after = in_numpy(cell, gates[0, begin:end].detach().numpy(), states[:, number].detach().numpy())
        found = y[0, :, begin:end].transpose(0, 1).reshape(-1, UNITS).detach().numpy()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
        np.testing.assert_allclose(last[:, number].detach().numpy(), states_after, rtol=0, atol=1e-12)


def test_no_sequences_and_empty_ones():
    rows = [random(1, HEADS, 0, 3) for _ in "qkv"] + [random(1, HEADS, 0) for _ in "if"]
    for offsets in ([0], [0, 0, 0]):
        with vt.packed(offsets):
            y, last = tirex_cell()(random(1, 0, 4 * UNITS))
            h, (c, _, _) = backend()(*rows)
        assert (y.shape, last.shape) == ((1, HEADS, 0, UNITS // HEADS), (4, len(offsets) - 1, UNITS))
        assert (h.shape, c.shape) == ((1, HEADS, 0, 3), (len(offsets) - 1, HEADS, 3, 3))


def backend(mode="train", kernel="chunkwise--native_autograd"):
    config = SimpleNamespace(mode=mode, chunkwise_kernel=kernel, eps=1e-12, return_last_states=True)
    return stand_in("mlstm_kernels.torch.backend_module", "mLSTMBackend", config=config)


def test_mlstm_in_numpy():
    torch.manual_seed(0)
    rows = [random(1, HEADS, OFFSETS[-1], size) for size in (3, 3, 4)] + [random(1, HEADS, OFFSETS[-1]) for _ in "if"]
    given = random(5, HEADS, 3, 4), random(5, HEADS, 3), random(5, HEADS, 1).detach()
    ours = backend()
    with vt.packed(OFFSETS):
        h, last = ours(*rows, *given)
        assert torch.autograd.gradcheck(lambda *inputs: ours(*inputs, given[2])[0], (*rows, *given[:2]), fast_mode=True)
        assert isinstance(ours(*rows, return_last_states=False), torch.Tensor)
        assert len(ours(*rows, mode="inference", return_last_states=False)) == 2
    q, k, v, i, f = (part[0].detach().numpy() for part in rows)
    for number, (begin, end) in enumerate(itertools.pairwise(OFFSETS)):
        for head in range(HEADS):
            c, n, m = (state[number, head].detach().numpy() for state in given)
            for t in range(begin, end):
                forget = -np.logaddexp(0, -f[head, t])
                level = np.maximum(forget + m, i[head, t])
                keep, write = np.exp(forget + m - level), np.exp(i[head, t] - level)
                c, n, m = keep * c + write * np.outer(k[head, t], v[head, t]), keep * n + write * k[head, t], level
                query = q[head, t] / np.sqrt(3)
                wanted = query @ c / np.maximum(abs(query @ n), np.exp(-m))
                np.testing.assert_allclose(h[0, head, t].detach().numpy(), wanted, rtol=1e-9, atol=1e-10)
            for state, right in zip(last, (c, n, m), strict=True):
                np.testing.assert_allclose(state[number, head].detach().numpy(), right, rtol=1e-9, atol=1e-10)


def test_what_our_kernels_cannot_run():
    rows = [random(1, HEADS, 20, 3) for _ in "qkv"] + [random(1, HEADS, 20) for _ in "if"]
    other = backend(kernel="parallel--native_siging_autograd")
    with pytest.raises(NotImplementedError):  # the package's own code
        other(*rows)
    with vt.packed(OFFSETS):
        with pytest.raises(ProgramError, match="a layer and rows that our kernels run, inside of `packed`"):
            other(*rows)
        with pytest.raises(ShapeError, match=r"states: expected 5 sequences, got 1 \(inside of `packed`, pass a cache"):
            backend()(*rows, torch.zeros(1, HEADS, 3, 3), torch.zeros(1, HEADS, 3), torch.zeros(1, HEADS, 1))
        with pytest.raises(ShapeError, match="1 batch with 20 rows"):
            tirex_cell()(random(1, 19, 4 * UNITS))


def difference(one, other):
    one, other = one.detach(), other.detach()
    return float((one - other).abs().max() / max(1, other.abs().max()))


def check_packed(plain, x, call=lambda model, x: model(x), reference=None):
    """Check a packed batch in a replaced model against each sequence alone in the package's own code."""
    ours, theirs = vt.replace(copy.deepcopy(plain)), plain if reference is None else reference
    theirs.zero_grad()
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for _ in range(2)]
    with vt.packed(OFFSETS):
        y = call(ours, inputs[0])
    wanted = torch.cat([call(theirs, inputs[1][:, begin:end]) for begin, end in PARTS], dim=1)
    weights = torch.randn(y.shape)
    pairs = [(y, wanted)]
    for outputs in (y, wanted):
        (outputs * weights).sum().backward()
    pairs += [(one.grad, other.grad) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True)]
    pairs += [tuple(rows.grad for rows in inputs)] if x.is_floating_point() else []
    assert max(difference(one, other) for one, other in pairs if other is not None) < 1e-4
    batch = x[0, :12].unflatten(0, (2, 6))
    assert difference(call(ours, batch), call(theirs, batch)) < 1e-4
    again = vt.restore(copy.deepcopy(ours))  # a copy of a replaced layer is replaced, too
    assert torch.equal(call(again, batch), call(plain, batch))


def spread(model, deviation):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, deviation)
    return model


def test_the_package_xlstm():
    pytest.importorskip("xlstm")
    from xlstm.blocks.mlstm.layer import mLSTMLayer, mLSTMLayerConfig
    from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

    x, options = torch.randn(1, 20, 32), {"embedding_dim": 32, "num_heads": 4}
    for width in (4, 0):
        config = sLSTMLayerConfig(**options, backend="vanilla", conv1d_kernel_size=width)
        check_packed(spread(sLSTMLayer(config), 0.3), x)
    check_packed(spread(mLSTMLayer(mLSTMLayerConfig(**options, context_length=64)), 0.3), x)
    ours, state, outputs = vt.replace(spread(sLSTMLayer(config), 0.3)), {}, []
    for row in x.unbind(1):  # row by row, with states
        output, state = ours.step(row[:, None], **state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=1), ours(x), rtol=1e-5, atol=1e-5)


def test_the_package_tirex():
    pytest.importorskip("tirex")
    from tirex.models.slstm.cell import sLSTMCellTorch
    from tirex.models.slstm.layer import sLSTMBlockConfig, sLSTMLayer

    class InFloat32(torch.nn.Module):
        """TiRex's loop over steps, without its conversions to bfloat16."""

        def forward(self, input, state):
            heads, _, columns = self._recurrent_kernel_.shape
            bias = self._bias_.view(heads, 4, -1).transpose(0, 1).reshape(-1)
            states = torch.zeros(4, input.shape[0], heads * columns // 4) if state is None else state
            y, last = sLSTMCellTorch.slstm_forward(input.transpose(0, 1), states, self._recurrent_kernel_, bias)
            return y.unflatten(2, (heads, -1)).permute(1, 2, 0, 3), last

    plain = spread(sLSTMLayer(sLSTMBlockConfig(32, 4), "torch"), 0.3)
    reference = copy.deepcopy(plain)
    reference.slstm_cell.__class__ = InFloat32
    check_packed(plain, torch.randn(1, 20, 32), reference=reference)


def test_xlstm_of_transformers():
    transformers = pytest.importorskip("transformers", minversion="5.24")
    sizes = {"vocab_size": 50, "hidden_size": 128, "num_heads": 4, "num_hidden_layers": 2, "chunk_size": 4}
    model = spread(
        transformers.xLSTMForCausalLM(transformers.xLSTMConfig(**sizes, autocast_kernel_dtype="float32")), 0.1
    )
    ids, call = torch.randint(0, 50, (1, 20)), lambda model, x: model(x, use_cache=False).logits
    for training in (True, False):
        check_packed(model.train(training), ids, call)
    ours, prompts = vt.replace(copy.deepcopy(model)), torch.randint(0, 50, (3, 7))
    generated = [one.generate(prompts, max_new_tokens=6, do_sample=False) for one in (model, ours)]
    assert torch.equal(*generated)
    cache = transformers.models.xlstm.modeling_xlstm.xLSTMCache(model.config, 5, dtype=torch.float32)
    following = torch.randint(0, 50, (5, 3))
    with torch.no_grad():
        with vt.packed(OFFSETS):
            ours(ids, cache=cache, use_cache=True)
        steps = [ours(following[:, [step]], cache=cache, use_cache=True).logits for step in range(3)]
        found = torch.cat(steps, dim=1)
        for number, (begin, end) in enumerate(itertools.pairwise(OFFSETS)):
            whole = torch.cat([ids[:, begin:end], following[number : number + 1]], dim=1)
            torch.testing.assert_close(found[number], call(model, whole)[0, -3:], rtol=0, atol=1e-4)
    with vt.packed(OFFSETS), pytest.raises(ShapeError, match="use_cache=False"):
        ours(ids)

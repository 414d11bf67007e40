"""Functions of fla, mamba_ssm and causal-conv1d on our kernels, against loops over steps in NumPy."""

import contextlib
import itertools

import numpy as np
import pytest

import varlen_rnn as vr
from tests.each import check_each
from tests.oracles import state_functions as oracle
from varlen_rnn.errors import DTypeError, InputError

torch = pytest.importorskip("torch")

import varlen_rnn.torch as vt  # noqa: E402

RNG = torch.Generator().manual_seed(0)
LENGTHS = [3, 34, 1, 2]
OFFSETS = torch.tensor([0, *np.cumsum(LENGTHS)])
ROWS = sum(LENGTHS)
SEQ_IDX = torch.repeat_interleave(torch.arange(len(LENGTHS), dtype=torch.int32), torch.tensor(LENGTHS))[None]


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=RNG)


def close(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def of_delta(batch, steps, sequences):
    q, k, v = draw(batch, steps, 2, 3), draw(batch, steps, 2, 3), draw(batch, steps, 4, 5)
    g, beta = -draw(batch, steps, 4).abs(), draw(batch, steps, 4).sigmoid()
    return q, k, v, g, beta, draw(sequences, 4, 3, 5)


@contextlib.contextmanager
def set_threads(count):
    before = vr.get_num_threads()
    vr.set_num_threads(count)
    try:
        yield
    finally:
        vr.set_num_threads(before)


def arrays(*tensors):
    return [tensor.numpy() for tensor in tensors]


def test_gated_delta_rule_is_the_loop_over_steps():
    for empty in (False, True):  # sequences without rows are legal among offsets
        offsets = torch.tensor([0, 0, *OFFSETS[1:]]) if empty else OFFSETS
        q, k, v, g, beta, state = of_delta(1, ROWS, len(offsets) - 1)
        for call in (vt.chunk_gated_delta_rule, vt.fused_recurrent_gated_delta_rule):
            options = {"cu_seqlens": offsets, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
            found = call(q, k, v, g=g, beta=beta, initial_state=state, **options)
            given = arrays(q, k, v, g, beta)
            wanted = oracle.over_rows(
                lambda *rows, state=state: oracle.gated_delta_rule(*rows, state.numpy(), units=True), offsets, *given
            )
            close(found, wanted)
            turned = call(q, k, v, g=g, beta=beta, initial_state=state.transpose(2, 3), **options, state_v_first=True)
            close(turned, (wanted[0], wanted[1].swapaxes(2, 3)))
    q, k, v, g, beta, state = of_delta(2, 20, 2)
    o, none = vt.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=state)
    close(
        [o], oracle.over_rows(oracle.gated_delta_rule, [0, 20, 40], *arrays(q, k, v, g, beta), state=state.numpy())[:1]
    )
    assert none is None


def test_gates_inside_of_the_gated_delta_rule():
    q, k, v, g, beta, state = of_delta(1, 6, 1)
    rates, bias, of_rows = draw(4), draw(4), -draw(1, 6, 4, 3).abs()
    inside = {"use_gate_in_kernel": True, "A_log": rates, "dt_bias": bias}
    inside |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
    gates = -rates.exp() * torch.nn.functional.softplus(g + bias)
    close(
        vt.chunk_gated_delta_rule(q, k, v, g, beta, 0.5, state, True, **inside),
        vt.chunk_gated_delta_rule(q, k, v, gates, 2 * beta.sigmoid(), 0.5, state, True),
    )
    found = vt.fused_recurrent_gated_delta_rule(q, k, v, g, of_rows, None, beta, None, state, True)
    given = arrays(q, k, v, g[..., None] + of_rows, beta)
    close(found, oracle.over_rows(oracle.gated_delta_rule, [0, 6], *given, state=state.numpy()))


def test_simple_gla_is_the_loop_over_steps():
    q, k, v = draw(1, ROWS, 2, 3), draw(1, ROWS, 2, 3), draw(1, ROWS, 2, 5)
    g, state, gamma = -draw(1, ROWS, 2).abs(), draw(len(LENGTHS), 2, 3, 5), -draw(2).abs()
    for given in ({"g": g}, {"g_gamma": gamma}, {}):
        gates = g if "g" in given else (gamma if given else 0 * gamma).expand(1, ROWS, 2)
        found = vt.chunk_simple_gla(
            q, k, v, **given, scale=0.3, initial_state=state, output_final_state=True, cu_seqlens=OFFSETS
        )
        wanted = oracle.over_rows(
            lambda q, k, v, g, offsets: oracle.linear_attention(q, k, v, offsets, g, None, state.numpy(), scale=0.3),
            OFFSETS, *arrays(q, k, v, gates),
        )  # fmt: skip
        close(found, wanted)


def test_causal_convolution_is_the_loop_over_steps():
    x, weight, bias = draw(1, 3, ROWS), draw(3, 4), draw(3)
    wanted, _ = oracle.causal_conv1d(x[0].T.numpy(), OFFSETS, *arrays(weight, bias), activation="silu")
    close([vt.causal_conv1d_fn(x, weight, bias, SEQ_IDX, activation="silu")], [wanted.T[None]])
    x, state, out = draw(2, 3, 5), draw(2, 3, 3), torch.empty(2, 3, 3, dtype=torch.float64)
    found = vt.causal_conv1d_fn(x, weight, bias, None, state, True, out)
    rows = x.transpose(1, 2).reshape(10, 3).numpy()
    wanted = oracle.causal_conv1d(rows, [0, 5, 10], *arrays(weight, bias, state))
    close(found, [wanted[0].reshape(2, 5, 3).swapaxes(1, 2), wanted[1]])
    assert found[1] is out
    kept = torch.cat([draw(2, 3, 1), state], dim=2)  # a state may hold more rows than the width needs
    steps = [vt.causal_conv1d_update(part, kept, weight, bias) for part in (x[:, :, 0], x[:, :, 1:])]
    close([steps[0], steps[1], kept[:, :, 1:]], [found[0][:, :, 0], found[0][:, :, 1:], wanted[1]])
    close([kept[:, :, :1]], [x[:, :, 1:2]])


def of_mamba(batch, steps, sequences):
    x, z, dt = draw(batch, steps, 4, 3), draw(batch, steps, 4, 3), draw(batch, steps, 4)
    return x, dt, -draw(4).abs(), draw(batch, steps, 2, 5), draw(batch, steps, 2, 5), z, draw(sequences, 4, 3, 5)


def test_scan_of_mamba_is_the_loop_over_steps():
    x, dt, A, B, C, z, state = of_mamba(1, ROWS, len(LENGTHS))
    bias, D = draw(4), draw(4, 3)
    size = oracle.softplus((dt + bias).numpy()).clip(0.2, 1.0)
    wanted = oracle.over_rows(
        lambda x, dt, B, C, z, offsets: oracle.mamba_scan(x, dt, B, C, offsets, *arrays(A, D), z, state.numpy()),
        OFFSETS, x.numpy(), size, *arrays(B, C, z),
    )  # fmt: skip
    options = {"dt_softplus": True, "dt_limit": (0.2, 1.0), "return_final_states": True}
    given = x, dt, A, B, C, 64, D, z, bias, state
    close(vt.mamba_chunk_scan_combined(*given, SEQ_IDX, **options), (wanted[0], wanted[1][-1:]))
    found = vt.mamba_chunk_scan_combined(*given, SEQ_IDX, OFFSETS, **options, return_varlen_states=True)
    close(found, (wanted[0], wanted[1][-1:], wanted[1]))
    halves = [one[:, :40].reshape(2, 20, *one.shape[2:]) for one in (x, dt.abs(), B, C)]
    idx = SEQ_IDX[:, :40].reshape(2, 20)
    out, last = vt.mamba_chunk_scan_combined(
        *halves[:2], A, *halves[2:], 64, D[:, 0], seq_idx=idx, return_final_states=True
    )
    wanted = oracle.over_rows(
        lambda *rows: oracle.mamba_scan(*rows, *arrays(A, D[:, 0])), [0, 3, 20, 37, 38, 40], *arrays(*halves)
    )
    close((out, last), (wanted[0], wanted[1][[1, 4]]))


def test_layer_of_mamba_is_its_parts():
    heads, size, depth, groups, width = 4, 3, 5, 2, 4
    dim = heads * size
    channels = dim + 2 * groups * depth
    rows, weight, bias = draw(1, ROWS, dim + channels + heads), draw(channels, width), draw(channels)
    dt_bias, A, D, norm, out, out_bias = draw(4), -draw(4).abs(), draw(4), draw(dim), draw(6, dim), draw(6)
    z, xBC, dt = np.split(rows[0].numpy(), [dim, dim + channels], axis=1)
    x, B, C = np.split(
        oracle.causal_conv1d(xBC, OFFSETS, *arrays(weight, bias), activation="silu")[0], [dim, dim + 10], axis=1
    )
    x, B, C = x.reshape(-1, heads, size), B.reshape(-1, groups, depth), C.reshape(-1, groups, depth)
    scanned, _ = oracle.mamba_scan(x, oracle.softplus(dt + dt_bias.numpy()), B, C, OFFSETS, *arrays(A, D))

    def normed(y):
        grouped = y.reshape(ROWS, groups, -1)
        return (grouped / np.sqrt((grouped**2).mean(-1, keepdims=True) + 1e-5)).reshape(ROWS, dim) * norm.numpy()

    scanned = scanned.reshape(ROWS, dim)
    given = rows, weight, bias, dt_bias, A, D, 64
    options = {"seq_idx": SEQ_IDX, "headdim": size, "ngroups": groups, "rmsnorm_eps": 1e-5}
    found = vt.mamba_split_conv1d_scan_combined(*given, **options, rmsnorm_weight=norm)
    close([found[0]], [normed(scanned) * oracle.silu(z)])
    found = vt.mamba_split_conv1d_scan_combined(
        *given, **options, rmsnorm_weight=norm, norm_before_gate=False, outproj_weight=out, outproj_bias=out_bias
    )
    close([found[0]], [normed(scanned * oracle.silu(z)) @ out.T.numpy() + out_bias.numpy()])
    close([vt.mamba_split_conv1d_scan_combined(*given, **options)[0]], [scanned * oracle.silu(z)])


def test_single_steps_without_gradients():
    """A step that torch does not record has the same bits, for any threads, and keeps sequences apart."""

    def check(case):
        dtype, threads, given, options = case
        q, k, v, g, beta, state = (one.to(dtype) for one in of_delta(3, 1, 3))
        gates = {"g": g, "gk": -draw(3, 1, 4, 3).abs().to(dtype), "beta": beta, "initial_state": state}
        named = {name: one for name, one in gates.items() if name in given} | {"output_final_state": True, **options}
        with set_threads(threads):
            found = vt.fused_recurrent_gated_delta_rule(q, k, v, **named)
            recorded = vt.fused_recurrent_gated_delta_rule(q.clone().requires_grad_(), k, v, **named)
            named = {name: one[1:] if torch.is_tensor(one) else one for name, one in named.items()}
            some = vt.fused_recurrent_gated_delta_rule(q[1:], k[1:], v[1:], **named)
        for one, other, rest in zip(found, recorded, some, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other.detach())
            assert torch.equal(one[1:], rest)

    units, forms = {"use_qk_l2norm_in_kernel": True}, ([], ["g", "beta", "initial_state"], ["g", "gk", "initial_state"])
    cases = itertools.product((torch.float64, torch.float32), (1, 2), forms, ({}, {**units, "scale": 0.3}))
    check_each(cases, check)
    q = draw(2, 1, 2, 3)
    assert torch.equal(vt.chunk_simple_gla(q, q, q)[0], vt.chunk_simple_gla(q.clone().requires_grad_(), q, q)[0])
    q[0] = torch.nan
    assert not vt.chunk_simple_gla(q, q, q)[0][1].isnan().any()


def test_step_of_mamba_updates_states():
    for groups, has_one_rate in ((2, False), (1, True)):
        state, x, dt, z = draw(2, 4, 3, 5), draw(2, 4, 3), draw(2, 4, 3), draw(2, 4, 3)
        A, B, C, D, bias = -draw(4, 3, 5).abs(), draw(2, groups, 5), draw(2, groups, 5), draw(4, 3), draw(4, 3)
        if has_one_rate:  # as Mamba-2 calls it
            A, dt, bias = A[:, :1, :1].expand(4, 3, 5), dt[:, :, :1].expand(2, 4, 3), bias[:, :1].expand(4, 3)
        wanted = oracle.selective_step(
            state.numpy(), x.numpy(), oracle.softplus((dt + bias).numpy()), *arrays(A, B, C, D, z)
        )
        out = vt.selective_state_update(state, x, dt, A, B, C, D, z, bias, True)
        close([out, state], wanted)
    state, x, A, B = draw(2, 3, 5), draw(2, 3), -draw(3, 5).abs(), draw(2, 5)
    wanted = oracle.selective_step(
        *arrays(state[:, None], x[:, None], x[:, None], A, B[:, None], B[:, None]), 0.0, x[:, None].numpy()
    )
    out = vt.selective_state_update(state, x, x, A, B, B, z=x)
    close([out, state], [part[:, 0] for part in wanted])


def test_gradients():
    delta, scan = of_delta(1, 6, 2), of_mamba(1, 6, 2)
    offsets, idx = torch.tensor([0, 4, 6]), torch.tensor([[0, 0, 0, 0, 1, 1]])
    options = {"output_final_state": True, "cu_seqlens": offsets}

    def of_rule(q, k, v, g, beta, state):
        return vt.chunk_gated_delta_rule(q, k, v, g, beta, None, state, use_qk_l2norm_in_kernel=True, **options)

    def of_gla(q, k, v, g, state):
        return vt.chunk_simple_gla(q, k, v, g, initial_state=state, **options)

    def of_scan(x, dt, A, B, C, z, state, bias, D):
        end = {"seq_idx": idx, "dt_softplus": True, "return_final_states": True}
        return vt.mamba_chunk_scan_combined(x, dt, A, B, C, 64, D, z, bias, state, **end)

    def of_conv(x, weight, bias, state):
        return vt.causal_conv1d_fn(x, weight, bias, idx, state, True, activation="silu")

    def of_layer(rows, weight, dt_bias, A, D, norm):
        return vt.mamba_split_conv1d_scan_combined(
            rows, weight, None, dt_bias, A, D, 64, seq_idx=idx, headdim=3, rmsnorm_weight=norm
        )

    state, window = draw(1, 4, 3, 5), draw(1, 3, 3)

    def of_step(*rows):
        return vt.selective_state_update(state.clone(), *rows, dt_softplus=True)

    def of_update(x, weight, bias):
        return vt.causal_conv1d_update(x, window.clone(), weight, bias, "silu")

    step = draw(1, 4, 3), draw(1, 4, 3), -draw(4, 3, 5).abs(), draw(1, 2, 5), draw(1, 2, 5), draw(4, 3), draw(1, 4, 3)
    cases = {
        "step": (of_step, (*step, draw(4, 3))),
        "update": (of_update, (draw(1, 3, 2), draw(3, 4), draw(3))),
        "rule": (of_rule, delta),
        "gla": (of_gla, (*(draw(1, 6, 2, 3) for _ in "qkv"), -draw(1, 6, 2).abs(), draw(2, 2, 3, 3))),
        "scan": (of_scan, (*scan, draw(4), draw(4))),
        "conv": (of_conv, (draw(1, 3, 6), draw(3, 4), draw(3), draw(2, 3, 3))),
        "layer": (of_layer, (draw(1, 6, 24), draw(16, 4), draw(2), -draw(2).abs(), draw(2), draw(6))),
    }

    def check(name):
        call, inputs = cases[name]
        assert torch.autograd.gradcheck(call, [one.clone().requires_grad_() for one in inputs], fast_mode=True)

    check_each(cases, check)


def test_troubles():
    for batch, steps, offsets in ((1, 0, [0, 0]), (0, 3, None), (2, 0, None), (1, 1, [0, 1, 1])):
        q, k, v, g, beta, _ = of_delta(batch, steps, 1)
        given = None if offsets is None else torch.tensor(offsets)
        sequences = batch if offsets is None else len(offsets) - 1
        o, state = vt.chunk_gated_delta_rule(
            q.requires_grad_(), k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=given
        )
        assert (o.shape, state.shape) == (v.shape, (sequences, 4, 3, 5))
        (o.sum() + state.sum()).backward()
        x, dt, A, B, C, _, _ = of_mamba(batch, steps, 1)
        idx = torch.zeros(batch, steps, dtype=torch.int32)
        out, last = vt.mamba_chunk_scan_combined(x, dt, A, B, C, 64, seq_idx=idx, return_final_states=True)
        assert (out.shape, last.shape) == (x.shape, (batch, 4, 3, 5))
        x, state = draw(batch, 3, steps), draw(batch, 3, 3)
        assert (
            vt.causal_conv1d_fn(x, draw(3, 4)).shape == vt.causal_conv1d_update(x, state, draw(3, 4)).shape == x.shape
        )


def test_types_of_results():
    q, k, v, g, beta, _ = (one.bfloat16() for one in of_delta(1, 6, 1))
    o, state = vt.chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True)
    assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    x = draw(1, 3, 6).half()
    assert vt.causal_conv1d_fn(x, draw(3, 4).float()).dtype == torch.float16


def test_low_precision_is_rounded_once():
    """Inputs of 16 bits are computed in float32, so results equal float32 results, rounded."""
    q, k, v, g, beta, state = of_delta(1, 6, 1)
    x, dt, A, B, C, z, first = of_mamba(1, 6, 1)
    bias, D, rates = draw(4), draw(4, 3), -draw(4, 3, 5).abs()
    gates = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    cases = {
        "rule": (lambda *of: vt.chunk_gated_delta_rule(*of[:5], None, of[5], True, **gates, A_log=of[6], dt_bias=of[7]),
                 (q, k, v, g, beta, state, draw(4), draw(4))),
        "gates of rows": (lambda *of: vt.fused_recurrent_gated_delta_rule(*of[:5], None, of[5])[0],
                          (q, k, v, g, -draw(1, 6, 4, 3).abs(), beta)),
        "scan": (lambda *of: vt.mamba_chunk_scan_combined(*of[:5], 64, *of[5:], return_final_states=True),
                 (x, dt.abs(), A, B, C, D, z, bias, first)),
        "step": (lambda *of: vt.selective_state_update(of[0].clone(), *of[1:]),
                 (first, x[:, 0], dt[:, 0, :, None].expand(1, 4, 3), rates, B[:, 0], C[:, 0], D, z[:, 0])),
    }  # fmt: skip

    def check(name, dtype):
        call, inputs = cases[name]
        given = [one.to(dtype) for one in inputs]
        found, wanted = call(*given), call(*(one.float() for one in given))
        for one, other in zip(*([each] if torch.is_tensor(each) else each for each in (found, wanted)), strict=True):
            assert one.dtype in (dtype, torch.float32)
            torch.testing.assert_close(one, other.to(one.dtype), rtol=0, atol=0)

    check_each(itertools.product(cases, (torch.bfloat16, torch.float16)), lambda case: check(*case))
    weight = torch.ones(6)  # a norm often stays in float32
    rows = [one.bfloat16() for one in (draw(1, 6, 24), draw(16, 4), draw(2), -draw(2).abs(), draw(2))]
    out = vt.mamba_split_conv1d_scan_combined(*rows[:2], None, *rows[2:], 64, headdim=3, rmsnorm_weight=weight)
    assert out.dtype == torch.bfloat16


def test_compiled_callers():
    """A graph breaks at the call, and new offsets are read."""
    x, weight = draw(1, 3, 6), draw(3, 4)

    def call(idx):
        return vt.causal_conv1d_fn(x, weight, None, idx, activation="silu")

    compiled = torch.compile(call, backend="eager")
    for cut in (2, 5):
        idx = (torch.arange(6) >= cut)[None].int()
        assert torch.equal(compiled(idx), call(idx))


def changed(tensor):
    """Return wrong operands to give in place of a tensor; the key of each names its fault."""
    axes = range(tensor.dim())
    found = {f"axis {axis} longer": torch.cat([tensor, tensor.narrow(axis, 0, 1)], axis) for axis in axes}
    found |= {f"axis {axis} empty": tensor.narrow(axis, 0, 0) for axis in axes}
    found |= {"one axis more": tensor[..., None], "one axis less": tensor.select(-1, 0)}
    return found | {"integers": tensor.long(), "an array": tensor.numpy(), "numbers": tensor.tolist()}


def test_each_operand_is_checked():
    """All shapes are tied to each other: a change of any axis, in any argument, is an error that names a function."""
    q, k, v, g, beta, state = of_delta(1, 6, 2)
    x, dt, A, B, C, z, first = of_mamba(1, 6, 2)
    offsets, idx, row, one = torch.tensor([0, 4, 6]), torch.tensor([[0, 0, 0, 0, 1, 1]]), draw(1, 4, 3), draw(1, 2, 5)
    rule = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": state, "A_log": draw(4), "dt_bias": draw(4)}
    scan = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": draw(4, 3), "z": z, "dt_bias": draw(4)}
    step = {"state": draw(1, 4, 3, 5), "x": row, "dt": row, "A": draw(4, 3, 5), "B": one, "C": one, "D": row[0]}
    flat = {name: x[:, 0] if x.dim() > 2 and name not in "AD" else x[0] for name, x in step.items()} | {"z": row[:, 0]}
    layer = {"zxbcdt": draw(1, 6, 24), "conv1d_weight": draw(16, 4), "conv1d_bias": draw(16), "dt_bias": draw(2)}
    layer |= {"A": draw(2), "D": draw(2, 3), "rmsnorm_weight": draw(6), "outproj_weight": draw(4, 6)}
    conv = {"x": draw(1, 3, 6), "weight": draw(3, 4), "bias": draw(3), "initial_states": draw(2, 3, 3)}
    update = {"x": draw(1, 3), "conv_state": draw(1, 3, 3), "weight": draw(3, 4), "bias": draw(3)}
    functions = [
        (vt.chunk_gated_delta_rule, rule, {"cu_seqlens": offsets}),
        (vt.fused_recurrent_gated_delta_rule, {**rule, "gk": draw(1, 6, 4, 3)}, {"cu_seqlens": offsets}),
        (vt.chunk_simple_gla, {"q": q, "k": k, "v": v, "g": g, "initial_state": state}, {"cu_seqlens": offsets}),
        (vt.chunk_simple_gla, {"q": q, "k": k, "v": v, "g_gamma": draw(4), "initial_state": state[:1]}, {}),
        (vt.mamba_chunk_scan_combined, {**scan, "initial_states": first}, {"chunk_size": 64, "seq_idx": idx}),
        (vt.mamba_split_conv1d_scan_combined, {**layer, "outproj_bias": draw(4)}, {"chunk_size": 64, "seq_idx": idx}),
        (vt.causal_conv1d_fn, {**conv, "final_states_out": draw(2, 3, 3)}, {"seq_idx": idx}),
        (vt.causal_conv1d_update, update, {}),
        (vt.selective_state_update, {**step, "z": row, "dt_bias": row[0]}, {}),
        (vt.selective_state_update, {**flat, "dt_bias": row[0, 0]}, {}),
    ]
    free = {"D one axis less", "x one axis more", "conv_state axis 2 longer", "conv1d_weight axis 1 longer"}
    wrong = {
        f"{number} {name} {what}": (call, {**tensors, name: other, **options})
        for number, (call, tensors, options) in enumerate(functions)
        for name, tensor in tensors.items()
        for what, other in changed(tensor).items()
    }

    def check(case):
        call, given = wrong[case]
        with pytest.raises(InputError) as error:
            call(**given)
        assert str(error.value).startswith(call.__name__), error.value

    for call, tensors, options in functions:
        call(**tensors, **options)
    check_each([case for case in wrong if case.split(" ", 1)[1] not in free], check)


def test_errors():
    q, k, v, g, beta, _ = of_delta(2, 6, 2)
    x, weight = draw(1, 3, 6), draw(3, 4)
    step = draw(1, 2, 3), draw(1, 2), draw(1, 2), -draw(2, 3).abs(), draw(1, 3), draw(1, 3)
    layer = q[0], weight, None, *[g[0, 0]] * 3, 64
    cases = [
        (lambda: vt.chunk_gated_delta_rule(q, k, v, g, beta, cp_context=1), "cp_context: expected None"),
        (lambda: vt.fused_recurrent_gated_delta_rule(q, k, v, gv=g), "gv: expected None, because it is not supported"),
        (lambda: vt.chunk_gated_delta_rule(q, k, v, g, beta, use_gate_in_kernel=True), "expected g and A_log"),
        (lambda: vt.chunk_gated_delta_rule(q, k, v, g, beta, allow_neg_eigval=True), "expected use_beta_sigmoid_in"),
        (lambda: vt.chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=OFFSETS), "expected a batch of one"),
        (lambda: vt.chunk_gated_delta_rule(q[:1], k[:1], v[:1], g[:1], beta[:1], cu_seqlens=OFFSETS), "6 as its last"),
        (lambda: vt.chunk_gated_delta_rule(q, k[:, :3], v, g, beta), "delta_rule, k: expected shape"),
        (
            lambda: vt.chunk_simple_gla(q[:1], k[:1], v[:1], cu_seqlens=OFFSETS.double()),
            "cu_seqlens: expected integers",
        ),
        (lambda: vt.chunk_simple_gla(q.long(), k, v), "gla, q: expected a tensor of floats, got torch.int64"),
        (lambda: vt.chunk_simple_gla(q, k.numpy(), v), "gla, k: expected a tensor of floats, got ndarray"),
        (lambda: vt.chunk_simple_gla(q, k, v, g, g[0, 0]), "expected g or g_gamma, got both"),
        (lambda: vt.causal_conv1d_fn(x[0], weight), "causal_conv1d_fn, x: expected shape"),
        (lambda: vt.causal_conv1d_fn(x, weight, seq_idx=SEQ_IDX), "causal_conv1d_fn, seq_idx: expected numbers"),
        (lambda: vt.causal_conv1d_fn(x, weight, seq_idx=torch.ones(1, 6)), "seq_idx: expected integers"),
        (lambda: vt.causal_conv1d_fn(x, weight, activation="relu"), "activation: expected one of 'silu' or 'swish'"),
        (lambda: vt.causal_conv1d_update(x, x[:, :, :1], weight), "conv_state: expected shape"),
        (lambda: vt.causal_conv1d_update(x, x[:, :, :3], weight, cache_seqlens=1), "cache_seqlens: expected None"),
        (lambda: vt.selective_state_update(*step, state_batch_indices=1), "state_batch_indices: expected None"),
        (lambda: vt.mamba_chunk_scan_combined(*of_mamba(1, 6, 1)[:5], 64, return_varlen_states=True), "cu_seqlens"),
        (lambda: vt.mamba_split_conv1d_scan_combined(*layer), "headdim: expected the size of a head"),
        (lambda: vt.mamba_split_conv1d_scan_combined(*layer, headdim=0), "headdim: expected at least 1"),
        (lambda: vt.mamba_split_conv1d_scan_combined(*layer, headdim=3, ngroups=0), "ngroups: expected at least 1"),
        (lambda: vt.mamba_chunk_scan_combined(*of_mamba(1, 6, 1)[:5], 64, dt_limit=3), "dt_limit: expected a pair"),
        (lambda: vt.chunk_simple_gla(q, k, k, scale="x"), "simple_gla, scale: expected a number"),
        (lambda: vt.chunk_simple_gla(q[:1], k[:1], k[:1], cu_seqlens=OFFSETS[None]), "cu_seqlens: expected shape"),
        (lambda: vt.chunk_simple_gla(q[:1], k[:1], k[:1], cu_seqlens=OFFSETS[:0]), "at least the offset 0"),
        (lambda: vt.chunk_simple_gla(q, k, v[:, :, :3]), "a multiple of the number of key_heads, got 3 heads for 2"),
        (lambda: vt.chunk_simple_gla(q[..., :0], k[..., :0], v), "only batches, steps and sequences may be 0"),
        (lambda: vt.causal_conv1d_fn(x, weight[:, :0]), "only batches, steps and sequences may be 0"),
    ]

    def check(number):
        call, message = cases[number]
        with pytest.raises(InputError, match=message):
            call()

    check_each(range(len(cases)), check)
    with pytest.raises(DTypeError, match="a tensor on the CPU, got a tensor on meta"):
        vt.causal_conv1d_fn(x.to("meta"), weight)

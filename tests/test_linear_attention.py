"""Linear attention over LoD: against NumPy and differences, and the laws of batch mates, threads, pieces and NaN."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.differences import slope
from tests.each import check_each
from tests.in_threads import on_threads
from tests.oracles.linear_attention import linear_attention as oracle
from varlen_rnn.linear_attention import CHUNK
from varlen_rnn.runtime import threads
from varlen_rnn.runtime.device import to_host

LENGTHS = {
    "empty ones": [3, 0, 5, 1, 0],
    "whole and cut chunks": [64, 1, 33, 70],
    "no sequences": [],
    "no rows": [0, 0],
    "one row each": [1, 1, 1],
}
HEADS = {"one": (1, 1, 1), "as many": (2, 2, 2), "shared by states": (1, 2, 4), "shared by queries": (4, 2, 1)}
FORMS = {
    "plain": {"given": ()},
    "rates": {"given": ("beta",)},
    "decay": {"given": ("decay",)},
    "decay of rows": {"given": ("decays", "state")},
    "delta": {"given": ("beta", "state"), "delta": True},
    "gated delta": {"given": ("decay", "beta", "state"), "delta": True},
    "gated delta of rows": {"given": ("decays", "beta", "state"), "delta": True},
    "normalised": {"given": ("decay", "beta", "state"), "normalise": True, "scale": 0.5},
}
by_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
by_type = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 3e-6)], ids=["f64", "f32"])
NAMES = "query", "key", "value", "decay", "beta", "state"


def drawn(lengths, form, heads=(1, 1, 1), sizes=(5, 3), dtype=np.float64, seed=0):
    """Return a dict of arrays by the names of arguments, and a dict of constants; keys have length 1."""
    rng, (depth, wide), count, states = np.random.default_rng(seed), sizes, sum(lengths), max(heads[1:])
    query, key, value = (
        rng.standard_normal((count, n, size)) for n, size in zip(heads, (depth, depth, wide), strict=True)
    )
    key /= np.linalg.norm(key, axis=2, keepdims=True)
    drawn = {
        "decay": -rng.gamma(1, 0.2, (count, states)), "decays": -rng.gamma(1, 0.2, (count, states, depth)),
        "beta": rng.uniform(0, 1.5, (count, states)),
        "state": rng.standard_normal((len(lengths), states, depth, wide)),
    }  # fmt: skip
    found = {"query": query, "key": key, "value": value, **{name.rstrip("s"): drawn[name] for name in form["given"]}}
    found = {name: array.astype(dtype) for name, array in found.items()}
    constants = {name: value for name, value in form.items() if name != "given"}
    if constants.get("normalise") and "state" in found:
        found["state"] = found["state"], rng.uniform(0.5, 1, (len(lengths), states, depth)).astype(dtype)
    return found, constants


def variables(given, lengths, place="cpu"):
    """Return Variables that require gradients: rows with their LoD, and states."""
    of = lambda name, x: vr.LoDTensor(x, [] if name == "state" else vr.LoD.from_lengths([lengths]))
    make = lambda name, x: vr.Variable(of(name, x).to(place), requires_grad=True)
    return {
        name: tuple(make(name, y) for y in x) if isinstance(x, tuple) else make(name, x) for name, x in given.items()
    }


def flat(results):
    """Return the Variables or arrays of a result, whose parts can be pairs."""
    return [y for x in results for y in (flat(x) if isinstance(x, tuple | list) else [x])]


def wanted_of(given, lengths, constants):
    wide = {n: tuple(y.astype(np.float64) for y in x) if isinstance(x, tuple) else x.astype(np.float64) for n, x in
            given.items()}  # fmt: skip
    return flat(oracle(offsets=np.cumsum([0, *lengths]), **wide, **constants))


@by_form
@by_type
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_equals_the_oracle(lengths, heads, form, dtype, tolerance):
    for sizes in ((5, 3), (33, 40)):
        given, constants = drawn(lengths, form, heads, sizes, dtype)
        found = flat(vr.linear_attention(**variables(given, lengths), **constants))
        assert found[0].lod() == [list(np.cumsum([0, *lengths]))]
        for mine, right in zip(found, wanted_of(given, lengths, constants), strict=True):
            assert mine.dtype == dtype
            np.testing.assert_allclose(np.asarray(mine), right, rtol=tolerance, atol=tolerance)


def loss_of(given, lengths, constants, seed=1):
    """Return a weighted sum of all results."""
    rng = np.random.default_rng(seed)
    found = flat(vr.linear_attention(**given, **constants))
    return sum((x * rng.standard_normal(x.shape).astype(x.dtype)).sum() for x in found)


@by_form
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("lengths", [[3, 0, 5, 1], [40, 1, 64]], ids=str)
def test_gradients_are_central_differences(lengths, heads, form):
    arrays, constants = drawn(lengths, form, heads)
    given = variables(arrays, lengths)
    loss_of(given, lengths, constants).backward()
    for x in flat(given.values()):
        way = np.random.default_rng(2).standard_normal(x.shape)
        difference = slope(lambda: loss_of(given, lengths, constants), x.value.data, way)
        np.testing.assert_allclose((np.asarray(x.grad) * way).sum(), difference, rtol=1e-7, atol=1e-7)


NORMALISED = {
    "delta": {"given": ("beta", "state"), "delta": True},
    "decay of rows": {"given": ("decays",)},
    "gated delta of rows": {"given": ("decays", "beta", "state"), "delta": True},
    "plain": {"given": ()},
}


def test_every_form_can_be_normalised():
    """With the delta rule, or with a decay for each row of a state, the normaliser follows these, too."""

    def check(name):
        form, heads, lengths = {**NORMALISED[name], "normalise": True}, (2, 1, 2), [40, 0, 1, 3]
        test_equals_the_oracle(lengths, heads, form, np.float64, 1e-12)
        test_gradients_are_central_differences(lengths, heads, form)
        test_what_is_recomputed_has_the_same_bits(form)

    check_each(NORMALISED, check)


def numbers(x):
    """Return the numbers of a Variable or of a gradient."""
    x = getattr(x, "value", x)
    return to_host(x.data if isinstance(x, vr.LoDTensor) else x)


def step_of(arrays, lengths, constants, place="cpu"):
    """Return the bits of a training step: results, then gradients by the names of arguments."""
    given = variables(arrays, lengths, place)
    found = flat(vr.linear_attention(**given, **constants))
    sum((x * x).sum() for x in found).backward()
    return [numbers(x) for x in found], {n: [numbers(y.grad) for y in flat([x])] for n, x in given.items()}


@pytest.mark.twins
@by_type
def test_twins_are_the_cpu(device, dtype, tolerance):
    """Every form, each with other heads, and one whose states are as large as in other tests."""
    forms, heads = list(FORMS.values()), [*HEADS.values()] * 2
    cases = [(form, of, (5, 3)) for form, of in zip(forms, heads, strict=True)]
    for form, of, sizes in [*cases, (FORMS["gated delta of rows"], (1, 2, 2), (33, 40))]:
        lengths = [33, 0, 1, 40] if sizes == (5, 3) else [34]
        arrays, constants = drawn(lengths, form, of, sizes, dtype)
        (found, d), (wanted, d_wanted) = (step_of(arrays, lengths, constants, place) for place in (device.name, "cpu"))
        for mine, right in zip(found + flat(d.values()), wanted + flat(d_wanted.values()), strict=True):
            np.testing.assert_allclose(mine, right, rtol=tolerance, atol=10 * tolerance * np.abs(right).max(initial=0))


def part_of(arrays, lengths, sequences):
    """Return the arrays of some sequences, and their lengths."""
    ends = np.cumsum([0, *lengths])
    rows = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in sequences]).astype(int)
    chosen = lambda name, x: x[sequences] if name == "state" else x[rows]
    of = {
        name: tuple(chosen(name, y) for y in x) if isinstance(x, tuple) else chosen(name, x)
        for name, x in arrays.items()
    }
    return of, [lengths[i] for i in sequences], rows


@by_form
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_mates_and_their_order_change_no_bit(form, dtype):
    lengths = [40, 0, 1, 97, 5]
    arrays, constants = drawn(lengths, form, (2, 2, 2), (20, 11), dtype)
    whole, gradients = step_of(arrays, lengths, constants)
    for chosen in ([3], [1], [2], [4, 0, 3, 2]):
        of, own, rows = part_of(arrays, lengths, chosen)
        found, d = step_of(of, own, constants)
        half = len(found) // 2
        for number, (mine, all_of) in enumerate(zip(found, whole, strict=True)):
            np.testing.assert_array_equal(mine, all_of[rows if number < half else chosen])
        for name, pairs in d.items():
            for mine, all_of in zip(pairs, gradients[name], strict=True):
                np.testing.assert_array_equal(mine, all_of[chosen if name == "state" else rows])


@pytest.mark.parametrize("form", ["gated delta", "normalised", "gated delta of rows"])
def test_threads_change_no_bit(form):
    lengths = [300, 40, 0, 1, 500]
    arrays, constants = drawn(lengths, FORMS[form], (4, 4, 4), (32, 32), np.float32)

    def step():
        results, gradients = step_of(arrays, lengths, constants)
        return results + flat(gradients.values())

    on_threads(step)


@by_form
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pieces_cut_at_chunks_have_the_bits_of_the_whole(form, dtype):
    """States are handed on, and their gradients handed back."""
    lengths = [3 * CHUNK + 7]
    arrays, constants = drawn(lengths, form, (1, 2, 2), (6, 9), dtype)
    whole, gradients = step_of(arrays, lengths, constants)
    given, state, total, outputs = variables(arrays, lengths), None, 0.0, []
    state = given.pop("state", None)
    for begin, end in ((0, CHUNK), (CHUNK, 3 * CHUNK), (3 * CHUNK, lengths[0])):
        part = {name: vr.lod_reset(x[begin:end], target_lod=(0, end - begin)) for name, x in given.items()}
        y, state = vr.linear_attention(**part, state=state, **constants)
        outputs.append(flat([y]))
        total = total + sum((x * x).sum() for x in flat([y]))
    (total + sum((x * x).sum() for x in flat([state]))).backward()
    pieces = [np.concatenate(list(map(np.asarray, of))) for of in zip(*outputs, strict=True)]
    for mine, right in zip([*pieces, *map(np.asarray, flat([state]))], whole, strict=True):
        np.testing.assert_array_equal(mine, right)
    for name, x in given.items():
        np.testing.assert_array_equal(np.asarray(x.grad), gradients[name][0])


@by_form
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_later_rows_change_no_bit(form, dtype):
    arrays, constants = drawn([75], form, (1, 2, 2), (6, 40), dtype)
    whole = vr.linear_attention(**variables(arrays, [75]), **constants)[0]
    for count in (5, 33, 64, 70):
        part = {name: x if name == "state" else x[:count] for name, x in arrays.items()}
        found = vr.linear_attention(**variables(part, [count]), **constants)[0]
        for mine, right in zip(flat([found]), flat([whole]), strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(right)[:count])


@by_form
def test_rows_one_by_one_are_the_whole(form):
    arrays, constants = drawn([CHUNK + 5], form, (1, 2, 2))
    whole = flat(vr.linear_attention(**variables(arrays, [CHUNK + 5]), **constants))
    state, rows, outputs = arrays.pop("state", None), arrays, []
    for t in range(CHUNK + 5):
        y, state = vr.linear_attention(**{name: x[t : t + 1] for name, x in rows.items()}, state=state, **constants)
        outputs.append(list(map(np.asarray, flat([y]))))
    pieces = [np.concatenate(of) for of in zip(*outputs, strict=True)]
    for mine, right in zip([*pieces, *flat([state])], whole, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(right), rtol=1e-11, atol=1e-12)


@by_form
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_nan_reaches_no_earlier_row_and_no_other_sequence(form, value):
    """Earlier rows and other sequences keep their bits, results and gradients; other heads their results."""
    lengths, row = [40, 70, 45], 40 + 45
    arrays, constants = drawn(lengths, form, (2, 2, 2), (6, 9), np.float32)
    before, d_before = step_of(arrays, lengths, constants)
    others = np.r_[0:40, 110:155]
    for name in set(arrays) - {"state"}:
        kept = arrays[name][row, 0].copy()
        arrays[name][row, 0] = value
        with np.errstate(all="ignore"):
            found, d = step_of(arrays, lengths, constants)
        arrays[name][row, 0] = kept
        half = len(found) // 2
        for number, (mine, right) in enumerate(zip(found, before, strict=True)):
            np.testing.assert_array_equal(mine[:, 1], right[:, 1])
            same = np.r_[0:row, 110:155] if number < half else [0, 2]
            np.testing.assert_array_equal(mine[same], right[same])
        for key, pairs in d.items():
            for mine, right in zip(pairs, d_before[key], strict=True):
                same = [0, 2] if key == "state" else others
                np.testing.assert_array_equal(mine[same], right[same])


def test_a_state_of_nan_stays_with_its_sequence():
    lengths = [5, 40, 1, 0, 50]
    arrays, constants = drawn(lengths, FORMS["gated delta"], (1, 1, 1), (5, 3), np.float32)
    before, _ = step_of(arrays, lengths, constants)
    arrays["state"][1] = np.nan
    found, _ = step_of(arrays, lengths, constants)
    assert np.isnan(found[0][5:45]).all()
    np.testing.assert_array_equal(np.delete(found[0], range(5, 45), 0), np.delete(before[0], range(5, 45), 0))
    np.testing.assert_array_equal(np.delete(found[1], 1, 0), np.delete(before[1], 1, 0))


@pytest.mark.parametrize("decay", [0.0, -0.5, -30.0, -200.0, -np.inf], ids=str)
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_decay_is_finite_and_right(decay, delta, dtype):
    for name in ("decay", "decays"):
        lengths, form = [100], {"given": (name, "beta"), "delta": delta}
        arrays, constants = drawn(lengths, form, (1, 1, 1), (8, 8), dtype)
        arrays["decay"][:] = decay
        arrays["decay"][1::2, ..., 1:] -= np.array(0.1, dtype)
        results, gradients = step_of(arrays, lengths, constants)
        assert all(np.isfinite(x).all() for x in results + flat(gradients.values()))
        for mine, right in zip(results, wanted_of(arrays, lengths, constants), strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["gated delta", "gated delta of rows"])
def test_rounding_does_not_grow_with_the_rows(form):
    """100,000 steps in float32, with decays near 1, against float64: outputs and the last state."""
    lengths = [100_000]
    arrays, constants = drawn(lengths, FORMS[form], (1, 1, 1), (8, 8), np.float32)
    arrays["decay"] /= 200
    wide = {name: x.astype(np.float64) for name, x in arrays.items()}
    found, wanted = (vr.linear_attention(**variables(x, lengths), **constants) for x in (arrays, wide))
    for mine, right in ((found[0][-1000:], wanted[0][-1000:]), (found[1], wanted[1])):
        mine, right = np.asarray(mine), np.asarray(right)
        assert np.linalg.norm(mine - right) < 1e-5 * np.linalg.norm(right)


@by_form
def test_what_is_recomputed_has_the_same_bits(form):
    """Sequences have chunks, one row or none, and the operator keeps nothing."""
    lengths, before = [40, 0, 1, 97, 5], threads.get_num_threads()
    for dtype, sizes, heads in ((np.float32, (33, 40), (1, 2, 2)), (np.float64, (5, 3), (4, 2, 1))):
        arrays, constants = drawn(lengths, form, heads, sizes, dtype)
        wanted, d_wanted = step_of(arrays, lengths, constants)
        try:
            threads.set_num_threads(2)
            found, d = step_of(arrays, lengths, {**constants, "recompute": True})
        finally:
            threads.set_num_threads(before)
        for mine, right in zip(found + flat(d.values()), wanted + flat(d_wanted.values()), strict=True):
            np.testing.assert_array_equal(mine, right)


def test_a_program_that_recomputes_keeps_nothing():
    def written(recompute):
        with vr.program_guard() as program:
            x = vr.feed_data("x", [-1, 1, 2], np.float32, lod_level=1)
            vr.linear_attention(x, x, x, delta=True, recompute=recompute)
        return str(program)

    assert "linear_attention.states" in written(False)
    assert "linear_attention.states" not in written(True)


def test_a_step_of_a_recurrence_is_a_row():
    lengths = [4, 0, 7]
    arrays, constants = drawn(lengths, FORMS["gated delta"], (2, 2, 2))
    given = variables(arrays, lengths)
    wanted, last = vr.linear_attention(**given, **constants)
    names = list(given)[:-1]

    def step(rows, state):
        return vr.linear_attention(**dict(zip(names, rows, strict=True)), state=state, **constants)

    run = vr.nn.DynamicRNN(lambda *x: step(x[:-1], x[-1]))
    y, state = run(tuple(given[name] for name in names), [given["state"]])
    np.testing.assert_allclose(np.asarray(y), np.asarray(wanted), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(np.asarray(state), np.asarray(last), rtol=1e-12, atol=1e-13)


def test_products_are_float32_at_each_precision():
    given, constants = drawn([40, 3], FORMS["gated delta"], dtype=np.float32)
    wanted = step_of(given, [40, 3], constants)
    with vr.float32_matmul_precision("bf16"), vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 1, 2], np.float32, lod_level=1)
        vr.linear_attention(x, x, x, delta=True)
    assert "bf16" not in str(program)
    with vr.float32_matmul_precision("bf16"):
        np.testing.assert_equal(step_of(given, [40, 3], constants), wanted)


def test_without_gradients_nothing_is_kept():
    arrays, constants = drawn([40], FORMS["gated delta"])
    with vr.no_grad():
        y, state = vr.linear_attention(**variables(arrays, [40]), **constants)
    wanted = vr.linear_attention(**variables(arrays, [40]), **constants)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(wanted[0]))
    np.testing.assert_array_equal(np.asarray(state), np.asarray(wanted[1]))


@by_form
def test_a_program_for_inference_has_the_same_bits_and_keeps_nothing(form):
    lengths = [40, 0, 3]
    arrays, constants = drawn(lengths, form)
    feeds = {f"{name}{i}": x for name, given in arrays.items() for i, x in enumerate(flat([given]))}
    has_lod = {name: not name.startswith("state") for name in feeds}
    with vr.program_guard() as program:
        fed = {n: vr.feed_data(n, [-1, *x.shape[1:]], x.dtype, lod_level=int(has_lod[n])) for n, x in feeds.items()}
        given = {n: tuple(fed[f"{n}{i}"] for i in range(2)) if isinstance(x, tuple) else fed[f"{n}0"] for n, x in
                 arrays.items()}  # fmt: skip
        fetches = flat(vr.linear_attention(**given, **constants))
    assert "states" in str(program)
    pruned = vr.Program.from_bytes(program.prune(fetches).to_bytes())
    assert "linear_attention.states" not in str(pruned)
    feed = {n: vr.create_lod_tensor(x, [lengths]) if has_lod[n] else x for n, x in feeds.items()}
    found = vr.Executor().run(pruned, feed, pruned.fetch_names)
    wanted = flat(vr.linear_attention(**variables(arrays, lengths), **constants))
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(getattr(mine, "data", mine), np.asarray(right))


RULES = {
    "linear": {"given": ("state",)},
    "gated": {"given": ("decay", "state")},
    "delta": {"given": ("beta", "state"), "delta": True},
    "gated_delta": {"given": ("decay", "beta", "state"), "delta": True},
}


def onnx_of(rule, given, heads):
    """Return the outputs and last states of ONNX's operator for one sequence, by onnxruntime."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    if onnx.defs.onnx_opset_version() < 27:
        pytest.skip("LinearAttention is an operator from opset 27 on")
    order = "query", "key", "value", "state", "decay", "beta"
    feeds = {n: given[n] if n == "state" else given[n].reshape(1, len(given[n]), -1) for n in order if n in given}
    names = [name if name in feeds else "" for name in order]
    node = onnx.helper.make_node(
        "LinearAttention", names, ["y", "last"], update_rule=rule, q_num_heads=heads[0], kv_num_heads=heads[1]
    )
    value = lambda name, shape: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    inputs, outputs = [value(name, x.shape) for name, x in feeds.items()], [value(name, None) for name in ("y", "last")]
    graph = onnx.helper.make_graph([node], "graph", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 27)], ir_version=10)
    try:
        session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:  # an older onnxruntime, whose errors have no common class
        pytest.skip(f"onnxruntime {runtime.__version__}: {error}")
    return session.run(None, feeds)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("heads", [(2, 2, 2), (4, 2, 2)], ids=str)
def test_is_the_operator_of_onnx_sequence_by_sequence(rule, heads):
    lengths = [40, 1, 33]
    arrays, constants = drawn(lengths, RULES[rule], heads, (16, 8), np.float32)
    y, last = vr.linear_attention(**variables(arrays, lengths), **constants)
    for i in range(len(lengths)):
        given, _, rows = part_of(arrays, lengths, [i])
        out, state = onnx_of(rule, given, heads)
        np.testing.assert_allclose(np.asarray(y)[rows], out.reshape(len(rows), heads[0], 8), rtol=1e-4, atol=3e-6)
        np.testing.assert_allclose(np.asarray(last)[[i]], state, rtol=1e-4, atol=3e-6)


X = vr.create_lod_tensor(np.ones((5, 2, 4)), [[2, 3]])
G = vr.create_lod_tensor(np.ones((5, 2)), [[2, 3]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"query": np.ones((5, 4))}, "query: expected rank 3"),
        ({"key": np.ones((5, 2, 3))}, r"key: expected shape \(5, -1, 4\)"),
        ({"value": np.ones((4, 2, 4))}, r"value: expected shape \(5, -1, -1\)"),
        ({"value": np.ones((5, 3, 4))}, "value: expected a number of heads that divides"),
        ({"query": vr.create_lod_tensor(np.ones((5, 3, 4)), [[2, 3]])}, "query: expected a number of heads that divid"),
        ({"value": vr.create_lod_tensor(np.ones((5, 2, 4)), [[5]])}, "one LoD: query has lengths"),
        ({"decay": np.ones((5, 1))}, r"decay: expected shape \(5, 2\)"),
        ({"decay": np.ones((5, 2, 3))}, r"decay: expected shape \(5, 2, 4\)"),
        ({"beta": np.ones((5, 2, 1))}, r"beta: expected shape \(5, 2\)"),
        ({"state": np.ones((3, 2, 4, 4))}, "state: expected 2 sequences, as query"),
        ({"state": np.ones((2, 2, 4, 3))}, r"state: expected shape \(-1, 2, 4, 4\)"),
        ({"query": np.ones((5, 2, 4))}, "query: expected a LoD, as key has"),
        ({"state": np.ones((2, 2, 4, 4)), "normalise": True}, "state: expected a pair of states and normalisers"),
        ({"state": (None, np.ones((2, 2, 4))), "normalise": True}, r"attention, state\[0\]: expected a Variable"),
        ({"state": (np.ones((2, 2, 4, 4)), None), "normalise": True}, r"attention, state\[1\]: expected a Variable"),
        ({"state": (np.ones((2, 2, 4)),) * 2, "normalise": True}, r"attention, state\[0\]: expected rank 4"),
        ({"state": (np.ones((2, 2, 4, 4)),) * 2, "normalise": True}, r"state\[1\]: expected shape \(2, 2, 4\), got"),
        ({"beta": np.ones((5, 2), np.float32)}, "beta: expected float64, as query"),
        ({"query": np.ones((5, 2, 4), np.int64)}, "float32 or float64"),
        ({"scale": float("nan")}, "scale: expected finite"),
        ({"scale": "a"}, "scale: expected a number, finite"),
        ({"delta": np.ones(2)}, "delta: expected True or False"),
        ({"recompute": np.ones(2)}, "recompute: expected True or False"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_errors_say_what_is_wrong(given, message):
    with pytest.raises(vr.InputError, match=message):
        vr.linear_attention(**{"query": X, "key": X, "value": X, **given})

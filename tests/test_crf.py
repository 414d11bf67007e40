"""Linear-chain conditional random fields, by enumeration of all labellings."""

import itertools

import numpy as np
import pytest

import varlen_rnn as vr
from tests.differences import slope
from tests.in_threads import on_threads
from tests.oracles import structured as oracle
from varlen_rnn.kernels.crf import crf, viterbi

LENGTHS = [[3, 0, 1, 5], [0, 0], [], [2], [0, 4]]
by_lengths = pytest.mark.parametrize("lengths", LENGTHS, ids=str)
TAGS = 3


def case(lengths, dtype=np.float64, tags=TAGS, seed=0):
    rng, count = np.random.default_rng(seed), sum(lengths)
    emission = vr.create_lod_tensor(rng.standard_normal((count, tags)).astype(dtype) * 2, [lengths])
    return emission, rng.integers(0, tags, count), rng.standard_normal((tags + 2, tags)).astype(dtype)


def wanted(emission, label, transition):
    ends, rows = emission.lod()[0], np.asarray(emission).astype(float)
    found = [oracle.crf(rows[b:e], label[b:e], transition) for b, e in itertools.pairwise(ends)]
    return [cost for cost, _ in found], [tag for _, path in found for tag in path]


@by_lengths
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)], ids=["float64", "float32"])
def test_is_the_sum_over_all_labellings(lengths, dtype, tolerance):
    emission, label, transition = case(lengths, dtype)
    costs, paths = wanted(emission, label, transition.astype(float))
    found = vr.linear_chain_crf(emission, label[:, None], transition)
    np.testing.assert_allclose(np.asarray(found), costs, rtol=tolerance, atol=tolerance)
    path = vr.crf_decoding(emission, transition)
    assert np.asarray(path).tolist() == paths
    assert path.lod() == emission.lod()
    same = vr.crf_decoding(emission, transition, label)
    assert np.asarray(same).tolist() == [int(a == b) for a, b in zip(paths, label, strict=True)]


@by_lengths
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)], ids=["float64", "float32"])
def test_marginals_are_shares_of_all_labellings(lengths, dtype, tolerance):
    emission, _, transition = case(lengths, dtype)
    layer = vr.nn.LinearChainCRF(TAGS, dtype)
    layer.transition.assign(transition)
    found = layer.marginals(emission)
    assert found.lod() == emission.lod()
    ends, rows = emission.lod()[0], np.asarray(emission).astype(float)
    parts = [oracle.crf_marginals(rows[b:e], transition.astype(float)) for b, e in itertools.pairwise(ends)]
    np.testing.assert_allclose(np.asarray(found), np.concatenate([np.zeros((0, TAGS)), *parts]), atol=tolerance)


def test_marginals_of_a_forbidden_tag_are_zero():
    emission, _, transition = case([4])
    transition[:, 0] = -np.inf
    found = np.asarray(vr.ops.sequence.crf.crf_marginals(emission, transition))
    assert (found[:, 0] == 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.twins
@pytest.mark.parametrize(
    ("rows", "kind"), [(200, "any"), (10_000, "any"), (100_000, "of any size"), (100_000, "well known")]
)
def test_float32_keeps_its_digits_over_long_sequences(device, rows, kind):
    rng = np.random.default_rng(rows)
    emission = (2 * rng.standard_normal((rows, TAGS)) + (1000 if kind == "of any size" else 0)).astype(np.float32)
    label, transition = rng.integers(0, TAGS, rows), rng.standard_normal((TAGS + 2, TAGS)).astype(np.float32)
    emission[range(rows), label] += 8 if kind == "well known" else 0
    exact = emission.astype(float)  # less than what all have, which changes nothing, and would overflow
    wanted = oracle.crf_of_many_rows(exact - exact.mean().round(), label, transition.astype(float))
    shapes = emission.shape, (1, TAGS + 4, TAGS), (1,), (1,), emission.shape, (1, TAGS + 2, TAGS)
    alpha, memory, cost, scale, d_emission, d_transition = (device.put(np.ones(shape, np.float32)) for shape in shapes)
    given, ends = (device.put(emission), label, np.array([0, rows]), device.put(transition)), (d_emission, d_transition)
    crf(*given, alpha, memory, cost, scale, *ends)
    np.testing.assert_allclose(device.get(cost)[0], wanted[0], rtol=1e-6)
    for found, right in zip(ends, wanted[1:], strict=True):
        found = device.get(found).reshape(right.shape)
        assert np.linalg.norm(found - right) <= 1e-5 * np.linalg.norm(right)


def test_long_sequences_of_float32_are_those_of_float64():
    (emission, label, transition), found = case([100_000, 0, 3], np.float32), []
    for dtype in (np.float32, np.float64):
        values = emission.like(emission.data.astype(dtype)), transition.astype(dtype)
        x, w = (vr.Variable(value, requires_grad=True) for value in values)
        vr.linear_chain_crf(x, label, w).sum().backward()
        found.append([np.asarray(x.grad), w.grad])
    assert found[0][0].dtype == found[0][1].dtype == np.float32
    for one, two in zip(*found, strict=True):
        assert np.linalg.norm(one - two) <= 1e-5 * np.linalg.norm(two)


def test_large_scores_do_not_overflow():
    emission, label, transition = case([50])
    found = vr.linear_chain_crf(vr.create_lod_tensor(np.asarray(emission) * 1e3, [[50]]), label, transition)
    assert np.isfinite(np.asarray(found)).all()


@pytest.mark.parametrize("seed", range(20))
def test_transitions_of_minus_infinity_forbid(seed):
    rng, tags = np.random.default_rng(seed), 2 + seed % 3
    emission, label, transition = case([4], tags=tags, seed=seed)
    for tag in label:
        transition[:, tag] = 0.0  # so that these labels are allowed, and log Z is finite
    kept = transition.copy()
    transition[rng.random(transition.shape) < 0.4] = -np.inf
    transition[0, label[0]], transition[1, label[-1]] = kept[0, label[0]], kept[1, label[-1]]
    for a, b in itertools.pairwise(label):
        transition[2 + a, b] = kept[2 + a, b]
    (cost,), path = wanted(emission, label, transition)
    x, w = vr.Variable(emission, requires_grad=True), vr.Variable(transition, requires_grad=True)
    found = vr.linear_chain_crf(x, label, w)
    found.sum().backward()
    np.testing.assert_allclose(np.asarray(found), [cost], rtol=1e-12, atol=1e-12)
    assert np.asarray(vr.crf_decoding(emission, transition)).tolist() == path
    assert np.isfinite(np.asarray(x.grad)).all()
    assert (w.grad[np.isinf(transition)] == 0).all()
    difference = slope(lambda: wanted(emission, label, transition)[0][0], emission.data, np.eye(4, tags))
    np.testing.assert_allclose((np.asarray(x.grad) * np.eye(4, tags)).sum(), difference, atol=1e-7)


def test_threads_and_batch_mates_change_no_bit():
    emission, label, transition = case([300, 0, 700, 250, 1, 900], np.float32, tags=17)

    def step():
        x, w = (vr.Variable(value, requires_grad=True) for value in (emission, transition))
        costs = vr.linear_chain_crf(x, label, w)
        costs.sum().backward()
        return costs, x.grad, w.grad

    found = on_threads(step)
    alone = vr.create_lod_tensor(np.asarray(emission)[300:1000], [[700]])
    assert np.asarray(vr.linear_chain_crf(alone, label[300:1000], transition))[0] == found[0][2]


def test_a_layer_learns_which_tag_follows_which():
    """Tags alternate, and rows say nothing but where a sequence begins: only transitions can tell."""
    vr.manual_seed(0)
    lengths = [7, 4, 6]
    rows = vr.create_lod_tensor(np.zeros((17, 2)), [lengths])
    label = np.concatenate([np.arange(n) % 2 for n in lengths])
    layer = vr.nn.LinearChainCRF(2, dtype=np.float64)
    optimizer = vr.optim.Adam(layer.parameters(), lr=0.3)
    for _ in range(30):
        loss = layer(rows, label).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.asarray(layer.decode(rows)).tolist() == label.tolist()
    assert repr(layer) == "LinearChainCRF(2)"


@pytest.mark.twins
def test_on_every_device(device):
    lengths = LENGTHS[0]
    emission, label, transition = case(lengths)
    ends, count, rows = np.array(emission.lod()[0]), len(lengths), np.asarray(emission)
    costs, _ = wanted(emission, label, transition)
    shapes = rows.shape, (count, TAGS + 4, TAGS), (count,), (count,), rows.shape, (count, TAGS + 2, TAGS)
    alpha, memory, found, scales, d_emission, d_transitions = (device.put(np.ones(shape)) for shape in shapes)
    weights = device.put(transition)
    crf(device.put(rows), label, ends, weights, alpha, memory, found, scales, d_emission, d_transitions)
    np.testing.assert_allclose(device.get(found), costs, rtol=1e-12, atol=1e-12)
    for array, gradient in ((rows, device.get(d_emission)), (transition, device.get(d_transitions).sum(axis=0))):
        cost = lambda: sum(wanted(vr.create_lod_tensor(rows, [lengths]), label, transition)[0])
        np.testing.assert_allclose(gradient[1, 2], slope(cost, array, at=(1, 2)), rtol=1e-7, atol=1e-7)


@pytest.mark.twins
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tags_on_every_device(device, dtype):
    emission, label, transition = case(LENGTHS[0], dtype)
    rows = np.asarray(emission)
    best, back, path = (
        device.put(np.zeros(s, t)) for s, t in ((rows.shape, dtype), (rows.shape, int), (len(rows), int))
    )
    viterbi(device.put(rows), np.array(emission.lod()[0]), device.put(transition), best, back, path)
    assert device.get(path).tolist() == wanted(emission, label, transition)[1]


EMISSION, LABEL, TRANSITION = case([2, 3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vr.linear_chain_crf(EMISSION, LABEL + 1, TRANSITION), "label: expected tags 0 to 2, got"),
        (lambda: vr.linear_chain_crf(EMISSION, LABEL[1:], TRANSITION), "label: expected 5 rows"),
        (lambda: vr.linear_chain_crf(EMISSION, LABEL, TRANSITION[1:]), r"transition: expected shape \(5, 3\)"),
        (lambda: vr.linear_chain_crf(np.zeros((5, 3)), LABEL, TRANSITION), "emission: expected at least one level"),
        (lambda: vr.crf_decoding(EMISSION, TRANSITION[:, :2]), "transition: expected shape"),
        (lambda: vr.nn.LinearChainCRF(0), "tags"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(vr.InputError, match=message):
        call()

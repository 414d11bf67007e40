"""Malformed input of every kind: each a clear error of ours, none a crash, nothing half-written."""

import re

import numpy as np
import pytest

import varlen_rnn as vr
from tests.each import check_each
from varlen_rnn.nn import functional as F

NAN, INF = float("nan"), float("inf")
X = np.zeros((5, 3), np.float32)


def lod_tensor():
    return vr.create_lod_tensor(X, [[2, 0, 3]])


def two_levels():
    return vr.create_lod_tensor(X, [[2, 1], [2, 0, 3]])


def plan():
    return vr.sort_by_seq_len(lod_tensor())


def parameter(dtype=np.float32):
    return vr.nn.Parameter(np.zeros((4, 2), dtype))


def with_grad(gradient, optimizer=vr.optim.SGD):
    p = parameter()
    p.grad = gradient
    optimizer([p], lr=0.1).step()


CASES = {}


def cases(group, function, arguments):
    for number, argument in enumerate(arguments):
        shown = re.sub(" at 0x[0-9a-fA-F]+", "", str(argument))  # addresses differ from run to run
        CASES[f"{group} {number}: {shown[:40]!r}"] = (function, argument)


NOT_LEVELS = [None, 5, 2.5, "02", b"02", {"a": 1}, object(), [5], [None], ["02"], [{}], [[[0, 2]]], [["0", "5"]],
              [[0, 2.5, 5]], [[0, NAN, 5]], [[0, None]], [[0, 1 + 2j]], [np.zeros((2, 2), int)], [[0, 2**70]],
              [np.array([0, 2**63], np.uint64)], [[False, True]], [0, 2, 5], np.array([0, 2, 5]), [[0, [2], 5]],
              [np.array(5)]]  # fmt: skip
BAD_OFFSETS = [*NOT_LEVELS, [[1, 5]], [[0, 3, 2, 5]], [[0, -1, 5]], [[-1, 5]], [[]], [[0, 4]], [[0, 6]], [[0]],
               [[2, 0, 3]], [[0, 2], [0, 2, 5, 5]], [[0, 5], [0, 2, 5]], [[0, 2, 1], [0, 2, 5]], [[0, 2, 2], [0, 5]],
               [[0, 1], []], [[], [0, 5]], [[0, 2**62]], [[0, 5], [0, 5], [0, 4]]]  # fmt: skip
BAD_LENGTHS = [*NOT_LEVELS, [[-1, 6]], [[2, 4]], [[6]], [[]], [[0]], [[2**62, 2**62]], [[2**63 - 1, 5]], [[1], [5, 0]],
               [[2], [5]], [[2, 1], [2, 3]], [[1, 1], [2, 3, 0]], [[5], [1, 1, 1, 1]]]  # fmt: skip
cases("LoDTensor offsets", lambda v: vr.LoDTensor(X, v), BAD_OFFSETS)
cases("create_lod_tensor lengths", lambda v: vr.create_lod_tensor(X, v), BAD_LENGTHS)
cases("set_lod", lambda v: lod_tensor().set_lod(v), [[[0, 4]], [[2, 3]], None, [[0, 5], [0, 5]]])
cases("set_recursive_sequence_lengths", lambda v: lod_tensor().set_recursive_sequence_lengths(v), [[[4]], [[-1]], 3])
cases(
    "data",
    lambda v: vr.LoDTensor(v, [[0, 1]]),
    ["a", None, [None], ["a"], object(), [[1], [2, 3]], np.array(["a"]), np.array([1j]), 3.0, {}, np.zeros((0, 2)),
     np.array([object()]), np.array(["2020-01-01"], "M8[D]"), np.zeros(1, [("a", "f4")])],
)  # fmt: skip
cases(
    "from_sequences",
    vr.LoDTensor.from_sequences,
    [None, 3, "abc", {}, [1, 2], [1, [2]], [[1], [[2]]], [["a"]], [[1, None]], [np.zeros((2, 3)), np.zeros((2, 4))],
     [np.zeros(2), np.zeros((2, 1))], [[1], 2], [[object()]]],
)  # fmt: skip
cases("from_sequences levels", lambda n: vr.LoDTensor.from_sequences([[1, 2]], num_levels=n), [0, -1, 2, 3, 1.5, "1"])
cases("slice", lambda v: lod_tensor().slice(*v), [(0, 0, 4), (0, 2, 1), (0, -1, 1), (1, 0, 1), (-2, 0, 1),
                                                   (0, 0.5, 1), (0, "a", 1), (None, 0, 1), (0, True, 1)])  # fmt: skip
cases("branch", lambda v: two_levels()[v], [5, -4, (0, 2), (0, -3), (1, 1), (0, 0, 0), 1.0, "a", None, (), slice(0, 1)])
cases("num_elements", lambda v: two_levels().num_elements(v), [2, -3, 0.0, None, "0"])
cases("to_sequences", lambda v: vr.LoDTensor(v).to_sequences(), [X, 3.0])
cases("plan", vr.sort_by_seq_len, [None, 3, "a", X, [1, 2], [0, 2, 1], [], [0.0, 1.0], vr.LoDTensor(X), vr.LoD(), {}])
cases("plan level", lambda v: vr.sort_by_seq_len(lod_tensor(), v), [1, -2, 0.5, None, "0"])
cases("rank", lambda v: plan()[v], [3, -4, 1.0, None])
cases("bucket", lambda v: plan().padding(v), [0, -1, 1.5, None])
cases("segment_inputs t", lambda t: vr.segment_inputs(lod_tensor(), plan(), t), [3, -1, 0.0, None, "0"])
cases(
    "segment_inputs plan", lambda v: vr.segment_inputs(lod_tensor(), v, 0), [None, [0, 5], vr.sort_by_seq_len([0, 4])]
)
cases("segment_inputs x", lambda v: vr.segment_inputs(v, plan(), 0), [np.zeros((4, 1)), "a", None, 3.0])
cases("init_memories", lambda v: vr.init_memories(v, plan()), [np.zeros((2, 1)), np.zeros((4, 1)), None, 3.0])
cases("init_memories plan", lambda v: vr.init_memories(X[:3], v), [None, [0, 5], 3])
cases(
    "concat_outputs",
    lambda v: vr.concat_outputs(v, plan()),
    [[], [X[:2]], [X[:2], X[:2]], [X[:2], X[:2], X[:2]], [X[:2], X[:2], X[:1, :2]], None, 3,
     [X[:2], X[:2], X[:1].astype(float)], [X[:2]] * 4],
)  # fmt: skip
cases(
    "SelectedRows",
    lambda v: vr.SelectedRows(*v),
    [([0], X[:2], 5), ([5], X[:1], 5), ([-1], X[:1], 5), ([0.5], X[:1], 5), (["a"], X[:1], 5), ([[0]], X[:1], 5),
     ([0], X[:1], -1), ([0], X[:1], 1.5), ([0], 3.0, 5), ([0], np.array(["a"]), 5), (None, X[:1], 5), ([0], None, 5),
     ([0], X[:1], None), ([0], X[:1].astype(int), 5), ([2**70], X[:1], 5)],
)  # fmt: skip
cases("Variable", vr.Variable, ["a", None, {}, [1, "a"], [[1], [1, 2]], object(), np.array([1j])])
cases("requires_grad", lambda v: vr.Variable(v, requires_grad=True), [np.zeros(3, int), np.zeros(3, bool)])
cases(
    "add",
    lambda v: vr.Variable(lod_tensor()) + v,
    [X.astype(float), X[:4], np.zeros(4, np.float32), "a", None, {}, np.zeros((7, 5, 3), np.float32), 1j, [None],
     vr.create_lod_tensor(X, [[5]]), np.array(["a"] * 3), np.array(2.0)],
)  # fmt: skip
cases("axis", lambda v: vr.Variable(X).sum(axis=v), [2, -3, 0.5, "a", (0, 1)])
cases("reshape", lambda v: vr.Variable(X).reshape(*v), [(4, 4), (-1, -1), ("a",), (2, -1), (None,)])
cases("pow", lambda v: vr.Variable(X) ** v, ["a", None, True, np.ones(1), np.ones(3), vr.Variable(2.0), [2], 1j])
cases("index", lambda v: vr.Variable(X)[v], [7, -6, "a", (0, 0, 0), 1.5, (slice(None), 3)])
cases(
    "matmul",
    lambda v: vr.Variable(X) @ v,
    [X, np.zeros(3, np.float32), np.zeros((3, 2)), "a", np.zeros((1, 4, 2), "f")],
)
cases("concat", F.concat, [[], [vr.Variable(X), vr.Variable(X[:4])], [vr.Variable(X), vr.Variable(X.astype(float))]])
cases("concat of one", F.concat, [vr.Variable(X), vr.nn.Parameter(X[:1])])
cases("concat axis", lambda v: F.concat([vr.Variable(X)] * 2, axis=v), [2, -3, 1.5, None])
cases("pool type", lambda v: vr.sequence_pool(lod_tensor(), v), ["avg", "", None, 3, ["sum"]])
cases("pool x", lambda v: vr.sequence_pool(v, "mean"), [X, vr.create_lod_tensor(np.arange(5), [[5]]), "a", None])
cases("backward", lambda v: v.backward(), [vr.Variable(3.0), vr.Variable(X, requires_grad=True)])
cases("gradient", lambda g: (vr.nn.Parameter(X) * 2.0).backward(g), [X[:4], X.astype(float), "a", 3.0])
for kind in ("LSTM", "GRU", "RNN"):
    layer = getattr(vr.nn, kind)
    cases(f"{kind} sizes", lambda v, layer=layer: layer(*v), [(0, 3), (3, 0), (-1, 3), (3.0, 3), ("3", 3), (None, 3),
                                                               (3, 3, 0), (3, 3, 1.5), (True, 3)])  # fmt: skip
    cases(
        f"{kind} options",
        lambda v, layer=layer: layer(3, 3, **v),
        [{"dropout": 1.5}, {"dropout": -0.1}, {"dropout": NAN}, {"dropout": "a"}, {"dtype": int}, {"dtype": "f2"},
         {"dtype": "nothing"}, {"dtype": object}],
    )  # fmt: skip
    cases(
        f"{kind} x",
        lambda v, layer=layer: layer(3, 4)(v),
        [X, vr.LoDTensor(X), vr.create_lod_tensor(X.astype(float), [[5]]), vr.create_lod_tensor(X[:, :2].copy(), [[5]]),
         vr.create_lod_tensor(X[:, 0].copy(), [[5]]), vr.create_lod_tensor(X[None].repeat(5, 0), [[5]]), None, "a",
         vr.create_lod_tensor(np.zeros((5, 3), int), [[5]])],
    )  # fmt: skip
H = np.zeros((1, 3, 4), np.float32)
cases("GRU state", lambda v: vr.nn.GRU(3, 4)(lod_tensor(), v), [H[:, :2], H[:, :, :3].copy(), H[0], H.astype(float),
                                                                  np.repeat(H, 2, 0), "a", (H, H)])  # fmt: skip
cases("LSTM states", lambda v: vr.nn.LSTM(3, 4)(lod_tensor(), v), [H, (H,), (H, H, H), (H, H[:, :2]), "ab", (H, "a")])
cases("nonlinearity", lambda v: vr.nn.RNN(3, 4, nonlinearity=v), ["sinus", None, 3])
cases("Embedding", lambda v: vr.nn.Embedding(*v), [(0, 3), (3, 0), (3.5, 3), (3, 3, 3), (3, 3, -4), (3, 3, 0.5)])
cases(
    "ids",
    lambda v: vr.nn.Embedding(4, 2)(v),
    [np.array([4]), np.array([-1]), np.array([0.0]), "a", None, np.array([2**40]), np.array([True]),
     np.array([2**63], np.uint64)],
)  # fmt: skip
cases("Linear", lambda v: vr.nn.Linear(*v), [(0, 3), (3, 0), (3, "a")])
cases("Linear dtype", lambda v: vr.nn.Linear(3, 3, dtype=v), [int, "cpu"])
cases("Linear x", lambda v: vr.nn.Linear(3, 2)(v), [X[:, :2], X.astype(float), X.astype(int), np.float32(3), "a", None])
cases("dropout", lambda p: vr.nn.Dropout(p), [-0.1, 1.1, NAN, "a", None])
LOGITS = np.zeros((5, 3), np.float32)
cases(
    "labels",
    lambda v: F.cross_entropy(LOGITS, v),
    [np.array([0, 1, 2, 3, 0]), np.array([0, -1, 0, 0, 0]), np.zeros(4, int), np.zeros(5), np.zeros((5, 1), int), "a",
     None],
)  # fmt: skip
cases("logits", lambda v: F.cross_entropy(v, np.zeros(5, int)), [LOGITS[0], LOGITS.astype(int), LOGITS[:4], "a", None])
cases("reduction", lambda v: F.cross_entropy(LOGITS, np.zeros(5, int), v), ["avg", None, 3])
cases("per", lambda v: F.cross_entropy(LOGITS, np.zeros(5, int), per=v), ["batch", None, "sequence"])
cases("bce", lambda v: F.binary_cross_entropy_with_logits(LOGITS, v), [LOGITS[:4], LOGITS.astype(float), "a", None])
cases("mse", lambda v: F.mse_loss(LOGITS, v), [LOGITS[:4], LOGITS.astype(float), "a", None])
cases("parameters", lambda v: vr.optim.SGD(v, lr=0.1), [[], [X], [None], [vr.Variable(X)], None, 3, parameter()])
cases("parameters twice", lambda p: vr.optim.SGD([p, parameter(), p], lr=0.1), [parameter()])
FROZEN = np.frombuffer(np.ones(4).tobytes())
for array in (FROZEN, np.ones((4, 4))[:, ::2]):
    cases("updated in place", lambda v: vr.optim.SGD([vr.Variable(v, requires_grad=True)], lr=0.1), [array])
for name in ("SGD", "Momentum", "Adagrad", "Adam"):
    optimizer = getattr(vr.optim, name)
    cases(f"{name} lr", lambda v, o=optimizer: o([parameter()], lr=v), [-1, NAN, INF, "a", None, X])
cases("Momentum", lambda v: vr.optim.Momentum([parameter()], 0.1, momentum=v), [-0.1, NAN, INF, "a", None])
cases("Adam betas", lambda v: vr.optim.Adam([parameter()], betas=v), [(0.9,), (1, 0.9), (0.9, -1), None, 3, ("a", 0)])
cases("epsilon", lambda v: vr.optim.Adam([parameter()], eps=v), [-1, NAN, "a", None])
cases(
    "grad",
    with_grad,
    [np.zeros((4, 3), np.float32), np.zeros((4, 2)), "a", np.zeros((4, 2), int),
     vr.SelectedRows([0], np.zeros((1, 2), np.float32), 5), vr.SelectedRows([0], np.zeros((1, 2)), 4),
     vr.SelectedRows([0], np.zeros((1, 3), np.float32), 4)],
)  # fmt: skip
cases("max_norm", lambda v: vr.optim.clip_grad_norm_([parameter()], v), [-1, NAN, "a", None])
cases("clipped", lambda v: vr.optim.clip_grad_norm_(v, 1.0), [None, 3, parameter(), [X], [None], "a"])
cases("seed", vr.manual_seed, [-1, 1.5, "a", None])
cases("precision", vr.set_float32_matmul_precision, ["fp64", "high", "TF32", "", None, 32])
cases("threads", vr.set_num_threads, [0, -1, 1.5, "a", None, True])


def test_is_an_error_of_ours():
    check_each(CASES, check_error)


def check_error(name):
    function, argument = CASES[name]
    with pytest.raises(vr.InputError) as caught:
        function(argument)
    assert len(str(caught.value)) > 10


def test_there_are_more_than_two_hundred_kinds():
    assert len(CASES) > 200


def test_names_of_cases_are_those_of_every_run():
    assert not [name for name in CASES if "0x" in name]


def test_nothing_is_half_written():
    x = lod_tensor()
    with pytest.raises(vr.LoDError):
        x.set_lod([[0, 1]])
    assert x.lod() == [[0, 2, 2, 5]]
    model = vr.nn.Linear(3, 2)
    before = model.state_dict()
    with pytest.raises(vr.CheckpointError):
        model.load_state_dict({"weight": before["weight"] + 1, "bias": np.zeros(3, np.float32)})
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())
    optimizer = vr.optim.Adam(model.parameters())
    with pytest.raises(vr.CheckpointError):
        optimizer.load_state_dict({"lr": np.array(0.5), "0.step": np.zeros((), np.int64)})
    assert optimizer.lr == 1e-3


@pytest.mark.parametrize(
    "change",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=0)[::2],
        lambda a: np.concatenate([a, a], axis=1)[:, :3],
        lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
        lambda a: a.astype(">f4"),
    ],
    ids=["fortran", "strided rows", "strided columns", "read-only", "big-endian"],
)
def test_arrays_in_any_memory_order_work(change):
    rows = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    vr.manual_seed(0)
    layer, linear = vr.nn.LSTM(3, 4), vr.nn.Linear(4, 2)
    results = []
    for data in (rows, change(rows)):
        y, _ = layer(vr.create_lod_tensor(data, [[2, 0, 3]]))
        loss = F.mse_loss(vr.sequence_pool(linear(y), "max"), np.ones((3, 2), np.float32))
        loss.backward()
        results.append([np.asarray(loss), *(parameter.grad for parameter in layer.parameters())])
        for p in (*layer.parameters(), *linear.parameters()):
            p.grad = None
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)

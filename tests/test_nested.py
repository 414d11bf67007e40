"""Recurrences at an upper level: steps that are sub-sequences, against loops of Python over documents and sentences."""

import itertools

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

DOCUMENTS = {
    "ragged": [[2, 0, 3], [3, 0, 2, 1, 4]],
    "an empty one first": [[0, 1, 2], [2, 2, 1]],
    "empty sentences alone": [[2, 1], [0, 0, 0]],
    "no sentences": [[0, 0], []],
    "no documents": [[], []],
    "one of one": [[1], [1]],
}
by_documents = pytest.mark.parametrize("lengths", DOCUMENTS.values(), ids=DOCUMENTS)


class Reader(vr.nn.Module):
    """A step: words of a sentence through an LSTM that begins where the document's state says, and a state of it."""

    def __init__(self):
        self.words = vr.nn.LSTM(4, 5, dtype=np.float64)
        self.begin, self.end = vr.nn.Linear(3, 5, dtype=np.float64), vr.nn.Linear(5, 3, dtype=np.float64)

    def forward(self, sentences, h):
        first = self.begin(h).reshape(1, -1, 5)
        y, _ = self.words(sentences, (first, None))
        h = F.tanh(self.end(vr.sequence_pool(y, "mean")) + h)
        return h, h


def reader():
    vr.manual_seed(0)
    return Reader()


def batch(lengths, width=4):
    rows = np.random.default_rng(1).standard_normal((sum(lengths[-1]), width))
    return vr.create_lod_tensor(rows, lengths)


def looped(step, x, h):
    """Return outputs and last states, document by document, sentence by sentence."""
    upper, lower = x.lod()
    outputs, last = [], []
    for number, (begin, end) in enumerate(itertools.pairwise(upper)):
        state = h[number : number + 1]
        for sentence in range(begin, end):
            words = vr.Variable(x)[lower[sentence] : lower[sentence + 1]]
            out, state = step(words.with_lod([[0, lower[sentence + 1] - lower[sentence]]]), state)
            outputs.append(out)
        last.append(state)
    return outputs, last


@by_documents
def test_equals_a_loop_over_documents_and_sentences_bit_for_bit(lengths):
    step, x = reader(), batch(lengths)
    h = np.random.default_rng(2).standard_normal((len(lengths[0]), 3))
    y, last = vr.nn.DynamicRNN(step, level=0)(x, [h])
    outputs, ends = looped(step, x, vr.Variable(h))
    assert y.value.recursive_sequence_lengths() == lengths[:1]
    np.testing.assert_array_equal(np.asarray(y), np.concatenate([np.zeros((0, 3)), *map(np.asarray, outputs)]))
    np.testing.assert_array_equal(np.asarray(last), np.concatenate([np.zeros((0, 3)), *map(np.asarray, ends)]))


@by_documents
def test_gradients_are_those_of_the_loop(lengths):
    step, found = reader(), []
    for nested in (True, False):
        x = vr.Variable(batch(lengths), requires_grad=True)
        h = vr.Variable(np.random.default_rng(2).standard_normal((len(lengths[0]), 3)), requires_grad=True)
        for parameter in step.parameters():
            parameter.grad = None
        if nested:
            y, last = vr.nn.DynamicRNN(step, level=0)(x, [h])
            loss = (y * y).sum() + (last * 3.0).sum()
        else:
            outputs, ends = looped_with_gradient(step, x, h)
            loss = sum(((out * out).sum() for out in outputs), 0.0) + sum(((end * 3.0).sum() for end in ends), 0.0)
        if isinstance(loss, vr.Variable):
            loss.backward()
        leaves = [x, h, *step.parameters()]
        found.append([np.zeros(leaf.shape) if leaf.grad is None else np.asarray(leaf.grad) for leaf in leaves])
    for mine, other in zip(*found, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-12)


def looped_with_gradient(step, x, h):
    """As `looped`, of Variables."""
    (upper, lower), rows = x.lod(), x.with_lod([[0, x.shape[0]]])
    outputs, last = [], []
    for number, (begin, end) in enumerate(itertools.pairwise(upper)):
        state = h[number : number + 1]
        for sentence in range(begin, end):
            first, length = lower[sentence], lower[sentence + 1] - lower[sentence]
            words = vr.sequence_slice(rows, np.array([first]), np.array([length]))
            out, state = step(words, state)
            outputs.append(out)
        last.append(state)
    return outputs, last


def test_three_levels_nest():
    """Words of sentences of documents of shelves: a recurrence in a recurrence in a recurrence."""
    lengths = [[2, 1], [2, 0, 1], [2, 1, 3]]
    x = vr.Variable(batch(lengths), requires_grad=True)
    inner = reader()

    def shelf(documents, h):
        y, _ = vr.nn.DynamicRNN(inner, level=0)(documents, [(3,)])
        h = F.tanh(vr.sequence_pool(y, "sum") + h * 0.5)
        return h, h

    y, last = vr.nn.DynamicRNN(shelf, level=0)(x, [(3,)])
    assert y.value.recursive_sequence_lengths() == [[2, 1]]
    y.sum().backward()
    wanted = []
    for documents in ([[2, 0], [2, 1]], [[1], [3]]):
        rows = np.asarray(x)[:3] if len(documents[0]) == 2 else np.asarray(x)[3:]
        part, _ = vr.nn.DynamicRNN(inner, level=0)(vr.create_lod_tensor(rows, documents), [(3,)])
        h = np.zeros((1, 3))
        for pooled in np.asarray(vr.sequence_pool(part, "sum")):
            h = np.tanh(pooled + h * 0.5)
            wanted.append(h)
    np.testing.assert_allclose(np.asarray(y), np.concatenate(wanted), rtol=1e-13)
    assert np.abs(x.grad.data if hasattr(x.grad, "data") else x.grad).sum() > 0
    assert last.shape == (2, 3)


def test_inputs_of_several_depths():
    """A row for each sentence beside its words."""
    words, tags = batch([[2, 1], [2, 0, 1]]), batch([[2, 1]], 3)

    def step(sentence, tag, h):
        h = F.tanh(vr.sequence_pool(sentence, "sum")[:, :3] + tag + h)
        return h, h

    y, _ = vr.nn.DynamicRNN(step, level=0)((words, tags), [(3,)])
    pooled, h, wanted = np.asarray(vr.sequence_pool(words, "sum"))[:, :3], np.zeros(3), []
    for n, tag in enumerate(np.asarray(tags)):
        h = np.tanh(pooled[n] + tag + (h if n != 2 else 0))
        wanted.append(h)
    np.testing.assert_allclose(np.asarray(y), wanted, rtol=1e-13)


def test_a_program_and_its_file_train_as_eager_mode_does(tmp_path):
    x, states = batch(DOCUMENTS["ragged"]), []
    for saved in (None, False, True):
        step = reader()
        optimizer = vr.optim.SGD(step.parameters(), 0.1)
        if saved is None:
            y, _ = vr.nn.DynamicRNN(step, level=0)(x, [(3,)])
            (y * y).sum().backward()
            optimizer.step()
            states.append(list(step.state_dict().values()))
            continue
        with vr.program_guard() as program:
            out, _ = vr.nn.DynamicRNN(step, level=0)(vr.feed_data("x", [-1, 4], "float64", lod_level=2), [(3,)])
            optimizer.minimize((out * out).sum())
        if saved:
            program.save(tmp_path / "nested")
            program = vr.Program.load(tmp_path / "nested")
        vr.Executor().run(program, {"x": x}, [out.name])
        named = {name.removeprefix("cell."): value for name, value in program.persistables.items()}
        states.append([np.asarray(named[name]) for name in step.state_dict()])
    for other in states[1:]:
        for mine, wanted in zip(other, states[0], strict=True):
            np.testing.assert_array_equal(mine, wanted)


def test_what_fits_no_level_is_told():
    x = batch(DOCUMENTS["ragged"])
    step = lambda s, h: (h, h)
    with pytest.raises(vr.OutOfRangeError, match="level: expected one of the 2 levels of x, got 2"):
        vr.nn.DynamicRNN(step, level=2)(x, [(3,)])
    with pytest.raises(vr.LoDError, match=r"LoD levels 0 to 0 as in x\[0\]"):
        vr.nn.DynamicRNN(lambda s, t, h: (h, h), level=0)((x, batch([[1, 0, 4]])), [(3,)])
    with pytest.raises(vr.InputError, match="output"):
        vr.nn.DynamicRNN(lambda s, h: (s, h), level=0)(x, [(3,)])
    with pytest.raises(vr.DTypeError, match="level"):
        vr.nn.DynamicRNN(step, level="0")

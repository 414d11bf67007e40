"""States that are sequences: what a decoder attends to, and memories that a step writes; against loops of Python."""

import itertools

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

TARGETS = {
    "ragged": [2, 0, 4, 1],
    "one step": [1, 1, 1, 1],
    "none": [0, 0, 0, 0],
    "an empty one first": [0, 3, 3, 2],
}
SOURCES = [3, 2, 0, 5]


class Decoder(vr.nn.Module):
    """Reads a mean of its source, whose weights depend on the state (Bahdanau, 2015)."""

    def __init__(self):
        self.keys, self.query = vr.nn.Linear(3, 4, dtype=np.float64), vr.nn.Linear(5, 4, dtype=np.float64)
        self.score, self.rec = vr.nn.Linear(4, 1, dtype=np.float64), vr.nn.Linear(2 + 3 + 5, 5, dtype=np.float64)
        self.write = vr.nn.Linear(5, 3, dtype=np.float64)

    def attended(self, x, h, source):
        """Return the next state."""
        keys = F.tanh(self.keys(source) + vr.sequence_expand_as(self.query(h), source))
        context = vr.sequence_pool(source * vr.sequence_softmax(self.score(keys)), "sum")
        return F.tanh(self.rec(F.concat([x, context, h], axis=1)))

    def forward(self, x, h, source):
        """A step that only reads the source."""
        h = self.attended(x, h, source)
        return h, h, source


class Writer(Decoder):
    """A step that writes to all of its source, too."""

    def forward(self, x, h, source):
        """Return the output, which has other columns than the state, and the states."""
        h = self.attended(x, h, source)
        return self.write(h), h, source * 0.5 + vr.sequence_expand_as(F.tanh(self.write(h)), source)


def made(kind):
    vr.manual_seed(0)
    return kind()


def given(lengths):
    rng = np.random.default_rng(1)
    x = vr.create_lod_tensor(rng.standard_normal((sum(lengths), 2)), [lengths])
    source = vr.create_lod_tensor(rng.standard_normal((sum(SOURCES), 3)), [SOURCES])
    return [vr.Variable(value, requires_grad=True) for value in (x, rng.standard_normal((4, 5)), source)]


def looped(step, x, h, source):
    """Return outputs and last states, sequence by sequence, and their sum of squares."""
    (begins,), outputs, states, sources = x.lod(), [], [], []
    for number, (begin, end) in enumerate(itertools.pairwise(begins)):
        state, memory = h[number : number + 1], vr.sequence_slice(source.with_lod([[0, sum(SOURCES)]]), *at(number))
        for row in range(begin, end):
            out, state, memory = step(x.with_lod([[0, x.shape[0]]])[row : row + 1], state, memory)
            outputs.append(out)
        states.append(state)
        sources.append(memory)
    return outputs, states, sources


def at(number):
    return np.array([sum(SOURCES[:number])]), np.array([SOURCES[number]])


def squares(values):
    return sum(((value * value).sum() for value in values), 0.0)


@pytest.mark.parametrize("lengths", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("kind", [Decoder, Writer])
def test_equals_a_loop_over_sequences(kind, lengths):
    step, found = made(kind), []
    for is_layer in (True, False):
        x, h, source = given(lengths)
        for parameter in step.parameters():
            parameter.grad = None
        if is_layer:
            y, *last = vr.nn.DynamicRNN(step)(x, [h, source])
            assert y.lod() == x.lod()
            assert last[1].lod() == source.lod()
            groups = [[y], *([state] for state in last)]
        else:
            groups = looped(step, x, h, source)
        (squares(groups[0]) + squares(groups[1]) + squares(groups[2]) * 0.5).backward()
        leaves = [x, h, source, *step.parameters()]
        values = [np.concatenate([np.zeros(0), *(np.asarray(part).ravel() for part in group)]) for group in groups]
        found.append((values, [np.zeros(v.shape) if v.grad is None else np.asarray(v.grad) for v in leaves]))
    for mine, other in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_array_equal(mine, other)
    for mine, other in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-13)


def test_a_program_and_its_file_train_as_eager_mode_does(tmp_path):
    trained = []
    for saved in (None, False, True):
        step = made(Writer)
        optimizer = vr.optim.SGD(step.parameters(), 0.1)
        x, h, source = given(TARGETS["ragged"])
        if saved is None:
            y, *last = vr.nn.DynamicRNN(step)(x, [h.detach(), source.detach()])
            (squares([y]) + squares(last)).backward()
            optimizer.step()
            trained.append(list(step.state_dict().values()))
            continue
        with vr.program_guard() as program:
            inputs = [vr.feed_data("x", [-1, 2], "float64", lod_level=1), vr.feed_data("h", [-1, 5], "float64")]
            inputs.append(vr.feed_data("source", [-1, 3], "float64", lod_level=1))
            out, *ends = vr.nn.DynamicRNN(step)(inputs[0], inputs[1:])
            optimizer.minimize(squares([out]) + squares(ends))
        if saved:
            program.save(tmp_path / "memories")
            program = vr.Program.load(tmp_path / "memories")
        vr.Executor().run(program, {"x": x.value, "h": h.value, "source": source.value}, [out.name])
        named = {name.removeprefix("cell."): value for name, value in program.persistables.items()}
        trained.append([np.asarray(named[name]) for name in step.state_dict()])
    for other in trained[1:]:
        for mine, wanted in zip(other, trained[0], strict=True):
            np.testing.assert_array_equal(mine, wanted)


def test_a_state_below_an_upper_level():
    """Of sentences of documents, where steps are sentences: a state of notes for each document."""
    x = vr.create_lod_tensor(np.ones((6, 1)), [[2, 1], [1, 3, 2]])
    notes = vr.create_lod_tensor(np.arange(5.0).reshape(5, 1), [[2, 3]])

    def step(sentence, note):
        note = note * 2.0 + vr.sequence_expand_as(vr.sequence_pool(sentence, "sum"), note)
        return vr.sequence_pool(note, "sum"), note

    y, last = vr.nn.DynamicRNN(step, level=0)(x, [notes])
    np.testing.assert_array_equal(np.asarray(last).ravel(), [0 + 5, 4 + 5, 4 + 2, 6 + 2, 8 + 2])
    np.testing.assert_array_equal(np.asarray(y).ravel(), [0 + 2 + 2, 5 + 9, 6 + 8 + 10])
    assert last.lod() == notes.lod()


def test_rows_of_states_may_have_levels_above_them():
    """At the last of two levels a state is one row per sentence, though it knows of documents."""
    x = vr.create_lod_tensor(np.ones((6, 1)), [[2, 1], [1, 3, 2]])
    _, last = vr.nn.DynamicRNN(lambda x, h: (h + x, h + x))(x, [vr.sequence_pool(x, "sum")])
    np.testing.assert_array_equal(np.asarray(last).ravel(), [2, 6, 4])
    assert last.lod() == []


def test_what_does_not_fit_is_told():
    x, h, source = given(TARGETS["ragged"])
    grow = lambda x, h, s: (h, h, vr.sequence_concat([s, s]))
    with pytest.raises(vr.LoDError, match=r"expected the LoD of the previous state.*while_loop"):
        vr.nn.DynamicRNN(grow)(x, [h, source])
    with pytest.raises(vr.LoDError, match=r"states\[1\]: expected 4 sequences, as x has, got 2"):
        vr.nn.DynamicRNN(made(Decoder))(x, [h, vr.create_lod_tensor(np.ones((3, 3)), [[1, 2]])])
    layer = vr.nn.DynamicRNN(made(Decoder))
    layer(x, [h, source])
    assert "one of its states is a sequence" in layer.explain()

"""`varlen_rnn.torch.packed`: layers of a replaced model take a batch of one as several sequences."""

import contextlib
import contextvars
import threading

import pytest

from tests.each import check_each
from varlen_rnn.errors import DTypeError, LoDError, ShapeError

torch = pytest.importorskip("torch")

import varlen_rnn.torch as vt  # noqa: E402
from varlen_rnn.runtime import forks  # noqa: E402
from varlen_rnn.torch.function import _passing  # noqa: E402
from varlen_rnn.torch.packing import _changing  # noqa: E402

OFFSETS = [0, 2, 2, 5]


def test_each_sequence_is_as_alone():
    for kind, batch_first in (("GRU", True), ("LSTM", False), ("LSTM", True)):
        layer = vt.replace(getattr(torch.nn, kind)(3, 4, 2, batch_first=batch_first, bidirectional=True))
        rows = torch.randn(5, 3, requires_grad=True)
        wanted, last = layer(rows, offsets=OFFSETS)
        with vt.packed(OFFSETS):
            plain, last_of_plain = layer(rows)
            found, last_of_found = layer(rows[None] if batch_first else rows[:, None])
        for output in (plain, found[0] if batch_first else found[:, 0]):
            assert torch.equal(output, wanted)
            torch.testing.assert_close(
                *(torch.autograd.grad(y.sum(), rows, retain_graph=True) for y in (output, wanted))
            )
        for other in (last_of_plain, last_of_found):
            assert all(map(torch.equal, last, other))


def test_inner_offsets_end_with_their_context_in_their_thread():
    layer = vt.replace(torch.nn.GRU(3, 4, batch_first=True))
    x = torch.randn(1, 5, 3)
    alone, seen = layer(x)[0], []
    with vt.packed(OFFSETS):
        outer = layer(x)[0]
        with contextlib.suppress(ZeroDivisionError), vt.packed(torch.tensor([0, 5])):
            assert torch.equal(layer(x)[0], alone)
            raise ZeroDivisionError
        assert torch.equal(layer(x)[0], outer)
        for run in (lambda call: call(), contextvars.copy_context().run):
            thread = threading.Thread(target=run, args=(lambda: seen.append(layer(x)[0]),))
            thread.start()
            thread.join()
    assert torch.equal(layer(x)[0], alone)
    assert [torch.equal(one, other) for one, other in zip(seen, (alone, outer), strict=True)] == [True, True]


def test_own_lengths_win():
    layer = vt.replace(torch.nn.GRU(3, 4, batch_first=True))
    x, nested = torch.randn(2, 5, 3), torch.nested.nested_tensor([torch.randn(2, 3)], layout=torch.jagged)
    calls = [
        lambda: layer(x, lengths=[3, 5])[0],
        lambda: layer(x[0], offsets=[0, 5])[0],
        lambda: layer(nested)[0].values(),
    ]
    wanted = [call() for call in calls]
    with vt.packed(OFFSETS):
        assert all(torch.equal(call(), y) for call, y in zip(calls, wanted, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it traces
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # read by torch, too
def test_inside_a_compiled_function():
    layer = vt.replace(torch.nn.GRU(3, 4, batch_first=True))
    x = torch.randn(1, 5, 3, requires_grad=True)

    def run(offsets):
        with vt.packed(offsets):
            output, last = layer(torch.tanh(x))
        return output * 2, last

    compiled = torch.compile(run, backend="aot_eager")
    for offsets in (OFFSETS, [0, 1, 5], torch.tensor([0, 4, 5])):
        wanted, found = run(offsets), compiled(offsets)
        assert all(map(torch.equal, found, wanted))
        assert torch.equal(*(torch.autograd.grad(results[0].sum(), x)[0] for results in (found, wanted)))
    assert torch.equal(layer(x)[0], layer(x, lengths=[5])[0])
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.compiler\.disable"):
        torch.compile(run, backend="aot_eager", fullgraph=True)(OFFSETS)


def test_forks_wait_for_threads_that_change_what_is_shared():
    assert {_changing, _passing} <= set(forks._all_turns())


def test_errors():
    layer = vt.replace(torch.nn.GRU(3, 4))

    def enter(offsets):
        with vt.packed(offsets):
            pass

    for offsets in ([1, 2], [0, 3, 2], [], [[0, 2]]):
        with pytest.raises(LoDError):
            enter(offsets)
    for offsets in (None, [0.5], "a", [0, [2]], torch.ones(2)):
        with pytest.raises(DTypeError, match="packed, offsets: expected integers"):
            enter(offsets)

    def check(shape):
        with vt.packed(OFFSETS), pytest.raises(ShapeError, match="expected 1 batch with 5 rows, the last offset of"):
            layer(torch.zeros(shape))

    check_each([(5, 2, 3), (4, 3), (1, 5, 3), (3,), (2, 5, 1, 3)], check)

"""Programs run and train on the emulated device as on the CPU, and their files do not depend on the place."""

import gc

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import MARKS, Driver
from tests.emulated.ledger import steady
from varlen_rnn.nn import functional as F
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device_array import DeviceArray

pytestmark = MARKS
LENGTHS = [3, 0, 2, 4]
IDS = vr.create_lod_tensor(np.random.default_rng(0).integers(0, 9, sum(LENGTHS)), [LENGTHS])
LABELS = vr.LoDTensor(np.array([0, 2, 1, 1]))
SHIFT = np.array([0.5, -0.5, 0.25], np.float32)  # a constant of the program
CUDA = vr.device("cuda")


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())


class Model(vr.nn.Module):
    def __init__(self):
        self.embedding, self.dropout = vr.nn.Embedding(9, 4), vr.nn.Dropout(0.2)
        self.reader, self.output = vr.nn.GRU(4, 5), vr.nn.Linear(5, 3)

    def forward(self, ids, shift):
        rows, _ = self.reader(self.dropout(self.embedding(ids)))
        return self.output(vr.sequence_pool(rows, "mean")) + shift


def recorded(place="cpu"):
    """Return a model on a place, its optimizer, a program of a training step, and the loss."""
    vr.manual_seed(0)
    model = Model().to(place)
    optimizer = vr.optim.Adam(model.parameters(), lr=1e-2, lazy=True)
    with vr.program_guard() as program:
        ids, labels = vr.feed_data("ids", [-1], "int64", lod_level=1), vr.feed_data("labels", [-1], "int64")
        scores = model(ids, vr.Variable(SHIFT).value.to(place))
        scores.name = "scores"
        loss = F.cross_entropy(scores, labels)
        optimizer.minimize(loss)
    return model, optimizer, program, loss


def feed(place):
    return {"ids": IDS.to(place), "labels": LABELS.to(place)}


def losses(program, loss, place, steps=3):
    vr.manual_seed(1)  # of dropout
    return [vr.Executor().run(program, feed(place), [loss])[0].item() for _ in range(steps)]


def test_a_program_trains_where_it_was_moved():
    _, _, program, loss = recorded()
    wanted = losses(program, loss, "cpu")
    model, optimizer, program, loss = recorded()
    assert program.to("cuda") is program
    assert {p.device for p in model.parameters()} == {CUDA}, "the model moves with the program"
    np.testing.assert_allclose(losses(program, loss, "cuda"), wanted, rtol=1e-6)
    states = optimizer.state_dict()
    assert states["0.step"] == 3
    program.to("cpu")
    np.testing.assert_allclose(losses(program, loss, "cpu"), losses_after(wanted), rtol=1e-5)
    assert optimizer.state_dict()["0.step"] == 6
    rest = model(vr.Variable(IDS), SHIFT).sum()
    program.to("cuda")
    with pytest.raises(vr.ProgramError, match="updated since"):
        rest.backward()


def losses_after(first):
    """Return the losses of three more steps on the CPU."""
    _, _, program, loss = recorded()
    assert losses(program, loss, "cpu") == first
    return losses(program, loss, "cpu")


def test_a_program_that_was_recorded_on_the_device_trains_there():
    _, _, program, loss = recorded()
    wanted = losses(program, loss, "cpu")
    _, _, program, loss = recorded("cuda")
    with pytest.raises(vr.PlaceError, match=r"'constant.*' on cpu.*program\.to\('cuda'\)"):
        losses(program, loss, "cuda")
    program.to("cuda")
    np.testing.assert_allclose(losses(program, loss, "cuda"), wanted, rtol=1e-6)
    names = [*program.feed_names, "scores"]
    fetched = vr.Executor().run(program, feed("cuda"), names)
    assert [value.device for value in fetched] == [CUDA] * 3
    assert isinstance(fetched[2], DeviceArray)
    given = feed("cuda")
    for _ in range(2):
        vr.Executor().run(program, given, [loss])
        gc.collect()
    with steady():
        vr.Executor().run(program, given, [loss])


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_files_do_not_depend_on_the_place(place, tmp_path):
    _, _, program, loss = recorded()
    before = program.to_bytes()
    assert program.to("cuda").to_bytes() == before
    losses(program, loss, "cuda", 2)
    program.save(tmp_path / "program.safetensors")
    loaded = vr.Program.load(tmp_path / "program.safetensors").to(place)
    for name, value in loaded.persistables.items():
        np.testing.assert_array_equal(value.to("cpu").data, program.persistables[name].to("cpu").data)
    vr.manual_seed(1)
    wanted = vr.Executor().run(program, feed("cuda"), [loss])[0].item()
    vr.manual_seed(1)
    np.testing.assert_allclose(vr.Executor().run(loaded, feed(place), [loss.name])[0].item(), wanted, rtol=1e-6)


def test_parts_of_a_program_move_with_it(tmp_path):
    model, _, program, loss = recorded()
    pruned = program.prune(["scores"])
    loaded = vr.Program.from_bytes(program.to_bytes())
    of_loaded = loaded.prune(["scores"])
    vr.save_inference_model(tmp_path, ["ids"], ["scores"], program)
    wanted = vr.Executor().run(pruned, {"ids": IDS})[0]
    loaded.to("cuda")
    program.to("cuda")
    vr.save_inference_model(tmp_path / "of_cuda", ["ids"], ["scores"], program)
    for part in (
        pruned, of_loaded, vr.load_inference_model(tmp_path).to("cuda"),
        vr.load_inference_model(tmp_path / "of_cuda").to("cuda"),
    ):  # fmt: skip
        assert {value.device for value in part.persistables.values()} == {CUDA}
        (found,) = vr.Executor().run(part, {"ids": IDS.to("cuda")})
        np.testing.assert_allclose(found.copy_to_host(), wanted, rtol=1e-5)
    first, second = loaded.split(["scores"])
    handed = vr.Executor().run(first, {"ids": IDS.to("cuda")})
    given = dict(zip(first.fetch_names, handed, strict=True)) | {"labels": LABELS.to("cuda")}
    (loss,) = vr.Executor().run(
        second, {name: given.get(name, IDS.to("cuda")) for name in second.feed_names}, [loss.name]
    )
    assert loss.item() > 0
    vr.save_inference_model(tmp_path / "again", ["ids"], ["scores"], program.to("cpu"))
    again = vr.Executor().run(vr.load_inference_model(tmp_path / "again"), {"ids": IDS})[0]
    np.testing.assert_array_equal(again, wanted)
    assert model.output.weight.device == vr.device("cpu")


def test_feeds_and_parameters_in_two_places_are_an_error():
    model, _, program, loss = recorded()
    program.to("cuda")
    before = model.state_dict()
    message = r"feed 'ids': expected values on cuda:0, where the program is, got values on cpu .*cuda:0"
    with steady(), pytest.raises(vr.PlaceError, match=message):
        vr.Executor().run(program, feed("cpu"), [loss])
    program.to("cpu")
    with pytest.raises(vr.PlaceError, match="feed 'ids': expected values on cpu"):
        vr.Executor().run(program, feed("cuda"), [loss])
    model.to("cuda")  # the model alone: its program has a constant, and states, on the host
    with pytest.raises(vr.PlaceError, match=r"program: expected one place, got 'constant' on cpu, 'embedding"):
        vr.Executor().run(program, feed("cuda"), [loss])
    for name, array in before.items():
        np.testing.assert_array_equal(model.state_dict()[name], array)
    with pytest.raises(vr.PlaceError, match="expected 'cpu', 'cuda'"):
        program.to("gpu")


def test_a_program_without_parameters_runs_where_its_feeds_are():
    with vr.program_guard() as program:
        y = vr.feed_data("x", [-1, 2], "float32") * 2.0
    x = np.ones((3, 2), np.float32)
    for place in ("cpu", "cuda"):
        (found,) = vr.Executor().run(program, {"x": vr.LoDTensor(x).to(place)}, [y])
        np.testing.assert_array_equal(vr.Variable(found).cpu().numpy(), 2 * x)


def test_a_program_that_cannot_move_stays(monkeypatch):
    _, _, program, _ = recorded()

    def memory(size):
        raise MemoryError

    monkeypatch.setattr(cuda.driver, "memory", memory)
    with pytest.raises(MemoryError):
        program.to("cuda")
    assert {value.device for value in program.persistables.values()} == {vr.device("cpu")}

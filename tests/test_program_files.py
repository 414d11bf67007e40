"""Programs in files and bytes: saved here, loaded and run in a fresh process, refused where they are not whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import varlen_rnn as vr
from tests import recorded
from tests.recorded import OPTIMIZERS, Model, batches

ROOT = Path(__file__).parent.parent
FORMAT = "varlen_rnn program 1"


@pytest.mark.slow
def test_every_program_runs_the_same_from_a_file_in_a_fresh_process(tmp_path):
    records = {name: record() for name, record in recorded.everything()}
    for number, record in enumerate(records.values()):
        record.program.save(tmp_path / f"{number}.safetensors")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.recorded", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    for number, (name, record) in enumerate(records.items()):
        results, wanted = vr.load(tmp_path / f"{number}.results")["results"], recorded.as_arrays(record.wanted)
        assert results.keys() == wanted.keys(), name
        for key, array in wanted.items():
            assert results[key].dtype == array.dtype, name
            assert results[key].tobytes() == array.tobytes(), f"{name}, {key}"


@pytest.fixture
def trained():
    return recorded.train_program(OPTIMIZERS["adam"])


def test_bytes_and_files_are_the_same(trained, tmp_path):
    program, _ = trained
    program.save(tmp_path / "p")
    content = (tmp_path / "p").read_bytes()
    assert content == program.to_bytes()
    loaded = vr.Program.from_bytes(content)
    assert loaded.desc == program.desc
    assert loaded.to_bytes() == content
    assert vr.Program.from_bytes(bytearray(content)).desc == program.desc


def test_training_goes_on_from_a_file_bit_for_bit(trained, tmp_path):
    program, _ = trained
    feeds = [{"ids": ids, "labels": labels} for ids, labels in batches(4)]
    vr.manual_seed(3)
    for feed in feeds[:2]:
        vr.Executor().run(program, feed, ["loss"])
    program.save(tmp_path / "p")
    loaded = vr.Program.load(tmp_path / "p")
    losses = []
    for one in (program, loaded):
        vr.manual_seed(4)
        losses.append([vr.Executor().run(one, feed, ["loss"])[0].item() for feed in feeds[2:]])
    assert losses[0] == losses[1]
    for name, value in program.persistables.items():
        assert value.data.tobytes() == loaded.persistables[name].data.tobytes(), name


def test_an_inference_model(tmp_path):
    vr.manual_seed(1)
    model = Model()
    folder = tmp_path / "new" / "folder"
    with vr.program_guard() as program:
        labels = vr.feed_data("labels", [-1], "int64")
        ids = vr.feed_data("ids", [-1], "int64", lod_level=1)
        scale = vr.feed_data("scale", [3], "float32")
        logits = model(ids) * scale
        scores = vr.nn.functional.log_softmax(logits)
        loss = vr.nn.functional.cross_entropy(logits, labels)
        vr.optim.SGD(model.parameters(), lr=0.1).minimize(loss)
        vr.save_inference_model(folder, [scale, "ids"], [scores, logits])
    assert os.listdir(folder) == ["model.safetensors"]
    loaded = vr.load_inference_model(folder)
    assert loaded.feed_names == ["scale", "ids"]
    assert loaded.fetch_names == [scores.name, logits.name]
    model.eval()
    for batch, _ in batches():
        with vr.no_grad():
            wanted = model(batch) * np.full(3, 2, np.float32)
        given = {"ids": batch, "scale": np.full(3, 2, np.float32)}
        got = vr.Executor().run(loaded, given)
        assert got[1].tobytes() == np.asarray(wanted).tobytes()
        assert vr.Executor().run(loaded, given)[1].tobytes() == got[1].tobytes()
    # After the guard, by names alone.
    vr.save_inference_model(tmp_path, ["ids", "scale"], [logits.name], program)
    assert vr.load_inference_model(tmp_path).feed_names == ["ids", "scale"]


def _other():
    with vr.program_guard() as other:
        logits = vr.feed_data("ids", [-1], "int64", lod_level=1)
        logits.name = "logits"
    return other, logits


def test_what_an_inference_model_refuses(trained, tmp_path):
    program, _ = trained
    _, logits = _other()
    refused = [
        ((["ids"], [], program), "feeds"),
        (([], ["logits"], program), "expected \\['ids'\\], the feeds that .* need, got \\[\\]"),
        ((["ids", "labels"], ["logits"], program), "expected \\['ids'\\]"),
        ((["ids", "ids"], ["logits"], program), "expected \\['ids'\\]"),
        ((["nothing"], ["logits"], program), "feeds, entry 0"),
        ((["ids"], ["nothing"], program), "fetches, entry 0"),
        ((["ids"], ["feed"], program), "fetches, entry 0"),
        ((["ids"], ["logits"]), "or the program itself"),
        ((["ids"], "logits", program), "a list"),
        ((["ids"], [logits], program), "another"),
        ((["ids"], ["recurrent.kept"], program), "'recurrent.kept': expected an output of inference"),
        ((["ids"], ["dropout.mask"], program), "'dropout.mask': expected an output of inference"),
        ((["ids"], ["logits", 3], program), "fetches, entry 1"),
        ((["ids"], ["lstm.weight_hh_l0@GRAD"], program), "gradient"),
        ((["ids"], ["logits"], "program"), "expected a Program"),
    ]
    (tmp_path / "model.safetensors").write_text("old")
    for arguments, message in refused:
        with pytest.raises(vr.InputError, match=message):
            vr.save_inference_model(tmp_path, *arguments)
    assert (tmp_path / "model.safetensors").read_text() == "old"
    assert os.listdir(tmp_path) == ["model.safetensors"]


def rewritten(content, description=None, metadata=None, **arrays):
    """Return a program's file with another description, metadata or arrays."""
    size = int.from_bytes(content[:8], "little")
    found = json.loads(content[8 : 8 + size])["__metadata__"]
    if description is not None:
        plain = json.loads(found[FORMAT])
        description(plain)
        found = {FORMAT: json.dumps(plain)}
    return safetensors.numpy.save(safetensors.numpy.load(content) | arrays, metadata or found)


def simple():
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float32")
        y = x * vr.Variable(np.ones(3, np.float32), name="w", persistable=True)
        y.name = "y"
    return program


def _newer(plain):
    plain["version"]["version"] = 2
    plain["later"] = 1


def _set(path, key, value):
    def change(plain):
        at = plain["blocks"][0]
        for step in path:
            at = at[step]
        at[key] = value

    return change


def _append(path, number):
    def change(plain):
        at = plain["blocks"][0][path]
        at.append(at[number])

    return change


DESCRIPTIONS = {
    "newer": (_newer, "newer varlen_rnn"),
    "an unknown operator": (_set(["ops", 1], "type", "system"), "operator: expected the name of a declared"),
    "an unbound name": (_set(["ops", 1, "inputs", 0], "arguments", ["z"]), "'z'"),
    "a doubled variable": (_append("vars", 1), "expected one definition, got definitions in blocks 0 and 0"),
    "an operator twice": (_append("ops", 1), "expected one operator that computes it"),
    "a feed twice": (_append("ops", 0), "columns 0, 1, 2"),
    "a name of two lines": (_set(["vars", 1], "name", "a\nb"), "a printable name"),
    "another data type": (_set(["vars", 1, "type", "lod_tensor", "tensor"], "data_type", "FP64"), "operator 1"),
    "a kind as a data type": (
        _set(["vars", 1, "type", "lod_tensor", "tensor"], "data_type", "READER"),
        "a data type of numbers",
    ),
    "another shape": (_set(["vars", 1, "type", "lod_tensor", "tensor"], "dims", [-1, 4]), "operator 1"),
    "a negative size": (_set(["vars", 1, "type", "lod_tensor", "tensor"], "dims", [-2, 3]), "at least -1"),
    "many sizes": (_set(["vars", 1, "type", "lod_tensor", "tensor"], "dims", [1] * 65), "at most 64 sizes"),
    "a type without description": (_set(["vars", 1], "type", {"type": "LOD_TENSOR"}), "the field 'lod_tensor' alone"),
    "a description of another kind": (_set(["vars", 1, "type"], "type", "SELECTED_ROWS"), "the field 'selected_rows'"),
    "a description of no kind": (_set(["vars", 1, "type"], "type", "LOD_RANK_TABLE"), "no field"),
    "an operator on the list of feeds": (_set(["ops", 1, "inputs", 0], "arguments", ["feed"]), "FEED_MINIBATCH"),
    "a persistable without value": (_set(["vars", 1], "persistable", True), "operator|persistable"),
    "no block": (lambda plain: plain.pop("blocks"), "program, blocks"),
    "another block": (lambda plain: plain["blocks"].append(plain["blocks"][0]), "block 1"),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_description_that_does_not_hold_together(name):
    change, message = DESCRIPTIONS[name]
    content = rewritten(simple().to_bytes(), change)
    with pytest.raises(vr.ProgramError, match=message):
        vr.Program.from_bytes(content)


CONTENT = simple().to_bytes()
CONTENTS = {
    "nothing": (b"", "a whole safetensors file"),
    "text": (b"ids,labels\n1,2\n" * 9, "a whole safetensors file"),
    "a long header": ((2**62).to_bytes(8, "little") + CONTENT[8:], "a whole safetensors file"),
    "cut": (CONTENT[:-1], "a whole safetensors file"),
    "longer": (CONTENT + b"\0", "a whole safetensors file"),
    "not bytes": (10**9, "bytes, got int"),
    "no metadata": (safetensors.numpy.save({"w": np.ones(3)}), "varlen_rnn program 1"),
    "a newer file": (rewritten(CONTENT, metadata={"varlen_rnn program 2": "{}"}), "newer"),
    "a missing array": (safetensors.numpy.save({}, {FORMAT: "{}"}), "version"),
    "another array": (rewritten(CONTENT, v=np.ones(3, np.float32)), "only for the described"),
    "another shape": (rewritten(CONTENT, w=np.ones(2, np.float32)), "persistable 'w'"),
    "another data type": (rewritten(CONTENT, w=np.ones(3, np.float64)), "persistable 'w'"),
    "more metadata": (rewritten(CONTENT, metadata={FORMAT: "{}", "format": "pt"}), "with the metadata"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_content_that_is_no_program(name):
    content, message = CONTENTS[name]
    with pytest.raises(vr.ProgramError, match=message):
        vr.Program.from_bytes(content)


def test_a_key_twice_within_the_right_size():
    size = int.from_bytes(CONTENT[:8], "little")
    header = CONTENT[8 : 8 + size].decode()
    entry = header[header.index('"w":') :].rstrip(" }") + "}"
    doubled = (header.rstrip(" ")[:-1] + "," + entry + "}").encode()
    content = len(doubled).to_bytes(8, "little") + doubled + CONTENT[8 + size :]
    with pytest.raises(vr.ProgramError, match="an entry that occurs twice"):
        vr.Program.from_bytes(content)


def test_a_bool_is_0_or_1():
    with vr.program_guard() as program:
        vr.Variable(np.array([True, False]), name="mask")[:1]
    content = bytearray(program.to_bytes())
    content[-1] = 2
    with pytest.raises(vr.ProgramError, match="a bool that is neither 0 nor 1"):
        vr.Program.from_bytes(content)


def test_a_checkpoint_is_not_a_program_and_says_so(tmp_path):
    vr.save(tmp_path / "c", model={"w": np.ones(2)})
    with pytest.raises(vr.ProgramError, match=r"read it with varlen_rnn\.load"):
        vr.Program.load(tmp_path / "c")
    simple().save(tmp_path / "p")
    with pytest.raises(vr.CheckpointError, match="varlen_rnn checkpoint 1"):
        vr.load(tmp_path / "p")


def test_paths_that_cannot_be_used(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(OSError, match=r"directory|such file"):
            vr.Program.load(path)
    with pytest.raises(OSError, match="No such file"):
        simple().save(tmp_path / "no" / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        vr.save_inference_model(tmp_path / "file", ["x"], ["y"], simple())


def test_a_name_that_safetensors_keeps_for_itself():
    with vr.program_guard() as program:
        vr.Variable(np.ones(2), name="__metadata__") * 2.0
    with pytest.raises(vr.ProgramError, match="another name"):
        program.to_bytes()


def test_a_wrong_program_overwrites_nothing(tmp_path, monkeypatch):
    simple().save(tmp_path / "p")
    before = (tmp_path / "p").read_bytes()
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        recorded.train_program(OPTIMIZERS["sgd"])[0].save(tmp_path / "p")
    assert (tmp_path / "p").read_bytes() == before
    assert os.listdir(tmp_path) == ["p"]


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    path, weight = tmp_path / "program.safetensors", vr.nn.Parameter(np.ones((2, 2), np.float32))
    with vr.program_guard() as program:
        rows = vr.feed_data("x", [-1, 2], "float32", lod_level=1)

        def step(depth):
            def cell(x, h):
                h = vr.nn.DynamicRNN(step(depth - 1))(rows, [h])[1] if depth else h + x
                return h, h

            return cell

        vr.nn.DynamicRNN(step(32))(rows, [(2,)])
    for save in (program.save, lambda path: program.to_bytes()):
        with pytest.raises(vr.ProgramError, match="at most 32"):
            save(path)
    assert not path.exists()
    with vr.program_guard() as program:
        vr.feed_data("x", [-1, 2], "float32") @ weight
    program.save(path)
    before = path.read_bytes()
    weight.data.shape = 4
    with pytest.raises(vr.ProgramError, match=r"'parameter': expected .* \[2, 2\], got"):
        program.save(path)
    assert path.read_bytes() == before

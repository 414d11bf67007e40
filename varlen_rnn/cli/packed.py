"""The same steps in PyTorch, on packed sequences, in a process of their own: its threads spin, and would slow ours.

`Packed` starts this very file as a script and talks to it in lines of JSON: first the task, to which the script
answers with PyTorch's version; then, as often as asked, a round of all batches, answered with the seconds of each.
Answers have a descriptor of their own; text that libraries print goes to the errors, where it may explain a failure.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time


class Packed:
    """PyTorch's layer of one kind of cell in a process of its own; a context manager, which ends the process.

    Parameters
    ----------
    cell : "rnn", "lstm" or "gru"
    batches : list of int64 arrays
        The lengths of each batch, not all 0; PyTorch packs no empty sequences, so they are left out.

    Raises
    ------
    OSError
        PyTorch does not run; its last words.

    Attributes
    ----------
    version : str
        PyTorch's.
    """

    def __init__(self, cell, input_size, hidden_size, num_threads, batches):
        with contextlib.ExitStack() as stack:  # any exception here, an interrupt included, ends the process
            self._words = stack.enter_context(tempfile.TemporaryFile("w+"))
            # -P: the folder of this file is no place to import from.
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                text=True,
            )
            stack.callback(self._process.communicate)
            stack.callback(self._process.kill)
            filled = [batch[batch > 0].tolist() for batch in batches]
            self.version = self._ask([cell, input_size, hidden_size, num_threads, filled])
            self._open = stack.pop_all()

    def seconds(self):
        """Return the seconds of a step on each batch, after running them all."""
        return self._ask("round")

    def _ask(self, question):
        with contextlib.suppress(BrokenPipeError):  # it has ended, and why is read below
            print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._words.seek(0)
            lines = self._words.read().strip().splitlines()
            raise OSError(f"PyTorch does not run: {lines[-1] if lines else 'no word'}")
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._open.close()


def _answer():
    """Answer the questions of `Packed`, in its process."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence

    cell, input_size, hidden_size, num_threads, batches = json.loads(sys.stdin.readline())
    torch.set_num_threads(num_threads)
    layer = getattr(torch.nn, cell.upper())(input_size, hidden_size, batch_first=True)

    def seconds(batch):
        lengths = torch.tensor(batch)
        x = torch.randn(len(batch), max(batch), input_size, requires_grad=True)
        began = time.perf_counter()
        y, _ = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        y.data.backward(torch.ones_like(y.data))
        spent = time.perf_counter() - began
        layer.zero_grad()
        return spent

    seconds(batches[0])  # the first step also sets things up
    print(json.dumps(torch.__version__), file=answers)
    for _ in sys.stdin:
        print(json.dumps([seconds(batch) for batch in batches]), file=answers)


if __name__ == "__main__":
    _answer()

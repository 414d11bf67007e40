"""Measure steps of PyTorch's layers on packed sequences, and on padded groups, in another process.

In the same process, PyTorch's spinning threads would slow down the threads of this library.

`Packed` starts this file as a script and exchanges lines of JSON with it.  The first line describes the layer and the
groups of each batch for each number of groups, and the script answers with PyTorch's version.  Each further line is a
number of groups, which asks for a step on every batch; the script answers with the seconds of each step.  With number
1, a batch is packed.  With other numbers, each group is padded, and the gradients of the weights are summed.

The script answers on a copy of standard output.  All other prints go to standard error, because they can explain a
failure.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time


class Packed:
    """PyTorch's layer of one kind of cell in another process; a context manager that ends the process.

    `batches` are the lengths of the sequences in each batch, not all 0.  Empty sequences are left out, because PyTorch
    cannot pack them.  If PyTorch does not run, an OSError has the last line that it printed.
    """

    def __init__(self, cell, input_size, hidden_size, num_threads, batches):
        from varlen_rnn.cli.measure import NUMBERS_OF_GROUPS, divide  # the other process needs nothing of this library

        with contextlib.ExitStack() as stack:  # ends the process after any exception here, interrupts included
            self._words = stack.enter_context(tempfile.TemporaryFile("w+"))
            # -P keeps the folder of this file out of the import path, where its modules would hide other packages.
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._words}
            self._process = subprocess.Popen([sys.executable, "-P", __file__], **pipes, text=True)
            stack.callback(self._process.communicate)
            stack.callback(self._process.kill)
            filled = [batch[batch > 0] for batch in batches]
            groups = {n: [[its.tolist() for its in divide(batch, n)] for batch in filled] for n in NUMBERS_OF_GROUPS}
            groups[1] = [[batch.tolist()] for batch in filled]
            self.version = self._ask([cell, input_size, hidden_size, num_threads, groups])
            self._open = stack.pop_all()

    def seconds(self, number=1):
        """Run a step on each batch, packed or in a number of groups, and return the seconds of each step."""
        return self._ask(number)

    def _ask(self, question):
        with contextlib.suppress(BrokenPipeError):  # the process has ended; the code below reads its errors
            print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._words.seek(0)
            lines = self._words.read().strip().splitlines()
            raise OSError(f"PyTorch does not run: {lines[-1] if lines else 'it ended without a message'}")
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._open.close()


def _answer():
    """Answer the questions of `Packed`; this runs in the other process."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence

    cell, input_size, hidden_size, num_threads, groups = json.loads(sys.stdin.readline())
    torch.set_num_threads(num_threads)
    layer = getattr(torch.nn, cell.upper())(input_size, hidden_size, batch_first=True)

    def seconds(batch, packed):
        xs = [torch.randn(len(group), max(group), input_size, requires_grad=True) for group in batch]
        lengths = torch.tensor(batch[0])
        began = time.perf_counter()
        for x in xs:
            if packed:
                y = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0].data
            else:
                y = layer(x)[0]
            y.backward(torch.ones_like(y))
        spent = time.perf_counter() - began
        layer.zero_grad()
        return spent

    for number, batches in groups.items():  # first steps are not measured, because they initialise PyTorch
        seconds(batches[0], number == "1")
    print(json.dumps(torch.__version__), file=answers)
    for line in sys.stdin:
        number = line.strip()
        print(json.dumps([seconds(batch, number == "1") for batch in groups[number]]), file=answers)


if __name__ == "__main__":
    _answer()

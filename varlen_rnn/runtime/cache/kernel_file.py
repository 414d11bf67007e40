"""The file of one compiled kernel: a digest of the kernel and of its place, then the kernel.

Machine code with a wrong bit, or of another function, would be run.  The digest tells a file that is damaged, cut
short or in the place of another one.  It does not tell who wrote it: whoever can write the folder can run code.
"""

import hashlib

from varlen_rnn.whole_file import write_file


def write_kernel(path, payload):
    """Write the file of a kernel.  After a crash of the system, the rest of the file is found damaged."""
    write_file(path, _digest(path, payload) + payload, durable=False)


def read_kernel(path):
    """Return the kernel that was written to a file, or raise OSError or ValueError: it is not there, or damaged."""
    content = memoryview(path.read_bytes())
    digest, payload = content[:32], content[32:]
    if digest != _digest(path, payload):
        raise ValueError(path)
    return payload


def _digest(path, payload):
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}\0".encode())
    digest.update(payload)
    return digest.digest()

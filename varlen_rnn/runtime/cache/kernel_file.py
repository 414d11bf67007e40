"""Write and read the file of one compiled kernel: a digest of the kernel and of the file's name, then the kernel.

Without the digest, damaged machine code, or code of another function, would be executed.  The digest detects a file
that is damaged, truncated or renamed.  It is no signature: whoever can write to the folder can run code.
"""

import hashlib

from varlen_rnn.whole_file import write_file


def write_kernel(path, payload):
    """Write the file of a kernel, without waiting for the disk; `read_kernel` detects a file damaged by a crash."""
    write_file(path, _digest(path, payload) + payload, durable=False)


def read_kernel(path):
    """Return the kernel in a file; raise OSError if it cannot be read, or ValueError if it is damaged."""
    content = memoryview(path.read_bytes())
    digest, payload = content[:32], content[32:]
    if digest != _digest(path, payload):
        raise ValueError(path)
    return payload


def _digest(path, payload):
    digest = hashlib.sha256(f"{path.parent.name}/{path.name}\0".encode())
    digest.update(payload)
    return digest.digest()

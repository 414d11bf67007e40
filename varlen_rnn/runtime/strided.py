"""Copy device arrays with any strides, by a kernel."""

from varlen_rnn.errors import PlaceError
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.cuda import Kernel

_THREADS = 128  # threads of a block
_MOST_AXES = 4


def copy_strided(source, target):
    """Overwrite a device array by another one of its shape and type; both can have any strides, and up to four axes."""
    if source.ndim > _MOST_AXES:
        expected, hint = f"at most {_MOST_AXES} axes", "x.to('cpu') copies an array with any number of axes"
        raise PlaceError("copy of a strided array", expected=expected, got=f"shape {source.shape}", hint=hint)
    if source.size:
        of_four = [array[(None,) * (_MOST_AXES - array.ndim)] for array in (source, target)]
        copy_strided_cuda[-(-source.size // _THREADS), _THREADS](*of_four)


@Kernel
def copy_strided_cuda(x, out):
    """Copy an array of four axes to another one, both with any strides; one thread per element."""
    i = cuda.grid(1)
    if i < out.size:
        n1, n2, n3 = x.shape[1], x.shape[2], x.shape[3]
        a, b, c, d = i // (n1 * n2 * n3), i // (n2 * n3) % n1, i // n3 % n2, i % n3
        out[a, b, c, d] = x[a, b, c, d]

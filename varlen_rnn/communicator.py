"""`Communicator`: how ranks, the processes that train together, use the engine (MPI, gloo) that connects them.

The class itself serves a single rank.  Adapters for engines, in `distributed/`, define the methods that begin with an
underscore; their arguments are already checked.  Each method is a collective: all ranks call it, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError, ShapeError, check_choice, check_int, check_list, count

Operation: TypeAlias = Literal["sum", "max"]
SUMMED = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64))  # data types that every engine can sum


class Pending(Protocol):
    """A sum that is computed in the background."""

    def progress(self) -> object:
        """Let the engine continue the sum: some engines do so only inside of calls."""

    def wait(self) -> object:
        """Return when the sum is complete."""


class _Complete:
    def progress(self) -> None:
        pass

    def wait(self) -> None:
        pass


class Communicator:
    """The communicator of a single rank; adapters for engines with several ranks are subclasses.

    All ranks call the same methods in the same order, with arrays of one data type.  Every array is C-contiguous.

    Attributes
    ----------
    rank : int
        The number of this process, from 0.
    size : int
        The number of ranks.
    bytes_sent : int
        Bytes that this rank has sent; a sum counts as in a ring, `2 (size - 1) / size` times the bytes of its array.

    Examples
    --------
    >>> comm, gradient = Communicator(), np.ones(2)
    >>> comm.all_reduce(gradient)
    >>> comm.rank, comm.size, gradient
    (0, 1, array([1., 1.]))
    """

    # Adapters define these methods.  The int is the other rank in `_exchange`, and the sending rank in `_broadcast`.
    _all_reduce: Callable[[np.ndarray, Operation], None]
    _start_all_reduce: Callable[[np.ndarray], Pending]
    _all_gather: Callable[[np.ndarray], list[np.ndarray]]
    _all_to_all: Callable[[list[np.ndarray]], list[np.ndarray]]
    _exchange: Callable[[np.ndarray, int], np.ndarray]
    _broadcast: Callable[[np.ndarray, int], None]
    _barrier: Callable[[], None]

    def __init__(self) -> None:
        self.rank, self.size, self.bytes_sent = 0, 1, 0

    def all_reduce(self, array: np.ndarray, op: Operation = "sum") -> None:
        """Replace an array by its elementwise sum or maximum over all ranks.

        Parameters
        ----------
        array : float32, float64 or int64, writeable
            Of the same shape on every rank.
        op : {"sum", "max"}
            The maximum of numbers and NaNs is undefined.

        Raises
        ------
        DTypeError, ShapeError
            The array is of another data type, or cannot be changed in place.
        """
        array = _reducible(array)
        check_choice(op, "all_reduce, op", "sum", "max")
        if self.size > 1:
            self._count_sum(array)
            self._all_reduce(array, op)

    def start_all_reduce(self, array: np.ndarray) -> Pending:
        """Begin to replace an array by its sum over all ranks; the array must not be used until it is complete.

        The array and the errors are as in `all_reduce`.

        Returns
        -------
        handle
            `handle.wait()` returns when the sum is complete; `handle.progress()` lets the engine continue it.
        """
        array = _reducible(array)
        if self.size == 1:
            return _Complete()
        self._count_sum(array)
        return self._start_all_reduce(array)

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all ranks, in the order of ranks.

        Parameters
        ----------
        array : shape `(rows, ...)`
            Ranks may have different numbers of rows; the data type and the shape of a row are the same on all.

        Raises
        ------
        DTypeError, ShapeError
            If `array` is a single number, or has objects; on all ranks if rows differ in size.

        Examples
        --------
        >>> Communicator().all_gather(np.array([3, 4]))
        [array([3, 4])]
        """
        array = _with_rows(array, "all_gather, array")
        if self.size == 1:
            return [array]
        self.bytes_sent += array.nbytes * (self.size - 1)
        return self._all_gather(array)

    def all_to_all(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send `arrays[r]` to rank r, for every r; return the arrays that came from each rank.

        Parameters
        ----------
        arrays : list of arrays, shape `(rows, ...)`
            One per rank.  Numbers of rows may differ; the data type and the shape of a row are the same in all arrays
            of all ranks.

        Raises
        ------
        DTypeError, ShapeError
            If there is not one array per rank, or rows differ in data type or shape.

        Examples
        --------
        >>> Communicator().all_to_all([np.array([3, 4])])
        [array([3, 4])]
        """
        listed = check_list(arrays, "all_to_all, arrays", "a list of arrays")
        if len(listed) != self.size:
            got, expected = count(len(listed), "array"), f"{count(self.size, 'array')}, one for each rank"
            raise ShapeError("all_to_all, arrays", expected=expected, got=got)
        listed = [_with_rows(array, f"all_to_all, arrays, entry {n}") for n, array in enumerate(listed)]
        first = listed[0]
        for number, array in enumerate(listed):
            if (array.dtype, array.shape[1:]) != (first.dtype, first.shape[1:]):
                expected, got = (f"rows of {one.dtype} {list(one.shape[1:])}" for one in (first, array))
                raise ShapeError(f"all_to_all, arrays, entry {number}", expected=expected, got=got)
        if self.size == 1:
            return listed
        self.bytes_sent += sum(array.nbytes for rank, array in enumerate(listed) if rank != self.rank)
        return self._all_to_all(listed)

    def exchange(self, array: np.ndarray, peer: int) -> np.ndarray:
        """Send an array to another rank, and return the array that the other rank sent: both ranks call it.

        Parameters
        ----------
        array : array
            Of the same shape and data type on both ranks.
        peer : int
            The other rank.

        Raises
        ------
        OutOfRangeError
            There is no such rank, or it is this one.
        DTypeError
            An array of objects.
        """
        array = _plain_array(array, "exchange, array")
        peer = check_int(peer, "exchange, peer", 0)
        if peer >= self.size or peer == self.rank:
            expected = f"a rank from 0 to {self.size - 1}, other than this rank, {self.rank}"
            raise OutOfRangeError("exchange, peer", expected=expected, got=peer)
        self.bytes_sent += array.nbytes
        return self._exchange(array, peer)

    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        """Replace an array by the array of one rank.

        Parameters
        ----------
        array : array, writeable
            Of the same shape and data type on all ranks.
        root : int
            The rank whose array all ranks get.

        Raises
        ------
        OutOfRangeError
            There is no rank `root`.
        DTypeError, ShapeError
            An array of objects, or one that cannot be changed in place.
        """
        array = _in_place(array, "broadcast, array")
        root = check_int(root, "broadcast, root", 0)
        if root >= self.size:
            raise OutOfRangeError("broadcast, root", expected=f"a rank from 0 to {self.size - 1}", got=root)
        if self.size > 1:
            self.bytes_sent += array.nbytes if root == self.rank else 0
            self._broadcast(array, root)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        if self.size > 1:
            self._barrier()

    def close(self) -> None:
        """Wait until all ranks call it, and leave the engine; this communicator can do nothing more.

        Call it at the end of a script: if a rank never calls it, all ranks end after the timeout.
        """

    def _count_sum(self, array: np.ndarray) -> None:
        self.bytes_sent += 2 * array.nbytes * (self.size - 1) // self.size


def check_communicator(value: Any, name: str) -> Communicator:
    """Return `value`, or raise an error with `name` unless it is a Communicator."""
    if not isinstance(value, Communicator):
        raise DTypeError(name, expected="a Communicator, as distributed.connect() returns", got=type(value).__name__)
    return value


def _plain_array(array: Any, name: str) -> np.ndarray:
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise DTypeError(name, expected="an array", got=type(array).__name__)
    if array.dtype.hasobject:
        raise DTypeError(name, expected="an array of numbers", got=f"an array of {array.dtype}")
    return np.ascontiguousarray(array) if array.ndim else array


def _with_rows(array: Any, name: str) -> np.ndarray:
    if (found := _plain_array(array, name)).ndim == 0:
        raise ShapeError(name, expected="an array of rows", got="a single number")
    return found


def _in_place(array: Any, name: str) -> np.ndarray:
    found = _plain_array(array, name)
    if not (array.flags.c_contiguous and array.flags.writeable):
        got = "a read-only array" if array.flags.c_contiguous else "an array that is not C-contiguous"
        raise ShapeError(name, expected="a C-contiguous, writeable array", got=got)
    return found


def _reducible(array: Any) -> np.ndarray:
    array = _in_place(array, "all_reduce, array")
    if array.dtype not in SUMMED:
        raise DTypeError("all_reduce, array", expected="float32, float64 or int64", got=array.dtype)
    return array

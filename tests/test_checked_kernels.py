"""`VARLEN_RNN_CHECK=1`: a wrong index is an IndexError, in the user's own compiled code too, and all else as it was."""

import doctest
import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from tests.waiting import HANGS
from varlen_rnn.kernels import (
    alignment,
    causal,
    convolutions,
    crf,
    ctc,
    edit_distance,
    largest,
    lattice,
    losses,
    moves,
    n_best,
    norms,
    pairwise,
    philox,
    pool,
    prefixes,
    rows,
    segment,
    softmax,
    transducer,
    updates,
    windows,
)
from varlen_rnn.runtime.cache import CHECKED, this_environment
from varlen_rnn.runtime.numba_internals import CPUDispatcher, is_inlined

MODULES = (
    alignment, causal, convolutions, crf, ctc, edit_distance, largest, lattice, losses, moves, n_best, norms, pairwise,
    philox, pool, prefixes, rows, segment, softmax, transducer, updates, windows,
)  # fmt: skip
X, OUT, ONES = np.ones((3, 2)), np.zeros((2, 2)), np.ones(2)
FAR = 10**9


def indices(*values):
    return np.array(values, np.int64)


def far(shape):
    return np.full(shape, FAR)


@njit
def of_the_user(x, offsets):
    out = np.empty((len(offsets) - 1, x.shape[1]))
    pool.pool_sum_cpu(x, offsets, np.ones(len(out)), out)
    return out


# For each kernel, arguments that are wrong.
WRONG = {
    "pool_sum_cpu": (X, indices(0, 2, FAR), ONES, OUT),
    "pool_sum_grad_cpu": (OUT, indices(0, 2, FAR), ONES, X),
    "pool_max_cpu": (X, indices(0, 2, FAR), OUT, far((2, 2))),
    "sum_copies_cpu": (OUT, indices(0, 2), indices(1, 1), X),
    "convolve": (X, indices(0, 1, 2, 1, 1)[None], far((1, 1)), 0, np.zeros(3)),
    "shares_above_cpu": (0, 1, X, indices(0, 3), indices(0, 1, 2, 1, 1)[None], far((1, 1)), np.zeros((1, 2)), OUT),
    "pick_ends_cpu": (X, indices(0, FAR), True, OUT),
    "pick_ends_grad_cpu": (OUT, indices(0, FAR), True, X),
    "reverse_rows_cpu": (X, indices(0, FAR), X),
    "pick_rows_cpu": (X, far((2, 2)), OUT),
    "pick_rows_grad_cpu": (OUT, far((2, 2)), X),
    "softmax_cpu": (X, indices(0, 2, FAR), X),
    "softmax_grad_cpu": (X, X, indices(0, 2, FAR), X),
    "row_conv_cpu": (X, indices(0, 2, FAR), OUT, 1, X),
    "causal_conv_cpu": (0, 1, X, indices(0, 2, FAR), OUT, ONES, np.zeros((2, 2, 2)), X),
    "next_window_cpu": (X, indices(0, 2, FAR), np.zeros((2, 1, 2)), np.zeros((2, 1, 2))),
    "causal_conv_grad_cpu": (0, 1, X, indices(0, 2, FAR), OUT, np.zeros((2, 2, 2)), np.zeros((2, 2, 2)), X),
    "causal_conv_weight_grad_cpu": (0, 1, X, X, indices(0, 1), np.zeros((1, 2, 2)), np.zeros((1, 3, *OUT.shape)), OUT),
    "stabilise_cpu": (X, X, indices(0, 2, FAR), OUT, OUT, X, X),
    "cumsum_cpu": (X, indices(0, 2, FAR), 1, X),
    "draw_mask_cpu": (0, 1, indices(1, 2), indices(), 1, 2**31, 0.0, 1.0, X),
    "largest_cpu": (ONES, indices(0, 3), indices(0, 1), indices(0)),
    "layer_norm_cpu": (X, ONES[:1], ONES, 0.1, True, OUT),
    "layer_norm_grad_cpu": (X, ONES[:1], X, 0.1, True, np.zeros(8), OUT),
    "log_softmax_cpu": (X, ONES[None, :1], X),
    "pairwise_sum": (ONES, 0, FAR),
    "highest_of": (ONES, 0, FAR),
    "mean_of_neighbours": (ONES, FAR, 1, np.zeros(1)),
    "cross_entropy_grad_cpu": (X, indices(0, 1, FAR), np.ones(3), X.copy()),
    "sum_by_class_cpu": (np.ones(3), indices(0, 1, FAR), np.zeros(2), np.zeros(2)),
    "check_classes": (indices(5), 0, 1, -1, indices()),
    "inverse_lengths": (indices(0), False, ONES),
    "fill_empty_sequences": (indices(0, FAR), 0.0, OUT),
    "check_indices": (indices(0), 1, False, 0, False, indices(0, 0), indices(0)),
    "numbers_of_adam": (ONES, indices(), 0.9, 0.9, 0.1, True, 0.0, ONES, indices(0)),
    "shrink_cpu": (indices(0, FAR), 0.5, X.copy()),
    "negative_log_likelihood_cpu": (X, indices(0, 1, FAR), np.zeros(3)),
    "gather_rows_cpu": (X, indices(0, FAR), OUT),
    "repeat_sequences_cpu": (X, indices(0, FAR), indices(1), OUT),
    "place_slices": (indices(0, 2), indices(0, 1), indices(0, 1), indices(0), indices(0, 0)),
    "fill_between_runs_cpu": (indices(FAR), indices(1), 0.0, OUT),
    "copy_runs_cpu": (X, indices(FAR), indices(0), indices(1), OUT),
    "scatter_add_rows_cpu": (OUT, indices(0, FAR), np.zeros(99, np.uint8), X),
    "segment_inputs_cpu": (X, indices(0, FAR), 1, OUT),
    "concat_outputs_cpu": (OUT, indices(0, FAR), 1, X),
    "init_memories_grad_cpu": (OUT, indices(0, FAR), X),
    "crf_cpu": (
        0,
        1,
        X,
        indices(0, FAR, 1),
        indices(0, 3),
        np.zeros((4, 2)),
        X,
        np.zeros((0, 6, 2)),
        *[ONES[:1]] * 2,
        X[:0],
        np.zeros((0, 4, 2)),
    ),
    "viterbi_cpu": (X, indices(0, FAR), np.zeros((4, 2)), far((3, 2)) * 1.0, far((3, 2)), indices(0, 0, 0)),
    "ctc_cpu": (
        0,
        1,
        X,
        indices(0, 3),
        indices(FAR),
        indices(0, 1),
        0,
        np.zeros(35),
        indices(0, 35),
        *[ONES[:1]] * 2,
        X[:0],
    ),
    "align_texts_cpu": (
        0,
        1,
        X,
        indices(0, 3),
        indices(1),
        0,
        far((2, 4)),
        np.zeros(3),
        np.zeros(9, np.int8),
        far((2, 1)),
    ),
    "top_cpu": (ONES.reshape(2, 1, 1), far((1, 1, 1))),
    "take_along_cpu": (X[None], far((1, 1, 2)), OUT[None, :1]),
    "put_along_cpu": (OUT[:, None], far((1, 1, 2)), OUT[:, None].copy()),
    "check_lattices": (indices(0, 2, 3), indices(0, 1), indices(0)),
    "lattice_rows_cpu": (0, 1, X, indices(0, FAR), X, indices(0, 3), indices(0, FAR), OUT),
    "emissions_cpu": (0, 1, X, indices(0, 3), indices(FAR, FAR), indices(0, 2), 0, OUT.copy(), np.zeros((3, 6))),
    "transducer_cpu": (0, 1, np.zeros((3, 6)), indices(0, FAR), indices(0, 2), np.zeros(1)),
    "transducer_shares_cpu": (0, 1, np.zeros((3, 6)), indices(0, FAR), indices(0, 2), ONES, OUT, OUT),
    "transducer_grad_cpu": (0, 1, X, indices(0, 3), indices(FAR, FAR), indices(0, 2), 0, np.zeros((3, 6)), X, X.copy()),
    "edit_distance_cpu": (0, 1, indices(1, 2), indices(0, FAR), indices(1), indices(0, 1), indices(0, 0), indices(0)),
    "search_labellings_cpu": (
        0,
        1,
        X,
        indices(0, FAR),
        np.zeros((4, 2)),
        np.zeros((1, 2, 2, 3)),
        far((3, 2, 3)),
        far((1, 2)),
        np.zeros((1, 3)),
        far((1, 3)),
    ),
    "step_prefixes": (X, 0, 0, far((4, 6)), far((1, 4)), np.zeros((1, 5)), indices(1, 1), np.zeros((1, 2))),
    "search_prefixes_cpu": (0, 1, X, indices(0, FAR), 0, 1, far((4, 6)), far((1, 4)), np.zeros((1, 5)), indices(0)),
    "first_not_finite": (ONES, indices()),
    "mark_cpu": (indices(FAR), np.zeros((1, 2))),
    "overwrite_listed": (indices(FAR), OUT, OUT.copy()),
    "copy_padding": (X, indices(FAR, FAR), OUT.copy()),
    "find_edges": (indices(0, 2, FAR), -1, 3, indices(0, 0)),
    "place_windows": (indices(0, 2), 0, 1, indices(FAR), far((1, 2)), far((1, 2))),
    "places_of_rows": (indices(0, FAR), indices(), far((2, 3))),
    "draw_noted_mask": (indices(0, 0), 0, indices(1, 2), indices(), 2**31, 0.0, 1.0, X),
    "row_conv_weight_grad": (X, X, indices(0, FAR), OUT.copy(), OUT.copy()),
    "windows_of_images": (np.ones((1, 1, 3, 3)), (1, 1), (0, 0), np.zeros((2, 1, 1, 1, 2, 2))),
    "add_windows_to_images": (np.zeros((1, 1, 1, 1, 2, 2)), (1, 1), (0, 0), np.ones((2, 1, 3, 3))),
    "too few offsets": (X, indices(0, 2), ONES, OUT),
    "a block beyond the rows": (np.ones((60, 2)), indices(0, 100), ONES, OUT[:1]),
    "of_the_user": (X, indices(0, 2, FAR)),
} | {
    f"{name}_cpu": (indices(FAR), ONES[None], 0.1, *update.constants.values(), *[X] * (1 + len(update.states)))
    for name, update in updates.UPDATES.items()
}
FUNCTIONS = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, CPUDispatcher) and not name.startswith("_")
}
FUNCTIONS |= dict.fromkeys(("too few offsets", "a block beyond the rows"), pool.pool_sum_cpu)
FUNCTIONS["of_the_user"] = of_the_user


def main():
    """Call every kernel with arguments that are wrong, and those of the documentation with what is right."""
    gc.set_threshold(50_000)  # see conftest.py
    for name, arguments in WRONG.items():
        try:
            FUNCTIONS[name](*arguments)
        except IndexError as error:
            print(f"{name}: {error}")
    for module in MODULES:
        assert doctest.testmod(module, extraglobs={"np": np}).failed == 0
    assert CHECKED
    print(this_environment().name, this_environment().description)


@pytest.mark.slow
def test_a_wrong_index_is_an_error(tmp_path):
    environment = os.environ | {"VARLEN_RNN_CHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "VARLEN_RNN_QUIET": "1"}
    command = [sys.executable, "-c", "import tests.test_checked_kernels as t; t.main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.stderr == ""
    *told, environment = done.stdout.splitlines()
    assert told == [f"{name}: index is out of bounds" for name in WRONG]
    name, description = environment.split(maxsplit=1)
    assert name != this_environment().name
    assert description.endswith(", checked")
    assert [path.name for path in (tmp_path / "varlen_rnn").iterdir()] == [name], "in a folder of their own"


def test_every_kernel_is_called_with_wrong_arguments():
    bodies = {name for name, value in FUNCTIONS.items() if is_inlined(value)}
    assert FUNCTIONS.keys() - bodies - {"first_outside", "key_of"} == WRONG.keys()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_kernels_say_that_they_check_no_bounds(module):
    assert "check no bounds" in module.__doc__

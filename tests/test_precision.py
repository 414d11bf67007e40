"""The precision of products on a CUDA device: names, contexts, and a CPU that does not know it."""

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import varlen_rnn as vr
from tests.waiting import HANGS


@pytest.fixture(autouse=True)
def fp32_again():
    yield
    vr.set_float32_matmul_precision("fp32")


def test_the_precision_is_fp32_until_it_is_set():
    assert vr.get_float32_matmul_precision() == "fp32"
    vr.set_float32_matmul_precision("tf32")
    assert vr.get_float32_matmul_precision() == "tf32"


@pytest.mark.parametrize(("name", "hint"), [("highest", "'fp32'"), ("high", "'tf32'"), ("medium", "bfloat16")])
def test_names_of_pytorch_are_answered_with_ours(name, hint):
    with pytest.raises(vr.InputError, match=f"expected 'fp32' or 'tf32', got '{name}' .*{hint}"):
        vr.set_float32_matmul_precision(name)
    assert vr.get_float32_matmul_precision() == "fp32"


def test_threads_that_set_a_precision_keep_it_and_new_threads_have_the_last():
    vr.set_float32_matmul_precision("fp32")
    meet = threading.Barrier(2)

    def set_own(precision):
        vr.set_float32_matmul_precision(precision)
        meet.wait(HANGS)
        return vr.get_float32_matmul_precision()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(set_own, ("fp32", "tf32"))) == ["fp32", "tf32"]
    assert vr.get_float32_matmul_precision() == "fp32", "who has set one keeps it"
    vr.set_float32_matmul_precision("tf32")
    assert contextvars.Context().run(vr.get_float32_matmul_precision) == "tf32"


def test_the_cpu_has_the_same_bits_at_both_precisions():
    layer, x = vr.nn.LSTM(5, 7), vr.create_lod_tensor(np.random.default_rng(0).standard_normal((9, 5), "f"), [[4, 5]])
    results = []
    for precision in ("fp32", "tf32"):
        vr.set_float32_matmul_precision(precision)
        results.append(layer(x)[0].numpy())
    assert np.array_equal(*results)

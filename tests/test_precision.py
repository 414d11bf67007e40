"""The precision of products of float32: names, contexts, and a CPU that does not know TensorFloat-32."""

import contextlib
import contextvars
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import varlen_rnn as vr
from tests.waiting import HANGS
from varlen_rnn.runtime.precision import precision_on_cuda

pytestmark = pytest.mark.usefixtures("fp32_again")


def test_the_precision_is_fp32_until_it_is_set():
    assert vr.get_float32_matmul_precision() == "fp32"
    vr.set_float32_matmul_precision("tf32")
    assert vr.get_float32_matmul_precision() == "tf32"


@pytest.mark.parametrize(("name", "hint"), [("highest", "'fp32'"), ("high", "'tf32'"), ("medium", "'bf16'")])
def test_names_of_pytorch_are_answered_with_ours(name, hint):
    expected = "'fp32' or 'tf32' or 'bf16' or 'bf16-avx512'"
    with pytest.raises(vr.InputError, match=f"expected {expected}, got '{name}' .*{hint} here"):
        vr.set_float32_matmul_precision(name)
    with pytest.raises(vr.InputError, match=f"got '{name}'"), vr.float32_matmul_precision(name):
        pass
    assert vr.get_float32_matmul_precision() == "fp32"


def test_a_block_has_its_precision_and_restores_the_one_before_also_after_an_error():
    vr.set_float32_matmul_precision("tf32")
    with vr.float32_matmul_precision("bf16"):
        with contextlib.suppress(KeyError), vr.float32_matmul_precision("bf16-avx512"):
            assert vr.get_float32_matmul_precision() == "bf16-avx512"
            raise KeyError
        assert vr.get_float32_matmul_precision() == "bf16"
        assert contextvars.Context().run(vr.get_float32_matmul_precision) == "tf32", "the block is of this context"
    assert vr.get_float32_matmul_precision() == "tf32"


def test_a_block_keeps_no_precision_of_its_own_behind_it():
    def after_a_block():
        with vr.float32_matmul_precision("bf16"):
            pass
        return vr.get_float32_matmul_precision()

    vr.set_float32_matmul_precision("tf32")
    assert contextvars.Context().run(after_a_block) == "tf32", "a context without its own precision has the last one"
    decorated = vr.float32_matmul_precision("bf16")(vr.get_float32_matmul_precision)
    assert (decorated(), decorated(), vr.get_float32_matmul_precision()) == ("bf16", "bf16", "tf32")


def test_bfloat16_is_refused_by_name_on_cuda():
    for precision in ("bf16", "bf16-avx512"):
        with vr.float32_matmul_precision(precision):
            with pytest.raises(vr.PlaceError, match=f"product, precision on cuda.*'fp32' or 'tf32', got '{precision}'"):
                precision_on_cuda("product")
    with vr.float32_matmul_precision("tf32"):
        assert precision_on_cuda("product") == "tf32"


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


def test_a_process_is_told_once_that_products_are_emulated():
    text = """if True:
        import numpy as np
        import varlen_rnn as vr
        for _ in range(2):
            with vr.float32_matmul_precision("bf16"):
                vr.Variable(np.ones((3, 4), np.float32)) @ vr.Variable(np.ones((4, 5), np.float32))
    """
    for quiet, times in (("0", 1), ("1", 0)):
        done = subprocess.run(
            [sys.executable, "-c", text], env=os.environ | {"VARLEN_RNN_QUIET": quiet}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("products at precision 'bf16' are emulated") == times, done.stderr

"""`docs/gpu_figures.md` is up to date, except for the figures of ptxas, which depend on the compiler."""

import doctest

import pytest

from tests import gpu_model


def test_the_example_of_the_model():
    found = doctest.testmod(gpu_model)
    assert found.attempted
    assert not found.failed


def test_every_assumption_has_a_source():
    assert gpu_model.ASSUMPTIONS.keys() == gpu_model.H100._asdict().keys()


@pytest.mark.parametrize("hidden", gpu_model.SIZES)
def test_predictions_are_no_less_than_floors(hidden):
    _, weights, states, fp32, tf32, barrier = gpu_model.floors(hidden)
    _, _, forward, _, backward, persistent, with_tf32 = gpu_model.predictions(hidden)
    assert min(forward, backward) >= max(gpu_model.H100.launch, weights, fp32)
    assert persistent >= barrier + fp32
    assert persistent > with_tf32 >= barrier + tf32
    assert states > 0


def test_products_take_no_less_than_the_floor():
    plain, small, large, floor = (line[3:] for line in gpu_model.product_lines())
    for line in (plain, small, large):
        assert all(time >= least for time, least in zip(line, floor, strict=True))
    assert plain[2] > 10 * small[2] > 10 * large[2] > 10 * floor[2]


@pytest.mark.slow
@pytest.mark.needs_device
def test_the_page_is_up_to_date():
    from tests import gpu_page
    from tests.emulated.gate import declared

    text = gpu_page.PATH.read_text()
    fixed, kernels = gpu_page.page()
    assert text.startswith(fixed), "python -m tests.gpu_page writes it"
    first = lambda part: [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    assert first(text.removeprefix(fixed)) == first(kernels), "the same kernels"
    assert all(f"| `{name.removeprefix('varlen_rnn.')}`" in kernels for name in declared().values()), "every kernel"
    stacks = [line.split("|")[-2].strip() for line in kernels.splitlines() if line.startswith("| `")]
    assert set(stacks) == {"0"}

"""Laws of bits at the precision "bf16": only operators that multiply depend on it, and all ways to run one agree."""

import copy

import numpy as np

import varlen_rnn as vr
from tests.each import check_each
from varlen_rnn.program.checker import examples_of
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.tape.operator import OPERATORS
from varlen_rnn.tape.values import bits_of_value

RNG = np.random.default_rng(0)
ROWS = vr.create_lod_tensor(RNG.standard_normal((7, 5)).astype("f"), [[3, 0, 4]])
OURS = [op for op in OPERATORS.values() if op.examples and op.forward.__module__.startswith("varlen_rnn.")]
HAVE_BLOCKS = {op.type for op in OURS if "block" in op.attrs.values()}  # the operators in the block have the precision


def in_float32(trial):
    """Return a trial with float32 for float64."""
    return trial._replace(values=list(map(narrowed, trial.values)))


def narrowed(value):
    if isinstance(value, SelectedRows):
        return SelectedRows(value.rows, narrowed(value.value), value.height)
    is_wide = isinstance(value, LoDTensor | np.ndarray) and value.dtype == np.float64
    return (
        value
        if not is_wide
        else value.like(narrowed(value.data))
        if isinstance(value, LoDTensor)
        else np.float32(value)
    )


def computed(trial, forward, backward):
    """Return the bits of the results and of the gradients, computed at the precisions `forward` and `backward`."""
    variables = trial.variables()
    with vr.float32_matmul_precision(forward):
        _, shown = trial.apply(variables)
        total = [output for output in shown if output.requires_grad]
    with vr.float32_matmul_precision(backward):
        for output in total:
            weight = np.random.default_rng(0).standard_normal(output.shape).astype(output.dtype)
            output.backward(gradient=weight)
            break
    gradients = [v.grad for v in variables if v is not None and v.grad is not None]
    return [bits_of_value(output.value) for output in shown], [bits_of_value(gradient) for gradient in gradients]


def check_operator(name):
    op = OPERATORS[name]
    for trial in map(in_float32, examples_of(op)):
        plain, rounded = computed(trial, "fp32", "fp32"), computed(trial, "bf16", "bf16")
        assert op.multiplies or name in HAVE_BLOCKS or plain == rounded, (
            "it depends on the precision, so it needs multiplies=True"
        )
        if plain != rounded:
            assert computed(trial, "bf16", "fp32") == rounded
            assert computed(trial, "fp32", "bf16") == plain


def test_only_operators_that_multiply_depend_on_the_precision():
    check_each([op.type for op in OURS if op.scalar is None and not op.in_place], check_operator)


class Model(vr.nn.Module):
    def __init__(self):
        self.rnn, self.head = vr.nn.LSTM(5, 6, bidirectional=True), vr.nn.Linear(12, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def results_of(model, forward, backward="fp32"):
    """Return the bits of a model's outputs and gradients at two precisions."""
    model.zero_grad()
    with vr.float32_matmul_precision(forward):
        y = model(ROWS)
    with vr.float32_matmul_precision(backward):
        (y * y).sum().backward()
    return bits_of_value(y.value), [bits_of_value(p.grad) for p in model.parameters()]


def test_a_program_and_its_file_have_the_bits_of_the_precision_at_which_they_were_recorded():
    model = Model()
    for precision in ("bf16", "fp32"):
        with vr.program_guard() as program:
            x = vr.feed_data("x", [-1, 5], "float32", 1)
            with vr.float32_matmul_precision(precision):
                y = model(x)
            vr.backward((y * y).sum())
        fetches = [y.name, *(f"{name}@GRAD" for name, _ in model.named_parameters())]
        wanted, *gradients = results_of(model, precision)
        for one in (program, vr.Program.from_bytes(program.to_bytes())):
            for _ in range(4):  # later runs are records, without Python
                for other in ("fp32", "bf16-avx512"):
                    with vr.float32_matmul_precision(other):
                        found = vr.Executor().run(one, {"x": ROWS}, fetches)
                    assert [bits_of_value(found[0]), list(map(bits_of_value, found[1:]))] == [wanted, *gradients]


def test_a_bound_step_of_a_training_has_the_bits_of_the_precision_of_each_call():
    def trained(wrap):
        vr.manual_seed(0)
        model = Model()
        optimizer = vr.optim.Adam(model.parameters(), lr=0.01)

        @wrap
        def step(x):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        losses = []
        for precision in ("bf16", "fp32", "bf16") * 4:
            with vr.float32_matmul_precision(precision):
                losses.append(step(ROWS).item())
        return losses, [bits_of_value(p.value) for p in model.parameters()]

    assert trained(vr.bound) == trained(lambda step: step)


def test_prepared_layers_and_streams_have_the_bits_of_the_precision_of_their_preparation():
    model = Model()
    forward = vr.nn.GRU(5, 6)
    for precision in ("bf16", "bf16-avx512", "fp32"):
        with vr.float32_matmul_precision(precision):
            run, stream = model.prepare(), forward.stream(1)
            wanted = forward(vr.LoDTensor(ROWS.data, [[0, 7]]))[0].numpy()
        for other in ("fp32", "bf16"):
            with vr.float32_matmul_precision(other):
                assert bits_of_value(run(ROWS).value) == results_of(model, precision)[0]
        assert np.array_equal([stream(row) for row in ROWS.data], wanted), precision


def test_a_layer_of_another_precision_inside_of_a_model_has_its_own_bits():
    model = Model()
    wanted = results_of(model, "bf16")
    model.rnn.precision = model.head.precision = "bf16"
    assert results_of(model, "fp32") == wanted
    assert results_of(model, "bf16-avx512", "bf16-avx512") == wanted
    model.head.precision = "fp32"
    mixed = results_of(model, "fp32")
    assert mixed[0] != wanted[0]
    assert mixed == results_of(copy.deepcopy(model), "bf16")


def test_recomputation_has_the_precision_of_the_forward_pass():
    model = Model()
    model.rnn = vr.nn.LSTM(5, 6, bidirectional=True, recompute=2)
    wanted = results_of(model, "bf16", "bf16")
    assert results_of(model, "bf16") == wanted != results_of(model, "fp32", "bf16")

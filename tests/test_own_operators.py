"""Operators of a user's own: declared, applied, differentiated, described, saved and checked; and what is refused."""

import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.tape import operator as table
from varlen_rnn.tape.variable import apply

LENGTHS = [2, 0, 3]
SWISH = '''
import numpy as np
import varlen_rnn as vr


@vr.operator
def swish(x, beta: float = 1.0):
    """Return x sigmoid(beta x) of every element.

    >>> np.asarray(swish(np.zeros(2)))
    array([0., 0.])
    """
    return x.data / (1 + np.exp(-beta * x.data))


@swish.infer
def _infer(x, beta):
    return x


@swish.backward("x")
def _swish_grad(x, out, d_out, beta):
    gate = 1 / (1 + np.exp(-beta * x.data))
    return d_out.data * (gate + beta * out.data * (1 - gate))


@swish.examples
def _examples(rng):
    yield [rng.normal(size=(5, 3))], {"beta": 1.5}
    yield [vr.create_lod_tensor(rng.normal(size=(5, 3)), [[2, 0, 3]])], {"beta": 0.5}
'''


@pytest.fixture(autouse=True)
def operators(monkeypatch):
    """What a test declares is forgotten after it."""
    monkeypatch.setattr(table, "OPERATORS", dict(table.OPERATORS))


@pytest.fixture
def swish():
    names = {"__name__": "own"}
    exec(SWISH, names)
    return names["swish"]


def rows(*element):
    data = np.random.default_rng(0).standard_normal((sum(LENGTHS), *element))
    return vr.create_lod_tensor(data, [LENGTHS])


def declared(infer=lambda *specs, **constants: specs[0], **options):
    """Return a decorator that declares an operator and what it infers."""

    def declare(function):
        made = vr.operator(**options)(function)
        made.infer(infer)
        return made

    return declare


def test_at_once(swish):
    x = vr.Variable(rows(3), requires_grad=True)
    y = swish(x, beta=2.0)
    assert np.array_equal(y, x.value.data / (1 + np.exp(-2.0 * x.value.data)))
    assert y.lod() == x.lod()
    y.sum().backward()
    assert x.grad.lod() == x.lod()
    assert np.array_equal(swish(x, 1), swish(x)), "a default, and an int where a float is declared"
    assert np.array_equal(swish(x=x.value, beta=np.float32(2)), y)
    assert swish(rows(3)).record is None
    vr.check_operator(swish)


def test_it_is_a_function_with_a_documentation(swish):
    assert (swish.__name__, swish.__module__) == ("swish", "own")
    assert swish.__doc__.startswith("Return x sigmoid(beta x)")
    with pytest.raises(TypeError, match=r"swish\(\) missing 1 required positional argument: 'x'"):
        swish()
    with pytest.raises(TypeError, match="unexpected keyword argument 'gamma'"):
        swish(rows(3), gamma=1.0)
    assert pickle.loads(pickle.dumps(vr.nn.functional.tanh)) is vr.nn.functional.tanh
    with pytest.raises(vr.DTypeError, match="swish, beta: expected a number"):
        swish(rows(3), beta="2")


def test_in_a_program(swish, tmp_path):
    x = rows(3)
    leaf = vr.Variable(x, requires_grad=True)
    (swish(leaf, beta=2.0) * 3.0).sum().backward()
    with vr.program_guard() as program:
        described = vr.feed_data("x", [-1, 3], "float64", 1, requires_grad=True)
        y = swish(described, beta=2.0)
        (y * 3.0).sum().backward()
    for run in (program, vr.Program.from_bytes(program.to_bytes())):
        value, gradient = vr.Executor().run(run, {"x": x}, ["swish", "x@GRAD"])
        assert value.data.tobytes() == np.asarray(swish(x, beta=2.0)).tobytes()
        assert gradient.data.tobytes() == leaf.grad.data.tobytes()
    assert "swish = swish(x=x; beta=2.0)" in str(program)
    assert "x@GRAD = swish_grad(x=x; out=swish; d_out=" in str(program)
    assert 'label="swish\\nbeta=2.0"' in program.to_dot()
    assert [op.type for op in program.prune([y]).desc.blocks[0].ops] == ["feed", "swish", "fetch"]
    program.save(tmp_path / "swish.safetensors")
    shown = subprocess.run(
        [sys.executable, "-m", "varlen_rnn", "show", str(tmp_path / "swish.safetensors")],
        capture_output=True,
        text=True,
    )
    assert "expected the name of a declared operator, got 'swish' (import the module that declares it" in shown.stderr


def test_in_a_fresh_process_its_module_is_imported_first(swish, tmp_path):
    with vr.program_guard() as program:
        swish(vr.feed_data("x", [-1, 3], "float64")).name = "y"
    program.save(tmp_path / "p.safetensors")
    (tmp_path / "own.py").write_text(SWISH)
    code = """
        import numpy as np, varlen_rnn as vr
        try:
            vr.Program.load("p.safetensors")
        except vr.ProgramError as error:
            print(error)
        import own
        print(vr.Executor().run(vr.Program.load("p.safetensors"), {"x": np.zeros((1, 3))}, ["y"]))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "got 'swish' (import the module that declares it before a program that uses it is read)" in result.stdout
    assert "[array([[0., 0., 0.]])]" in result.stdout


def test_a_layer_of_a_step(swish):
    """Its gradient is described in the block of a step."""
    layer = vr.nn.DynamicRNN(lambda x_t, h: (swish(x_t * h), h + x_t))
    x = vr.Variable(rows(2), requires_grad=True)
    layer(x, [(2,)])[0].sum().backward()
    assert x.grad.lod() == x.lod()


def product(*x):
    """Return the product of all."""
    out = x[0].data
    for other in x[1:]:
        out = out * other.data
    return out


def test_any_number_of_inputs_and_as_many_gradients():
    made = declared(shares=True)(product)  # of one factor it returns the factor itself

    @made.backward("x")
    def product_grad(out, d_out, *x):
        return tuple(d_out.data * out.data / value.data for value in x)

    @made.examples
    def examples(rng):
        yield [rng.random((3, 2)) + 1], {}
        yield [rng.random((3, 2)) + 1, rows(2).like(rng.random((5, 2)) + 1).data[:3], rng.random((3, 2)) + 1], {}

    vr.check_operator(made)
    assert product_grad.op.inputs == ("out", "d_out", "*x")
    assert product_grad.op.outputs == ("*d_x",)


def test_of_any_number_of_inputs_there_may_be_none():
    @vr.operator
    def total(x, *rest):
        return sum((value.data for value in rest), x.data)

    @total.infer
    def infer(x, *rest):
        return x

    @total.backward("x", "rest")
    def backward(x, d_out, *rest):
        return tuple(d_out.data for _ in (x, *rest))

    for others in range(3):
        x = [vr.Variable([1.0, 2.0], requires_grad=True) for _ in range(1 + others)]
        total(*x).sum().backward()
        assert [value.grad.tolist() for value in x] == [[1, 1]] * len(x)


@pytest.mark.parametrize("name", ["_apply", "_find", "_take", "_type", "_shown", "_int", "declare"])
def test_an_operator_may_have_any_name(name):
    made = declared(name=name)(product)
    assert np.asarray(made(np.ones(2), np.ones(2))).tolist() == [1, 1]


def test_an_operator_that_counts_passes_no_gradient_on():
    @vr.operator(name="test_count_positive")
    def count_positive(x):
        """Return how many elements of each row are positive."""
        return (x.data > 0).sum(axis=1)

    count_positive.infer(lambda x: vr.TensorSpec(x.shape[:1], np.dtype(np.int64), x.lod_level))
    count_positive.grad(lambda inputs, outputs, d_outputs: [None])
    count_positive.examples(lambda rng: [([rng.standard_normal((3, 2))], {})])
    vr.check_operator(count_positive)


def test_the_results_of_an_operator_without_a_gradient_need_none():
    @vr.operator(gradient=False)
    def steps_of(x, *others):
        """Return the number of each row."""
        return np.arange(len(x.data), dtype=x.dtype)

    @steps_of.infer
    def infer(x, *others):
        return vr.TensorSpec((x.shape[0],), x.dtype)

    x = vr.Variable(np.ones(3), requires_grad=True)
    assert not steps_of(x, x).requires_grad
    (x * steps_of(x, x)).sum().backward()
    assert x.grad.tolist() == [0, 1, 2]
    with pytest.raises(vr.ProgramError, match="expected one declaration, got a second"):
        steps_of.backward("x")
    with pytest.raises(vr.DTypeError, match="operator, gradient: expected True or False"):
        vr.operator(gradient=np.zeros(2))


def test_several_outputs_and_gradients_that_do_not_arrive():
    @declared(lambda x, y, scale: (x, x), outputs=("total", "difference"))
    def both(x, y, scale: int):
        return x.data + y.data, (x.data - y.data) * scale

    @both.backward("x", "y")
    def both_grad(x, y, d_total, d_difference, scale):
        total = 0 if d_total is None else d_total.data
        difference = 0 if d_difference is None else d_difference.data * scale
        return np.broadcast_to(total + difference, x.shape), np.broadcast_to(total - difference, x.shape)

    @both.examples
    def examples(rng):
        yield [rng.random((3, 2)), rng.random((3, 2))], {"scale": 3}

    vr.check_operator(both)
    x, y = (vr.Variable(np.ones(2), requires_grad=True) for _ in range(2))
    _, difference = both(x, y, 5)
    difference.sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([5, 5], [-5, -5])
    x.grad *= 2  # it can be written to, though NumPy's broadcast cannot
    assert both_grad.op.inputs == ("x", "y", "d_total?", "d_difference?")
    assert both_grad.op.outputs == ("d_x", "d_y")


def test_an_output_that_only_the_gradient_reads_and_an_input_that_may_miss():
    def infer(x, weight, power):
        return x, x

    @declared(infer, outputs=("out", "kept"), intermediate=("kept",))
    def weighted(x, weight=None, power: int = 2):
        kept = x.data**power
        return kept if weight is None else kept * weight.data, kept

    @weighted.grad
    def grad(inputs, outputs, d_outputs, power):
        x, weight = inputs
        d_x = d_outputs[0] * x ** (power - 1) * float(power)
        return [d_x if weight is None else d_x * weight, None if weight is None else outputs[1] * d_outputs[0]]

    @weighted.examples
    def examples(rng):
        yield [rows(2), None], {"power": 3}
        yield [rows(2), rows(2)], {"power": 2}

    vr.check_operator(weighted)
    assert isinstance(weighted(np.ones(2)), vr.Variable)
    assert weighted(np.ones(2), None, 3).shape == (2,)
    assert len(apply("weighted", np.ones(2), None, power=2)) == 2


def test_an_update_in_place():
    @declared(lambda weight, d, rate: weight, outputs=("weight",), in_place=True)
    def descend(weight, d, rate: float):
        weight.data[...] -= rate * d.data
        return weight

    @descend.examples
    def examples(rng):
        yield [rng.random(3), rng.random(3)], {"rate": 0.1}

    vr.check_operator(descend)
    with pytest.raises(vr.ProgramError, match="gradient: expected none, because the operator updates"):
        descend.backward("weight")


def test_which_lod_an_array_has():
    x, other = rows(2), vr.create_lod_tensor(np.ones((5, 2)), [[3, 2]])
    widened = declared(lambda x, y: vr.TensorSpec(x.shape, x.dtype, 1))(lambda_named("widened"))
    assert widened(x, np.ones((5, 2))).lod() == widened(np.ones((5, 2)), x).lod() == x.lod()
    with pytest.raises(vr.LoDError, match=r"widened: expected one LoD: x has .*, got another in y"):
        widened(x, other)
    with pytest.raises(vr.LoDError, match="expected an input with 1 LoD level, as infer says, got 0"):
        widened(np.ones((5, 2)), np.ones((5, 2)))
    like_second = declared(lambda x, y: y)(lambda_named("like_second"))
    assert like_second(x, other).lod() == other.lod()
    shorter = declared(lambda x: vr.TensorSpec((-1, 2), x.dtype, 1))(lambda_named("shorter", "x", "x.data[1:]"))
    with pytest.raises(vr.ShapeError, match="shorter: expected a result of 5 rows, as its LoD has"):
        shorter(x)


def lambda_named(name, parameters="x, y", result="x.data * 1"):
    names = {}
    exec(f"def {name}({parameters}): return {result}", names)
    return names[name]


PROMISES = {
    "another data type": ("x.data.astype(np.float32)", r"expected LOD_TENSOR float64 \[3\], as infer says"),
    "another shape": ("x.data[:2]", r"got float64 \[2\]"),
    "nothing": ("None", "got NoneType"),
    "a dict": ("{}", "got dict"),
    "two outputs": ("(x.data, x.data)", "expected 1 output, as infer says, got 2"),
}


@pytest.mark.parametrize("name", PROMISES)
def test_a_result_that_infer_did_not_promise(name):
    result, message = PROMISES[name]
    names = {"np": np}
    exec(f"def wrong(x): return {result}", names)
    with pytest.raises(vr.ProgramError, match=f"operator 'wrong'.*{message}"):
        declared()(names["wrong"])(np.ones(3))


def test_errors_of_other_kinds_name_the_operator():
    @declared()
    def failing(x):
        return 1 // 0

    @failing.grad
    def grad(inputs, outputs, d_outputs):
        return [None, None]

    message = "operator 'failing': expected inputs that fit, got ZeroDivisionError: integer division"
    with pytest.raises(vr.ProgramError, match=message):
        failing(np.ones(3))
    with vr.program_guard() as program:
        y = failing(vr.feed_data("x", [-1], "float64", requires_grad=True))
        with pytest.raises(vr.ProgramError, match=r"operator 'failing'.*2 gradients for 1 inputs"):
            y.sum().backward()
    with pytest.raises(vr.ProgramError, match=message):
        vr.Executor().run(program, {"x": np.ones(3)}, ["failing"])

    @declared(lambda x: x.nothing)
    def unknowing(x):
        return x.data

    for use in (lambda: unknowing(np.ones(3)), lambda: describe(unknowing)):
        with pytest.raises(vr.ProgramError, match=r"operator 'unknowing': .* AttributeError: .* 'nothing'"):
            use()

    @declared(lambda x: "x")
    def mistaken(x):
        return x.data

    with pytest.raises(vr.ProgramError, match="operator 'mistaken', infer: expected TensorSpecs, got 'x'"):
        describe(mistaken)

    @vr.operator
    def unfinished(x):
        return x.data

    for use in (lambda: unfinished(np.ones(3)), lambda: describe(unfinished)):
        with pytest.raises(vr.ProgramError, match=r"expected an inference, got none \(declare.*@unfinished.infer"):
            use()


def describe(operator):
    with vr.program_guard():
        operator(vr.feed_data("x", [-1], "float64"))


def test_an_error_of_ours_comes_out_as_it_is():
    @declared()
    def picky(x):
        raise vr.OutOfRangeError("picky, x", expected="another")

    with pytest.raises(vr.OutOfRangeError, match=r"^picky, x: expected another$"):
        picky(np.ones(3))


DECLARATIONS = {
    "a name that is taken": ("@vr.operator\ndef tanh(x): return x", "'tanh': expected a new name"),
    "a gradient's name that is taken": (
        "op = vr.operator(name='softer')(lambda x: x.data)\nvr.operator(name='softer_grad')(lambda x: x.data)\n"
        "op.backward('x')(lambda x: x.data)",
        "'softer_grad': expected a new name",
    ),
    "no name": ("vr.operator(lambda x: x)", "operator, name: expected an identifier of Python, got '<lambda>'"),
    "a keyword": ("vr.operator(name='class')(lambda x: x)", "expected an identifier of Python, got 'class'"),
    "a constant without a type": (
        "@vr.operator\ndef f(x, beta=1.0): return x",
        "f', beta: expected an annotation, got none .a constant needs its type: beta: float",
    ),
    "a type that no file holds": ("@vr.operator\ndef f(x, beta: dict): return x", "f', beta: expected float, int"),
    "a type without a hash": ("@vr.operator\ndef f(x, beta: [int]): return x", "f', beta: expected float, int"),
    "a type that is not there": ("@vr.operator\ndef f(x, beta: 'Beta'): return x", "annotations that Python can"),
    "an input after a constant": ("@vr.operator\ndef f(x, beta: float, y): return x", "y: expected inputs first"),
    "any constants": ("@vr.operator\ndef f(x, **constants): return x", "constants: expected inputs first"),
    "no function": ("vr.operator(name='f')(np.tanh)", "expected a function that is written in Python, got ufunc"),
    "an output that is an input": ("@vr.operator(outputs=('x',))\ndef f(x): return x", "no names of the inputs"),
    "an update of nothing": ("@vr.operator(in_place=True)\ndef f(x): return x", r"only names of the inputs \['x'\]"),
    "a str of outputs": ("@vr.operator(outputs='out')\ndef f(x): return x", "expected a tuple of names"),
    "a gradient of nothing": (
        "@vr.operator\ndef f(x): return x\n@f.backward()\ndef g(x, d_out): return x",
        "gradient of 'f': expected names of inputs",
    ),
    "a gradient of another": (
        "@vr.operator\ndef f(x): return x\n@f.backward('y')\ndef g(x, d_out): return x",
        r"gradient of 'f': expected one of the inputs \['x'\], got 'y'",
    ),
    "a gradient that takes another": (
        "@vr.operator\ndef f(x): return x\n@f.backward('x')\ndef g(x, d_y): return x",
        r"gradient of 'f', parameter: expected one of \['x', 'out', 'd_out'\], got 'd_y'",
    ),
    "a second gradient": (
        "@vr.operator\ndef f(x): return x\n@f.backward('x')\ndef g(x, d_out): return x\n"
        "f.grad(lambda inputs, outputs, d_outputs: [None])",
        "gradient: expected one declaration, got a second one .to change the gradient, declare the operator again",
    ),
    "a gradient of what may miss": (
        "@vr.operator\ndef f(x, y=None): return x\n@f.backward('y')\ndef g(y, d_out): return y",
        "gradient of 'f', y: expected a required input, got an input that can be missing",
    ),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_declaration_that_cannot_be(name):
    source, message = DECLARATIONS[name]
    with pytest.raises(vr.ProgramError, match=message):
        exec(source, {"vr": vr, "np": np})


NOTEBOOK = """
@vr.operator
def scaled(x): return x.data * 2.0

@scaled.infer
def infer(x): return x

@scaled.backward("x")
def backward(x, d_out): return d_out.data * 2.0
"""


def test_the_same_function_declared_again_takes_the_place_of_the_former():
    names, x = {"vr": vr, "__name__": "notebook"}, vr.Variable([1.0], requires_grad=True)
    exec(NOTEBOOK, names)
    before = names["scaled"]
    exec(NOTEBOOK.replace("2.0", "3.0").replace("def backward", "def corrected"), names)
    for scaled in (names["scaled"], before):  # the name counts, as in a program
        x.grad = None
        y = scaled(x)
        y.sum().backward()
        assert (y.item(), x.grad.item()) == (3.0, 3.0)
    with pytest.raises(vr.ProgramError, match=r"'scaled': expected a new name, got the name.* that notebook"):
        exec(NOTEBOOK, names | {"__name__": "another"})


def test_an_operator_declared_again_takes_no_other_with_it():
    source = "@vr.operator\ndef alone(x): return x\nalone.infer(lambda x: x)"
    exec(source, {"vr": vr, "__name__": "notebook"})
    other = declared(lambda x: x)(lambda_named("alone_grad", "x"))
    exec(source, {"vr": vr, "__name__": "notebook"})
    assert other(np.ones(2)).shape == (2,)


def test_a_gradient_that_nobody_declared_is_an_error_where_it_is_asked_for():
    rounded = declared(lambda x: x)(lambda_named("halved_without_gradient", "x", "x.data / 2"))
    x = vr.Variable(np.ones((2, 3)), requires_grad=True)
    y = rounded(x)
    assert rounded(vr.Variable(np.ones(2))).record is None
    with pytest.raises(vr.ProgramError, match="'halved_without_gradient': expected a gradient, got none"):
        y.sum().backward()
    rounded(x.detach()).sum()
    (x.sum() + rounded(x).detach().sum()).backward()
    assert x.grad.tolist() == np.ones((2, 3)).tolist()
    with vr.program_guard():
        x = vr.feed_data("x", [3], "float64")
        weight = vr.nn.Parameter(np.ones(3))
        with pytest.raises(vr.ProgramError, match="expected a gradient, got none"):
            vr.optim.SGD([weight], 0.1).minimize(rounded(weight * x).sum())


def test_annotations_may_be_texts():
    names = {"vr": vr}
    exec("from __future__ import annotations\n@vr.operator\ndef f(x: vr.LoDTensor, n: int | None): return x", names)
    assert (names["f"].op.inputs, dict(names["f"].op.attrs)) == (("x",), {"n": "int?"})


def test_the_inference_of_a_gradient_is_as_strict_as_the_operator(swish):
    """So that a description from a file reaches the function with what an operator of ours would get."""
    ones = np.ones((2, 3))
    for given, message in [
        ([ones, ones, np.ones((2, 2))], "swish_grad, d_out: expected shape"),
        ([ones, np.ones((2, 3), np.float32), ones], "swish_grad, out: expected float64"),
        ([ones, ones, vr.SelectedRows([0], np.ones((1, 3)), 2)], "swish_grad, d_out: expected float64, got SELECTED"),
        ([ones, vr.sort_by_seq_len([0, 2]), ones], "swish_grad, out: expected float64, got LOD_RANK_TABLE"),
    ]:
        with pytest.raises(vr.InputError, match=message):
            apply("swish_grad", *given, beta=1.0)
    with pytest.raises(vr.DTypeError, match=r"tanh_grad, x: expected float32 or float64, got int64"):
        apply("tanh_grad", np.ones(2, int), np.ones(2), np.ones(2))


BROKEN = {
    "gradient": (
        "return x",
        "return x.data**2",
        "return d_out.data * x.data",
        r"example 0, gradient of x: expected .* by a central",
    ),
    "the shape of a gradient": ("return x", "return x.data**2", "return d_out.data[:1]", "'broken_grad', result"),
    "data type": (
        "return x._replace(dtype=np.dtype(np.float32))",
        "return vr.LoDTensor(x.data)",
        "return d_out",
        "example 0, output 0: expected LOD_TENSOR float32",
    ),
    "shape": (
        "return x._replace(shape=(-1, 2))",
        "return vr.LoDTensor(x.data)",
        "return d_out",
        r"output 0: expected LOD_TENSOR float64 \[-1, 2\]",
    ),
    "an input that is changed": (
        "return x",
        "x.data[0] = 0; return x.data * 2",
        "return d_out.data * 2 * (np.arange(5) > 0)[:, None]",
        "example 0, x: expected an unchanged input",
    ),
    "a LoD that is lost": (
        "return x._replace(lod_level=0)",
        "return x.data * 2",
        "return d_out.data * 2",
        None,
    ),
    "a program that computes something else": (
        "return x",
        "CALLS.append(1); return x.data * len(CALLS)",
        "return d_out.data",
        "example 0",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_checker_finds(name):
    infer, forward, backward, message = BROKEN[name]
    source = f"""
        @vr.operator
        def broken(x):
            {forward}

        @broken.infer
        def infer(x):
            {infer}

        @broken.backward("x")
        def backward(x, d_out):
            {backward}

        @broken.examples
        def examples(rng):
            yield [vr.create_lod_tensor(rng.random((5, 3)), [[2, 0, 3]])], {{}}
    """
    names = {"vr": vr, "np": np, "CALLS": []}
    exec(textwrap.dedent(source), names)
    if message is None:
        vr.check_operator(names["broken"])
        return
    with pytest.raises(vr.ProgramError, match=message):
        vr.check_operator(names["broken"])


def test_the_checker_wants_an_operator_and_examples(swish):
    with pytest.raises(vr.ProgramError, match=r"check_operator: expected an operator made by vr.operator"):
        vr.check_operator(np.tanh)
    swish.examples(lambda rng: iter(()))
    with pytest.raises(vr.ProgramError, match="operator 'swish': expected examples, got none"):
        vr.check_operator(swish)
    swish.examples(lambda rng: [([np.ones(3, np.float32)], {"beta": 1.0})])
    with pytest.raises(vr.ProgramError, match="x: expected float64, so that central"):
        vr.check_operator(swish)


def test_random_numbers_go_on_after_a_check():
    vr.manual_seed(3)
    first = vr.random.generator().random()
    vr.manual_seed(3)
    vr.check_operator(table.OPERATORS["dropout"])
    assert vr.random.generator().random() == first


@pytest.mark.parametrize(("kind", "texts"), [("str", ["\ud800"]), ("strs", ["", ("a", "\udfff")])])
def test_a_text_that_no_file_can_hold(kind, texts):
    @vr.operator
    def with_texts(x, text: str, texts: tuple[str, ...] = ()):
        """Return `x`."""
        return x

    with_texts.infer(lambda x, text, texts: x)
    with vr.program_guard() as program:
        with_texts(vr.Variable([1.0]), *texts)
    with pytest.raises(vr.ProgramError, match=f"expected a constant of kind '{kind}' that"):
        program.to_bytes()

"""The time that loading takes is in proportion to the file: work is counted, in calls and comparisons, not timed."""

import difflib
import itertools
import sys

import numpy as np
import pytest
import safetensors.numpy

import varlen_rnn as vr
from tests.test_program_files import FORMAT
from varlen_rnn.ops.cost import costs
from varlen_rnn.program.desc import MOST_DIMS, Attr, Var, to_var
from varlen_rnn.program.feed import FEED_LIST
from varlen_rnn.program.format import schema
from varlen_rnn.program.prune import edge
from varlen_rnn.program.structure import LONGEST_NAME
from varlen_rnn.tape.spec import PLAN, TensorSpec


def var(name, dims=(-1, 3), lod_level=0, persistable=False):
    return to_var(name, TensorSpec(dims, np.dtype(np.float32), lod_level), persistable)


def neg(x, y):
    return vr.OpDesc("neg", (Var("x", (x,)),), (Var("out", (y,)),))


def program(variables=(), ops=(), steps=()):
    """Return a description over the feeds `x`, with a level, and `m`."""
    block = vr.BlockDesc(
        vars=(to_var("feed", FEED_LIST), var("x", lod_level=1), var("m"), *variables),
        ops=(edge("feed", "feed", "x", 0), edge("feed", "feed", "m", 1), *ops),
    )
    return vr.ProgramDesc((block, *steps))


def step(number, more=(), forward=-1):
    """Return a block whose operators compute what `recurrence` wants, and more from the same input."""
    x = f"x_{number}"
    ops = (neg(x, f"y_{number}"), *(neg(x, name) for name in more))
    variables = [var(name) for name in (x, f"m_{number}", f"y_{number}", *more)]
    return vr.BlockDesc(number, 0, tuple(variables), ops, forward)


def recurrence(place, number, x="x", state="m", captured=()):
    """Return the variables of an operator that runs the step of a number, and the operator."""
    own = tuple(f"c_{number}" for _ in captured)
    constants = {"output": f"y_{number}", "step_inputs": (f"x_{number}",), "memories": (f"m_{number}",),
                 "captured": own, "next_memories": (f"y_{number}",), "keep": False}  # fmt: skip
    attrs = (Attr("block", number, is_block=True), *(Attr(*pair) for pair in constants.items()))
    inputs = [Var("x_0", (x,)), Var("state_0", (state,)), *(Var("captured_0", (name,)) for name in captured)]
    outputs = [f"{name}{place}" for name in ("y", "last_0", "sorted_seqs")]
    slots = [Var(name.removesuffix(place), (name,)) for name in outputs]
    variables = [var(outputs[0], lod_level=1), var(outputs[1]), to_var(outputs[2], PLAN)]
    return variables, vr.OpDesc("dynamic_rnn", tuple(inputs), tuple(slots), attrs)


def recurrences(numbers):
    found = [recurrence(f"@{place}", number) for place, number in enumerate(numbers)]
    return [v for variables, _ in found for v in variables], [op for _, op in found]


def chain(n):
    names = ["m", *(f"v{k}" for k in range(n))]
    return program(map(var, names[1:]), [neg(a, b) for a, b in itertools.pairwise(names)])


def many_inputs(n):
    return program([var("y")], [vr.OpDesc("sum", (Var("x", ("m",) * n),), (Var("out", ("y",)),))])


def many_feeds(n):
    fed = [f"f{k}" for k in range(n)]
    return program(map(var, fed), [edge("feed", "feed", name, 2 + k) for k, name in enumerate(fed)])


def many_runs_of_a_large_step(n):
    return program(*recurrences([1] * n), [step(1, [f"t{k}" for k in range(n)])])


def many_steps_beside_a_large_block(n):
    large = vr.BlockDesc(1, 0, tuple(var(f"t{k}") for k in range(n)))
    numbers = range(2, 2 + n)
    return program(*recurrences(numbers), [large, *(step(number, forward=1) for number in numbers)])


GROWING = [chain, many_inputs, many_feeds, many_runs_of_a_large_step, many_steps_beside_a_large_block]


def content_of(text, **arrays):
    return safetensors.numpy.save(arrays, {FORMAT: text})


def calls_of(function, *arguments):
    """Return how many functions, of C too, a call takes."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("describe", GROWING, ids=lambda describe: describe.__name__)
def test_four_times_the_file_is_four_times_the_work(describe):
    small, large = (content_of(schema.to_json(describe(n))) for n in (200, 800))
    grown = calls_of(vr.Program.from_bytes, large) / calls_of(vr.Program.from_bytes, small)
    assert grown < 1.2 * len(large) / len(small)  # what any file has is a small part of these


class Key(str):
    """A key that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Key.compared += 1
        return str.__eq__(self, other)


def test_a_doubled_key_at_the_end_of_many_is_found_at_once():
    pairs = [(Key(f"k{min(number, 998)}"), 0) for number in range(1000)]
    Key.compared = 0
    assert schema._object(pairs) == "k998"
    assert Key.compared < 3000


@pytest.mark.parametrize("op", ["reshape", "fill_constant", "zeros_of_sequences"])
def test_a_shape_is_as_long_as_one_of_numpy(op):
    """The product of more sizes would take time that grows with their square."""
    sizes = [[2**62] * (MOST_DIMS + 1), [1] * (MOST_DIMS + 1)]
    more = {"value": 1.0, "dtype": "float32"} if op == "fill_constant" else {}
    for shape in sizes:
        attrs = tuple(Attr(name, value) for name, value in ({"shape": tuple(shape)} | more).items())
        inputs = () if op == "fill_constant" else (Var("x", ("x",)),)
        desc = program([var("y")], [vr.OpDesc(op, inputs, (Var("out", ("y",)),), attrs)])
        with pytest.raises(vr.ProgramError, match="shape: expected at most 64 ints"):
            vr.Program.from_bytes(content_of(schema.to_json(desc)))


def test_a_name_is_not_longer_than_can_be_shown():
    name = "n" * LONGEST_NAME
    assert name in vr.Program(program([var(name)], [neg("m", name)])).desc.blocks[0].ops[-1].output_names()
    with pytest.raises(vr.ProgramError, match="up to 1000 characters"):
        vr.Program(program([var(f"{name}n")], [neg("m", f"{name}n")]))
    with vr.program_guard(), pytest.raises(vr.ProgramError, match="up to 1000 characters"):
        vr.feed_data(f"{name}n", [-1], "float32")


def test_an_error_is_no_longer_than_can_be_read():
    with pytest.raises(vr.ProgramError, match="persistables") as caught:
        vr.Program.from_bytes(content_of('{"version":{"version":1},"blocks":[{"idx":0,"parent_idx":-1}]}',
                                         **{f"array_{k}": np.ones(1) for k in range(2000)}))  # fmt: skip
    assert len(str(caught.value)) < 5000


def test_a_name_that_there_is_not_is_compared_with_some_others(monkeypatch):
    compared = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda word, words, n: compared.extend((word, *words)) or [])
    with pytest.raises(vr.ProgramError, match="fetch_list, entry 0"):
        vr.Executor().run(vr.Program(chain(2000)), {}, ["v" * 10**6])
    assert len(compared) == 1001
    assert max(map(len, compared)) == 80


def steps_that_run_the_next_one_twice(depth):
    """Return steps that read rows from outside, as `c`, and run the next step over them, but the last."""
    steps = []
    for number in range(1, depth + 1):
        x, state, rows, y = (f"{name}_{number}" for name in "xmcy")
        variables, ops = [var(x), var(state), var(rows, lod_level=1), var(y)], [neg(x, y)]
        for place in (f"@{number}a", f"@{number}b") if number < depth else ():
            more, op = recurrence(place, number + 1, rows, state, [rows])
            variables += more
            ops.append(op)
        steps.append(vr.BlockDesc(number, number - 1, tuple(variables), tuple(ops)))
    return steps


def test_what_blocks_inside_of_blocks_cost_is_asked_of_each_once():
    variables, op = recurrence("@", 1, captured=["x"])
    desc = vr.Program(program(variables, [op], steps_that_run_the_next_one_twice(30))).desc
    (_, cost), *_ = [found for found in costs(desc) if found[0].type == "dynamic_rnn"]
    assert cost.flops == 3 * (2**30 - 1)


@pytest.mark.parametrize("kind", [*schema.MESSAGES, *schema.SCALARS])
def test_lists_inside_of_lists_are_an_error_of_ours(kind):
    """The reader of JSON takes as many as the stack then has room for, and `repr` needs more."""
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(vr.ProgramError, match="place"):
        schema._value(kind, nested, "place")

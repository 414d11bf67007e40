"""Files of programs, mutated: each is loaded and run, or refused with an InputError; nothing else happens."""

import functools
import json
import random
import warnings

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import varlen_rnn as vr
from tests import recorded
from tests.test_program_files import FORMAT
from varlen_rnn.program.attrs import decode
from varlen_rnn.program.desc import Attr, Var, of_var, to_var
from varlen_rnn.program.feed import EDGES, FEED_LIST
from varlen_rnn.program.format import schema
from varlen_rnn.program.prune import edge
from varlen_rnn.tape.kinds import TYPES, Type
from varlen_rnn.tape.operator import OPERATORS, find
from varlen_rnn.tape.spec import TensorSpec

RECORDS = dict(recorded.everything())
EDGE_NUMBERS = [0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, -(2**31) - 1, 2**62, 2**63 - 1, 2**63, -(2**63), 0.5, 1e308]
VALUES = [*EDGE_NUMBERS, True, False, None, "", "x", "NaN", "-1", [], {}, [0], {"type": "INT8"}]


@functools.cache
def content_of(name):
    return RECORDS[name]().program.to_bytes()


def parts_of(content):
    size = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"][FORMAT]), safetensors.numpy.load(content)


def nodes(plain):
    """Return `(holder, key)` of everything inside."""
    found, stack = [], [plain]
    while stack:
        holder = stack.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        found += [(holder, key) for key in keys]
        stack += [holder[key] for key in keys if isinstance(holder[key], (dict, list))]
    return found


def mutate(plain, rng):
    """Change one place of a description: drop, double, retype, rename, renumber, reorder."""
    holder, key = rng.choice(nodes(plain))
    how = rng.randrange(6)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), holder[key])
    elif how == 1:
        holder[rng.choice(["name", "type", "extra", "arguments", key.upper()])] = holder.pop(key)
    elif how == 2 and isinstance(holder, list):
        rng.shuffle(holder)
    elif how == 3:
        holder[key] = rng.choice(VALUES)
    else:
        other, at = rng.choice([node for node in nodes(plain) if type(node[0][node[1]]) is type(holder[key])])
        holder[key] = json.loads(json.dumps(other[at]))


class Grown:
    """A valid description that grows: of the operators that it is offered, it takes those that fit."""

    def __init__(self, block, rng):
        self.rng, self.ops = rng, []
        fed = [op.output_names()[0] for op in block.ops if op.type == "feed"]
        self.known = {var.name: var for var in block.vars if var.persistable}
        described = [(name, of_var(block.var(name))) for name in fed]
        changed = rng.choice([0, 0.5 / max(1, len(fed)), 0.3])
        described = [(name, self.other(spec) if rng.random() < changed else spec) for name, spec in described]
        if rng.random() < 0.2:
            described.append(("more", self.other(TensorSpec((-1, 3), np.dtype(np.float64), 1))))
        self.known |= {name: to_var(name, spec) for name, spec in described}
        self.edges = tuple(edge("feed", "feed", name, column) for column, (name, _) in enumerate(described))

    def other(self, spec):
        """Return another declaration of a feed."""
        if spec.dtype is None or self.rng.random() < 0.05:
            return TensorSpec((), None, 0, Type.LOD_RANK_TABLE)
        dims = list(spec.shape)
        dims = self.rng.choice([dims, [-1, *dims[1:]], dims[1:], [*dims, 2], [-1] * len(dims), [0, 3], [-1, -1, 2]])
        dtype = self.rng.choice([spec.dtype] * 12 + list(TYPES))
        if dims and self.rng.random() < 0.05:
            return TensorSpec(tuple(dims), dtype, 0, Type.SELECTED_ROWS)
        return TensorSpec(tuple(dims), dtype, self.rng.choice([spec.lod_level, 0, 1, 2]) if dims else 0)

    def offer(self, op):
        """Take an operator, perhaps with other inputs and constants, or let it be."""
        rng, inputs, kind = self.rng, op.input_names(), find(op.type)
        attrs = {attr.name: attr.value for attr in op.attrs}
        if inputs and rng.random() < 0.1:
            at = rng.randrange(len(inputs))
            inputs[at] = rng.choice([*self.known, *self.alike(inputs[at]) * 5, ""])
        if attrs and rng.random() < 0.1:
            name = rng.choice(list(attrs))
            attrs[name] = constant(kind.attrs[name].rstrip("?"), rng)
        self.append(kind, inputs, attrs, op.output_names())

    def alike(self, name):
        """Return the variables that are described as one is."""
        return [other for other, var in self.known.items() if name in self.known and var.type == self.known[name].type]

    def invent(self):
        """Take an operator that stands in no program, if it fits."""
        rng, kind = self.rng, find(self.rng.choice(sorted(OPERATORS.keys() - set(EDGES))))
        count = len(kind.inputs) + (rng.randrange(9) if kind.inputs and kind.inputs[-1].startswith("*") else 0)
        names = [*self.known] + [""] * any(place.endswith("?") for place in kind.inputs)
        inputs = [rng.choice(names) for _ in range(count)] if names else []
        attrs = {
            name: constant(k.rstrip("?"), rng) for name, k in kind.attrs.items() if k[-1] != "?" or rng.random() < 0.5
        }
        self.append(kind, inputs, attrs, [])

    def append(self, kind, inputs, attrs, outputs):
        """Append an operator whose outputs are as it infers, unless it does not fit."""
        attrs = tuple(Attr(name, value) for name, value in attrs.items())
        try:
            decoded = decode(kind, attrs, lambda index: index)
            specs = kind.specs([of_var(self.known[name]) if name else None for name in inputs], decoded)
            outputs = (outputs + [f"new_{len(self.known)}_{number}" for number in range(len(specs))])[: len(specs)]
            outputs = [inputs[k] for k in kind.in_place] or outputs
            places = [tuple(Var(*pair) for pair in pairs) for pairs in kind.by_place(inputs, outputs, decoded)]
            made = {name: to_var(name, spec, name in self.known) for name, spec in zip(outputs, specs, strict=True)}
        except (vr.InputError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            return
        alone = all(inputs.count(inputs[k]) == 1 and self.known[inputs[k]].persistable for k in kind.in_place)
        if alone and len(made) == len(outputs) and not (made.keys() & self.known.keys() and not kind.in_place):
            self.known |= made
            self.ops.append(vr.OpDesc(kind.type, *places, attrs))

    def desc(self):
        lists = (to_var("feed", FEED_LIST),) if self.edges else ()
        block = vr.BlockDesc(0, -1, (*lists, *self.known.values()), (*self.edges, *self.ops))
        return vr.ProgramDesc((block,))


def grow(desc, rng):
    """Return a description that passes the checks: operators in another order, rewired, invented; other feeds."""
    grown = Grown(desc.blocks[0], rng)
    ops = [op for op in desc.blocks[0].ops if op.type not in EDGES]
    if rng.random() < 0.1:
        rng.shuffle(ops)
    invented = rng.choice([0, 1, 6])
    for op in ops:
        grown.offer(op)
        if rng.random() < invented / len(ops):
            for _ in range(8):
                grown.invent()
    return grown.desc()


def constant(kind, rng):
    texts = ["lstm", "gru", "rnn_tanh", "rnn_relu", "sum", "max", "last", "first", "float32", "float64"]
    indices = [":", "0, ::-1", "1:", "..., 0", "None, 1::2", "0", "-1", "", "::0", "1:4", ":, 1:"]
    return {
        "int": lambda: rng.choice([0, 0, 1, 1, 2, 5, 6, 7, -1, -3, 2**40, -(2**63)]),
        "float": lambda: rng.choice([0.0, 0.5, 1.0, -1.0, 2.0, 1e300, np.inf, -np.inf]),
        "bool": lambda: rng.random() < 0.5,
        "str": lambda: rng.choice(texts),
        "index": lambda: rng.choice(indices),
        "ints": lambda: tuple(rng.choice([-1, 0, 1, 2, 3, 6, 7]) for _ in range(rng.randrange(4))),
        "strs": lambda: tuple(rng.choice(["x", "x_1", "state", "captured", ""]) for _ in range(rng.randrange(3))),
        "block": lambda: rng.randrange(3),
    }[kind]()


def value_for(spec, lengths, rng):
    """Return a value that may be fed for a declaration: mostly with these lengths of sequences."""
    if rng.random() < 0.1:
        lengths = [rng.randrange(4) for _ in range(rng.randrange(4))]
    if spec.kind == Type.LOD_RANK_TABLE:
        return vr.sort_by_seq_len(np.cumsum([0, *lengths]))
    rows = rng.choice([sum(lengths)] * 3 + [len(lengths)])
    shape = [rows if n == -1 else n for n in spec.shape]
    if spec.dtype is None or np.prod([float(n) for n in shape]) > 1e4:
        return np.zeros(1)
    numbers = np.random.default_rng(rng.randrange(99))
    data = numbers.standard_normal(shape) if spec.dtype.kind == "f" else numbers.integers(0, 4, shape)
    data = np.asarray(data).astype(spec.dtype, order="F" if rng.random() < 0.2 else "C")
    if spec.kind == Type.SELECTED_ROWS:
        return vr.SelectedRows(np.arange(len(data))[::2], data[::2], len(data))
    if not spec.lod_level:
        return data
    levels = [np.cumsum([0, *lengths])] if len(data) == sum(lengths) else [[0, 0, len(data)]]
    for _ in range(spec.lod_level - 1):
        levels.insert(0, [0, rng.randrange(len(levels[0])), len(levels[0]) - 1])
    return vr.LoDTensor(data, levels)


def run(program, rng):
    """Run a program on feeds as it declares them: all of its variables are fetched, or few of them."""
    declared = {var.name: of_var(var) for var in program.desc.blocks[0].vars}
    lengths = rng.choice([[2, 0, 3, 1]] * 3 + [[], [0], [1], [2, 2]])  # the first are those of the records
    feed = {name: value_for(declared[name], lengths, rng) for name in program.feed_names}
    before = {name: v.copy().data.tobytes() for name, v in feed.items() if isinstance(v, vr.LoDTensor)}
    lists = (Type.FEED_MINIBATCH, Type.FETCH_LIST)
    names = [name for name, spec in declared.items() if spec.kind not in lists]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            vr.Executor().run(program, feed, names if rng.random() < 0.5 else names[-3:])
    finally:
        assert all(feed[name].data.tobytes() == data for name, data in before.items()), "a feed was changed"


def one(name, rng):
    """Mutate a file, load it, and run it: return what came of it."""
    content = content_of(name)
    if rng.random() < 0.15:
        content = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            at = min(rng.randrange(len(content)), rng.choice([8, 60, len(content) - 1]))
            if rng.random() < 0.3:
                del content[at : at + rng.randint(1, 9)]
            else:
                content[at] = rng.randrange(256)
    else:
        plain, arrays = parts_of(content)
        if rng.random() < 0.5:
            for _ in range(rng.randint(1, 3)):
                mutate(plain, rng)
                if not isinstance(plain, dict) or not nodes(plain):
                    break
        else:
            plain = json.loads(schema.to_json(grow(schema.from_json(json.dumps(plain)), rng)))
        content = safetensors.numpy.save(arrays, {FORMAT: json.dumps(plain)})
    try:
        program = vr.Program.from_bytes(bytes(content))
    except vr.ProgramError:
        return "refused"
    assert vr.Program.from_bytes(program.to_bytes()).desc == program.desc or "NaN" in schema.to_json(program.desc)
    try:
        run(program, rng)
    except vr.InputError:
        return "stopped"
    return "ran"


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(RECORDS)), st.integers(0, 2**32))
def test_a_mutated_file_is_refused_or_runs(name, seed):
    one(name, random.Random(seed))


@pytest.mark.slow
def test_mutations_reach_every_outcome():
    outcomes = {one(name, random.Random(seed)) for name in sorted(RECORDS)[::9] for seed in range(12)}
    assert outcomes == {"refused", "stopped", "ran"}

"""Operands of PTX as C++ expressions: registers, constants, special registers, names of memory."""

import re

from tests.emulated.ptx import Unsupported, split_operands

_REGISTER = {
    "pred": "pred",
    "b8": "u8",
    "b16": "u16",
    "s16": "u16",
    "b32": "u32",
    "s32": "u32",
    "b64": "u64",
    "s64": "u64",
}
_REGISTER |= {kind: kind for kind in ("u8", "u16", "u32", "u64", "f32", "f64")}
TYPE = {"b8": "u8", "b16": "u16", "b32": "u32", "b64": "u64"}
TYPE |= {kind: kind for kind in ("pred", "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64")}
_SPECIAL = {
    "%laneid": "(u32)t->lane",
    "%warpid": "(u32)(t->tid[0] / 32)",
    "WARP_SZ": "32u",
    "%dynamic_smem_size": "(u32)the_launch->shared_bytes",
    "%cluster_ctarank": "(u32)t->block->rank",
    "%cluster_ctaid.x": "(u32)t->block->rank",
    "%cluster_nctarank": "(u32)the_launch->cluster",
    "%clusterid.x": "(u32)(t->block->ctaid[0] / the_launch->cluster)",
    "%nclusterid.x": "(u32)(the_launch->grid[0] / the_launch->cluster)",
    "%lanemask_lt": "((1u << t->lane) - 1)",
    "%lanemask_le": "((2u << t->lane) - 1)",
    "%lanemask_eq": "(1u << t->lane)",
    "%lanemask_gt": "~((2u << t->lane) - 1)",
    "%lanemask_ge": "~((1u << t->lane) - 1)",
}
for _axis, _name in enumerate("xyz"):
    _SPECIAL[f"%tid.{_name}"] = f"(u32)t->tid[{_axis}]"
    _SPECIAL[f"%ntid.{_name}"] = f"(u32)the_launch->ntid[{_axis}]"
    _SPECIAL[f"%ctaid.{_name}"] = f"(u32)t->block->ctaid[{_axis}]"
    _SPECIAL[f"%nctaid.{_name}"] = f"(u32)the_launch->grid[{_axis}]"


def identifier(name):
    """Return a name of PTX as a name of C++."""
    return re.sub(r"\W", "_", name)


def symbol(name):
    """Return the C++ name of a label or of local memory."""
    return f"S_{identifier(name)}"


def table(name):
    """Return the C++ name of a table of constants."""
    return f"T_{identifier(name)}"


def called(name):
    """Return the C++ name of a function."""
    return f"F_{identifier(name)}"


def passed(name):
    """Return the C++ name of a function's argument or result."""
    return f"A_{identifier(name)}"


def register(name):
    """Return the C++ name of a register; in inline assembly it may lack the percent sign."""
    return f"R_{identifier(name[1:])}" if name.startswith("%") else f"N_{identifier(name)}"


def flag(text):
    """Return a predicate as a C++ expression."""
    if text.startswith("!"):
        return f"!{register(text[1:])}"
    return register(text) if text.startswith("%") else text


def put(name, expression):
    """Return the statement that writes a register."""
    return f"put({register(name)}, {expression});"


def address(text):
    """Return the base and the offset of `[base+offset]`."""
    inside = text.strip()[1:-1].strip()
    found = re.match(r"(.+?)\s*\+\s*(-?\d+)$", inside)
    return (found[1].strip(), found[2]) if found else (inside, "0")


def group(text):
    """Return the items of `{a, b}`."""
    return split_operands(text.strip()[1:-1])


def bits(kind):
    """Return the number of bits of a type."""
    return int(kind[1:])


class Operands:
    """The operands of one kernel."""

    def __init__(self, source, code):
        self.shared, self.tables = source.shared, source.tables
        self.local = {name for _, name, _ in code.local_memory()}
        self.params = {name: place for place, (_, name) in enumerate(source.params)} if code is source else {}
        self.passed = {*code.passed(), *(() if code is source else code.params)}
        self.is_plain, self.named = source.is_plain, set()

    def declare(self, source):
        """Return C++ declarations of all registers, of local memory, and of functions' arguments and results."""
        lines, kinds = [f"u64 {passed(name)} = 0;" for name in source.passed()], {}
        for kind, name in source.registers():
            if kinds.setdefault(name, kind) != kind:
                raise Unsupported(f"two registers {name} of inline assembly, of different types")
            self.named |= set() if name.startswith("%") else {name}
            lines.append(f"{_REGISTER[kind]} {register(name)} = 0;")
        lines += [f"alignas({align}) char {symbol(name)}[{size}];" for align, name, size in source.local_memory()]
        return list(dict.fromkeys(lines))

    def value(self, text, kind):
        """Return an operand as a C++ expression of type `kind`."""
        text = text.strip()
        if text in _SPECIAL:
            return f"as<{kind}>({_SPECIAL[text]})"
        if text.startswith("%") or text in self.named:
            return f"as<{kind}>({register(text)})"
        if text in self.shared:
            return f"({kind}){self.shared[text]}"
        if text in self.local:
            return f"({kind})(u64){symbol(text)}"
        if text in self.tables:
            return f"({kind})(u64){table(text)}"
        return _constant(text, kind)


def _constant(text, kind):
    if found := re.match(r"0[fF]([0-9a-fA-F]{8})$", text):
        pattern = f"(u32)0x{found[1]}u"
        return f"as<{kind}>({pattern})" if kind in ("f32", "u32", "s32") else f"({kind})as<f32>({pattern})"
    if found := re.match(r"0[dD]([0-9a-fA-F]{16})$", text):
        return f"as<{kind}>((u64)0x{found[1]}ull)"
    if not re.match(r"-?(0x[0-9a-fA-F]+|\d+)U?$", text):
        raise Unsupported(f"operand {text}")
    number = int(text.rstrip("U"), 0)
    return f"(({kind}){number})" if kind[0] == "f" else f"(({kind}){number & (2**64 - 1)}ull)"

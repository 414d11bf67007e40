"""Instructions of PTX that only compute: each becomes a statement of C++ over registers."""

from tests.emulated.operands import TYPE, bits, flag, group, put, register
from tests.emulated.ptx import Unsupported

_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}
_OPERATOR = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_ROUND = {"rni": "std::nearbyint", "rzi": "std::trunc", "rmi": "std::floor", "rpi": "std::ceil"}
_UNARY = {
    "sqrt": "std::sqrt({})",
    "rsqrt": "1 / std::sqrt({})",
    "rcp": "1 / {}",
    "ex2": "std::exp2({})",
    "lg2": "std::log2({})",
    "tanh": "std::tanh({})",
    "sin": "std::sin({})",
    "cos": "std::cos({})",
}


def move(of, i, kind):
    """Move a register, or two halves into one, or one into two halves."""
    to, source = i.args
    half, width = ("u32", 32) if kind == "u64" else ("u16", 16)
    if source.startswith("{"):
        low, high = group(source)
        return put(to, f"({kind})((({kind}){of.value(high, half)} << {width}) | {of.value(low, half)})")
    if to.startswith("{"):
        whole = of.value(source, kind)
        return "".join(put(name, f"({half})({whole} >> {k * width})") for k, name in enumerate(group(to)))
    return put(to, of.value(source, kind))


def compare(of, i, kind):
    """Write whether a comparison holds, combined with a predicate if there is one."""
    x, y = of.value(i.args[1], kind), of.value(i.args[2], kind)
    unordered, name = f"({x}) != ({x}) || ({y}) != ({y})", i.parts[1]
    if name in ("num", "nan"):
        holds = f"({unordered})" if name == "nan" else f"!({unordered})"
    elif name in ("equ", "neu", "ltu", "leu", "gtu", "geu"):
        holds = f"({unordered} || ({x}) {_COMPARE[name[:2]]} ({y}))"
    elif name == "ne" and kind[0] == "f":
        holds = f"(!({unordered}) && ({x}) != ({y}))"
    else:
        holds = f"({x}) {_COMPARE[name]} ({y})"
    if len(i.args) > 3:
        holds = f"(({holds}) {_BITWISE[i.parts[2]]} (pred)({flag(i.args[3])}))"
    first, *second = i.args[0].split("|")
    return f"{register(first)} = {holds};" + "".join(f"{register(name)} = !{register(first)};" for name in second)


def select(of, i, kind):
    """Choose one of two numbers by a predicate."""
    return put(i.args[0], f"{register(i.args[3])} ? {of.value(i.args[1], kind)} : {of.value(i.args[2], kind)}")


def bitwise(of, i, kind):
    """Combine bits of two registers."""
    return put(i.args[0], f"({kind})({of.value(i.args[1], kind)} {_BITWISE[i.name]} {of.value(i.args[2], kind)})")


def invert(of, i, kind):
    """Invert all bits, or a predicate."""
    return put(i.args[0], f"({kind}){'!' if kind == 'pred' else '~'}{of.value(i.args[1], kind)}")


def shift(of, i, kind):
    """Shift by any number of bits: beyond the width, to zeros, or to copies of the sign."""
    x = of.value(i.args[1], kind if i.name == "shr" else f"u{bits(kind)}")
    by, arrow = of.value(i.args[2], "u32"), "<<" if i.name == "shl" else ">>"
    beyond = f"({x} < 0 ? ({kind})-1 : ({kind})0)" if kind[0] == "s" else f"({kind})0"
    return put(i.args[0], f"({by} >= {bits(kind)} ? {beyond} : ({kind})({x} {arrow} {by}))")


def funnel_shift(of, i, kind):
    """Shift two words as one of 64 bits, and keep a word."""
    low, high, by = (of.value(arg, "u32") for arg in i.args[1:4])
    by = f"({by} & 31)" if "wrap" in i.parts else f"({by} > 32 ? 32 : {by})"
    both = f"(((u64){high} << 32) | {low})"
    return put(i.args[0], f"(u32)({both} >> {by})" if i.parts[1] == "r" else f"(u32)(({both} << {by}) >> 32)")


def arithmetic(of, i, kind):
    """Add, subtract, multiply, divide, in floating point or in integers."""
    return put(i.args[0], _of_floats(of, i, kind) if kind[0] == "f" else _of_integers(of, i, kind))


def _of_floats(of, i, kind):
    x, y = of.value(i.args[1], kind), of.value(i.args[2], kind)
    if i.name in ("fma", "mad"):
        return f"({kind})std::fma({x}, {y}, {of.value(i.args[3], kind)})"
    if i.name in ("min", "max"):
        return f"({kind})std::f{i.name}({x}, {y})"
    return f"({kind})({x} {_OPERATOR[i.name]} {y})"


def _of_integers(of, i, kind):
    x, y = of.value(i.args[1], kind), of.value(i.args[2], kind)
    if i.name in ("mul", "mad"):
        return _product(of, i, kind, x, y)
    if i.name in ("div", "rem"):
        return f"{'quotient' if i.name == 'div' else 'remainder_of'}<{kind}>({x}, {y})"
    if i.name in ("min", "max"):
        return f"({x}) {'<' if i.name == 'min' else '>'} ({y}) ? {x} : {y}"
    wraps = f"u{bits(kind)}"  # overflow is defined
    return f"({kind})({of.value(i.args[1], wraps)} {_OPERATOR[i.name]} {of.value(i.args[2], wraps)})"


def _product(of, i, kind, x, y):
    double = f"{kind[0]}{2 * bits(kind)}"
    product, to = f"(({double}){x} * ({double}){y})", double if "wide" in i.parts else kind
    if "hi" in i.parts:
        product = f"({product} >> {bits(kind)})"
    addend = f" + {of.value(i.args[3], to)}" if i.name == "mad" else ""
    return f"({to})(({to}){product}{addend})"


def negate(of, i, kind):
    """Change the sign."""
    x = of.value(i.args[1], kind)
    return put(i.args[0], f"-{x}" if kind[0] == "f" else f"({kind})(0 - {of.value(i.args[1], f'u{bits(kind)}')})")


def absolute(of, i, kind):
    """Drop the sign."""
    x = of.value(i.args[1], kind)
    return put(i.args[0], f"std::fabs({x})" if kind[0] == "f" else f"({kind})({x} < 0 ? 0 - {x} : {x})")


def copy_sign(of, i, kind):
    """Write the second number with the sign of the first."""
    return put(i.args[0], f"std::copysign({of.value(i.args[2], kind)}, {of.value(i.args[1], kind)})")


def classify(of, i, kind):
    """Write whether a number is finite, infinite or not a number."""
    test = {"finite": "isfinite", "infinite": "isinf", "notanumber": "isnan"}[i.parts[1]]
    return f"{register(i.args[0])} = std::{test}({of.value(i.args[1], kind)});"


def convert(of, i, kind):
    """Convert between types; a float becomes an integer as the rounding says."""
    if "bf16x2" in i.parts:
        high, low = (of.value(arg, "f32") for arg in i.args[1:3])
        return put(i.args[0], f"(u32)((rn_bf16({high}) << 16) | rn_bf16({low}))")
    if "tf32" in i.parts:
        return put(i.args[0], f"as<u32>(rna_tf32({of.value(i.args[1], 'f32')}))")
    to, source = TYPE[i.parts[-2]], TYPE[i.parts[-1]]
    x, rounding = of.value(i.args[1], source), [part for part in i.parts if part in _ROUND]
    if source[0] == "f" and (to[0] != "f" or (source == to and rounding)):
        x = f"{_ROUND[rounding[0]]}({x})"
    return put(i.args[0], f"({to})({x})")


def unary(of, i, kind):
    """Write a function of one number, exactly where a GPU approximates."""
    return put(i.args[0], f"({kind})({_UNARY[i.name].format(of.value(i.args[1], kind))})")


def reverse_bits(of, i, kind):
    """Reverse the order of bits."""
    return put(i.args[0], f"({kind})reversed_bits({of.value(i.args[1], kind)}, {bits(kind)})")


def count_bits(of, i, kind):
    """Count the bits that are set, or the zeros before the first."""
    x = of.value(i.args[1], kind)
    if i.name == "popc":
        return put(i.args[0], f"(u32)__builtin_popcountll({x})")
    return put(i.args[0], f"(u32)({x} ? __builtin_clzll((u64){x}) - {64 - bits(kind)} : {bits(kind)})")


def insert_bits(of, i, kind):
    """Write a field of bits into a register."""
    field, into = of.value(i.args[1], kind), of.value(i.args[2], kind)
    at, length = of.value(i.args[3], "u32"), of.value(i.args[4], "u32")
    mask = f"((({kind})-1 >> ({bits(kind)} - {length})) << {at})"
    return put(i.args[0], f"({kind})(({into} & ~{mask}) | (({field} << {at}) & {mask}))")


def extract_bits(of, i, kind):
    """Read an unsigned field of bits from a word."""
    if kind != "u32":
        raise Unsupported("a field of bits of another type than u32")
    x, at, length = (of.value(arg, "u32") for arg in i.args[1:4])
    return put(i.args[0], f"(u32)(({x} >> {at}) & ((1ull << {length}) - 1))")


EMITTERS = {
    "mov": move,
    "setp": compare,
    "selp": select,
    "not": invert,
    "shl": shift,
    "shr": shift,
    "shf": funnel_shift,
    "neg": negate,
    "abs": absolute,
    "copysign": copy_sign,
    "testp": classify,
    "cvt": convert,
    "brev": reverse_bits,
    "popc": count_bits,
    "clz": count_bits,
    "bfi": insert_bits,
    "bfe": extract_bits,
    **dict.fromkeys(("and", "or", "xor"), bitwise),
    **dict.fromkeys(("add", "sub", "mul", "div", "rem", "min", "max", "mad", "fma"), arithmetic),
    **dict.fromkeys(_UNARY, unary),
}

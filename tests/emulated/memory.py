"""Instructions of PTX that read and write memory: every access is checked, ordered accesses carry clocks."""

from tests.emulated.operands import address, bits, group, passed, put
from tests.emulated.ptx import Unsupported

RELAXED, ACQUIRE, RELEASE, BOTH = 0, 1, 2, 3
_UPDATE = {
    "add": "old + x_",
    "min": "old < x_ ? old : x_",
    "max": "old > x_ ? old : x_",
    "and": "old & x_",
    "or": "old | x_",
    "xor": "old ^ x_",
    "exch": "x_",
    "cas": "old == x_ ? y_ : old",
    "inc": "old >= x_ ? 0 : old + 1",
}


def order_of(parts):
    """Return how an access orders others: relaxed, acquire, release or both; None if it is a plain access."""
    if "acq_rel" in parts:
        return BOTH
    if "acquire" in parts:
        return ACQUIRE
    if "release" in parts:
        return RELEASE
    return RELAXED if "relaxed" in parts or "volatile" in parts else None


def _is_shared(i):
    return any(part.startswith("shared") for part in i.parts)


def load(of, i, kind):
    """Read one register, or a vector of them; parameters come from the launch, or from the caller of a function."""
    to, where = i.args
    if (name := address(where)[0]) in of.passed:
        return put(to, f"as<{kind}>({passed(name)})")
    if "param" in i.parts:
        return put(to, f"*({kind} *)P[{of.params[address(where)[0]]}]")
    order = order_of(i.parts)
    how = f", {order}" if order is not None else ", -1, 1" if "nc" in i.parts else ""
    give_way = "" if order is None or of.is_plain else " give_way();"
    return (
        _at(of, i, kind, where, to)
        + give_way
        + _each(to, lambda name, at: put(name, f"ld<{kind}>(t, {at}, s_{how})"), kind)
    )


def store(of, i, kind):
    """Write one register, or a vector of them."""
    where, source = i.args
    if (name := address(where)[0]) in of.passed:
        return f"{passed(name)} = as<u64>({of.value(source, kind)});"
    order = order_of(i.parts)
    how = "" if order is None else f", {order}"
    each = _each(source, lambda name, at: f"st<{kind}>(t, {at}, {of.value(name, kind)}, s_{how});", kind)
    return _at(of, i, kind, where, source) + each


def _at(of, i, kind, where, registers):
    """Return statements that make `A_` the address of an access, and check the alignment of a vector."""
    base, offset = address(where)
    text = f"u64 A_ = {of.value(base, 'u64')} + {offset}; static int s_;"
    if _is_shared(i):
        text += " A_ = shared_at(t, A_);"
    if registers.startswith("{"):
        text += f" check_alignment(A_, {bits(kind) // 8 * len(group(registers))});"
    return text


def _each(registers, access, kind):
    names = group(registers) if registers.startswith("{") else [registers]
    return " ".join(access(name, f"A_ + {k * bits(kind) // 8}") for k, name in enumerate(names))


def update(of, i, kind):
    """Read, change and write a number at once."""
    *to, where = i.args[:1] if i.name == "red" else i.args[:2]
    operands = i.args[len(to) + 1 :]
    base, offset = address(where)
    at = f"{of.value(base, 'u64')} + {offset}"
    at = f"shared_at(t, {at})" if _is_shared(i) else at
    name = next(part for part in i.parts[1:] if part in _UPDATE)
    text = f"static int s_; {kind} x_ = {of.value(operands[0], kind)}; "
    if name == "cas":
        text += f"{kind} y_ = {of.value(operands[1], kind)}; "
    change = f"[&]({kind} old) -> {kind} {{ return {_UPDATE[name]}; }}"
    call = f"rmw<{kind}>(t, {at}, s_, {order_of(i.parts) or RELAXED}, {change})"
    return text + (put(to[0], call) if to else f"{call};")


def address_space(of, i, kind):
    """Convert an address of shared memory to a generic one, or back; addresses of global memory are generic."""
    x = of.value(i.args[1], kind)
    if "shared" in i.parts:
        x = f"{x} - (u64)t->block->shared" if "to" in i.parts else f"(u64)t->block->shared + {x}"
    return put(i.args[0], x)


def map_address(of, i, kind):
    """Return the address of another block's shared memory in a cluster: its rank plus one stands in the high byte."""
    if "shared::cluster" not in i.op:
        raise Unsupported("mapa of generic addresses")
    at, rank = of.value(i.args[1], "u32"), of.value(i.args[2], "u32")
    return put(i.args[0], f"(u32)(({at} & 0xffffffu) | (({rank} + 1) << 24))")


def copy_asynchronously(of, i, kind):
    """Start a copy to shared memory, close a group of copies, or wait for groups."""
    if "wait_all" in i.parts:
        return "ptx_cp_commit(); ptx_cp_wait(-1);"
    if "wait_group" in i.parts:
        return f"ptx_cp_wait({of.value(i.args[0], 'u32')});"
    if "commit_group" in i.parts:
        return "ptx_cp_commit();"
    if i.parts[1] != "async" or "bulk" in i.parts:
        raise Unsupported("cp.async.bulk")
    (to, to_offset), (source, offset) = address(i.args[0]), address(i.args[1])
    size = of.value(i.args[2], "u32")
    given = of.value(i.args[3], "u32") if len(i.args) > 3 else size
    return (
        f"u64 T_ = shared_at(t, {of.value(to, 'u64')} + {to_offset}), F_ = {of.value(source, 'u64')} + {offset}; "
        f"static int s_; check(t, F_, {given}, s_); ptx_cp(T_, F_, {size}, {given});"
    )


EMITTERS = {
    "ld": load,
    "ldu": load,
    "st": store,
    "atom": update,
    "red": update,
    "cvta": address_space,
    "mapa": map_address,
    "cp": copy_asynchronously,
}

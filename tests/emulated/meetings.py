"""Instructions of PTX by which threads leave, or meet: jumps, barriers, fences, votes, shuffles, products of a warp."""

from tests.emulated.operands import called, flag, group, passed, put, register, symbol
from tests.emulated.ptx import Unsupported, split_operands


def leave(of, i, kind):
    """End the thread."""
    return "return;"


def call(of, i, kind):
    """Call a function, whose result comes after its arguments."""
    results, name, arguments = (i.args[0], i.args[1], i.args[2]) if i.args[0].startswith("(") else ("()", *i.args)
    operands = [*split_operands(arguments.strip()[1:-1]), *split_operands(results.strip()[1:-1])]
    return f"{called(name)}({', '.join(['t', *map(passed, operands)])});"


def jump(of, i, kind):
    """Go on at a label."""
    return f"goto {symbol(i.args[0])};"


def barrier(of, i, kind):
    """Wait for the threads of a block, of a warp or of a cluster."""
    if "cluster" in i.parts:
        return "ptx_cluster_arrive();" if "arrive" in i.parts else "ptx_cluster_wait();"
    if "warp" in i.parts:
        return f"ptx_warp({of.value(i.args[0], 'u32')});"
    if "arrive" in i.parts:
        raise Unsupported("bar.arrive")
    if "red" in i.parts:
        op = next(k for k, name in enumerate(("or", "and", "popc")) if name in i.parts)
        return put(i.args[0], f"ptx_bar_red({op}, {flag(i.args[-1])})")
    count = of.value(i.args[1], "u32") if len(i.args) > 1 else "0"
    return f"ptx_bar({of.value(i.args[0], 'u32')}, {count});"


def fence(of, i, kind):
    """Order the relaxed accesses before and after."""
    return "ptx_fence();"


def sleep(of, i, kind):
    """Let other threads run."""
    return "give_way();"


def active(of, i, kind):
    """Write the mask of the lanes that have not ended."""
    return put(i.args[0], "ptx_active()")


def vote(of, i, kind):
    """Write what the lanes of a mask answer together."""
    mode = next(k for k, name in enumerate(("all", "any", "uni", "ballot")) if name in i.parts)
    call = f"ptx_vote({mode}, {flag(i.args[1])}, {of.value(i.args[2], 'u32')})"
    return put(i.args[0], call) if mode == 3 else f"{register(i.args[0])} = {call};"


def match(of, i, kind):
    """Write the mask of the lanes that have the same number."""
    if "any" not in i.parts:
        raise Unsupported("match.all")
    return put(i.args[0], f"ptx_match({of.value(i.args[1], kind)}, {of.value(i.args[2], 'u32')})")


def shuffle(of, i, kind):
    """Read the register of another lane."""
    to, *inside = i.args[0].split("|")
    mode = next(k for k, name in enumerate(("up", "down", "bfly", "idx")) if name in i.parts)
    given = ", ".join(of.value(arg, "u32") for arg in i.args[1:5])
    return put(to, f"ptx_shfl({mode}, {given}, {f'&{register(inside[0])}' if inside else '0'})")


def multiply(of, i, kind):
    """Multiply small matrices of a warp: m16n8k8 of tf32, or m16n8k16 of bf16."""
    depth = (
        8 if "m16n8k8" in i.parts and "tf32" in i.parts else 16 if "m16n8k16" in i.parts and "bf16" in i.parts else 0
    )
    if not depth:
        raise Unsupported("mma of this shape")
    a, b, c = (
        ", ".join(of.value(x, to) for x in group(arg))
        for arg, to in zip(i.args[1:], ("u32", "u32", "f32"), strict=True)
    )
    out = "".join(put(name, f"d_[{k}]") for k, name in enumerate(group(i.args[0])))
    return f"u32 a_[4] = {{{a}}}, b_[2] = {{{b}}}; f32 c_[4] = {{{c}}}, d_[4]; ptx_mma({depth}, a_, b_, c_, d_); {out}"


EMITTERS = {
    "call": call,
    "ret": leave,
    "exit": leave,
    "bra": jump,
    "bar": barrier,
    "barrier": barrier,
    "membar": fence,
    "fence": fence,
    "nanosleep": sleep,
    "activemask": active,
    "vote": vote,
    "match": match,
    "shfl": shuffle,
    "mma": multiply,
}

"""How the parts of a loop become part of it before anything is compiled."""

import functools
from collections import Counter

from numba.core import compiler, compiler_machinery, ir, ir_utils, untyped_passes


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class InlineParts(untyped_passes.InlineInlinables):
    """Numba's inlining, of parts as they are written: what they inline is inlined where they have arrived.

    Numba runs all passes on a part for each call, and inlines into it first: it copies what is deep inside once per
    level, and all names of a part once per block.  And it copies arguments to parameters, tuple by tuple.
    """

    _name = "inline_parts"

    def _do_work(self, state, work_list, block, i, expr, inline_worker):
        called = ir_utils.get_definition(state.func_ir, expr.func)
        is_named = isinstance(called, ir.Global | ir.FreeVar)
        if not is_named or getattr(called.value, "targetoptions", {}).get("inline") != "always":
            return False
        function = called.value.py_func
        written = compiler.run_frontend(function)
        for part in written.blocks.values():  # made for this call alone: Numba need not copy them, names and all
            part.__deepcopy__ = functools.partial(_itself, part)
        *_, blocks = inline_worker.inline_ir(state.func_ir, block, i, written, function.__code__.co_freevars)
        for _, part in blocks:
            vars(part).pop("__deepcopy__", None)
        _forget_parameters(dict(blocks[1:]))  # the first one is what comes after the call
        work_list.extend(blocks)
        return True


def _itself(block, memo):
    return block


def _forget_parameters(blocks):
    """Replace the parameters of a part by the caller's variables; those that it assigns to keep their copies."""
    steps = [step for block in blocks.values() for step in block.body if isinstance(step, ir.Assign)]
    assigned, entry, variables = Counter(step.target.name for step in steps), next(iter(blocks.values())), {}
    for step in [step for step in entry.body if isinstance(step, ir.Assign)]:
        given = step.value
        if isinstance(given, ir.Var) and given.name not in assigned and assigned[step.target.name] == 1:
            variables[step.target.name] = given
            entry.body.remove(step)
    ir_utils.replace_vars(blocks, variables)

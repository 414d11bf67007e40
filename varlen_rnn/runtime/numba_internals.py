"""The only file with private and internal names of Numba, and of llvmlite, which may change with each version.

`numba`, `numba.types`, `numba.cuda`, `numba.extending`, `numba.core.cgutils` and `numba.core.errors` are documented for
users and used elsewhere too; `tests/test_house.py` finds every other name.  `python -m tests.versions` runs the suite
with the oldest and the newest Numba that `pyproject.toml` allows.
"""

import functools
import pickle
from collections import Counter

import llvmlite.ir
from llvmlite.binding import ffi, parse_assembly
from numba import config, cuda, types
from numba.core import caching, codegen, compiler, compiler_machinery, ir, ir_utils, untyped_passes
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.runtime import rtsys

is_device_array = cuda.cudadrv.devicearray.is_cuda_ndarray  # of Numba's own arrays on a GPU, or in its simulator
Cache = caching._Cache  # the interface of a cache for one function


def use_cache(kernel, cache_for):
    """Return a compiled function that loads from and saves into the cache `cache_for(kernel)`."""
    if isinstance(kernel, CPUDispatcher):  # else a plain function, as when NUMBA_DISABLE_JIT=1
        kernel._cache = cache_for(kernel)
        kernel.compile = kernel._cache.compile_alone(kernel.compile)
    return kernel


def can_be_saved(compiled):
    """Return whether the code of a compiled function means something to another process."""
    return not (compiled.library.has_dynamic_globals or compiled.lifted)


def to_bytes(compiled, linkable):
    """Return a compiled function as bytes, or raise if it cannot be pickled.

    Parameters
    ----------
    compiled : CompileResult
    linkable : bool
        Whether other compiled code may make it part of itself, for which it keeps its bitcode too.
    """
    library, *others = compiled._replace(type_annotation="")._reduce()  # nobody reads the text of loaded code
    if not linkable:
        name, kind, (code, _) = library
        library = name, kind, (code, _symbols_alone(compiled.library))
    return caching.dumps((library, *others))


def from_bytes(payload, target_context, linkable):
    """Return the compiled function of these bytes."""
    compiled = compiler.CompileResult._rebuild(target_context, *pickle.loads(payload))
    if not linkable:
        compiled.library._shared_module = None  # linking it is an error, and never links its empty functions
    return compiled


def _symbols_alone(library):
    """Return bitcode that defines the names of functions, by which a library finds them in its machine code."""
    module = llvmlite.ir.Module(library.name)
    for function in library._get_module_for_linking().functions:
        if not function.is_declaration:
            kind = llvmlite.ir.FunctionType(llvmlite.ir.VoidType(), [])
            empty = llvmlite.ir.Function(module, kind, function.name)
            llvmlite.ir.IRBuilder(empty.append_basic_block()).unreachable()
    return parse_assembly(str(module)).as_bitcode()


def compiled_for_level(level, kernel, arguments):
    """Compile a kernel by a second code generator, for processors that this host need not be; it is never run here."""
    context = cpu_target.target_context
    before, context._internal_codegen = context._internal_codegen, _generator_of(level)
    try:
        return kernel._compiler._compile_core(arguments, None)
    finally:
        context._internal_codegen = before


@functools.cache
def _generator_of(level):
    """Return a code generator for the processors of a level."""
    before = config.CPU_NAME, config.CPU_FEATURES
    config.CPU_NAME, config.CPU_FEATURES = level, ""
    try:
        return codegen.JITCPUCodegen(f"numba.exec.{level}")
    finally:
        config.CPU_NAME, config.CPU_FEATURES = before


def start_runtime(target_context):
    """Prepare the runtime functions that the code of a kernel calls.

    `target_context.refresh()`, which Numba's cache calls, also imports modules that only the compiler needs, SciPy
    among them, which takes a third of a second.  The compiler imports them when it starts to work.
    """
    rtsys.initialize(target_context)


def target():
    """Return the triple, the processor and its features, which code is compiled for."""
    return cpu_target.target_context.codegen().magic_tuple()


# The lock of Numba's compiler, and of each call of LLVM, in the order in which a compilation takes them.
_LOCK_OWNERS = (global_compiler_lock, ffi.lib._lock)


def compiler_locks():
    """Return the two locks that a compilation takes, in this order: of Numba's compiler, and of LLVM."""
    return [owner._lock for owner in _LOCK_OWNERS]


def replace_compiler_lock(position, lock):
    """Put another lock in the place of `compiler_locks()[position]`."""
    _LOCK_OWNERS[position]._lock = lock


def address_of_code(kernel, arguments):
    """Return the address of a function that was compiled for arguments of these types."""
    compiled = kernel.overloads[arguments]
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


def write_call(context, builder, address, kinds, values):
    """Write the call of a compiled function at an address, with values of these types."""
    function = builder.inttoptr(
        address, llvmlite.ir.PointerType(context.call_conv.get_function_type(types.none, kinds))
    )
    context.call_conv.call_function(builder, function, types.none, kinds, values)


def is_inlined(function):
    """Return whether a compiled function becomes part of its callers."""
    return getattr(function, "targetoptions", {}).get("inline") == "always"


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class InlineParts(untyped_passes.InlineInlinables):
    """Inline the parts of a loop as they are written; calls inside a part are inlined after it has arrived.

    Numba's own pass runs all passes on a part at each call and inlines into it first.  So it copies deeply nested code
    once per level, and all names of a part once per block, and it copies arguments to parameters, tuple by tuple.
    """

    _name = "inline_parts"

    def _do_work(self, state, work_list, block, i, expr, inline_worker):
        called = ir_utils.get_definition(state.func_ir, expr.func)
        if not isinstance(called, ir.Global | ir.FreeVar) or not is_inlined(called.value):
            return False
        function = called.value.py_func
        written = compiler.run_frontend(function)
        for part in written.blocks.values():  # made for this call alone: Numba need not copy them, names and all
            part.__deepcopy__ = functools.partial(_itself, part)
        *_, blocks = inline_worker.inline_ir(state.func_ir, block, i, written, function.__code__.co_freevars)
        for _, part in blocks:
            vars(part).pop("__deepcopy__", None)
        _forget_parameters(dict(blocks[1:]))  # the first block holds the code after the call
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


class _EngineCompiler(compiler.CompilerBase):
    """Numba's compiler with our inlining, and without static single assignment, which LLVM does anyway."""

    def define_pipelines(self):
        self.state.flags.enable_ssa = False
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [step for step in passes.passes if step[0] is not untyped_passes.InlineInlinables]
        passes.add_pass_after(InlineParts, untyped_passes.InlineClosureLikes)
        passes.finalize()
        return [passes]


# Options of `njit`: for loops that make no arrays, and for functions that only compiled code calls.
ENGINE_OPTIONS = {"pipeline_class": _EngineCompiler, "_nrt": False}
NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def items_read(function, position):
    """Return the numbers of the items that a function reads of its argument `position`, a tuple.

    Returns
    -------
    list of int, or None
        None if the function does anything else with the tuple than to ask for items by constant numbers.

    Examples
    --------
    >>> items_read(lambda pair, x: x + pair[1], 0)
    [1]
    >>> items_read(lambda pair, x: sum(pair), 0) is None
    True
    """
    blocks = compiler.run_frontend(function).blocks.values()
    statements = [statement for block in blocks for statement in block.body]
    assigned = [(step.target.name, step.value) for step in statements if isinstance(step, ir.Assign)]
    constants = {name: value.value for name, value in assigned if isinstance(value, ir.Const)}
    argument = next(name for name, value in assigned if isinstance(value, ir.Arg) and value.index == position)
    items = []
    for statement in statements:
        if argument not in {variable.name for variable in statement.list_vars()} or isinstance(statement, ir.Del):
            continue
        value = getattr(statement, "value", None)
        if isinstance(value, ir.Arg):
            continue
        item = constants.get(value.index.name) if getattr(value, "op", "") == "getitem" else None
        if not isinstance(item, int):
            return None
        items.append(item)
    return items

"""The only file that uses private and internal names of Numba and llvmlite, which can change in any version.

`numba`, `numba.types`, `numba.extending`, `numba.core.cgutils` and `numba.core.errors` are documented for
users, so other files use them, too; `tests/test_house.py` fails if another file uses any other name of Numba.
`python -m tests.versions` runs the suite with the oldest and the newest Numba that `pyproject.toml` allows.
"""

import functools
import io
import pickle
from collections import Counter

import llvmlite.binding as llvm
import llvmlite.ir
from llvmlite.binding import ffi, parse_assembly
from numba import config, njit, types
from numba.core import caching, codegen, compiler, compiler_machinery, ir, ir_utils, untyped_passes
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.runtime import rtsys

from varlen_rnn.runtime.placeholder import follow, has_placeholder

Cache = caching._Cache  # the base class of a cache for one function


def use_cache(kernel, cache_for):
    """Make a compiled function load and save its code in the cache `cache_for(kernel)`; return the function."""
    if isinstance(kernel, CPUDispatcher):  # a plain function, as with NUMBA_DISABLE_JIT=1, needs no cache
        kernel._cache = cache_for(kernel)
        kernel.compile = kernel._cache.compile_alone(kernel.compile)
        _let_follow(kernel)
    return kernel


def _let_follow(kernel):
    """Let `follow` take the calls of a compiled function that have a `Placeholder` array among their arguments.

    Numba asks for the type of an argument that its C code does not know, and compiles for arguments that it has not
    met.  Both questions come only then, so that calls with ordinary arrays take no longer.
    """
    typeof, compile_for = kernel.typeof_pyval, kernel._compile_for_args

    def typeof_pyval(value):
        return types.pyobject if has_placeholder(value) else typeof(value)

    def compile_for_args(*arguments, **named):
        if not has_placeholder(arguments):
            return compile_for(*arguments, **named)
        return lambda *arguments: follow(kernel, arguments)

    kernel.typeof_pyval, kernel._compile_for_args = typeof_pyval, compile_for_args


def can_be_saved(compiled):
    """Return whether another process could run the code of a compiled function."""
    return not (compiled.library.has_dynamic_globals or compiled.lifted)


def to_bytes(compiled, linkable):
    """Return a CompileResult as bytes, with its bitcode if callers may inline it; raise if it cannot be pickled.

    What `code_from_bytes` needs is apart, in front: Numba's objects take longer to load than code.
    """
    (name, kind, (code, bitcode)), *others = compiled._replace(type_annotation="")._reduce()  # it is only for people
    bitcode = bitcode if linkable else _symbols_alone(compiled.library)
    about = code, compiled.fndesc.llvm_func_name, compiled.fndesc.restype == types.none
    return pickle.dumps(about) + caching.dumps((name, kind, bitcode, others))


def from_bytes(payload, target_context, linkable):
    """Return the CompileResult that `to_bytes` has turned into bytes."""
    stream = io.BytesIO(payload)
    (code, _, _), (name, kind, bitcode, others) = pickle.load(stream), pickle.load(stream)
    compiled = compiler.CompileResult._rebuild(target_context, (name, kind, (code, bitcode)), *others)
    if not linkable:
        compiled.library._shared_module = None  # so that linking fails, instead of linking empty functions
    return compiled


def _symbols_alone(library):
    """Return bitcode with an empty function for each name that the library must find in its machine code."""
    module = llvmlite.ir.Module(library.name)
    for function in library._get_module_for_linking().functions:
        if not function.is_declaration:
            kind = llvmlite.ir.FunctionType(llvmlite.ir.VoidType(), [])
            empty = llvmlite.ir.Function(module, kind, function.name)
            llvmlite.ir.IRBuilder(empty.append_basic_block()).unreachable()
    return parse_assembly(str(module)).as_bitcode()


def compiled_for_processor(cpu, kernel, arguments):
    """Compile a kernel for another processor, for saving only: this host may be unable to run the code."""
    context = cpu_target.target_context
    before, context._internal_codegen = context._internal_codegen, _generator_of(cpu)
    try:
        return kernel._compiler._compile_core(arguments, None)
    finally:
        context._internal_codegen = before


def object_of(cpu, codes):
    """Compile code again for a processor, as one object file that is position independent and needs no Python.

    Parameters
    ----------
    cpu : str
        LLVM's name of the processor.
    codes : dict of int to str
        For each address that `address_of_code` has returned, the name by which other files call the code.

    Returns
    -------
    content : bytes
        The file.
    missing : dict of str to list of str
        For each of the names, the functions that its code calls, and that other files must define.
    """
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(cpu=cpu, opt=3, reloc="pic", codemodel="default")
    whole, missing = parse_assembly(""), {}
    with global_compiler_lock:
        for address, name in codes.items():
            module = _module_without_wrappers(cpu, machine, *_KNOWN[address], name)
            declared = [one.name for one in module.functions if one.is_declaration]
            missing[name] = [one for one in declared if not one.startswith("llvm.")]
            whole.link_in(module)
        return machine.emit_object(whole), missing


def _module_without_wrappers(cpu, machine, kernel, arguments, name):
    """Return LLVM's module of a kernel, in which only the kernel itself, under this name, is visible."""
    options = {**kernel.targetoptions, **NO_WRAPPERS, "pipeline_class": kernel._compiler.pipeline_class}
    del options["nopython"]  # `njit` sets it
    compiled = compiled_for_processor(cpu, njit(**options)(kernel.py_func), arguments)
    module = llvm.parse_bitcode(compiled.library._final_module.as_bitcode())
    module.get_function(compiled.fndesc.llvm_func_name).name = name
    for one in (*module.functions, *module.global_variables):
        if not one.is_declaration and one.name != name:
            one.linkage = "internal"
    module.get_function(name).visibility = "hidden"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0)))
    return module


@functools.cache
def _generator_of(cpu):
    """Return Numba's code generator for a processor; `cpu` is LLVM's name of it."""
    before = config.CPU_NAME, config.CPU_FEATURES
    config.CPU_NAME, config.CPU_FEATURES = cpu, ""
    try:
        return codegen.JITCPUCodegen(f"numba.exec.{cpu}")
    finally:
        config.CPU_NAME, config.CPU_FEATURES = before


def start_runtime():
    """Prepare Numba's runtime functions, which the code of a kernel calls.

    Numba's own cache calls `target_context.refresh()` instead.  That also imports modules that only the compiler needs,
    such as SciPy, in a third of a second.  The compiler imports these modules itself when it starts.
    """
    rtsys.initialize(cpu_target.target_context)


def target():
    """Return the target of compiled code: LLVM's triple, the processor, and the processor's features."""
    return cpu_target.target_context.codegen().magic_tuple()


# The objects that hold the compiler's lock and LLVM's lock, in the order in which a compilation takes the locks.
_LOCK_OWNERS = (global_compiler_lock, ffi.lib._lock)


def compiler_locks():
    """Return the locks that a compilation takes, in order: Numba's compiler lock, then LLVM's lock."""
    return [owner._lock for owner in _LOCK_OWNERS]


def replace_compiler_lock(position, lock):
    """Replace the lock `compiler_locks()[position]` by `lock`."""
    _LOCK_OWNERS[position]._lock = lock


def address_of_code(kernel, arguments):
    """Return the address of the machine code of `kernel` for these argument types, and whether it returns nothing.

    The code is loaded from the disk or compiled if necessary; it is valid until the process ends.
    """
    found = _CODES.get((kernel, arguments))
    if found is None:
        if arguments not in kernel.overloads:
            find = getattr(kernel._cache, "find_code", None)
            found = None if find is None else find(arguments)
        if found is None:
            kernel.compile(arguments)
            compiled = kernel.overloads[arguments]
            address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
            found = address, compiled.fndesc.restype == types.none
        found = _CODES.setdefault((kernel, arguments), found)  # one address, also if threads load the code twice
        _KNOWN[found[0]] = kernel, arguments
    return found


_CODES: dict = {}  # {a kernel and the types of its arguments: the address of the code, whether it returns nothing}


@functools.cache
def _engine():
    """Return an engine of LLVM for code that Python never calls itself."""
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    return llvm.create_mcjit_compiler(parse_assembly(""), machine, use_lmm=config.USE_LLVMLITE_MEMORY_MANAGER)


def code_from_bytes(payload):
    """Load the bytes that `to_bytes` has returned; return the address of the code, and whether it returns nothing.

    This takes a tenth of the time of `from_bytes`, which also makes a function for Python.
    """
    code, name, is_void = pickle.loads(payload)
    with global_compiler_lock:
        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return engine.get_function_address(name), is_void


_KNOWN = {}  # {address of code: its kernel, and the types of the arguments}


def is_code(number):
    """Return whether a number is an address that `address_of_code` has returned."""
    return number in _KNOWN


def name_of_code(address):
    """Return the name of the function whose code is at an address."""
    return _KNOWN[address][0].py_func.__name__


def write_call(context, builder, address, kinds, values):
    """Emit LLVM code that calls the compiled function at `address` with `values` of the types `kinds`."""
    function = builder.inttoptr(
        address, llvmlite.ir.PointerType(context.call_conv.get_function_type(types.none, kinds))
    )
    context.call_conv.call_function(builder, function, types.none, kinds, values)


def code_for(kernel, arguments):
    """Return the address of a kernel's code for these arguments, the types of the arguments, and whether it returns
    nothing; the code is compiled if necessary.
    """
    kinds = tuple(map(kernel.typeof_pyval, arguments))
    address, is_void = address_of_code(kernel, kinds)
    return address, kinds, is_void


# The types of words, and the letters that name the types: an address, integers, a flag, floats.
_LETTERS = {
    "p": types.voidptr, "q": types.int64, "i": types.int32, "h": types.int16, "c": types.int8, "b": types.boolean,
    "d": types.float64, "f": types.float32,
}  # fmt: skip
_INTEGERS = {64: "q", 32: "i", 16: "h", 8: "c"}


def letters_of(kind):
    """Return a letter of `_LETTERS` for each word of an argument of Numba's type `kind`, or None for other types."""
    if isinstance(kind, types.BaseTuple):
        parts = [letters_of(item) for item in kind]
        return None if None in parts else "".join(parts)
    if isinstance(kind, types.Array):  # two addresses, its size, the size of an element, its address, shape, strides
        return "ppqqp" + "q" * (2 * kind.ndim)
    if isinstance(kind, types.Boolean):
        return "b"
    if isinstance(kind, types.Integer):
        return _INTEGERS[kind.bitwidth]
    return {types.float64: "d", types.float32: "f"}.get(kind)


def write_call_of_words(context, builder, words, letters):
    """Emit LLVM code that calls the compiled function whose address is word 0, with the words that follow.

    Return the number 1 if the function raised, otherwise 0.
    """
    word, kinds = llvmlite.ir.IntType(64), [_LETTERS[letter] for letter in letters]
    found = [builder.load(builder.gep(words, [word(number)])) for number in range(len(letters) + 1)]
    values = [_value_of_word(context, builder, *item) for item in zip(kinds, found[1:], strict=True)]
    kind = llvmlite.ir.PointerType(context.call_conv.get_function_type(types.none, kinds))
    status, _ = context.call_conv.call_function(builder, builder.inttoptr(found[0], kind), types.none, kinds, values)
    return builder.zext(status.is_error, word)


def _value_of_word(context, builder, kind, word):
    if kind == types.voidptr:
        return builder.inttoptr(word, context.get_value_type(kind))
    if kind == types.boolean:
        return builder.icmp_signed("!=", word, word.type(0))
    bits = llvmlite.ir.IntType(kind.bitwidth)
    word = word if kind.bitwidth == 64 else builder.trunc(word, bits)
    return builder.bitcast(word, context.get_value_type(kind)) if isinstance(kind, types.Float) else word


def write_call_for_number(context, builder, address, kind, value):
    """Emit LLVM code that calls the compiled function at `address` with a value; return the int64 that it returns."""
    function = llvmlite.ir.PointerType(context.call_conv.get_function_type(types.int64, [kind]))
    at = builder.inttoptr(address, function)
    return context.call_conv.call_function(builder, at, types.int64, [kind], [value])[1]


def is_inlined(function):
    """Return whether Numba always inlines a compiled function into its callers."""
    return getattr(function, "targetoptions", {}).get("inline") == "always"


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class InlineParts(untyped_passes.InlineInlinables):
    """Inline called functions from the outside in: first a call, then the calls inside the code that it inserted.

    Numba's own pass works from the inside out and runs all its passes on the function at every call.  So it copies
    deeply nested code once per level, and all names of a function once per block.  It also copies arguments to
    parameters.
    """

    _name = "inline_parts"

    def _do_work(self, state, work_list, block, i, expr, inline_worker):
        called = ir_utils.get_definition(state.func_ir, expr.func)
        if not isinstance(called, ir.Global | ir.FreeVar) or not is_inlined(called.value):
            return False
        function = called.value.py_func
        written = compiler.run_frontend(function)
        for part in written.blocks.values():  # Numba need not copy the block, which is used for this call only
            part.__deepcopy__ = lambda memo, part=part: part
        *_, blocks = inline_worker.inline_ir(state.func_ir, block, i, written, function.__code__.co_freevars)
        for _, part in blocks:
            vars(part).pop("__deepcopy__", None)
        _forget_parameters(dict(blocks[1:]))  # The first block holds the code after the call.
        work_list.extend(blocks)
        return True


def _forget_parameters(blocks):
    """Replace parameters of inlined code by the caller's variables, except parameters to which the code assigns."""
    steps = [step for block in blocks.values() for step in block.body if isinstance(step, ir.Assign)]
    assigned, entry, variables = Counter(step.target.name for step in steps), next(iter(blocks.values())), {}
    for step in [step for step in entry.body if isinstance(step, ir.Assign)]:
        given = step.value
        if isinstance(given, ir.Var) and given.name not in assigned and assigned[step.target.name] == 1:
            variables[step.target.name] = given
            entry.body.remove(step)
    ir_utils.replace_vars(blocks, variables)


class _EngineCompiler(compiler.CompilerBase):
    """Numba's compiler with `InlineParts`, and without static single assignment form, which LLVM builds itself."""

    def define_pipelines(self):
        self.state.flags.enable_ssa = False
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [step for step in passes.passes if step[0] is not untyped_passes.InlineInlinables]
        passes.add_pass_after(InlineParts, untyped_passes.InlineClosureLikes)
        passes.finalize()
        return [passes]


# Options of `njit`: ENGINE_OPTIONS for loops that allocate no arrays, NO_WRAPPERS for functions called by compiled
# code.
ENGINE_OPTIONS = {"pipeline_class": _EngineCompiler, "_nrt": False}
NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def items_read(function, position):
    """Return the indices that a function reads in a tuple, its argument `position`; None if it uses the tuple
    otherwise.

    Examples
    --------
    >>> items_read(lambda pair, x: x + pair[1], 0)
    [1]
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

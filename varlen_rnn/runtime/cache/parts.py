"""What is kept of a compiled function: its machine code, and what others need to call it or to inline it."""

import contextlib
import functools

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import caching, codegen, compiler, config
from numba.core.registry import cpu_target


def packed(compiled, linkable):
    """Return the bytes of a compiled function.

    Parameters
    ----------
    compiled : CompileResult
    linkable : bool
        Whether other compiled code may make it part of itself, for which it keeps its bitcode, too.
    """
    library, *others = compiled._replace(type_annotation="")._reduce()  # nobody reads what loaded code was made of
    if not linkable:
        name, kind, (code, _) = library
        library = name, kind, (code, _symbols_alone(compiled.library))
    return caching.dumps((library, *others))


def rebuilt(parts, target_context, linkable):
    """Return the compiled function of what was packed."""
    compiled = compiler.CompileResult._rebuild(target_context, *parts)
    if not linkable:
        compiled.library._shared_module = None  # linking says that it cannot, and links nothing empty
    return compiled


def _symbols_alone(library):
    """Return bitcode that defines the names of functions, by which a library finds them in its machine code."""
    module = ir.Module(library.name)
    for function in library._get_module_for_linking().functions:
        if not function.is_declaration:
            empty = ir.Function(module, ir.FunctionType(ir.VoidType(), []), function.name)
            ir.IRBuilder(empty.append_basic_block()).unreachable()
    return llvm.parse_assembly(str(module)).as_bitcode()


def compiles_for(level):
    """Return whether Numba's code generator is that of a level of processors."""
    return cpu_target.target_context.codegen().magic_tuple()[1:] == (level, "")


def compiled_for(level, kernel, arguments):
    """Compile a kernel by a second code generator, for processors that this host need not be; it is never run here."""
    with _generating(_generator_of(level)):
        return kernel._compiler._compile_core(arguments, None)


@functools.cache
def _generator_of(level):
    before = config.CPU_NAME, config.CPU_FEATURES
    config.CPU_NAME, config.CPU_FEATURES = level, ""
    try:
        return codegen.JITCPUCodegen(f"numba.exec.{level}")
    finally:
        config.CPU_NAME, config.CPU_FEATURES = before


@contextlib.contextmanager
def _generating(generator):
    """Let Numba's one CPU target compile by another generator."""
    context = cpu_target.target_context
    before, context._internal_codegen = context._internal_codegen, generator
    try:
        yield
    finally:
        context._internal_codegen = before

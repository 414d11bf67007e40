"""The command `cache`: show, warm, clear, export and import the compiled kernels on disk."""

import functools
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from varlen_rnn.cli.report import number
from varlen_rnn.cli.workload import works
from varlen_rnn.errors import InputError
from varlen_rnn.runtime.cache import cache_folder, installed_bundles, kernel_folders, remove, usable_bundles
from varlen_rnn.runtime.cache.bundles import export_kernels, import_kernels, known_names, take_installed
from varlen_rnn.runtime.cache.level import HOST_LEVEL, LEVELS, check_level, known_levels, variables_of


def add_to(commands):
    """Add the command `cache` to the commands of a parser."""
    text = "Show, warm, clear or carry the compiled kernels on disk; alone, it shows them."
    parser = commands.add_parser("cache", help="show, warm, clear or carry the compiled kernels", description=text)
    parser.set_defaults(run=_show)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    actions.add_parser("show", help="show where they are, how many and how large").set_defaults(run=_show)
    warming = actions.add_parser("warm", help="compile ahead what training and inference use")
    warming.add_argument("--float64", action="store_true", help="compile for float64, too")
    text = f"compile for all processors of a level, to export kernels: {', '.join(LEVELS)}, or `host` for its own"
    warming.add_argument("--level", metavar="LEVEL", help=text)
    warming.set_defaults(run=_warm)
    clearing = actions.add_parser("clear", help="remove the compiled kernels")
    clearing.add_argument("--stale", action="store_true", help="only kernels of other sources, versions or machines")
    clearing.set_defaults(run=_clear)
    from_folder = "copy kernels from a folder that `export` wrote; they are executed: trust who wrote it"
    for name, carry, done, text in (
        ("export", export_kernels, "exported to", "copy kernels of this version, compiled or installed, to a folder"),
        ("import", import_kernels, "imported from", from_folder),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("folder", metavar="FOLDER", type=Path)
        action.set_defaults(run=functools.partial(_carry, carry, done))


def _show(arguments):
    found, usable = kernel_folders(), usable_bundles()
    print(f"{cache_folder()}: {_count(found)} in {number(len(found), 'environment')}")
    for folder in found:
        kind = "stale" if _is_stale(folder) else "this one"
        print(f"  {kind:8}  {_count([folder])}, used {_ago(folder.last_used)}: {folder.description}")
    for folder in installed_bundles():
        kind = "installed, used" if folder.path in usable else "installed, of no use here"
        print(f"{folder.path.parent}: {_count([folder])}, {kind}: {folder.description}")
    if not usable and not any(folder.num_kernels and not _is_stale(folder) for folder in found):
        print("No kernel for this environment yet: the first step compiles, or `cache warm` now.")
    if any(map(_is_stale, found)):
        print("Kernels of other sources, versions or machines are stale; `cache clear --stale` removes them.")


def _warm(arguments):
    if arguments.level:
        _warm_level(HOST_LEVEL if arguments.level == "host" else arguments.level, arguments.float64)
        return
    began = time.perf_counter()
    warm(["float32", "float64"] if arguments.float64 else ["float32"])
    ours = [folder for folder in kernel_folders() if not _is_stale(folder)]
    if not any(folder.num_kernels for folder in ours) and not usable_bundles():
        hint = "set NUMBA_CACHE_DIR to a folder that can be written"
        raise InputError(cache_folder(), expected="compiled kernels in this folder", got="no kernel", hint=hint)
    print(f"{cache_folder()}: {_count(ours)} for this environment, in {time.perf_counter() - began:.1f} s")


def warm(dtypes):
    """Run typical trainings and inferences on a small batch, so that all kernels of these data types are compiled."""
    quiet, threshold = os.environ.get("VARLEN_RNN_QUIET"), gc.get_threshold()
    os.environ["VARLEN_RNN_QUIET"] = "1"  # the progress bar replaces the message about compiling
    gc.set_threshold(50_000)  # compiling makes many objects, little garbage: collecting took a seventh of the time
    try:
        bar = tqdm([(name, work, dtype) for dtype in dtypes for name, work in works().items()], unit="part")
        for name, work, dtype in bar:
            bar.set_description(f"compiling {name}, {dtype}")
            work(np.dtype(dtype))
    finally:
        gc.set_threshold(*threshold)
        del os.environ["VARLEN_RNN_QUIET"]
        if quiet is not None:
            os.environ["VARLEN_RNN_QUIET"] = quiet


def _warm_level(level, float64):
    """Copy the installed kernels of a level (a class of processors), and compile its other kernels.

    They are compiled in another process, because importing the package fixes the shape of tiles.
    """
    if level is None:
        raise InputError("--level host", expected=known_levels(), got="a processor that has no level")
    check_level(level, "--level")
    take_installed(level)
    command = [sys.executable, "-m", "varlen_rnn", "cache", "warm", *["--float64"] * float64]
    if subprocess.run(command, env=os.environ | variables_of(level), check=False).returncode:
        raise InputError(f"--level {level}", expected="kernels that compile", got="the error that is printed above")


def _clear(arguments):
    chosen = [folder for folder in kernel_folders() if _is_stale(folder) or not arguments.stale]
    for folder in chosen:
        remove(folder.path)
    left = {folder.path for folder in kernel_folders()}
    print(f"{cache_folder()}: removed {_count([folder for folder in chosen if folder.path not in left])}")
    stayed = [folder.path for folder in chosen if folder.path in left]
    if stayed:
        got = "a folder that is in use, or must not be removed"
        raise InputError(stayed[0], expected="a folder that can be removed", got=got)


def _carry(carry, done, arguments):
    carried = carry(arguments.folder)
    print(f"{number(carried.num_kernels, 'kernel')} {done} {arguments.folder}")
    if carried.num_damaged:
        print(f"{number(carried.num_damaged, 'damaged file')} left out")
    for description in carried.foreign:
        print(f"left out, for another version or machine: {description}")
    if not carried.num_kernels:
        hint = "`cache warm` compiles kernels, `cache show` lists them"
        raise InputError(arguments.folder, expected="kernels of this version", got="no kernel", hint=hint)


def _is_stale(folder):
    return folder.path.name not in known_names()


def _count(folders):
    size = sum(folder.size for folder in folders) / 2**20
    return f"{number(sum(folder.num_kernels for folder in folders), 'kernel')}, {size:.1f} MiB"


def _ago(moment):
    days = int((time.time() - moment) // (24 * 3600))
    return "today" if days < 1 else "a day ago" if days == 1 else f"{days} days ago"

"""`cache show`, `cache warm` and `cache clear`: the compiled kernels on disk."""

import time

from varlen_rnn.cli.report import number
from varlen_rnn.cli.warm import warm
from varlen_rnn.errors import InputError
from varlen_rnn.runtime.cache import cache_folder, kernel_folders, remove, this_environment


def add_to(commands):
    """Add the command to the parser's."""
    text = "Show, warm or clear the compiled kernels on disk; alone, it shows them."
    parser = commands.add_parser("cache", help="show, warm or clear the compiled kernels", description=text)
    parser.set_defaults(run=_show)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    actions.add_parser("show", help="where they are, how many, how large, which are stale").set_defaults(run=_show)
    warming = actions.add_parser("warm", help="compile ahead what training and inference use")
    warming.add_argument("--float64", action="store_true", help="those of float64 too")
    warming.set_defaults(run=_warm)
    clearing = actions.add_parser("clear", help="remove them")
    clearing.add_argument("--stale", action="store_true", help="only those of other sources, versions or machines")
    clearing.set_defaults(run=_clear)


def _show(arguments):
    found = kernel_folders()
    print(f"{cache_folder()}: {_count(found)} in {number(len(found), 'environment')}")
    for folder in found:
        kind = "stale" if _is_stale(folder) else "this one"
        print(f"  {kind:8}  {_count([folder])}, used {_ago(folder.last_used)}: {folder.description}")
    if not any(folder.num_kernels and not _is_stale(folder) for folder in found):
        print("No kernel for this environment yet: the first step compiles, or `cache warm` now.")
    if any(map(_is_stale, found)):
        print("Stale are those of other sources, versions or machines; `cache clear --stale` removes them.")


def _warm(arguments):
    began = time.perf_counter()
    warm(["float32", "float64"] if arguments.float64 else ["float32"])
    ours = [folder for folder in kernel_folders() if not _is_stale(folder)]
    if not any(folder.num_kernels for folder in ours):
        hint = "NUMBA_CACHE_DIR names another"
        raise InputError(cache_folder(), expected="a folder that can hold kernels", got="none saved", hint=hint)
    print(f"{cache_folder()}: {_count(ours)} for this environment, in {time.perf_counter() - began:.1f} s")


def _clear(arguments):
    chosen = [folder for folder in kernel_folders() if _is_stale(folder) or not arguments.stale]
    for folder in chosen:
        remove(folder.path)
    left = {folder.path for folder in kernel_folders()}
    print(f"{cache_folder()}: removed {_count([folder for folder in chosen if folder.path not in left])}")
    stayed = [folder.path for folder in chosen if folder.path in left]
    if stayed:
        raise InputError(stayed[0], expected="a folder that can be removed", got="one that cannot, or is in use")


def _is_stale(folder):
    return folder.path.name != this_environment().name


def _count(folders):
    size = sum(folder.size for folder in folders) / 2**20
    return f"{number(sum(folder.num_kernels for folder in folders), 'kernel')}, {size:.1f} MiB"


def _ago(moment):
    days = int((time.time() - moment) // (24 * 3600))
    return "today" if days < 1 else "a day ago" if days == 1 else f"{days} days ago"

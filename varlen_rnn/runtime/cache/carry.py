"""Export and import folders of kernels, to carry them to another machine; damaged kernels are left out."""

from pathlib import Path
from typing import NamedTuple

from varlen_rnn.runtime.cache import folders
from varlen_rnn.runtime.cache.bundles import installed_bundles
from varlen_rnn.runtime.cache.environment import environment_of_level, this_environment
from varlen_rnn.runtime.cache.kernel_file import read_kernel, write_kernel
from varlen_rnn.runtime.cache.level import LEVELS


class Carried(NamedTuple):
    """The result of an export or import.

    `num_kernels` kernels were copied, `num_damaged` were damaged and left out, and `foreign` describes the folders of
    other versions or processors.
    """

    num_kernels: int
    num_damaged: int
    foreign: list


def known_names():
    """Return the names of this version's folders: for this host, and for each level of processors."""
    return {this_environment().name, *(environment_of_level(level).name for level in LEVELS)}


def export_kernels(target):
    """Copy this version's kernels, compiled here or installed, to the folder `target`; return a Carried.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    return _carry([*folders.kernel_folders(), *installed_bundles()], Path(target))


def import_kernels(source):
    """Copy the kernels that this version can use from the folder `source` to the user's cache; return a Carried.

    Raises
    ------
    OSError
        If the user's cache cannot be written.
    """
    return _carry(folders.kernel_folders(Path(source)), folders.cache_folder())


def take_installed(level):
    """Copy this version's installed kernels for a level of processors to the user's cache.

    Raises
    ------
    OSError
        If the user's cache cannot be written.
    """
    name = environment_of_level(level).name
    _carry([folder for folder in installed_bundles() if folder.path.name == name], folders.cache_folder())


def _carry(found, target):
    known, copied, damaged = known_names(), set(), 0
    for folder in found:
        if folder.path.name in known:
            place = target / folder.path.name
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            folders.mark_used(place, folder.description)
            for path in sorted(folder.path.glob("*.nbc")):
                try:
                    write_kernel(place / path.name, bytes(read_kernel(path)))
                    copied.add(place / path.name)
                except ValueError:
                    damaged += 1
    return Carried(len(copied), damaged, [folder.description for folder in found if folder.path.name not in known])

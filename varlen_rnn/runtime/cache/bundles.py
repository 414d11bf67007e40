"""Find bundles (folders of kernels that were compiled elsewhere and then installed or imported), and copy them.

A bundle's name is a digest of the sources, versions and level of processors for which its kernels were compiled.  A
bundle is in a folder `varlen_rnn_kernels` on Python's search path for packages, or in the user's own cache.  Bundles
are not inside the package, so that a checkout of equal sources finds the installed bundle, too.
"""

import contextlib
import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

from numba import config

from varlen_rnn.runtime.cache import folders
from varlen_rnn.runtime.cache.environment import environment_of_level, prefix_of_bundle, this_environment
from varlen_rnn.runtime.cache.folders import read_kernel, write_kernel
from varlen_rnn.runtime.cache.level import HOST_LEVEL, LEVELS, TARGET

PACKAGE = "varlen_rnn_kernels"


@functools.cache
def installed_places():
    """Return the installed folders that can contain bundles."""
    with contextlib.suppress(ImportError, ValueError):  # an import hook can fail, or a plain module can have this name
        found = importlib.util.find_spec(PACKAGE)
        return [Path(place) for place in (found and found.submodule_search_locations) or ()]
    return []


@functools.cache
def usable_bundles():
    """Return the folders of the bundles that this process can use; the folder in the user's own cache comes first."""
    # Settings with which Numba compiles for another processor than the host.
    host_settings = config.CPU_NAME or config.CPU_FEATURES or not config.ENABLE_AVX
    if TARGET or HOST_LEVEL is None or host_settings:
        return []
    name = environment_of_level(HOST_LEVEL).name
    return [place / name for place in (folders.cache_folder(), *installed_places()) if (place / name).is_dir()]


def installed_bundles():
    """Return a KernelFolder for every installed bundle."""
    return [folder for place in installed_places() for folder in folders.kernel_folders(place)]


def foreign_bundles():
    """Return the descriptions of all installed bundles if none fits this process's versions, otherwise []."""
    found = [folder.description for folder in installed_bundles()]
    return [] if any(text.startswith(prefix_of_bundle()) for text in found) else sorted(set(found))


# Export and import folders of kernels, to carry them to another machine; damaged kernels are left out.


class Carried(NamedTuple):
    """The result of an export or import."""

    num_kernels: int  # kernels that were copied
    num_damaged: int  # damaged kernels, which were not copied
    foreign: list  # descriptions of the folders for other versions or processors


def known_names():
    """Return the names that this version's folders have: for this host, and for each level of processors."""
    return {this_environment().name, *(environment_of_level(level).name for level in LEVELS)}


def export_kernels(target):
    """Copy this version's kernels, compiled here or installed, to the folder `target`; return a Carried."""
    return _carry([*folders.kernel_folders(), *installed_bundles()], Path(target))


def import_kernels(source):
    """Copy the kernels that this version can use from the folder `source` to the user's cache; return a Carried."""
    return _carry(folders.kernel_folders(Path(source)), folders.cache_folder())


def take_installed(level):
    """Copy this version's installed kernels for a level of processors to the user's cache, or raise an OSError."""
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

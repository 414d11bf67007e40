"""Kernels that nobody has to compile: folders of them that came with an installation, or were imported.

A bundle is a folder whose name is the digest of the sources, versions and level of processors that its kernels are for.
It lies in a folder `varlen_rnn_kernels` of the path on which Python finds packages, or among the user's own kernels.
A checkout finds the bundle that was installed for equal sources, because bundles do not lie beside the package.
"""

import contextlib
import functools
import importlib.util
from pathlib import Path

from numba import config

from varlen_rnn.runtime.cache import folders
from varlen_rnn.runtime.cache.environment import environment_of_level, prefix_of_bundle
from varlen_rnn.runtime.cache.level import HOST_LEVEL, TARGET

PACKAGE = "varlen_rnn_kernels"


@functools.cache
def installed_places():
    """Return the folders of the installation in which bundles may lie."""
    with contextlib.suppress(ImportError, ValueError):  # a strange finder, or a module that stands for the package
        found = importlib.util.find_spec(PACKAGE)
        return [Path(place) for place in (found and found.submodule_search_locations) or ()]
    return []


@functools.cache
def usable_bundles():
    """Return the folders of bundles that this process can use, the user's own first."""
    host_settings = config.CPU_NAME or config.CPU_FEATURES or not config.ENABLE_AVX  # the user wants other code
    if TARGET or HOST_LEVEL is None or host_settings:
        return []
    name = environment_of_level(HOST_LEVEL).name
    return [place / name for place in (folders.cache_folder(), *installed_places()) if (place / name).is_dir()]


def installed_bundles():
    """Return a KernelFolder for every bundle of the installation."""
    return [folder for place in installed_places() for folder in folders.kernel_folders(place)]


def foreign_bundles():
    """Return the descriptions of the installed bundles, if all are for other versions than this process has."""
    found = [folder.description for folder in installed_bundles()]
    return [] if any(text.startswith(prefix_of_bundle()) for text in found) else sorted(set(found))

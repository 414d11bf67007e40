"""Find bundles: folders of kernels that were compiled elsewhere and then installed or imported.

The name of a bundle is a digest of the sources, versions and level of processors that its kernels were compiled for.
It is in a folder `varlen_rnn_kernels` on Python's search path for packages, or in the user's own cache.  Bundles are
not inside the package, so that a checkout of equal sources finds the installed bundle, too.
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
    """Return the installed folders that may contain bundles."""
    with contextlib.suppress(ImportError, ValueError):  # an import hook may fail, or a module may have this name
        found = importlib.util.find_spec(PACKAGE)
        return [Path(place) for place in (found and found.submodule_search_locations) or ()]
    return []


@functools.cache
def usable_bundles():
    """Return the bundles that this process can use, first from the user's own cache."""
    host_settings = config.CPU_NAME or config.CPU_FEATURES or not config.ENABLE_AVX  # another target
    if TARGET or HOST_LEVEL is None or host_settings:
        return []
    name = environment_of_level(HOST_LEVEL).name
    return [place / name for place in (folders.cache_folder(), *installed_places()) if (place / name).is_dir()]


def installed_bundles():
    """Return a KernelFolder for every installed bundle."""
    return [folder for place in installed_places() for folder in folders.kernel_folders(place)]


def foreign_bundles():
    """Return the descriptions of installed bundles if none is for this process's versions, otherwise []."""
    found = [folder.description for folder in installed_bundles()]
    return [] if any(text.startswith(prefix_of_bundle()) for text in found) else sorted(set(found))

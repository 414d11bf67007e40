"""The disk cache of compiled kernels: never an import error, never stale code, found again by any other process.

Why a cache of our own: Numba's refuses, at import, to work where no folder is writable; does not see a change in
a called helper; can mix two signatures that two processes compile at once; raises forever on a truncated file;
and never finds a loop that was built for a cell by a factory.

The name of a folder is a digest of everything that all machine code depends on (`environment`); the name of a file is a
digest of one function and signature (`fingerprint`).  So a stale or foreign file is never loaded.  A damaged file is
recognised by its own digest and compiled again.

Kernels that were compiled ahead for a `level` of processors lie in folders of the same kind (`bundles`), which come
with an installation.  The folder of the user is searched first.
"""

from varlen_rnn.runtime.cache.bundles import foreign_bundles, installed_bundles, usable_bundles
from varlen_rnn.runtime.cache.disk import DiskCache
from varlen_rnn.runtime.cache.environment import CHECKED, Environment, this_environment
from varlen_rnn.runtime.cache.folders import KernelFolder, cache_folder, kernel_folders, remove
from varlen_rnn.runtime.cache.level import FEATURES, HOST_LEVEL, LEVELS

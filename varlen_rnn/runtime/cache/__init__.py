"""The disk cache of compiled kernels, which never makes an import fail and never loads stale code.

It replaces Numba's cache, which fails at import if no folder is writable; does not notice a change in a called helper;
can mix up two signatures that two processes compile at once; raises forever on a truncated file; and never finds a
loop that a factory has built for a cell.

The name of a folder is a digest of everything that all machine code depends on (`environment`).  The name of a file is
a digest of one function and signature (`fingerprint`).  So a stale or foreign file is never loaded.  Each file holds a
digest of its content, so a damaged file is recognised and compiled again.

An installation may come with kernels that were compiled ahead for a `level` of processors, in folders of the same kind
(`bundles`).  The user's own folder is searched first.
"""

from varlen_rnn.runtime.cache.bundles import foreign_bundles, installed_bundles, usable_bundles
from varlen_rnn.runtime.cache.disk import DiskCache
from varlen_rnn.runtime.cache.environment import CHECKED, Environment, this_environment
from varlen_rnn.runtime.cache.folders import KernelFolder, cache_folder, kernel_folders, remove
from varlen_rnn.runtime.cache.level import HOST_LEVEL, LEVELS, PROCESSOR

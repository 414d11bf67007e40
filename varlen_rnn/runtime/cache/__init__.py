"""The disk cache of compiled kernels, which never makes an import fail and never loads stale code.

It replaces Numba's cache, which has five faults.  It fails at import if no folder is writable.  It does not notice a
change in a called function.  It can mix up two signatures that two processes compile at once.  It raises forever if a
file is truncated.  It never finds a loop that a factory has built for a cell.

A folder's name is a digest of everything on which all machine code depends (`environment`).  A file's name is a digest
of one function and signature (`fingerprint`).  So a stale or foreign file is never loaded.  Each file holds a digest of
its content, so a damaged file is detected, and its kernel is compiled again.

An installation can contain kernels that were compiled ahead of time for a `level` (class) of processors, in folders of
the same kind (`bundles`).  The user's own folder is searched first.
"""

from varlen_rnn.runtime.cache.bundles import foreign_bundles, installed_bundles, usable_bundles
from varlen_rnn.runtime.cache.disk import DiskCache
from varlen_rnn.runtime.cache.environment import CHECKED, Environment, this_environment
from varlen_rnn.runtime.cache.folders import KernelFolder, cache_folder, kernel_folders, remove
from varlen_rnn.runtime.cache.level import HOST_LEVEL, LEVELS, PROCESSOR

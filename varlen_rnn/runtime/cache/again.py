"""Name the command that installs kernels for the versions of this process.

If installing another package changes the version of Numba, the installed kernels no longer fit.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numba


def command_for_kernels():
    """Return a pip command: it installs the wheel of kernels for this Numba if a wheel is in use, else rebuilds."""
    pip = f"{_quoted(sys.executable)} -m pip install"
    with contextlib.suppress(PackageNotFoundError):
        return f"{pip} {distribution('varlen-rnn-kernels').name} numba=={numba.__version__}"
    return f"{pip} --force-reinstall --no-deps {_folder_of_sources() or '--no-binary varlen-rnn varlen-rnn'}"


def _folder_of_sources():
    """Return the folder that the package was installed from; None if it came from elsewhere, or the folder is gone."""
    with contextlib.suppress(PackageNotFoundError, ValueError):
        origin = json.loads(distribution("varlen-rnn").read_text("direct_url.json") or "{}")
        folder = url2pathname(urlsplit(origin.get("url", "")).path)
        if "dir_info" in origin and os.path.isdir(folder):
            return _quoted(folder)
    return None


def _quoted(path):
    """Return a path as an argument of a command line, in the quotes of the system's shell."""
    return subprocess.list2cmdline([path]) if sys.platform == "win32" else shlex.quote(path)

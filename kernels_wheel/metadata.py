"""The version of the kernels, and the one release of each package that they fit."""

import re
from importlib.metadata import version
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class KernelMetadata(MetadataHookInterface):
    """Sets the version to ours and Numba's: kernels for 0.1.0 and Numba 0.68.1 are 0.1.0.6801."""

    PLUGIN_NAME = "custom"

    def update(self, metadata):
        """Write version and dependencies."""
        source = (Path(self.root).parent / "varlen_rnn" / "__init__.py").read_text()
        ours = re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE)[1]
        numba, llvmlite, numpy = version("numba"), version("llvmlite"), int(version("numpy").partition(".")[0])
        major, minor, patch = map(int, re.match(r"(\d+)\.(\d+)\.(\d+)", numba).groups())
        metadata["version"] = f"{ours}.{major * 10**4 + minor * 10**2 + patch}"
        fits = f"varlen-rnn=={ours}", f"numba=={numba}", f"llvmlite=={llvmlite}", f"numpy>={numpy},<{numpy + 1}"
        metadata["dependencies"] = list(fits)

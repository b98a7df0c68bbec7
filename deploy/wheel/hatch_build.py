"""Marks the wheel with the machines that the program runs on."""

import platform
import re
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        program = Path(self.root, "build/howdah").read_bytes()
        # The newest glibc version that the program's symbols need. The only other library is libgcc_s, which PEP 600
        # permits.
        asked = {tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", program)}
        major, minor = max(asked)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"

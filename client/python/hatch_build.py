"""Generates `howdah.v1` from the protocol, with the oldest supported protobuf, because newer versions load its code.

In a checkout the protocol is in /proto. A source distribution contains the generated code, and builds without tools.
"""

import re
import subprocess
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
PROTO = HERE.parent.parent / "proto"
TARGET = HERE / "howdah" / "v1"
TOOLS = [
    "grpcio-tools==1.62.3; python_version < '3.13'",
    # Releases are built with grpcio-tools 1.62, which does not install on Python 3.13. Code that newer tools generate
    # needs a newer protobuf than the oldest supported one, so do not release a build from Python 3.13.
    "grpcio-tools>=1.76; python_version >= '3.13'",
    "mypy-protobuf==3.6.0",
    "setuptools<81",
]


def generate(out: Path = HERE) -> None:
    files = sorted(PROTO.glob("howdah/v1/*.proto"))
    (out / "howdah" / "v1").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}"]
    for plugin in ("python", "mypy", "grpc_python", "mypy_grpc"):
        command.append(f"--{plugin}_out={'quiet:' if 'mypy' in plugin else ''}{out}")
    # protoc looks for its plugins on the PATH. pip and build put the tools there.
    subprocess.run([*command, *map(str, files)], check=True)
    write_index(files, out / "howdah" / "v1")


def write_index(files: "list[Path]", package: Path) -> None:
    """Writes a module that exports all messages, enums, enum values and stubs."""
    lines, later = ['"""The protocol: its messages, and the generated stubs of its services."""\n'], []
    for file in files:
        text = re.sub(r"//.*", "", file.read_text("utf-8"))
        module = f"{file.stem}_pb2"
        names = re.findall(r"^(?:message|enum) (\w+)", text, re.M)
        for body in re.findall(r"^enum \w+ \{(.*?)^\}", text, re.M | re.S):
            names += re.findall(r"^  (\w+) = ", body, re.M)
        lines += [f"from .{module} import {name} as {name}" for name in names]
        services = re.findall(r"^service (\w+)", text, re.M)
        if not services:
            for extra in package.glob(f"{module}_grpc.py*"):
                extra.unlink()
        for service in services:
            lines.append(f"from .{module}_grpc import {service}Stub as {service}Stub")
            later.append(f"    from .{module}_grpc import {service}AsyncStub as {service}AsyncStub")
    lines += ["from typing import TYPE_CHECKING as _TYPE_CHECKING\n", "if _TYPE_CHECKING:", *later]
    (package / "__init__.py").write_text("\n".join(lines) + "\n", "utf-8")


class Generate(BuildHookInterface):
    def dependencies(self) -> "list[str]":
        return TOOLS if PROTO.is_dir() else []

    def initialize(self, version: str, build_data: "dict[str, object]") -> None:
        if PROTO.is_dir():
            generate()
        elif not (TARGET / "__init__.py").is_file():
            raise FileNotFoundError(
                f"the protocol is neither in {PROTO} nor generated in {TARGET}: install the package from a checkout of the "
                "whole repository, or from a source distribution"
            )

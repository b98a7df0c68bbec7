"""Imports gRPC without its fork handlers. The package imports this module before any other.

gRPC's fork handlers run in every forked process, also in one that only executes another program, and abort some of these
processes before they do. Python forks to start a program in these cases: before Python 3.10, on macOS, and for
`subprocess.Popen` with `preexec_fn`, `user` or `group`. A client that is used before a fork does not work in the forked
process with the handlers either.
"""

import os

_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
_UNSET = _VARIABLE not in os.environ
os.environ.setdefault(_VARIABLE, "0")
import grpc as grpc  # noqa: E402 gRPC reads the variable when it is first imported.

if _UNSET:
    # The programs that this one starts inherit the environment.
    del os.environ[_VARIABLE]

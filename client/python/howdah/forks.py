"""Imports gRPC without its fork handlers. The package imports this module before any other.

gRPC's fork handlers run in every forked process, even if the process only executes another program. They abort some of
these processes before the other program starts. Python forks to start a program in these cases: before Python 3.10, on
macOS, and for `subprocess.Popen` with `preexec_fn`, `user` or `group`. The handlers have no use here: even with them, a
client that is used before a fork does not work in the forked process.
"""

import os

_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
_UNSET = _VARIABLE not in os.environ
os.environ.setdefault(_VARIABLE, "0")
import grpc as grpc  # noqa: E402 gRPC reads the variable when it is first imported.

if _UNSET:
    # Programs that this program starts would inherit the variable.
    del os.environ[_VARIABLE]

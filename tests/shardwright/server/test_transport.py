"""How gRPC runs in processes whose scripts set variables of the environment and fork."""

import os
import re
import subprocess
import sys

from tests.shardwright.server.runs import ROOT, needs_grpc

# A member calls a scheduler by its name, and forks while it does.
_CALLS = """
import os
from tests.shardwright.server.runs import running

with running(1, 1) as run:
    run.address = run.address.replace("127.0.0.1", "localhost")
    member = run.member()
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    member.leave()
"""

_RESOLVER = re.compile("AresResolver|dns_resolver_ares")  # as releases name the one of gRPC


def traced(**variables):
    """Return what gRPC notes of calls."""
    everything = {"GRPC_TRACE": "all", "GRPC_VERBOSITY": "debug", "PYTHONPATH": str(ROOT)}
    for name in ("GRPC_DNS_RESOLVER", "GRPC_ENABLE_FORK_SUPPORT"):
        everything[name] = ""
    environment = {n: v for n, v in {**os.environ, **everything, **variables}.items() if v}
    command = [sys.executable, "-c", _CALLS]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ran.stderr


@needs_grpc
def test_grpc_reads_no_variables_in_threads_and_leaves_forks_alone():
    notes = traced()
    assert re.search("dns_?resolver", notes, re.IGNORECASE)
    assert not _RESOLVER.search(notes)
    assert "fork_posix" not in notes


@needs_grpc
def test_what_the_user_has_set_stays():
    assert _RESOLVER.search(traced(GRPC_DNS_RESOLVER="ares"))

"""Ports of this machine for servers that a test starts."""

import contextlib
import random
import socket

FIRST, LAST = 10_000, 22_000
GRPC = 10_000


def free_ports(count):
    """Each has the port that is 10,000 above it free too, where SeaweedFS answers gRPC. The kernel gives none of them to
    a client (ip_local_port_range begins at 32,768), so that none is taken before the server binds it, or while it is
    restarted."""
    found = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(FIRST, LAST)
        with socket.socket() as low, socket.socket() as high, contextlib.suppress(OSError):
            low.bind(("127.0.0.1", port))
            high.bind(("127.0.0.1", port + GRPC))
            found.add(port)
    return list(found)


def free_port():
    return free_ports(1)[0]

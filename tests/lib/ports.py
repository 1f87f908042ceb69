"""Ports of this machine for servers that a test starts."""

import contextlib
import random
import socket

GRPC = 10_000
FIRST, END = 10_000, 20_000  # so that no port is the gRPC port of another one


def free_ports(count):
    """The port that is 10,000 above each is free, too: SeaweedFS answers gRPC there. By default the kernel gives clients
    ports from 32,768 on (ip_local_port_range). So no client takes one of these before its server binds it."""
    found = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(FIRST, END)
        with socket.socket() as low, socket.socket() as high, contextlib.suppress(OSError):
            low.bind(("127.0.0.1", port))
            high.bind(("127.0.0.1", port + GRPC))
            found.add(port)
    return list(found)


def free_port():
    return free_ports(1)[0]

"""Ports of this machine for servers that a test starts."""

import contextlib
import random
import socket

import claims

GRPC = 10_000
FIRST, END = 10_000, 20_000  # so that no port is the gRPC port of another one

_claimed = []  # held until this process ends


def free_ports(count):
    """The port that is 10,000 above each is free, too: SeaweedFS answers gRPC there. By default the kernel gives clients
    ports from 32,768 on (ip_local_port_range), and each port is claimed. So nobody takes it before its server binds
    it."""
    found = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(FIRST, END)
        if (claim := claims.try_lock(f"port-{port}")) is None:
            continue
        with socket.socket() as low, socket.socket() as high, contextlib.suppress(OSError):
            low.bind(("127.0.0.1", port))
            high.bind(("127.0.0.1", port + GRPC))
            found.add(port)
        _claimed.append(claim)
    return list(found)


def free_port():
    return free_ports(1)[0]

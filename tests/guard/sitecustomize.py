"""No test needs a network: a connection to another machine, or a look-up of its name, is an error in every Python process.

Python runs this at its start, because the folder is on PYTHONPATH (tests/conftest.py). What was tried is also written to the
file that CSADA_TRIED names, since a library may catch the error. Libraries that open sockets in C are not seen.
"""

import os
import socket
import sys

HERE = {"", "127.0.0.1", "::1", "localhost", "0.0.0.0", "::", socket.gethostname()}


def is_here(host):
    """Whether a name or an address is of this machine."""
    host = host.decode() if isinstance(host, bytes) else host
    if host is None or host in HERE or not isinstance(host, str):
        return True
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            with socket.socket(family, socket.SOCK_DGRAM) as one:
                one.bind((host, 0))  # only an address of one's own can be bound
                return True
        except OSError:
            continue
    return False


def stay_here(event, given):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        if event == "socket.connect" and given[0].type == socket.SOCK_DGRAM:
            return  # nothing is sent: a common way to learn one's own address
        host = given[1][0] if isinstance(given[1], tuple) else None  # a path, of a Unix socket
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = given[0]
    else:
        return
    if not is_here(host):
        # Ray's dashboard asks which cloud it is in, whatever its settings are; it is refused as well
        if (tried := os.environ.get("CSADA_TRIED")) and "/ray/dashboard/" not in sys.argv[0]:
            with open(tried, "a") as file:
                file.write(f"{event} {host} {sys.argv}\n")
        raise RuntimeError(f"{event}: {host} is another machine")


sys.addaudithook(stay_here)

"""Nothing here reaches another machine: not the import of csada, not the tests (tests/guard), not what they start."""

import socket
import subprocess
import sys

import pytest

OTHER = "192.0.2.1"  # an address that belongs to nobody
TRIES = {
    "connection": f"socket.create_connection(({OTHER!r}, 80), timeout=1)",
    "look-up": "socket.getaddrinfo('example.invalid', 80)",
    "message": f"with socket.socket(type=socket.SOCK_DGRAM) as one: one.sendto(b'', ({OTHER!r}, 9))",
}


@pytest.mark.parametrize("code", TRIES.values(), ids=TRIES)
def test_no_test_and_no_process_of_one_reaches_another_machine(tmp_path, monkeypatch, code):
    monkeypatch.setenv("CSADA_TRIED", str(tried := tmp_path / "tried"))
    with pytest.raises(RuntimeError, match="is another machine"):
        exec(code)
    done = subprocess.run([sys.executable, "-c", f"import socket\n{code}"], capture_output=True, text=True)
    assert done.returncode == 1 and "is another machine" in done.stderr
    assert len(tried.read_text().splitlines()) == 2  # after which the session fails


def test_this_machine_can_be_reached(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
    socket.getaddrinfo(socket.gethostname(), 80)


def test_no_module_opens_a_connection_when_it_is_imported():
    """Not even to this machine; a name of `csada` alone brings its module too."""
    code = """
import importlib, os, pkgutil, sys
def never(event, given):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        os.write(2, f"{event} {given}".encode())
        os._exit(9)
sys.addaudithook(never)
import csada
missing = []
for found in pkgutil.walk_packages(csada.__path__, "csada."):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except ImportError as error:  # of an optional library
        missing.append(error.name)
for name in csada.__all__:
    getattr(csada, name)
loaded = sum(name.startswith("csada.") for name in sys.modules)
print(loaded, *missing)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded, *missing = done.stdout.split()
    assert int(loaded) > 150 and not {name for name in missing if name.startswith("csada")}

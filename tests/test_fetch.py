"""Downloads, against a real server on this machine that can break off, refuse to continue and serve wrong bytes."""

import hashlib
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from csada.data.fetch import REMOTES, Remote, RemoteFile, download, fetch
from csada.errors import InputError, RunError

CONTENT = bytes(range(256)) * 4000  # 1 MB
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        begin = int(self.headers.get("Range", "bytes=0-")[6:-1]) if server.continues else 0
        server.requests.append((self.path, begin))
        if self.path.strip("/") not in server.files:
            return self.send_error(404)
        if server.raw is not None:
            return self.wfile.write(server.raw)
        body = server.files[self.path.strip("/")]
        if begin >= len(body):
            return self.send_error(416)
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else len(body)
        self.wfile.write(body[begin : begin + cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.cuts, server.continues, server.requests = {"a.gz": CONTENT}, [], True, []
        server.raw = None
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_file_arrives_whole_and_reports_its_progress(server, tmp_path):
    seen = []
    download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5, lambda done, total: seen.append((done, total)))
    assert (tmp_path / "a.gz").read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["a.gz"]


def test_broken_connection_is_continued_where_it_broke(server, tmp_path):
    server.cuts = [300_000, 200_000]
    download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5)
    assert (tmp_path / "a.gz").read_bytes() == CONTENT
    assert [begin for _, begin in server.requests] == [0, 300_000, 500_000]


def test_what_arrived_is_kept_for_the_next_call(server, tmp_path):
    server.cuts = [100_000] * 5
    with pytest.raises(RunError, match="500,000 bytes are kept"):
        download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5)
    assert not (tmp_path / "a.gz").exists()
    download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5)
    assert server.requests[-1] == ("/a.gz", 500_000)
    assert (tmp_path / "a.gz").read_bytes() == CONTENT


def test_server_that_cannot_continue_starts_over(server, tmp_path):
    server.continues = False
    (tmp_path / "a.gz.part").write_bytes(b"old bytes")
    download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5)
    assert (tmp_path / "a.gz").read_bytes() == CONTENT


def test_finished_part_only_needs_its_name(server, tmp_path):
    (tmp_path / "a.gz.part").write_bytes(CONTENT)
    download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5)
    assert (tmp_path / "a.gz").read_bytes() == CONTENT


def test_wrong_checksum_is_refused_and_removed(server, tmp_path):
    server.files["a.gz"] = CONTENT[:-1] + b"!"
    with pytest.raises(RunError, match=f"not {MD5}"):
        download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5)
    assert not list(tmp_path.iterdir())


def test_missing_file_and_missing_server_are_named(server, tmp_path):
    with pytest.raises(RunError, match=r"b\.gz cannot be fetched: Not Found"):
        download(f"{server.url}/b.gz", tmp_path / "b.gz", MD5)
    with pytest.raises(RunError, match=r"127\.0\.0\.1:1/a\.gz cannot be fetched"):
        download("http://127.0.0.1:1/a.gz", tmp_path / "a.gz", MD5)


def test_folder_that_cannot_be_written_is_an_error(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="cannot be written"):
        download(f"{server.url}/a.gz", tmp_path / "file" / "a.gz", MD5)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "the connection broke 5 times; nothing came"),
        (b"nonsense\r\n\r\n", r"cannot be fetched: the server's answer is no HTTP \(BadStatusLine\)"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, r"is no HTTP \(LineTooLong\)"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", r"is no HTTP \(HTTPException\)"),
    ],
)
def test_a_server_that_speaks_no_http_is_one_line(server, tmp_path, raw, said):
    server.raw = raw
    with pytest.raises(RunError, match=said):
        download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("told", ["abc", "-1", "9" * 5000])
def test_a_length_that_is_no_number_is_left_to_the_checksum(server, tmp_path, told):
    server.raw = f"HTTP/1.0 200 OK\r\nContent-Length: {told}\r\n\r\n".encode() + CONTENT
    download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5)
    assert (tmp_path / "a.gz").read_bytes() == CONTENT


def test_a_pipe_in_place_of_the_part_is_not_waited_for(server, tmp_path):
    code = """
import sys
from pathlib import Path
from csada.data.fetch import download
download(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
"""
    os.mkfifo(tmp_path / "a.gz.part")
    words = [sys.executable, "-c", code, f"{server.url}/a.gz", tmp_path / "a.gz", MD5]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "a.gz.part cannot be written: not a regular file" in done.stderr


def test_a_download_is_on_the_disk_before_it_has_its_name(server, tmp_path, monkeypatch):
    done, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda number: done.append(os.readlink(f"/proc/self/fd/{number}")))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("renamed"), replace(a, b)))
    download(f"{server.url}/a.gz", tmp_path / "a.gz", MD5)
    assert done == [f"{tmp_path}/a.gz.part", "renamed", str(tmp_path)]


def test_fetch_brings_every_file_once(server, tmp_path, monkeypatch):
    server.files["b.gz"] = CONTENT[:1000]
    files = tuple(
        RemoteFile(name, len(body), hashlib.md5(body).hexdigest()) for name, body in sorted(server.files.items())
    )
    monkeypatch.setitem(REMOTES, "small", Remote("http://127.0.0.1:1/", "small", files))
    monkeypatch.setenv("CSADA_DATA", str(tmp_path))
    seen = []
    folder = fetch("small", base_url=server.url, on_progress=lambda done, total: seen.append((done, total)))
    assert folder == tmp_path / "small"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == server.files
    assert seen == sorted(seen)
    assert seen[-1] == (len(CONTENT) + 1000, len(CONTENT) + 1000)
    (folder / "b.gz").write_bytes(b"damaged")
    server.requests.clear()
    fetch("small", base_url=server.url)
    assert server.requests == [("/b.gz", 0)]


def test_name_without_a_download_is_an_error():
    with pytest.raises(InputError, match="cifar10, mnist"):
        fetch("digits")

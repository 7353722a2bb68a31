"""The monitor behind a real nginx with TLS, whose configuration is that of docs/remote.md."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from support.monitor_requests import url_of
from support.prometheus_server import program

import streamd

pytestmark = pytest.mark.proxy

ROOT: Final = Path(__file__).resolve().parents[2]
NAME: Final = "gpu1.example.org"  # of the page's example
LIMIT_S: Final = 20.0
# What nginx.conf has around the server of the page; everything that it writes lies in the test's folder.
FRAME: Final = """
daemon off;
master_process off;
pid {place}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
    {server}
}}
"""


@dataclass(frozen=True, slots=True)
class Proxied:
    """A daemon, and the port of the proxy before its monitor."""

    daemon: DaemonProcess
    port: int
    certificate: Path

    def connect(self, name: str = NAME) -> http.client.HTTPConnection:
        """Connects with TLS, under a name."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        plain = socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
        connection = http.client.HTTPConnection(name)
        try:
            connection.sock = context.wrap_socket(plain, server_hostname=name)
        except BaseException:
            plain.close()
            raise
        return connection

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Returns status and body of a response."""
        connection = self.connect()
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()


def write_documented_config(place: Path, monitor: str, port: int, certificate: Path) -> Path:
    """Writes nginx.conf with the server of docs/remote.md, at this port, before this monitor."""
    [server] = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "remote.md").read_text(), re.DOTALL)
    for documented, here in (
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("http://127.0.0.1:9191", monitor),
        ("/etc/nginx/streamd.crt", str(certificate)),
        ("/etc/nginx/streamd.key", str(certificate.with_suffix(".key"))),
    ):
        assert documented in server
        server = server.replace(documented, here)
    path = place / "nginx.conf"
    path.write_text(FRAME.format(place=place, server=server))
    return path


def make_certificate(place: Path) -> Path:
    """Makes a key and a certificate for NAME, and returns the path of the certificate."""
    certificate = place / "streamd.crt"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    files = ["-keyout", str(certificate.with_suffix(".key")), "-out", str(certificate)]
    command = [program("openssl", "openssl"), "req", *kind, *names, *files]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    return certificate


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    place = tmp_path_factory.mktemp("p")
    folder = write_images(place / "data", {"cat": 20, "dog": 20})
    config: dict[str, object] = {"monitor": "127.0.0.1:0", "streams": {"train": stream_config(folder)}}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    certificate = make_certificate(place)
    with DaemonProcess(place, config) as daemon:
        path = write_documented_config(place, url_of(daemon), port, certificate)
        with (place / "nginx.log").open("wb") as log:
            nginx = subprocess.Popen([program("nginx", "nginx"), "-c", path, "-p", place], stdout=log, stderr=log)
        try:
            wait_until(lambda: is_listening(port) or nginx.poll() is not None, "nginx listens")
            assert nginx.poll() is None, (place / "nginx.log").read_text()
            yield Proxied(daemon, port, certificate)
        finally:
            nginx.terminate()
            nginx.wait(LIMIT_S)


def is_listening(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


def test_the_page_comes_with_its_policy(proxied: Proxied) -> None:
    connection = proxied.connect()
    connection.request("GET", "/")
    response = connection.getresponse()
    assert response.status == 200
    assert "default-src" in response.getheader("Content-Security-Policy", "")
    assert "<title>" in response.read().decode()
    connection.close()


@pytest.mark.parametrize(
    ("path", "words"), [("/metrics", "streamd_"), ("/healthz", "ok"), ("/readyz", "ready"), ("/page/live.js", "fetch")]
)
def test_what_the_monitor_answers_comes_through(proxied: Proxied, path: str, words: str) -> None:
    status, body = proxied.get(path)
    assert status == 200
    assert words in body


def test_the_figures_arrive_as_they_are_sent(proxied: Proxied) -> None:
    connection = proxied.connect()
    connection.request("GET", "/live")
    response = connection.getresponse()
    events = [line for line in (response.readline() for _ in range(3)) if line.startswith(b"data: ")]
    assert len(events) == 2  # an empty line lies between; the second one comes a while after the first
    connection.close()


def test_pictures_need_the_token_through_the_proxy_too(proxied: Proxied) -> None:
    with streamd.connect(proxied.daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        token = client.dashboard().partition("#")[2]
        next(iter(stream))
        assert proxied.get("/bad/train")[0] == 401
        assert proxied.get("/bad/train", Authorization="Bearer wrong")[0] == 401
        assert proxied.get("/bad/train", Authorization=f"Bearer {token}")[0] == 200


def test_another_name_gets_no_answer(proxied: Proxied) -> None:
    with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
        proxied.connect("evil.example.org")

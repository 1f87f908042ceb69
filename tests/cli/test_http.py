"""-o http=: who has access, what is answered, and whether the metrics count correctly and promtool can read them."""

import contextlib
import errno
import http.client
import json
import os
import re
import shutil
import socket
import threading
import time

import pytest

import saving
from checking import equal, in_child, noise, raises, read, true, write
from mounting import CKPTFS, CKPTFS_DEBUG, MIB, REPOSITORY, Failure, Mount, Store, abandon, mounted, run, wait_until
from saving import ask
from training import write_state

PROMTOOL = REPOSITORY / "build/deps/bin/promtool"
LOOPBACK = "http=127.0.0.1:0"
MOUNT_OPTIONS = (LOOPBACK,)


def address(mount):
    return mount.status()["http"]


def get(where, path, method="GET", **headers):
    """Returns status, headers and body."""
    host, _, port = where.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=30)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def metrics(mount):
    """Returns the metrics as {'ckptfs_opens_total{mode="direct"}': 3.0}."""
    status, _, text = get(address(mount), "/metrics")
    equal(status, 200, "/metrics")
    return parsed(text)


def parsed(text):
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


# --- access


def test_off_unless_asked_for(disk, work):
    with mounted(Store(disk / "off"), work / "off") as mount:
        equal(address(mount), "", "an address without -o http")


def test_refused_options(disk, work):
    store, point = disk / "refused", work / "refused"
    point.mkdir()
    token = work / "token"
    token.write_text("a" * 32 + "\n")

    def refused(*options, code=2, words=()):
        done = run(CKPTFS, "mount", *[word for option in options for word in ("-o", option)], store, point, check=False)
        equal(done.returncode, code, f"{options}: {done.stderr}")
        for word in words:
            true(word in done.stderr, f"{options}: {word!r} is not in {done.stderr}")

    for bad in ("http=", "http=9180", "http=localhost:80", "http=127.0.0.1:", "http=127.0.0.1:x", "http=127.0.0.1:70000"):
        refused(bad, words=["127.0.0.1:9180"])
    refused("http=0.0.0.0:0", words=["token"])
    refused("http=[::]:0", words=["token"])
    refused(f"http_token={token}", words=["http=ADDRESS:PORT"])
    token.chmod(0o644)
    refused(LOOPBACK, f"http_token={token}", code=1, words=["chmod 600"])
    token.chmod(0o600)
    token.write_text("short\n")
    refused(LOOPBACK, f"http_token={token}", words=["16"])
    refused(LOOPBACK, f"http_token={work / 'nowhere'}", code=1, words=["nowhere"])
    with socket.create_server(("127.0.0.1", 0)) as other:
        refused(f"http=127.0.0.1:{other.getsockname()[1]}", code=1, words=["in use", "another port"])
    true(not os.path.ismount(point), "a refused mount is there")


@pytest.mark.one_mode
def test_who_may_look(shared):
    where = address(shared)
    port = where.rpartition(":")[2]
    for host in (where, f"localhost:{port}", "127.0.0.1", "[::1]:80", "localhost"):
        equal(get(where, "/metrics", Host=host)[0], 200, f"as {host}")
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", ""):
        equal(get(where, "/metrics", Host=host)[0], 403, f"as {host!r}")
        equal(get(where, "/api/state", Host=host)[0], 403, f"state as {host!r}")


def test_by_token(disk, work):
    token = work / "secret"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    with mounted(Store(disk / "token"), work / "token-mnt", options=("http=0.0.0.0:0", f"http_token={token}")) as mount:
        where = "127.0.0.1:" + address(mount).rpartition(":")[2]
        equal(get(where, "/", Host="any.example")[0], 200, "the page itself tells nothing")
        for path in ("/metrics", "/api/state"):
            equal(get(where, path)[0], 401, f"{path} without")
            for wrong in ("Bearer wrong", "Bearer 0123456789abcdef012", "Bearer 0123456789abcdef01234", "0123456789abcdef0123",
                          "Basic 0123456789abcdef0123", "Bearer "):
                equal(get(where, path, Authorization=wrong)[0], 401, f"{path} with {wrong}")
            equal(get(where, path, Authorization="Bearer 0123456789abcdef0123", Host="any.example")[0], 200, path)
        true("0123456789abcdef" not in run("ps", "ax", "-o", "args").stdout, "the token is among the processes' arguments")
        true("0123456789abcdef" not in mount.read_log(), "the token is in the log")


# --- answers


def test_answers(shared):
    where = address(shared)
    status, headers, body = get(where, "/")
    equal((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"), "/")
    equal(body, (REPOSITORY / "fs/control/page.html").read_text(), "the page")
    true("default-src 'none'" in headers["Content-Security-Policy"], "what the page may load")
    true(not re.search(r"(src|href)=[\"']?(https?:)?//", body), "the page has a resource from outside")
    equal(get(where, "/", method="HEAD")[2], "", "HEAD")
    equal(get(where, "/?token=x")[0], 200, "with a query")
    equal(get(where, "/nothing")[0], 404, "/nothing")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        equal(get(where, "/metrics", method=method)[0], 405, method)
    state = json.loads(get(where, "/api/state")[2])
    equal((state["steps"], list(state["policies"]), state["saves"]), ([], ["/steps"], []), "state")


@pytest.mark.one_mode
def test_what_is_no_http(shared):
    host, _, port = address(shared).rpartition(":")

    def send(data):
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            got = b""
            while chunk := client.recv(65536):
                got += chunk
            return got

    for data in (b"", b"\r\n", b"hello\r\n\r\n", b"GET /metrics HTTP/1.1\r\n", noise(4096, 1), b"GET / HTTP/1.1\r\nX: " + b"y" * 20000,
                 b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"):
        try:
            true(b"200 OK" not in send(data), f"answered: {data[:40]}")
        except OSError:  # the connection was cut
            pass
    equal(get(address(shared), "/metrics")[0], 200, "afterwards")


@pytest.mark.one_mode
def test_many_at_once(shared):
    where, results = address(shared), []

    def look():
        for _ in range(5):
            results.append(get(where, "/api/state")[0])
            results.append(get(where, "/metrics")[0])

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(results, [200] * 80, "answers")
    # A client that only holds connections must not keep others out for long, nor end the daemon.
    held = []
    for _ in range(100):
        held.append(socket.create_connection((where.rpartition(":")[0], int(where.rpartition(":")[2]))))
    wait_until("an answer beside 100 held connections", lambda: answered(where), 5)
    for connection in held:
        connection.close()


def answered(where):
    try:
        return get(where, "/metrics")[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


# --- metrics


# Two machines: on one everything is well, and on the other everything goes wrong from the fifth minute on.
ALERTS = """
rule_files: ["{rules}"]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'up{{job="ckptfs", instance="good"}}', values: "1x60"}}
      - {{series: 'ckptfs_store_size_bytes{{instance="good"}}', values: "1000x60"}}
      - {{series: 'ckptfs_store_free_bytes{{instance="good"}}', values: "500x60"}}
      - {{series: 'ckptfs_store_owed_bytes{{instance="good"}}', values: "100x60"}}
      - {{series: 'ckptfs_write_errors_total{{instance="good", what="write"}}', values: "3x60"}}
      - {{series: 'ckptfs_save_errors_total{{instance="good", reason="refused"}}', values: "0x5 7x55"}}
      - {{series: 'ckptfs_damaged_files{{instance="good", found_by="scrub"}}', values: "0x60"}}
      - {{series: 'up{{job="ckptfs", instance="dead"}}', values: "1x5 0x55"}}
      - {{series: 'ckptfs_store_size_bytes{{instance="bad"}}', values: "1000x60"}}
      - {{series: 'ckptfs_store_free_bytes{{instance="bad"}}', values: "500x5 40x55"}}
      - {{series: 'ckptfs_store_owed_bytes{{instance="bad"}}', values: "0x60"}}
      - {{series: 'ckptfs_store_size_bytes{{instance="owing"}}', values: "1000x60"}}
      - {{series: 'ckptfs_store_free_bytes{{instance="owing"}}', values: "500x60"}}
      - {{series: 'ckptfs_store_owed_bytes{{instance="owing"}}', values: "100x5 300x55"}}
      - {{series: 'ckptfs_write_errors_total{{instance="bad", what="write"}}', values: "0x25 3x35"}}
      - {{series: 'ckptfs_read_errors_total{{instance="bad"}}', values: "0x25 3x35"}}
      - {{series: 'ckptfs_request_errors_total{{instance="bad", operation="open"}}', values: "0x25 3x35"}}
      - {{series: 'ckptfs_release_errors_total{{instance="bad"}}', values: "0x25 3x35"}}
      - {{series: 'ckptfs_save_errors_total{{instance="bad", reason="failed"}}', values: "0x25 3x35"}}
      - {{series: 'ckptfs_lossy_resumes_total{{instance="good"}}', values: "1x60"}}
      - {{series: 'ckptfs_lossy_resumes_total{{instance="bad"}}', values: "0x25 1x35"}}
      - {{series: 'ckptfs_damaged_files{{instance="bad", found_by="scrub"}}', values: "0x5 2x55"}}
      - {{series: 'ckptfs_rotation_warnings{{instance="bad"}}', values: "0x5 2x55"}}
      - {{series: 'ckptfs_fallbacks_total{{instance="bad", what="clone"}}', values: "0x25 3x35"}}
    promql_expr_test:
      - expr: count by (alertname, instance) (ALERTS{{alertstate="firing"}})
        eval_time: 30m
        exp_samples:
          - {{labels: '{{alertname="CkptfsDown", instance="dead"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsWritesFail", instance="bad"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsReadsFail", instance="bad"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsRequestsFail", instance="bad"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsReleasesFail", instance="bad"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsDamagedFiles", instance="bad"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsSavesFail", instance="bad"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsResumeLosesState", instance="bad"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsStoreFillsUp", instance="bad"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsStoreFillsUp", instance="owing"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsRotationStuck", instance="bad"}}', value: 1}}
          - {{labels: '{{alertname="CkptfsFallbacks", instance="bad"}}', value: 1}}
"""


def test_promtool_reads_them(shared):
    promtool_reads(shared)


def promtool_reads(mount):
    text = get(address(mount), "/metrics")[2]
    done = run(PROMTOOL, "check", "metrics", input=text)
    equal(done.stdout + done.stderr, "", "promtool check metrics")
    run(PROMTOOL, "check", "rules", REPOSITORY / "docs/alerts.yml")
    rules = mount.path.parent / "alerts_test.yml"
    rules.write_text(ALERTS.format(rules=REPOSITORY / "docs/alerts.yml"))
    run(PROMTOOL, "test", "rules", rules)


@pytest.mark.one_mode
def test_alerts_and_dashboard_name_what_is_there(shared):
    known = {re.split(r"[{ ]", name)[0] for name in get(address(shared), "/metrics")[2].splitlines() if not name.startswith("#")}
    known |= {match for match in re.findall(r"# TYPE (\S+)", get(address(shared), "/metrics")[2])}
    dashboard = json.loads((REPOSITORY / "docs/grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = set(re.findall(r"ckptfs_\w+", " ".join(expressions) + (REPOSITORY / "docs/alerts.yml").read_text()))
    unknown = {name for name in named if name not in known and re.sub(r"_(bucket|count|sum)$", "", name) not in known}
    equal(unknown, set(), "metrics that nobody exports")
    true(len(named) > 20, f"only {named}")


def test_each_request_is_timed(shared):
    """If an answer bypassed the clock, the two numbers would differ."""
    root = shared.path
    write(root / "file", noise(MIB, 1))
    equal(read(root / "file"), noise(MIB, 1))
    os.symlink("file", root / "link")
    os.readlink(root / "link")
    os.link(root / "file", root / "second")
    os.rename(root / "second", root / "third")
    os.mkfifo(root / "fifo")
    (root / "folder").mkdir()
    os.listdir(root / "folder")
    list(os.scandir(root))
    os.rmdir(root / "folder")
    os.setxattr(root / "file", "user.a", b"b")
    os.getxattr(root / "file", "user.a")
    os.listxattr(root / "file")
    os.removexattr(root / "file", "user.a")
    with raises(errno.ENODATA):
        os.getxattr(root / "file", "user.a")
    with raises(errno.ENOENT):
        os.stat(root / "nothing")
    with raises(errno.EROFS):
        os.mkdir(root / "views" / "x")
    os.statvfs(root)
    os.truncate(root / "file", 5)
    os.chmod(root / "file", 0o600)
    with open(root / "file", "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, MIB)
        os.fsync(file.fileno())
        os.lseek(file.fileno(), 0, os.SEEK_DATA)
    folder = os.open(root, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    run("cp", root / "file", root / "copy")
    write_state(root)
    shared.save("s1")
    list(os.walk(root / "views" / "steps" / "s1"))
    with raises(errno.EINVAL):
        os.setxattr(root / "steps", "user.ckptfs.save", b"latest")
    shutil.rmtree(root / "steps" / "s1")

    where = address(shared)

    def apart():
        counters = json.loads(get(where, "/api/state")[2])["status"]["counters"]["operations"]
        told = parsed(get(where, "/metrics")[2])
        timed = {name: int(told.get(f'ckptfs_request_duration_seconds_count{{operation="{name}"}}', 0)) for name in counters}
        return {name: (count, timed[name]) for name, count in counters.items() if timed[name] != count and name != "forget"}

    with contextlib.suppress(Failure):
        wait_until("each request's time", lambda: not apart(), 5)
    equal(apart(), {}, "requests that were counted and not timed")
    counters = shared.status()["counters"]["operations"]
    for name in ("lookup", "getattr", "setattr", "readlink", "mknod", "mkdir", "unlink", "rmdir", "symlink", "rename", "link",
                 "create", "open", "release", "fsync", "opendir", "readdir", "releasedir", "fsyncdir", "statfs", "setxattr",
                 "getxattr", "listxattr", "removexattr", "fallocate", "lseek"):
        true(counters.get(name, 0) + counters.get(name + "plus", 0) > 0, f"no {name} was asked for")


def test_they_count(shared):
    before = metrics(shared)
    write_state(shared.path)
    shared.save("m1")
    with raises(errno.EEXIST):
        write_and_save(shared, "m1")
    run("cp", shared.path / "steps/m1/offloaded_tensors/rank00/0_2.tensor.swp", shared.path / "clone")
    after = metrics(shared)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    equal(grown["ckptfs_save_duration_seconds_count"], 1, "saves")
    equal(grown['ckptfs_save_errors_total{reason="refused"}'], 1, "saves that cannot be")
    equal(grown['ckptfs_save_errors_total{reason="failed"}'], 0, "saves that failed")
    true(grown["ckptfs_save_duration_seconds_sum"] > 0, "time of saves")
    true(grown["ckptfs_cloned_bytes_total"] > MIB, "cloned bytes")
    equal(grown['ckptfs_write_errors_total{what="write"}'], 0, "errors")
    mode = "passthrough" if shared.mode == "passthrough" else "direct"
    true(grown[f'ckptfs_opens_total{{mode="{mode}"}}'] > 0, "opens")
    for name in after:
        if name.startswith("ckptfs_request_duration_seconds_bucket") and 'le="+Inf"' in name:
            operation = re.search(r'operation="(\w+)"', name).group(1)
            equal(after[name], after[f'ckptfs_request_duration_seconds_count{{operation="{operation}"}}'], name)
    state = json.loads(get(address(shared), "/api/state")[2])
    equal([(save["step"], bool(save["error"])) for save in state["saves"]][-2:], [("/steps/m1", False), ("/steps/m1", True)], "history")
    true(all(save["seconds"] > 0 for save in state["saves"]), "time of each")


def test_what_the_ranks_of_a_save_took(shared):
    steps = shared.path / "steps"
    for rank in (1, 0):
        saving.save(steps, "by_ranks", "a1", rank=rank, world=2)
    told = json.loads(get(address(shared), "/api/state")[2])["saved_by_ranks"]
    equal((told["step"], told["slowest"], told["host"]), ("/steps/by_ranks", 0, socket.gethostname()), "the last rank")
    equal(sorted(told["stages"]), ["copy", "sync", "write"], "stages")
    found = metrics(shared)
    equal(found["ckptfs_rank_save_slowest"], 0, "the last rank, as a metric")
    for stage, seconds in told["stages"].items():
        equal(found[f'ckptfs_rank_save_stage_seconds{{stage="{stage}"}}'], seconds, stage)


def test_what_the_ranks_of_a_load_took(shared):
    steps = shared.path / "steps"
    saving.save(steps, "loaded", "a1")
    told = {"path": "/steps/loaded", "slowest": 3, "host": "node7", "seconds": 2.5, "stages": {"open": 0.5, "read": 2.0}}
    for wrong in ({"slowest": -1}, {"slowest": 1 << 20}, {"host": "n" * 257}, {"seconds": -1}, {"seconds": "2"}, {"stages": {"a b": 1}},
                  {"stages": {"read": -1}}, {"stages": {f"stage{number}": 1 for number in range(33)}}, {"stages": []}):
        with raises(errno.EINVAL, what=wrong):
            ask(shared, "loaded", **(told | wrong))
    with raises(errno.ENOENT, what="of a step that is not there"):
        ask(shared, "loaded", **(told | {"path": "/steps/none"}))
    os.chmod(steps, 0o700)
    with raises(errno.EACCES, what="by somebody who may not read it"):
        in_child(lambda: ask(shared, "loaded", **told), uid=12345)
    os.chmod(steps, 0o755)
    true("loaded_by_ranks" not in json.loads(get(address(shared), "/api/state")[2]), "nothing of that is told on")
    ask(shared, "loaded", **told)
    equal(json.loads(get(address(shared), "/api/state")[2])["loaded_by_ranks"], {"step": "/steps/loaded"} | {
        name: told[name] for name in ("slowest", "host", "seconds", "stages")}, "the page")
    found = metrics(shared)
    equal(found["ckptfs_rank_load_slowest"], 3, "the last rank, as a metric")
    equal(found['ckptfs_rank_load_stage_seconds{stage="read"}'], 2, "a stage")


def write_and_save(mount, tag):
    write_state(mount.path, 7)
    mount.save(tag)


# The error cases: the fault, the action that meets it, and the counters that must show it.
ERRORS = (
    ("write_back.sync", lambda path: os.fsync(opened(path)), 'write_errors_total{what="fdatasync"}', 'request_errors_total{operation="fsync"}'),
    ("fs.write", lambda path: os.write(opened(path), b"x"), 'write_errors_total{what="write"}', 'request_errors_total{operation="write"}'),
    ("fs.read", lambda path: os.read(opened(path), 1), "read_errors_total", 'request_errors_total{operation="read"}'),
    ("fs.fallocate", lambda path: os.posix_fallocate(opened(path), 0, 4096), 'write_errors_total{what="fallocate"}',
     'request_errors_total{operation="fallocate"}'),
)


def opened(path):
    return os.open(path, os.O_RDWR)


@pytest.mark.builds("faults")
def test_errors_are_counted(disk, work):
    """Tests each kind of error that promise 4 names: the caller, the log and the metrics must report a disk's error."""
    for fault, meet, *counters in ERRORS:
        # No file becomes quiet, so no digest is taken: it would meet the fault, too.
        mount = Mount(Store(disk / fault), work / fault, mode="direct", binary=CKPTFS_DEBUG, faults=f"{fault}=error:EIO",
                      options=(LOOPBACK, "quiet=1h"))
        try:
            mount.start()
            os.close(os.open(mount.path / "file", os.O_CREAT | os.O_RDWR))
            os.truncate(mount.path / "file", 100)
            with raises(errno.EIO, what=fault):
                in_child(lambda: meet(mount.path / "file"))
            told = metrics(mount)
            for counter in counters:
                equal(told[f"ckptfs_{counter}"], 1, f"{fault}: {counter}")
            others = [name for name, value in told.items() if "_errors_total" in name and value != 0 and name[7:] not in counters]
            equal(others, [], f"{fault}: other errors")
            true("Input/output error" in mount.read_log(), f"{fault}: the log")
        finally:
            abandon(mount)


@pytest.mark.builds("faults")
def test_errors_at_release_are_counted(disk, work):
    mount = Mount(Store(disk / "release"), work / "release", mode="direct", binary=CKPTFS_DEBUG,
                  faults="tree.finished_writing=2:error:EIO", options=(LOOPBACK,))
    try:
        mount.start()
        for version in range(2):
            write_state(mount.path, version, ranks=1, groups=("0_2",))
        wait_until("the count", lambda: metrics(mount)["ckptfs_release_errors_total"] == 1)
        true("was not counted again" in mount.read_log(), "the log")
    finally:
        abandon(mount)


def test_damage_is_counted_while_it_is_there(disk, work):
    store = Store(disk / "damaged")
    with mounted(store, work / "damaged", options=(LOOPBACK,)) as mount:
        write(mount.path / "file", noise(MIB, 3))
        run("sync")
        blob = max(store.blobs.iterdir(), key=lambda file: file.stat().st_size)
        mount.kill()
        os.unlink(blob)
        mount.start()
        equal(metrics(mount)['ckptfs_damaged_files{found_by="recovery"}'], 1, "damaged files")
        os.unlink(mount.path / "file")
        wait_until("no damage any more", lambda: metrics(mount)['ckptfs_damaged_files{found_by="recovery"}'] == 0)
        true(not any("damaged" in warning for warning in mount.status()["warnings"]), "the warning")


def test_what_the_disk_holds(disk, work):
    """The disk has more on it than the store. Only what steps share must count as shared."""
    other = disk / "somebody-elses"
    write(other, noise(200 * MIB, 9))
    with mounted(Store(disk / "holds"), work / "holds", options=(LOOPBACK,)) as mount:
        write_state(mount.path)
        mount.save("s1")
        write_state(mount.path, 1)
        mount.save("s2")
        run("sync")
        usage = json.loads(get(address(mount), "/api/state")[2])["usage"]
        alone = sum(one["exclusive"] for one in usage["series"].values())
        files = len(write_state(mount.path, 1)) * (MIB + 3 * 1024)
        true(files <= alone < files * 1.2, f"the series alone: {alone}, its files: {files}")
        shared = usage["all"] - alone - usage["live"]["exclusive"] - usage["rest"]["exclusive"] - usage["nobody"]["exclusive"]
        true(files <= shared < files * 1.2, f"shared: {shared}, the live files: {files}")
    os.unlink(other)


def test_steps_that_go_meanwhile(shared):
    """Removing steps while somebody looks at them must not cause errors."""
    where, errors, done = address(shared), [], threading.Event()

    def look():
        while not done.is_set():
            state = json.loads(get(where, "/api/state")[2])
            if "error" in state:
                errors.append(state["error"])
            listed = run(CKPTFS, "ls", "--json", shared.path, check=False)
            if listed.returncode != 0:
                errors.append(listed.stderr)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(15):
            step = shared.path / f"steps/checkpoint-{number}"
            for part in range(20):
                (step / f"part{part}").mkdir(parents=True)
                (step / f"part{part}" / "data").write_text("x")
            (step / "trainer_state.json").write_text('{"global_step": 1}')
            shutil.rmtree(step)
    finally:
        done.set()
        thread.join()
    equal(errors, [], "what the page and ls said")


@pytest.mark.one_mode
def test_folders_too_deep(shared):
    """A recursive walk must have a limit."""
    folder = os.open(shared.path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    done = run(CKPTFS, "verify", shared.path / "d", check=False)
    true(done.returncode == 1 and "too deep" in done.stderr, f"verify: {done}")
    run("rm", "-rf", shared.path / "d")


def test_promtool_reads_what_was_counted(shared):
    promtool_reads(shared)


def test_ends_with_the_mount(disk, work):
    with mounted(Store(disk / "ends"), work / "ends", options=(LOOPBACK,)) as mount:
        where = address(mount)
        host, _, port = where.rpartition(":")
        with socket.create_connection((host, int(port))) as idle:  # an idle client must not delay the unmount
            started = time.monotonic()
            mount.stop()
            true(time.monotonic() - started < 20, "the unmount waits for a client")
            equal(idle.recv(1), b"", "the connection's end")
        true(not answered(where), "it answers after the unmount")
        mount.start()

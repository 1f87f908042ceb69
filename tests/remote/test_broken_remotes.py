"""A remote that is broken in one of many ways: the cause is named within a minute, nobody waits for it, and when the
remote is well again the step is committed without a hand.

Each way has a series of its own in one mount, and a link of its own to its remote. So all of them are broken at once.
"""

import contextlib
import errno
import json
import os
import shutil
import ssl
import time
import urllib.request

import pytest

from checking import equal, noise, raises, true, write
from collecting import files_of
from mounting import MIB, Store, mounted, run, wait_until
from seaweed import BUCKET, KEY, SECRET, Proxy, environment
from test_push import ERROR, QUIET, agree, ckptfs, fill, state_of, status_of, tree, wait_for
from test_stores import answer, error
from training import write_state

pytestmark = [pytest.mark.builds("venv"),
              pytest.mark.one_mode, pytest.mark.timeout(500)]

SECONDS_TO_NAME_IT = 60
SECONDS_TO_WAIT = 5  # that nobody waits longer for anything
SECONDS_TO_COMMIT = 120  # when it is well again
SLOW = 100_000  # bytes a second


class Broken:
    """A series, its remote, and what is wrong with it. `words`: what is said of it."""

    words = ()

    def __init__(self, name, server, folder):
        self.name, self.server, self.folder = name, server, folder
        self.url = f"s3://{BUCKET}/{folder.name}-{name}"
        self.link = Proxy(server.ports[3]).__enter__()
        self.series = None

    def options(self):
        return ["--endpoint", f"http://127.0.0.1:{self.link.port}"]

    def read_options(self):
        return ["--endpoint", self.server.endpoint]

    def add(self, mount):
        self.series = mount.path / self.name
        self.series.mkdir()
        ckptfs("remote", "add", self.url, self.series, *self.options())

    def break_it(self):
        raise NotImplementedError

    def heal(self):
        self.link.become()

    def end(self):
        self.link.__exit__()


class Hangs(Broken):
    words = ("not a byte has moved for",)

    def break_it(self):
        self.link.become("hang")


class Answers(Broken):
    def __init__(self, name, server, folder, bytes_of_it, *words):
        super().__init__(name, server, folder)
        self.answer, self.words = bytes_of_it, words

    def break_it(self):
        self.link.become(self.answer)


class Cut(Broken):
    words = ("127.0.0.1",)

    def break_it(self):
        self.link.become("refuse")


class Certificate(Broken):
    """The server has another certificate than the one that --ca-file trusts."""

    words = ("certificate",)

    def __init__(self, name, server, folder):
        super().__init__(name, server, folder)
        self.good, self.bad = (self._context(folder, which) for which in ("good", "bad"))
        self.link.become(tls=self.good)

    @staticmethod
    def _context(folder, which):
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={which}",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / f"{which}.key", "-out",
            folder / f"{which}.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{which}.pem", folder / f"{which}.key")
        return context

    def options(self):
        return ["--endpoint", f"https://127.0.0.1:{self.link.port}", "--ca-file", str(self.folder / "good.pem")]

    def break_it(self):
        self.link.become(tls=self.bad)

    def heal(self):
        self.link.become(tls=self.good)


class Full(Broken):
    """The remote is a folder on a disk without space."""

    words = ("No space left on device",)

    def __init__(self, name, server, folder):
        super().__init__(name, server, folder)
        self.disk = folder / "full-disk"
        self.disk.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", self.disk)
        self.url = f"file://{self.disk}/remote"
        (self.disk / "remote").mkdir()

    def options(self):
        return []

    read_options = options

    def break_it(self):
        with raises(errno.ENOSPC), open(self.disk / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(MIB))

    def heal(self):
        (self.disk / "filler").unlink()

    def end(self):
        super().end()
        run("umount", "-l", self.disk, check=False)


class Credentials(Broken):
    """The command that has the credentials hangs, after those that it gave have expired."""

    words = ("credential_process",)

    def options(self):
        return super().options() + ["--profile", "hanging"]

    def break_it(self):
        (self.folder / "hangs").touch()

    def heal(self):
        (self.folder / "hangs").unlink()

    @staticmethod
    def variables(folder):
        """Of the daemon."""
        command = folder / "credentials.sh"
        command.write_text(f"[ -e {folder}/hangs ] && sleep 300\n"
                           f"echo '{{\"Version\": 1, \"AccessKeyId\": \"{KEY}\", \"SecretAccessKey\": \"{SECRET}\", "
                           "\"Expiration\": \"'$(date -u -d '+20 seconds' +%Y-%m-%dT%H:%M:%SZ)'\"}'\n")
        (folder / "config").write_text(f"[profile hanging]\ncredential_process = sh {command}\n")
        return {"AWS_CONFIG_FILE": str(folder / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none")}


def all_ways(server, folder):
    return [
        Hangs("hangs", server, folder),
        Answers("says500", server, folder, answer("500 Internal", error("InternalError")), "500", "words of the"),
        Answers("says503", server, folder, answer("503 Slow Down", error("SlowDown")), "503", "SlowDown"),
        Answers("says403", server, folder, answer("403 Forbidden", error("AccessDenied")), "403", "AccessDenied"),
        Answers("garbage", server, folder, b"\0\1\2garbage\r\n\r\n" * 10, "127.0.0.1"),
        Answers("html", server, folder, answer("200 OK", b"<html>Log in</html>"), "no list"),
        Cut("cut", server, folder),
        Certificate("certificate", server, folder),
        Full("full", server, folder),
        Credentials("credentials", server, folder),
    ]


@pytest.fixture
def ways(server, scratch, monkeypatch):
    for name, value in (environment() | Credentials.variables(scratch)).items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        made = all_ways(server, scratch)
        for way in made:
            stack.callback(way.end)
        yield made


def error_of(step):
    with contextlib.suppress(OSError):
        return os.getxattr(step, ERROR).decode()
    return ""


def stalled(mount, way):
    """The metric, in seconds."""
    with urllib.request.urlopen(f"http://{mount.status()['http']}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    name = f'ckptfs_remote_stalled_seconds{{series="/{way.name}"}} '
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def told(mount, way, step):
    """Returns the places that do not name the cause yet."""
    places = {
        "status": ckptfs("remote", "status", way.series),
        "xattr": error_of(step),
        "log": mount.log.read_text(errors="replace"),
    }
    silent = [place for place, text in places.items() if not all(word in text for word in way.words)]
    return silent + (["metric"] if stalled(mount, way) <= 0 else [])


def wait_until_told(mount, ways, steps, seconds):
    """Returns when each was told, in seconds."""
    begun, since = time.monotonic(), {}
    while len(since) < len(ways) and time.monotonic() < begun + seconds:
        for way in ways:
            if way.name not in since and not told(mount, way, steps[way.name]):
                since[way.name] = round(time.monotonic() - begun)
        time.sleep(0.5)
    silent = {way.name: told(mount, way, steps[way.name]) for way in ways if way.name not in since}
    equal(silent, {}, f"what does not name the cause after {seconds} s; the others: {since}")
    print("told after", since)


@contextlib.contextmanager
def at_once(what, seconds=SECONDS_TO_WAIT):
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    true(took < seconds, f"{what} took {took:.1f} s")


def train(mount, series):
    """What a training does, and nobody waits."""
    with at_once("writing"):
        state = write_state(mount.path)
    with at_once("a save"):
        mount.save("saved", series.name)
    step = series / "global_step90"
    with at_once("a step"):
        fill(step, seed=90, size=MIB)
    time.sleep(1.2)
    with at_once("its removal"):
        shutil.rmtree(step)
    with at_once("the save's removal"):
        shutil.rmtree(series / "saved")
    true(state, "something was written")


def rotate(series):
    """The newest 2 unpushed steps stay, and older ones obey the rules."""
    ckptfs("policy", series, "--set", "keep_last=1")
    for number in range(50, 54):
        time.sleep(1.2)  # the rules are armed by a step that completes when the series has been left alone
        step = series / f"global_step{number}"
        step.mkdir()
        write(step / "model_states.pt", noise(MIB // 4, number))
        os.setxattr(step, "user.ckptfs.seal", b"1")


@pytest.mark.long
def test_whatever_is_broken(disk, work, ways, mode):
    store = Store(disk / f"broken-{mode}")
    with mounted(store, work / "mnt-broken", mode=mode, options=(*QUIET, "http=127.0.0.1:0")) as mount:
        for way in ways:
            way.add(mount)
            fill(way.series / "global_step1", seed=1, size=MIB)
        for way in ways:
            wait_for(way.series / "global_step1", "committed")
        for way in ways:
            way.break_it()
        steps = {way.name: way.series / "global_step40" for way in ways}
        for number, way in enumerate(ways):
            fill(steps[way.name], seed=100 + number)
        wait_until_told(mount, ways, steps, SECONDS_TO_NAME_IT)
        for way in ways:
            train(mount, way.series)
        one = ways[0].series
        ckptfs("pin", steps[ways[0].name])  # what is pushed later may go by the rule
        os.setxattr(steps[ways[0].name], "user.ckptfs.whole", b"1")  # beside steps of a known layout it is in doubt
        rotate(one)
        wait_until("rotation goes on", lambda: not (one / "global_step50").exists(), 30, 0.2)
        true((one / "global_step52").exists() and (one / "global_step53").exists(), "the newest two are held")
        with at_once("an unmount", 10):
            mount.stop()
        mount.start()
        quick = [way for way in ways if not isinstance(way, (Hangs, Credentials, Full))]
        wait_until_told(mount, quick, steps, SECONDS_TO_NAME_IT)
        for way in quick:
            equal(state_of(steps[way.name]), "unpushed", f"{way.name}: after a restart")
        for way in ways:
            way.heal()
        begun = time.monotonic()
        for way in ways:
            wait_for(steps[way.name], "committed global_step40", SECONDS_TO_COMMIT)
            print(way.name, "was committed", round(time.monotonic() - begun), "s after it was well again")
            wait_until("no error", lambda way=way: not error_of(steps[way.name]), 10, 0.1)
        for way in ways:
            out = work / f"out-{way.name}"
            ckptfs("remote", "export", f"{way.url}/global_step40", out, *way.read_options())
            equal(tree(out), tree(steps[way.name]), f"{way.name}: what came back")
            shutil.rmtree(out)
    store.fsck()


def test_a_slow_link(disk, work, server, scratch, mode, monkeypatch):
    """It is no failure, but `remote status` shows how slow it is."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    way = Cut("slow", server, scratch)
    try:
        with mounted(Store(disk / f"slow-{mode}"), work / "mnt-slow", mode=mode, options=QUIET) as mount:
            way.add(mount)
            way.link.become(rate=SLOW)
            step = way.series / "global_step1"
            fill(step, size=20 * MIB)

            def rate():
                return json.loads(ckptfs("remote", "status", "--json", way.series))["remotes"][0]["bytes_per_second"]

            wait_until("it is pushing", lambda: state_of(step).startswith("pushing"), 30, 0.1)
            wait_until("the rate is told", lambda: rate() > 0, SECONDS_TO_NAME_IT, 0.5)
            with at_once("another step"):
                fill(way.series / "global_step2", size=MIB)
            with at_once("an unmount", 10):
                mount.stop()
            mount.start()
            wait_until("it is pushing again", lambda: state_of(step).startswith("pushing"), 60, 0.1)
            with at_once("its removal"):
                shutil.rmtree(step)
            way.link.become()
            wait_for(way.series / "global_step2", "committed", SECONDS_TO_COMMIT)
    finally:
        way.end()


def test_one_damaged_object_does_not_hold_up_others(fresh_disk, work, scratch, mode):
    """A part that another slot has put is damaged. So its step cannot be committed, but those after it are."""
    url = f"file://{scratch}"
    stores = [Store(fresh_disk / f"damaged{slot}") for slot in (0, 1)]
    with mounted(stores[0], work / "mnt-d0", mode=mode, options=QUIET) as first, \
         mounted(stores[1], work / "mnt-d1", mode=mode, options=QUIET) as second:
        series = [mount.path / "steps" for mount in (first, second)]
        for slot, one in enumerate(series):
            ckptfs("remote", "add", url, one, "--slot", f"{slot}/2")
        fill(series[0] / "global_step1", seed=1)
        wait_for(series[0] / "global_step1", "waiting for slot 1")
        (scratch / ".ckptfs" / "parts" / "global_step1" / "1.0123456789abcdef").write_bytes(b"damaged\n" * 100)
        wait_until("it is told", lambda: "1.0123456789abcdef is damaged there" in status_of(series[0])["steps"][0]["waits_for"],
                   60, 0.2)
        for slot, one in enumerate(series):
            fill(one / "global_step2", seed=2, files=("same.bin", f"rank{slot}.bin"))
            agree("a1", one / "global_step2")
        for one in series:
            wait_for(one / "global_step2", "committed global_step2")
        equal(ckptfs("remote", "latest", url).strip(), "global_step2", "latest")


@pytest.mark.parametrize("harm", ("part", "file", "cut"))
def test_what_is_lost_there_is_sent(fresh_disk, work, folder, scratch, mode, harm):
    """What the newest committed step has is copied there. If it is lost, it is sent."""
    url, size = f"file://{folder}", 5 * MIB + 123
    with mounted(Store(fresh_disk / "lost"), work / "mnt-lost", mode=mode, options=QUIET) as mount:
        series = mount.path / "steps"
        ckptfs("remote", "add", url, series)
        fill(series / "global_step1", seed=1, size=size)
        wait_for(series / "global_step1", "committed")
        lost, = (path for path in files_of(folder, "global_step1") if path.name == "weights.bin")
        part, = (folder / ".ckptfs" / "parts" / "global_step1").iterdir()
        if harm == "file":
            lost.unlink()
        else:
            damaged = part if harm == "part" else lost
            damaged.write_bytes(damaged.read_bytes()[:-1])
        fill(series / "global_step2", seed=1, size=size)
        wait_for(series / "global_step2", "committed global_step2")
        second = next(one for one in status_of(series)["steps"] if one["tag"] == "global_step2")
        equal((second["sent"], second["copied"]), (2 * size, 0) if harm == "part" else (size, size), "what was sent, and copied")
        ckptfs("remote", "verify", f"{url}/global_step2")
        ckptfs("remote", "export", f"{url}/global_step2", scratch / "out")
        equal(tree(scratch / "out"), tree(series / "global_step2"), "what came back")

"""Steps of a remote, read on a machine without a store: whole and right, or an error, and nobody waits for long."""

import concurrent.futures
import contextlib
import errno
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from checking import equal, raises, same_bytes, true, write
from collecting import decisions, files_of
from hugging import safetensors
from mounting import BUILD, CKPTFS, KIB, MIB, Store, by_level, is_mountpoint, mounted, run, wait_until
from reading import RemoteMount, remote_mount
from seaweed import BUCKET, Proxy, environment
from test_push import QUIET, agree, ckptfs, content, fill, tree, wait_for

pytestmark = [pytest.mark.one_mode,
              pytest.mark.timeout(300)]

WEIGHTS = 6 * MIB  # of each tensor
MOMENTS = 2 * WEIGHTS
TIMEOUT = 20  # seconds, of a mount whose remote fails
LONGEST_READ = 3 * TIMEOUT + 15  # an open and a read ask for the list, for the step, and for the bytes


def checkpoint(step, seed=1):
    """A Trainer's, whose weights are fp32 and a small part of it."""
    step.mkdir(parents=True)
    tensors = {f"layers.{at}.weight": ("F32", [WEIGHTS // 4], content(WEIGHTS, seed + at)) for at in range(2)}
    write(step / "config.json", b'{"torch_dtype": "bfloat16"}')
    write(step / "optimizer.pt", content(MOMENTS, seed + 9))
    write(step / "model.safetensors", safetensors(tensors))
    write(step / "trainer_state.json", json.dumps({"global_step": seed, "log_history": []}).encode())


@pytest.fixture(scope="module")
def pushed(work, disk, mode):
    """A remote with two slots and three steps, and what each slot wrote of them. Nothing else is there any more."""
    remote, found = work / f"remote-{mode}", {}
    remote.mkdir()
    url = f"file://{remote}"
    with contextlib.ExitStack() as stack:
        mounts = [stack.enter_context(mounted(Store(disk / f"s{slot}-{mode}"), work / f"mnt{slot}-{mode}", mode=mode, options=QUIET))
                  for slot in (0, 1)]
        for slot, mount in enumerate(mounts):
            ckptfs("remote", "add", url, mount.path / "steps", "--slot", f"{slot}/2")
        for number in (1, 2, 3):
            tag = f"checkpoint-{number}"
            own = [mount.path / "steps" / tag for mount in mounts]
            checkpoint(own[0], number)
            agree(f"a{number}", own[0])
            fill(own[1], seed=50 + number, files=("rank1.bin", "sub/more.pt", "empty"))
            agree(f"a{number}", own[1])
            for step in own:
                wait_for(step, f"committed {tag}")
            found[tag] = [tree(step) for step in own]
    return url, remote, found


@pytest.fixture
def there(pushed, scratch):
    with remote_mount(pushed[0], scratch / "mnt") as made:
        yield made


def same_tree(folder, wanted, what):
    """But for the step's own folder, which is as the list tells it."""
    found = tree(folder)
    equal(sorted(found), sorted(wanted), f"{what}: names")
    for name, (mode, uid, mtime, data) in wanted.items():
        equal(found[name][:3], (mode, uid, mtime), f"{what}: {name}")
        equal(found[name][3] == data, True, f"{what}: bytes of {name}")


def test_the_tree(there, pushed):
    _, _, steps = pushed
    equal(sorted(os.listdir(there.path)), sorted(["@0", "@1", "views", *steps]), "the root")
    for tag, slots in steps.items():
        same_tree(there.path / tag, slots[0] | slots[1], tag)
        for slot, wanted in enumerate(slots):
            same_tree(there.path / f"@{slot}" / tag, wanted, f"@{slot}/{tag}")
    with raises(errno.ENOENT, what="a step that is not there"):
        os.stat(there.path / "checkpoint-99")
    with raises(errno.ENOENT, what="a slot that is not there"):
        os.stat(there.path / "@2")
    step = there.path / "checkpoint-1"
    for act in (lambda: write(step / "new", b"x"), lambda: os.unlink(step / "config.json"), lambda: os.rmdir(step)):
        with raises(errno.EROFS, what="a change"):
            act()
    facts = os.stat(step / "optimizer.pt")
    equal(facts.st_blocks, MOMENTS // 512, "blocks")
    with open(step / "optimizer.pt", "rb") as file:
        equal(os.lseek(file.fileno(), 0, os.SEEK_HOLE), MOMENTS, "there is no hole")
    text = run(CKPTFS, "status", there.path).stdout
    true("remote" in text and there.url in text, f"status: {text}")
    done = run(CKPTFS, "ls", there.path, check=False)
    true(done.returncode == 1 and "ckptfs remote ls" in done.stderr, f"what has no store: {done.stderr}")


def test_lists_cost_little(there, pushed):
    before = there.requests()
    run("ls", "-l", there.path)
    true(there.requests() - before <= 4, f"ls -l of the series: {there.requests() - before} requests")
    run("ls", "-lR", there.path / "checkpoint-1")
    asked = there.requests()
    run("ls", "-lR", there.path / "checkpoint-1")
    equal(there.requests(), asked, "requests for what is known")


def test_only_what_is_read_is_fetched(there, pushed):
    """The bf16 weights are made of the fp32 ones; the optimizer's state is not touched."""
    _, _, steps = pushed
    path = there.path / "views" / "checkpoint-2" / "model.bf16.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    wanted = steps["checkpoint-2"][0]["model.safetensors"][3]
    of = struct.unpack("<Q", wanted[:8])[0]
    first = json.loads(wanted[8 : 8 + of])["layers.0.weight"]["data_offsets"][0]
    begin = 8 + of + first
    mine = 8 + length + header["layers.0.weight"]["data_offsets"][0]
    for at in range(64):
        single = struct.unpack("<I", wanted[begin + 4 * at : begin + 4 * at + 4])[0]
        half = struct.unpack("<H", data[mine + 2 * at : mine + 2 * at + 2])[0]
        rounded = (single + 0x7FFF + ((single >> 16) & 1)) >> 16
        true(half == rounded or (single & 0x7F800000) == 0x7F800000, f"element {at}: {half:#x} of {single:#x}")
    needed = 2 * WEIGHTS + 2 * MIB  # whole chunks: the file's own, and the small files
    true(there.fetched() <= 1.05 * needed, f"{there.fetched()} bytes for {needed}")


def test_many_readers_fetch_once(there, pushed):
    _, _, steps = pushed
    wanted = steps["checkpoint-3"][0]["optimizer.pt"][3]
    path = there.path / "checkpoint-3" / "optimizer.pt"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for data in pool.map(lambda _: subprocess.run(["cat", path], capture_output=True, check=True).stdout, range(8)):
            same_bytes(data, wanted, "what each reads")
    true(there.fetched() <= MOMENTS + MIB, f"{there.fetched()} bytes for {MOMENTS}")


@contextlib.contextmanager
def changed(path, change):
    """The object has other bytes for a while."""
    before = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(change(before))
    try:
        yield
    finally:
        path.write_bytes(before)


def flipped(at):
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
def test_damage_is_named(pushed, scratch, harm):
    url, remote, steps = pushed
    object_, = (path for path in files_of(remote, "checkpoint-1", 1) if path.name == "rank1.bin")
    key = str(object_.relative_to(remote))
    true("/slot-1/" in key, key)
    change = {"flip": flipped(3 * MIB + 5), "cut": lambda data: data[: 2 * MIB], "gone": lambda data: b""}[harm]
    with remote_mount(url, scratch / "mnt") as there:
        wanted = steps["checkpoint-1"][1]
        with changed(object_, change):
            with raises(errno.EIO, what="what is damaged"):
                (there.path / "@1/checkpoint-1/rank1.bin").read_bytes()
            told = there.status()["last_failure"]["text"]
            true(key in told, f"the failure names it: {told}")
            same_bytes((there.path / "checkpoint-1/model.safetensors").read_bytes(),
                       steps["checkpoint-1"][0]["model.safetensors"][3], "another file")
        same_bytes((there.path / "@1/checkpoint-1/rank1.bin").read_bytes(), wanted["rank1.bin"][3], "once it is mended")


@pytest.mark.parametrize("what", ["part of slot 0", "part of slot 1", "commit"])
def test_swapped_records(pushed, scratch, what):
    """A part or a commit in another's place: an error for that step, and never another step's bytes."""
    url, remote, steps = pushed

    def record(tag):
        if what == "commit":
            found, = decisions(remote, tag)
        else:
            found, = (remote / ".ckptfs" / "parts" / tag).glob(f"{what[-1]}.*")
        return found

    one, other = record("checkpoint-1"), record("checkpoint-2")
    with changed(one, lambda _: other.read_bytes()), remote_mount(url, scratch / "mnt") as there:
        with raises(errno.EIO, what="it is named"):
            os.listdir(there.path / "checkpoint-1")
        wait_until("the log names it", lambda: "checkpoint-1" in there.read_log(), 10)
        same_tree(there.path / "checkpoint-2", steps["checkpoint-2"][0] | steps["checkpoint-2"][1], "another")


@pytest.mark.parametrize("what", ["slots", "pushes"])
def test_records_that_no_reader_needs(pushed, scratch, what):
    """Who has a slot, and which pushes have begun: what is wrong there stops nobody who reads."""
    url, remote, steps = pushed
    records = [path for path in (remote / ".ckptfs" / what).rglob("*") if path.is_file()]
    true(records, f"there are {what}")
    with contextlib.ExitStack() as stack:
        for path in records:
            stack.enter_context(changed(path, lambda _: b"damaged"))
        with remote_mount(url, scratch / "mnt") as there:
            for tag, slots in steps.items():
                same_tree(there.path / tag, slots[0] | slots[1], tag)


def test_the_cache(pushed, scratch):
    url, remote, steps = pushed
    words = ("--cache", scratch / "cache", "--cache-size", "8M")
    wanted = steps["checkpoint-2"][0]
    with remote_mount(url, scratch / "mnt", *words) as there:
        for name in ("optimizer.pt", "model.safetensors"):
            same_bytes((there.path / "checkpoint-2" / name).read_bytes(), wanted[name][3], name)
        true(there.status()["cache"]["bytes"] <= 8 * MIB, "it stays within its size")
        used = sum(file.stat().st_blocks * 512 for file in (scratch / "cache").iterdir())
        true(used <= 8 * MIB + 64 * KIB, f"on the disk, too: {used}")
    equal(sorted(path.name for path in (scratch / "cache").iterdir()), ["chunks", "index"], "what a clean end leaves")
    for again in (False, True):
        with remote_mount(url, scratch / "mnt", *words) as there:
            with open(there.path / "checkpoint-2/model.safetensors", "rb", buffering=0) as file:
                # To the very end: what is read ahead might come after the mount is gone.
                end = os.pread(file.fileno(), 4 * MIB, WEIGHTS * 2 - 3 * MIB)
            same_bytes(end, wanted["model.safetensors"][3][WEIGHTS * 2 - 3 * MIB :], "the end")
            true(not again or there.fetched() == 0, f"what was read last came from the cache: {there.fetched()}")
    write(scratch / "cache/mine", b"x")
    done = RemoteMount(url, scratch / "mnt", *words).try_start()
    true(done.returncode == 1 and "mine" in done.stderr, f"a folder that holds something else: {done.stderr}")
    os.unlink(scratch / "cache/mine")
    # What somebody changed in the cache is fetched anew.
    with open(scratch / "cache/chunks", "r+b") as chunks:
        chunks.write(bytes(8 * MIB))
    with remote_mount(url, scratch / "mnt", *words) as there:
        same_bytes((there.path / "checkpoint-2/model.safetensors").read_bytes(), wanted["model.safetensors"][3], "right")
        other = RemoteMount(url, scratch / "other", *words).try_start()
        true(other.returncode == 1 and "another mount" in other.stderr, f"one cache for two: {other.stderr}")
        there.kill()
    with remote_mount(url, scratch / "mnt", *words) as there:
        equal(there.status()["cache"]["bytes"], 0, "after a kill it is empty")
        same_bytes((there.path / "checkpoint-2/model.safetensors").read_bytes(), wanted["model.safetensors"][3], "right")


def test_a_full_cache_disk_is_slow_not_wrong(pushed, scratch):
    url, _, steps = pushed
    small = scratch / "small"
    small.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=3M", "tmpfs", small)
    try:
        with remote_mount(url, scratch / "mnt", "--cache", small / "cache", "--cache-size", "1G") as there:
            for _ in range(2):
                same_bytes((there.path / "checkpoint-2/optimizer.pt").read_bytes(),
                           steps["checkpoint-2"][0]["optimizer.pt"][3], "what is read")
            true(there.status()["cache"]["failed"] > 0, "it is counted")
    finally:
        run("umount", "-l", small)


def test_ten_times_the_cache(pushed, scratch):
    """It stays within its size, also on the disk, while several read; and what they read is right."""
    url, _, steps = pushed
    most = 7 * MIB
    wanted = {f"{tag}/{name}": steps[tag][0][name][3] for tag in steps for name in ("optimizer.pt", "model.safetensors")}
    true(sum(map(len, wanted.values())) >= 10 * most, "there is much more than the cache")
    with remote_mount(url, scratch / "mnt", "--cache", scratch / "cache", "--cache-size", "7M") as there:
        def check():
            equal(there.status()["cache"]["most"], most, "the cache's size")
            true(there.status()["cache"]["bytes"] <= most, "what it holds")
            used = sum(file.stat().st_blocks * 512 for file in (scratch / "cache").iterdir())
            true(used <= most + 64 * KIB, f"on the disk: {used}")

        for _ in range(2):
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                for name, data in zip(wanted, pool.map(lambda name: (there.path / name).read_bytes(), wanted)):
                    same_bytes(data, wanted[name], name)
                    check()
            run("sh", "-c", "echo 1 >/proc/sys/vm/drop_caches")
        equal(there.status()["cache"]["failed"], 0, "chunks that could not be kept")


@pytest.mark.long
@pytest.mark.builds("venv")
def test_opening_a_step_has_one_deadline(server, scratch, monkeypatch):
    """What a view reads one after the other comes in time, and all of it does not."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    server.make_bucket()
    (scratch / "step").mkdir()
    write(scratch / "step/model.safetensors", safetensors({"a": ("F32", [1], bytes(4))}))
    url = f"s3://{BUCKET}/slow"
    run(BUILD / "helpers" / "remote_step", url, "global_step1", scratch / "step", "--endpoint", server.endpoint)
    with Proxy(server.ports[3]) as link, \
         remote_mount(url, scratch / "mnt", "--endpoint", f"http://127.0.0.1:{link.port}", "--timeout", "9s") as there:
        equal(os.listdir(there.path / "views"), ["global_step1"], "the list is known")
        link.become(rate=120)  # bytes a second: the requests for the list of files and for a file need 7 s each
        with raises(errno.EIO, what="a view that takes longer than the timeout"):
            os.listdir(there.path / "views/global_step1")
        link.become()
        file = there.path / "global_step1/model.safetensors"
        wait_until("it can be opened", lambda: can_be_read(file, (scratch / "step/model.safetensors").stat().st_size), 30, 0.5)
        true("model.safetensors" in os.listdir(there.path / "views/global_step1"), "the view")


def in_foreground(kind, url, scratch, disk):
    words = {"remote": ("remote", "mount", "-f", "--cache", scratch / "cache", "--cache-size", "64M", url),
             "store": ("mount", "-f", disk / "signals")}[kind]
    point = scratch / "mnt"
    point.mkdir()
    return [str(word) for word in (CKPTFS, *words, point)], point


@pytest.mark.parametrize("kind", ["remote", "store"])
def test_a_signal_as_soon_as_it_is_mounted(pushed, scratch, disk, kind):
    words, point = in_foreground(kind, pushed[0], scratch, disk)
    for number in range(10):
        with open(scratch / "log", "wb") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log)
        wait_until("it is mounted", lambda: is_mountpoint(point), 30, 0)
        process.send_signal((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[number % 3])
        equal(process.wait(30), 0, f"round {number}: {(scratch / 'log').read_text()[-2000:]}")
        equal(is_mountpoint(point), False, "it is unmounted")


@pytest.mark.parametrize("kind", ["remote", "store"])
def test_signals_while_it_ends(pushed, scratch, disk, kind):
    """However many come, and when: the mount ends cleanly, and its cache is whole."""
    url, _, steps = pushed
    words, point = in_foreground(kind, url, scratch, disk)
    for number in range(3):
        with open(scratch / "log", "ab") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log)
        wait_until("it serves", lambda: run(CKPTFS, "status", point, check=False).returncode == 0, 30, 0.1)
        if kind == "remote":
            same_bytes((point / "checkpoint-1/optimizer.pt").read_bytes(), steps["checkpoint-1"][0]["optimizer.pt"][3], "it")
        sent = 0
        while process.poll() is None and sent < 1_000_000:
            process.send_signal((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[sent % 3])
            sent += 1
        process.wait(30)
        equal(process.returncode, 0, f"round {number}, {sent} signals: {(scratch / 'log').read_text()[-2000:]}")
        true(sent > 1, "it got more than one")
        equal(is_mountpoint(point), False, "it is unmounted")
        true(kind == "store" or (scratch / "cache/index").exists(), "the cache was closed")


READER = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as cat and cp have it
with open(sys.argv[1], "rb", buffering=0) as file:
    print("open", flush=True)
    file.read(1 << 20)
"""


@pytest.mark.builds("venv")
def test_a_link_that_hangs(server, work, disk, mode, scratch, monkeypatch):
    """Nobody waits longer than --timeout, Ctrl-C ends a reader at once, and nothing is ever shown as empty."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    server.make_bucket()
    url = f"s3://{BUCKET}/hangs-{mode}"
    with mounted(Store(disk / f"hangs-{mode}"), work / "mnt-hangs", mode=mode, options=QUIET) as mount:
        ckptfs("remote", "add", url, mount.path / "steps", "--endpoint", server.endpoint)
        step = mount.path / "steps/global_step1"
        fill(step, size=3 * MIB)
        wait_for(step, "committed")
    with Proxy(server.ports[3]) as link:
        options = ("--endpoint", f"http://127.0.0.1:{link.port}", "--timeout", "4s")
        with remote_mount(url, scratch / "mnt", *options) as there:
            os.listdir(there.path / "global_step1")
            link.become("hang")
            began = time.monotonic()
            with raises(errno.EIO, what="a read of what cannot be had"):
                (there.path / "global_step1/weights.bin").read_bytes()
            true(time.monotonic() - began < 20, f"it took {time.monotonic() - began:.1f} s")
            with raises(errno.EIO, what="the list"):
                os.listdir(there.path)
            status = there.status()
            true("trouble" in status or "last_failure" in status, f"status names it: {status}")
            # Ctrl-C, and an unmount while somebody waits.
            reader = subprocess.Popen([sys.executable, "-c", READER, there.path / "global_step1/weights.bin"],
                                      stdout=subprocess.PIPE, text=True)
            equal(reader.stdout.readline().strip(), "open", "the reader")
            time.sleep(0.3)
            began = time.monotonic()
            reader.send_signal(signal.SIGINT)
            reader.wait(10)
            true(time.monotonic() - began < 2, f"Ctrl-C took {time.monotonic() - began:.1f} s")
            link.become()
            wait_until("it can be read again", lambda: can_be_read(there.path / "global_step1/weights.bin"), 30, 0.5)
            link.become("refuse")
        done = RemoteMount(url, scratch / "late", *options).try_start()
        true(done.returncode == 1 and not os.listdir(scratch / "late"), f"a mount without a remote: {done.stderr}")


def can_be_read(path, size=3 * MIB):
    with contextlib.suppress(OSError):
        return len(path.read_bytes()) == size
    return False


def test_killed_while_it_is_read(pushed, scratch):
    """The reader gets right bytes or an error. The next mount serves."""
    url, _, steps = pushed
    for _ in range(3):
        there = RemoteMount(url, scratch / "mnt").start()
        wanted = steps["checkpoint-1"][0]["optimizer.pt"][3]
        with open(there.path / "checkpoint-1/optimizer.pt", "rb", buffering=0) as file:
            same_bytes(file.read(MIB), wanted[:MIB], "the first bytes")
            there.kill()
            with contextlib.suppress(OSError):
                data = os.pread(file.fileno(), MIB, MOMENTS - MIB)
                same_bytes(data, wanted[MOMENTS - MIB :], "what the kernel had")
    with remote_mount(url, scratch / "mnt") as there:
        same_bytes((there.path / "checkpoint-1/optimizer.pt").read_bytes(), wanted, "after a kill")


def test_by_fstab_and_http(pushed, scratch):
    url, _, steps = pushed
    (scratch / "mnt").mkdir()
    (scratch / "mount.ckptfs").symlink_to(CKPTFS)
    options = f"ro,nofail,_netdev,timeout=20s,cache={scratch / 'cache'},cache_size=64M,http=127.0.0.1:0"
    run(scratch / "mount.ckptfs", url, scratch / "mnt", "-o", options)
    there = RemoteMount(url, scratch / "mnt")
    try:
        status = there.status()
        equal(status["cache"]["most"], 64 * MIB, "the cache's size")
        page = urllib.request.urlopen(f"http://{status['http']}/", timeout=10).read().decode()
        true(url in page, f"the page: {page}")
        metrics = urllib.request.urlopen(f"http://{status['http']}/metrics", timeout=10).read().decode()
        true("ckptfs_remote_mount_fetched_bytes_total" in metrics, f"metrics: {metrics}")
    finally:
        there.stop()


def test_what_cannot_be_mounted(scratch):
    empty = scratch / "empty"
    empty.mkdir()
    for url, word in ((f"file://{empty}", "pushed"), (f"file://{scratch}/none", "no folder"), ("ftp://x/y", "s3://")):
        done = RemoteMount(url, scratch / "mnt").try_start()
        true(done.returncode != 0 and word in done.stderr, f"{url}: {done.stderr}")
    equal(os.listdir(scratch / "mnt"), [], "nothing is mounted")


def test_a_resume_without_the_remote_fails(pushed, scratch):
    """A script that takes the newest step of a mount whose remote is gone must fail, and not start anew."""
    url, remote, _ = pushed
    with remote_mount(url, scratch / "mnt", "--timeout", "3s") as there:
        os.listdir(there.path)
        remote.rename(remote.with_name("away"))
        try:
            time.sleep(1.5)  # a list that is older than a second is asked for again
            with raises(errno.EIO, what="the list"):
                os.listdir(there.path)
            newest = run("sh", "-c", f"ls {there.path} | tail -1; exit ${{PIPESTATUS:-0}}", check=False)
            equal(newest.stdout.strip(), "", "no step is named")
        finally:
            remote.with_name("away").rename(remote)
        true("checkpoint-3" in os.listdir(there.path), "it is there again")


@pytest.mark.long
def test_views_are_those_of_the_mount(pushed, scratch, work, disk, mode):
    """The same files, byte for byte, as the views of a local step."""
    url, _, _ = pushed
    store = Store(disk / f"views-{mode}")
    with mounted(store, work / "mnt-views", mode=mode) as mount, remote_mount(url, scratch / "mnt") as there:
        local = mount.path / "steps/checkpoint-1"
        shutil.copytree(there.path / "@0/checkpoint-1", local)
        mount.seal("steps/checkpoint-1")
        ours, theirs = (pathlib.Path(root) for root in (there.path / "views/checkpoint-1",
                                                        mount.path / "views/steps/checkpoint-1"))
        for path in sorted(theirs.rglob("*.safetensors")):
            same_bytes((ours / path.relative_to(theirs)).read_bytes(), path.read_bytes(), path.name)


@pytest.mark.long
def test_a_thousand_steps(scratch):
    """Lists cost what the store's pages cost, however many steps there are."""
    (scratch / "remote").mkdir()
    step = scratch / "step"
    step.mkdir()
    for number in range(500):
        write(step / f"file{number}", b"x" * number)
    url = f"file://{scratch}/remote"
    for number in range(1, 1001):
        run(BUILD / "helpers" / "remote_step", url, f"global_step{number}", step)
    with remote_mount(url, scratch / "mnt") as there:
        began, before = time.monotonic(), there.requests()
        equal(len(os.listdir(there.path)), 1002, "what ls shows")
        print(f"ls: {there.requests() - before} requests, {time.monotonic() - began:.2f} s")
        true(there.requests() - before <= 20, f"ls: {there.requests() - before} requests")
        began, before = time.monotonic(), there.requests()
        run("ls", "-l", there.path)
        print(f"ls -l: {there.requests() - before} requests, {time.monotonic() - began:.2f} s")
        true(there.requests() - before <= 10, f"ls -l: {there.requests() - before} requests")
        equal(len(os.listdir(there.path / "global_step500")), 500, "what is in a step")
        for number in range(1, 200):
            os.listdir(there.path / f"global_step{number}")
        peak = next(int(line.split()[1]) for line in pathlib.Path(f"/proc/{there.status()['pid']}/status").read_text()
                    .splitlines() if line.startswith("VmHWM"))
        true(peak * KIB <= 256 * MIB, f"the daemon took {peak // KIB} MiB")


class Looker(threading.Thread):
    """Reads at random places all the time. What comes is right, or an error, in bounded time."""

    def __init__(self, there, files, seed):
        super().__init__(daemon=True)
        self.there, self.files, self.dice = there, files, random.Random(seed)
        self.ending, self.wrong, self.read, self.refused, self.longest = threading.Event(), [], 0, 0, 0.0

    def run(self):
        while not self.ending.is_set():
            name, wanted = self.dice.choice(self.files)
            at = self.dice.randrange(len(wanted))
            length = self.dice.choice((1, 4096, 300_000, 2 * MIB))
            began = time.monotonic()
            try:
                with open(self.there.path / name, "rb", buffering=0) as file:
                    data = os.pread(file.fileno(), length, at)
                self.read += 1
                if data != wanted[at : at + len(data)] or (not data and length):
                    self.wrong.append(f"{name} at {at}")
            except OSError as error:
                self.refused += 1
                if error.errno not in (errno.EIO, errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT):
                    self.wrong.append(repr(error))
                time.sleep(0.05)
            self.longest = max(self.longest, time.monotonic() - began)


def strike(kind, there, server, link, dice):
    if kind == "daemon":
        there.kill()
        there.start()
    elif kind == "server":
        server.kill()
        time.sleep(dice.uniform(0, 1))
        server.start()
        server.wait_until_it_answers()
    else:
        link.become(*{"cut": ("refuse",), "slow": ("pass", (), 300_000), "deaf": ("deaf",)}[kind])
        time.sleep(dice.uniform(0.1, 1.5))
        link.become()


@pytest.mark.long
@pytest.mark.timeout(5400)
@pytest.mark.builds("venv")
def test_kills_while_it_is_read(server, work, disk, mode, scratch, seed, rounds, monkeypatch):
    """Of the daemon, the server and the link. --rounds: of each."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    server.make_bucket()
    dice, url = random.Random(seed), f"s3://{BUCKET}/kills-{mode}"
    with mounted(Store(disk / f"kills-{mode}"), work / f"mnt-kills-{mode}", mode=mode, options=QUIET) as mount:
        ckptfs("remote", "add", url, mount.path / "steps", "--endpoint", server.endpoint)
        step = mount.path / "steps/global_step1"
        fill(step, size=20 * MIB)
        wait_for(step, "committed")
        files = [(f"global_step1/{name}", (step / name).read_bytes()) for name in ("weights.bin", "sub/optimizer.pt")]
    kinds = ["daemon", "server", "cut", "slow", "deaf"] * (rounds or by_level(1, 20))
    dice.shuffle(kinds)
    with Proxy(server.ports[3]) as link:
        options = ("--endpoint", f"http://127.0.0.1:{link.port}", "--timeout", f"{TIMEOUT}s", "--cache",
                   scratch / "cache", "--cache-size", "8M")
        there = RemoteMount(url, scratch / "mnt", *options).start()
        lookers = [Looker(there, files, seed + number) for number in range(3)]
        for looker in lookers:
            looker.start()
        try:
            for kind in kinds:
                time.sleep(dice.uniform(0.1, 0.8))
                strike(kind, there, server, link, dice)
            for name, wanted in files:
                wait_until(f"{name} can be read again", lambda name=name: can_be_read(there.path / name, len(wanted)), 60,
                           0.5)
                same_bytes((there.path / name).read_bytes(), wanted, name)
        finally:
            for looker in lookers:
                looker.ending.set()
            for looker in lookers:
                looker.join(LONGEST_READ)
            there.stop()
    equal([wrong for looker in lookers for wrong in looker.wrong], [], "what was read")
    true(all(looker.read > 0 for looker in lookers), "each has read something")
    longest = max(one.longest for one in lookers)
    print(f"{sum(one.read for one in lookers)} reads, {sum(one.refused for one in lookers)} refused, the longest "
          f"{longest:.1f} s")
    true(longest < LONGEST_READ, f"one read took {longest:.0f} s")

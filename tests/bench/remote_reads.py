"""Reading a file in a mounted remote: from a real S3-compatible store on this machine, against curl, which GETs as many
bytes, several objects at a time; and from the cache, against cat of the cache's own file."""

import os
import pathlib
import shutil
import sys
import time

import checking
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


def section(context):
    if not seaweed.WEED.exists():
        context.add(SECTION, measure.Missing("a file", f"there is no {seaweed.WEED.name}: {push.child.INSTALL}"))
        return
    os.environ.update(seaweed.environment())
    size = context.sizes.moved
    with push.server(context) as remote:
        packs = fill(context, remote, size)
        cold(context, remote, size, packs)
        from_cache(context, remote, size)
        shutil.rmtree(packs)


def fill(context, remote, size):
    """A step of one file, and as many objects of the size of packs. Returns the folder that has their names."""
    step, packs = context.disk / "step", context.disk / "packs"
    step.mkdir()
    packs.mkdir()
    with open(step / NAME, "wb") as file:
        for at in range(size // push.PACK):
            piece = checking.noise(push.PACK, at)
            file.write(piece)
            checking.write(packs / str(at), piece)
    mounting.run(mounting.BUILD / "helpers" / "remote_step", push.URL, TAG, step, "--endpoint", remote.endpoint,
                 timeout=600)
    remote.put_by_curl(packs, 4)
    shutil.rmtree(step)
    for pack in packs.iterdir():
        os.truncate(pack, 0)
    return packs


def read(path):
    """Returns the seconds."""
    buffer = bytearray(plan.MIB)
    began = time.monotonic()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.monotonic() - began


def mounted(context, remote, *options):
    return reading.remote_mount(push.URL, context.work / "mnt-remote", "--endpoint", remote.endpoint, *options)


def cold(context, remote, size, packs):
    peaks = []

    def ours():
        memory.drop_caches()
        with mounted(context, remote) as there:
            took = read(there.path / TAG / NAME)
            peaks.append(machine.daemon_memory(there.status()["pid"])[1])
        return size / took

    def curl():
        memory.drop_caches()
        return size / remote.get_by_curl([pack.name for pack in packs.iterdir()], CONNECTIONS)

    figures = context.rounds({"ours": ours, "curl": curl})
    title = f"{size // plan.MIB} MiB, not in the cache"
    alternative = f"curl, {push.PACK // plan.MIB} MiB objects, {CONNECTIONS} at a time"
    context.add(SECTION, measure.Row(title, alternative, measure.RATE, figures["ours"], figures["curl"],
                                     plan.REMOTE_READ_BAR))
    context.add(SECTION, measure.Limit("memory of its daemon at the peak", max(peaks) / plan.MIB,
                                       plan.REMOTE_MEMORY / plan.MIB, "MiB"))


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

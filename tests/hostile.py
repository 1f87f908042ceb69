"""A hostile user of the mount: knows every door (control socket, xattrs, views, names, descriptors, copies, HTTP) and
each promise that docs/security.md makes, and tries all of them beside a victim.

    with ground(mount) as ...:      what the two of them have (made by root)
    attempts()                      each a function of an Attacker; raises Harm where it got what it must not get

An attempt runs in a process of the attacker's own (tests/posix/test_hostile runs each once, and then all of them at
random while the victim works). Refusals are what it expects: whatever errno they have, they are no failure.
"""

import array
import contextlib
import errno
import fcntl
import json
import os
import random
import re
import shutil
import socket
import stat
import struct
import time

from checking import noise, read, write
from mounting import KIB, MIB

ATTACKER, VICTIM = 5001, 5002
FICLONE = 0x40049409
SECRET = b"what only the victim may read"  # in each private file
NAME = "hidden"  # in each private name
TENSORS = "zero_stage_3/optimizer/rank0"
SWAP_FILES = ("0_2.tensor.swp", "exp_avg-0_2.tensor.swp", "exp_avg_sq-0_2.tensor.swp")
SWAP_SIZE = MIB


class Harm(AssertionError):
    """The attacker got through."""


def secret_bytes(seed, size=SWAP_SIZE):
    return (SECRET + noise(4000, seed)).ljust(4096, b".") * (size // 4096)


# --- what is there


def make_folder(path, uid, mode):
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


def make_file(path, data, uid, mode):
    write(path, data, mode=mode)
    os.chown(path, uid, uid)
    path.chmod(mode)


def make_state(folder, uid, modes, seed):
    """A swap folder: (mode of folders, mode of files)."""
    ranks = folder / TENSORS
    for path in (folder / "zero_stage_3", ranks.parent, ranks):
        make_folder(path, uid, modes[0])
    for number, name in enumerate(SWAP_FILES):
        make_file(ranks / name, secret_bytes(seed + number), uid, modes[1])


def safetensors(names, length=16):
    header, at = {}, 0
    for name in names:
        header[name] = {"dtype": "F32", "shape": [length], "data_offsets": [at, at + 4 * length]}
        at += 4 * length
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + SECRET.ljust(at, b".")


def make_ground(root):
    """By root: the attacker's folder; of the victim what all may read, what nobody may, and what all may write to."""
    make_folder(root / "attacker", ATTACKER, 0o755)
    victim = make_folder(root / "victim", VICTIM, 0o755)
    make_state(make_folder(victim / "open", VICTIM, 0o755), VICTIM, (0o755, 0o644), 10)
    private = make_folder(victim / f"{NAME}_run", VICTIM, 0o700)
    make_state(private, VICTIM, (0o755, 0o644), 20)  # nothing but the folder above keeps others out
    steps = make_folder(private / f"{NAME}_steps", VICTIM, 0o755)
    step = make_folder(steps / f"checkpoint-5-{NAME}", VICTIM, 0o755)
    make_file(step / "trainer_state.json", b'{"global_step": 5}', VICTIM, 0o644)
    make_file(step / "config.json", b"{}", VICTIM, 0o644)
    make_file(step / "model.safetensors", safetensors([f"{NAME}.weight"]), VICTIM, 0o644)
    shared = make_folder(root / "shared", VICTIM, 0o1777)  # a series that all may save into
    old = make_folder(shared / "global_step1", VICTIM, 0o755)
    make_file(old / "notes.txt", b"the victim's", VICTIM, 0o644)
    half = make_folder(shared / "global_step2", VICTIM, 0o755)
    make_file(half / "weights.bin", SECRET, VICTIM, 0o600)


# --- the attacker


class Attacker:
    """In the attacker's own process; the mount is the working directory."""

    def __init__(self, socket_path, dice=None, alone=True):
        self.socket_path = socket_path
        self.dice = dice or random.Random(0)
        self.alone = alone  # nobody else works on the mount: counters can be compared

    def connect(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(120)
        connection.connect(self.socket_path)
        return connection

    def ask(self, command, **arguments):
        """The reply, and the descriptors that came with it. A private name in it is harm."""
        with self.connect() as connection:
            connection.sendall(json.dumps({"command": command, "arguments": arguments}).encode() + b"\n")
            text, descriptors = b"", array.array("i")
            while not text.endswith(b"\n"):
                data, ancillary, _, _ = connection.recvmsg(1 << 16, socket.CMSG_LEN(128 * 4))
                if not data:
                    return {"ok": False, "error": "the daemon hung up"}, []
                text += data
                for _, _, given in ancillary:
                    descriptors.frombytes(given[: len(given) // 4 * 4])
        answer = json.loads(text)
        given = json.dumps(arguments)
        if NAME.encode() in text and NAME not in given:
            raise Harm(f"{command} {given} told a private name: {text[:2000]}")
        return answer, list(descriptors)

    def fresh(self, name):
        """A folder of the attacker's own, empty."""
        folder = f"attacker/{name}-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        return folder

    def look_for_secrets(self, folder):
        for where, folders, files in os.walk(folder):
            for name in folders + files:
                if NAME in name:
                    raise Harm(f"{where}/{name}: a private name")
            for name in files:
                with contextlib.suppress(OSError):
                    if SECRET in read(os.path.join(where, name)):
                        raise Harm(f"{where}/{name} holds what only the victim may read")

    def owed(self):
        return self.ask("status")[0]["result"]["space"]["owed"]


ATTEMPTS = []


def attempt(function):
    ATTEMPTS.append(function)
    return function


PRIVATE = f"/victim/{NAME}_run"
OPEN = "/victim/open"


@attempt
def saves_what_it_may_not_read(me):
    series = me.fresh("loot")
    for source in (f"{PRIVATE}/zero_stage_3", None, f"{OPEN}/zero_stage_3"):
        if source is not None:
            with contextlib.suppress(OSError):
                os.setxattr(series, "user.ckptfs.source", source.encode())
        answer, _ = me.ask("save", series=f"/{series}", tag="global_step1")
        if answer["ok"]:
            raise Harm(f"a save of {source}: {answer}")
        with contextlib.suppress(OSError):
            os.setxattr(series, "user.ckptfs.save", b"global_step2")
            raise Harm(f"a save of {source} by xattr")
        for name in ("source", "last_error"):
            with contextlib.suppress(OSError):
                if NAME.encode() in os.getxattr(series, f"user.ckptfs.{name}"):
                    raise Harm(f"{name} tells a private name")
    me.look_for_secrets(series)


@attempt
def makes_the_victim_owe(me):
    """Blocks that are shared with a live swap file have to be allocated anew by its owner."""
    before = me.owed()
    folder = me.fresh("copies")
    for name in SWAP_FILES:
        source = f"{OPEN[1:]}/{TENSORS}/{name}"
        with open(source, "rb") as readable, open(f"{folder}/{name}.range", "wb") as copy:
            os.copy_file_range(readable.fileno(), copy.fileno(), SWAP_SIZE)
        with open(source, "rb") as readable, open(f"{folder}/{name}", "wb") as copy:
            while data := readable.read(64 * KIB):
                copy.write(data)
        answer, descriptors = me.ask("blobs", paths=[f"/{source}"])
        for descriptor in descriptors:
            clone(me, descriptor, folder)
    if me.alone and me.owed() > before:
        raise Harm(f"the victim owes {me.owed() - before} bytes more")


def clone(me, descriptor, folder):
    """FICLONE of a descriptor that was handed out, past the daemon."""
    target = f"{folder}/clone{descriptor}"
    with open(target, "wb") as opened:
        _, writable = me.ask("blobs", paths=[f"/{target}"], write=True)
        for blob in writable:
            with contextlib.suppress(OSError):
                fcntl.ioctl(blob, FICLONE, descriptor)
                raise Harm("a live swap file of the victim's was cloned past the daemon")
            os.close(blob)
        opened.flush()
    os.close(descriptor)


@attempt
def saves_into_a_step_of_the_victims(me):
    series = "shared"
    mine = me.fresh("run")
    os.makedirs(f"{mine}/{TENSORS}")
    for name in SWAP_FILES:
        write(f"{mine}/{TENSORS}/{name}", b"mine" * 1024)
    answer, _ = me.ask("save", series=f"/{series}", tag="global_step1")
    if answer["ok"] or os.path.exists(f"{series}/global_step1/offloaded_tensors"):
        raise Harm(f"a save into a step of the victim's: {answer}")
    shutil.rmtree(mine)


@attempt
def commits_into_a_step_of_the_victims(me):
    answer, _ = me.ask("begin", series="/shared", tag="global_step1", attempt=f"a{os.getpid()}")
    if not answer["ok"]:
        return
    folder = answer["result"]["path"]
    write(f"{folder[1:]}/planted", b"mine")
    me.ask("freeze", paths=[f"{folder}/planted"])
    me.ask("commit", path=folder, tag="global_step1", world_size=1)
    if os.path.exists("shared/global_step1/planted"):
        raise Harm("a commit into a step of the victim's")
    shutil.rmtree(folder[1:])

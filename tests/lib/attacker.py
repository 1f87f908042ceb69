"""A hostile user of the mount: the files of both users, and the attacker that the attempts of hostile.py have."""

import array
import contextlib
import errno
import json
import os
import random
import shutil
import socket
import struct
import time

from checking import noise, write
from mounting import MIB

ATTACKER, VICTIM = 5001, 5002
FICLONE = 0x40049409
SECRET = b"what only the victim may read"  # in each private file
NAME = "hidden"  # in each private name
TENSORS = "zero_stage_3/optimizer/rank0"
SWAP_FILES = ("0_2.tensor.swp", "exp_avg-0_2.tensor.swp", "exp_avg_sq-0_2.tensor.swp")
SWAP_SIZE = MIB
LARGEST = 64 * MIB  # more is not read of a file; another attacker may have made one of 2^60 bytes


class Harm(AssertionError):
    """The attacker has succeeded."""


def secret_bytes(seed, size=SWAP_SIZE):
    return (SECRET + noise(4000, seed)).ljust(4096, b".") * (size // 4096)


# --- the files of both users


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
    """Makes a swap folder. modes: (mode of folders, mode of files)."""
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
    """As root, makes the attacker's folder, and the victim's: one that all may read, one that is private, one that
    all may use."""
    make_folder(root / "attacker", ATTACKER, 0o755)
    victim = make_folder(root / "victim", VICTIM, 0o755)
    make_state(make_folder(victim / "open", VICTIM, 0o755), VICTIM, (0o755, 0o644), 10)
    private = make_folder(victim / f"{NAME}_run", VICTIM, 0o700)
    make_state(private, VICTIM, (0o755, 0o644), 20)  # only the folder above keeps others out
    steps = make_folder(private / f"{NAME}_steps", VICTIM, 0o755)
    step = make_folder(steps / f"checkpoint-5-{NAME}", VICTIM, 0o755)
    make_file(step / "trainer_state.json", b'{"global_step": 5}', VICTIM, 0o644)
    make_file(step / "config.json", b"{}", VICTIM, 0o644)
    make_file(step / "model.safetensors", safetensors([f"{NAME}.weight"]), VICTIM, 0o644)
    shared = make_folder(root / "shared", VICTIM, 0o1777)  # a series that everybody may save into
    old = make_folder(shared / "global_step1", VICTIM, 0o755)
    make_file(old / "notes.txt", b"the victim's", VICTIM, 0o644)
    common = make_folder(shared / "global_step4", VICTIM, 0o777)
    make_file(common / "notes.txt", b"the victim's", VICTIM, 0o644)
    closed = make_folder(shared / "global_step5", VICTIM, 0o700)
    make_file(closed / "trainer_state.json", b'{"global_step": 1}', VICTIM, 0o644)
    half = make_folder(shared / "global_step2", VICTIM, 0o755)
    make_file(half / "weights.bin", secret_bytes(30), VICTIM, 0o600)
    make_file(half / "trainer_state.json", b'{"global_step": 1}', VICTIM, 0o644)
    make_file(victim / "open" / "everybodys.bin", b"the victim's", VICTIM, 0o666)
    os.setxattr(victim / "open", "trusted.mine", b"1")


# --- the attacker


class Attacker:
    """Runs in the attacker's own process; the working directory is the mount."""

    def __init__(self, socket_path, dice=None, alone=True):
        self.socket_path = socket_path
        self.dice = dice or random.Random(0)
        self.alone = alone  # nobody else uses the mount, so counters can be compared

    def connect(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(120)
        connection.connect(self.socket_path)
        return connection

    def ask(self, command, **arguments):
        """Returns the reply and the descriptors that came with it. A private name in the reply is harm."""
        with self.connect() as connection:
            # a refusal comes before the request is read
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
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
        if answer.get("errno") == errno.EUSERS:  # the attacker's other processes use all that one user gets
            time.sleep(0.01)
            return self.ask(command, **arguments)
        given = json.dumps(arguments)
        if NAME.encode() in text and NAME not in given:
            raise Harm(f"{command} {given} told a private name: {text[:2000]}")
        return answer, list(descriptors)

    def told(self, command, **arguments):
        """Returns the result of a command that everybody may use."""
        answer, _ = self.ask(command, **arguments)
        if not answer["ok"]:
            raise Harm(f"{command} {arguments} is refused: {answer}")
        return answer["result"]

    def fresh(self, name):
        """Makes an empty folder of the attacker's own."""
        folder = f"attacker/{name}-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        return folder

    def look_for_secrets(self, folder):
        """Looks for private names, except those that the tree itself shows to the attacker at the same place."""
        for where, folders, files in os.walk(folder):
            shown = set()
            with contextlib.suppress(OSError):
                shown.update(os.listdir(where.removeprefix("views").lstrip("/") or "."))
            for name in folders + files:
                if NAME in name and name not in shown:
                    raise Harm(f"{where}/{name}: a private name")
            for name in files:
                with contextlib.suppress(OSError), open(os.path.join(where, name), "rb") as file:
                    if SECRET in file.read(LARGEST):
                        raise Harm(f"{where}/{name} holds what only the victim may read")

    def owed(self):
        return self.told("status")["space"]["owed"]

    def care(self):
        return self.told("status")["care"]

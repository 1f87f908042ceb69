"""A hostile user of the mount. The attacker knows every interface (control socket, xattrs, views, names,
descriptors, copies, HTTP) and each promise in docs/security.md, and attacks all of them beside a victim.

    ATTEMPTS                functions of an Attacker; each raises Harm if it gets what it must not get
    play(...)               runs all of them at random

An attempt runs in a process of the attacker's own, whose working directory is the mount. It expects to be refused, with
whatever errno; a refusal is no failure.
"""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import pickle
import random
import shutil
import socket
import stat
import time
import zipfile

from attacker import FICLONE, NAME, SWAP_FILES, SWAP_SIZE, TENSORS, Attacker, Harm, safetensors, secret_bytes
from checking import opened, read, write
from mounting import KIB, MIB, wait_until

ATTEMPTS = []
DATA_ATTEMPTS = []  # attempts for which the open mode matters


def attempt(function):
    ATTEMPTS.append(function)
    return function


def data_attempt(function):
    DATA_ATTEMPTS.append(function)
    return attempt(function)


PRIVATE = f"/victim/{NAME}_run"
OPEN = "/victim/open"


@data_attempt
def saves_what_it_may_not_read(me):
    series = me.fresh("loot")
    for source in (f"{PRIVATE}/zero_stage_3", None, f"{OPEN}/zero_stage_3"):
        if source is not None:
            with contextlib.suppress(OSError):
                os.setxattr(series, "user.ckptfs.source", source.encode())
        answer, _ = me.ask("save", series=f"/{series}", tag="global_step1")
        if answer["ok"] and me.alone:  # else another process of the attacker may have a swap folder there
            raise Harm(f"a save of {source}: {answer}")
        with contextlib.suppress(OSError):
            os.setxattr(series, "user.ckptfs.save", b"global_step2")
            if me.alone:
                raise Harm(f"a save of {source} by xattr")
        for name in ("source", "last_error"):
            with contextlib.suppress(OSError):
                if NAME.encode() in os.getxattr(series, f"user.ckptfs.{name}"):
                    raise Harm(f"{name} tells a private name")
    me.look_for_secrets(series)


@data_attempt
def makes_the_victim_owe(me):
    """Copies the victim's live swap files. The victim would have to pay for new blocks to overwrite shared ones."""
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
    """Clones a descriptor that the daemon handed out (FICLONE), without the daemon."""
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


def begun(me, series, tag):
    """The folder of an attempt to save a step, as the daemon names it; nothing if that is refused."""
    answer, _ = me.ask("begin", series=f"/{series}", tag=tag, attempt=f"a{os.getpid()}")
    return answer["result"]["path"] if answer["ok"] else None


@attempt
def commits_into_a_step_of_the_victims(me):
    if not (folder := begun(me, "shared", "global_step1")):
        return
    write(f"{folder[1:]}/planted", b"mine")
    me.ask("freeze", paths=[f"{folder}/planted"])
    me.ask("commit", path=folder, tag="global_step1", world_size=1)
    if os.path.exists("shared/global_step1/planted"):
        raise Harm("a commit into a step of the victim's")
    shutil.rmtree(folder[1:])


@attempt
def freezes_a_file_of_the_victims(me):
    """By a hard link of it in an attempt to save a step."""
    series = me.fresh("freezing")
    folder = begun(me, series, "global_step1")
    os.link("victim/open/everybodys.bin", f"{folder[1:]}/linked")
    answer, _ = me.ask("freeze", paths=[f"{folder}/linked"])
    if not answer["ok"]:
        raise Harm(f"a file of the attempt is not frozen: {answer}")
    try:
        with open("victim/open/everybodys.bin", "r+b") as file:
            file.write(b"the victim's")
    except PermissionError as error:
        raise Harm(f"a file of the victim's is frozen: {error}") from error
    if os.listdir(folder[1:]) != ["linked"]:
        raise Harm(f"a freeze changed the names of an attempt: {os.listdir(folder[1:])}")
    shutil.rmtree(series)


@attempt
def owes_what_it_has_not(me):
    """Saves are refused for what overwriting swap files would take: what they hold, not how long they are."""
    base = me.fresh("sparse")
    swap = f"{base}/{TENSORS}/0_1.tensor.swp"

    def nobody_owes_for(what, most=1 << 50):
        if (owed := me.told("status")["space"]["owed"]) >= most:
            raise Harm(f"everybody owes {owed} bytes for a sparse file {what}")

    os.makedirs(os.path.dirname(swap))
    with open(swap, "wb") as file:
        file.truncate(1 << 60)
        nobody_owes_for("that is open")
        before = me.told("status")["space"]["owed"]
        for at in range(64):  # a block in each of the largest units of an allocation
            os.pwrite(file.fileno(), b"x" * 4096, at << 24)
    nobody_owes_for("that is closed")
    os.mkdir(f"{base}/steps")
    os.setxattr(f"{base}/steps", "user.ckptfs.source", f"/{base}/{TENSORS.split('/')[0]}".encode())
    os.setxattr(f"{base}/steps", "user.ckptfs.save", b"global_step1")
    nobody_owes_for("that was saved")
    os.close(os.open(swap, os.O_RDWR))  # so that what it owes is counted from its blocks
    nobody_owes_for("of which each block is shared", before + (1 << 29) if me.alone else 1 << 50)
    os.makedirs(f"{base}/plain/a")
    write(f"{base}/plain/a/x", b"")
    os.truncate(f"{base}/plain/a/x", 1 << 60)
    os.rename(f"{base}/plain", f"{base}/zero_stage_1")
    nobody_owes_for("that was moved")
    shutil.rmtree(base)


# --- reading


@attempt
def asks_for_what_is_private(me):
    """Uses each command on each private path and on the folders above it."""
    step = f"{PRIVATE}/{NAME}_steps/checkpoint-5-{NAME}"
    for path in (PRIVATE, f"{PRIVATE}/{NAME}_steps", step, f"{step}/model.safetensors", "/shared/global_step2/weights.bin"):
        for command in ("ls", "du", "show", "verify", "policy", "rm", "thin"):
            answer, _ = me.ask(command, path=path)
            if answer["ok"]:
                raise Harm(f"{command} {path}: {answer}")
        for writing in (False, True):
            answer, descriptors = me.ask("blobs", paths=[path], write=writing)
            if descriptors:
                raise Harm(f"a descriptor of {path}")
        for command in ("freeze", "begin", "commit", "diff"):
            answer, _ = me.ask(
                command, paths=[path], path=path, series=path, tag="t", attempt="a", world_size=1, first=path, second=step
            )
            if answer["ok"]:
                raise Harm(f"{command} {path}: {answer}")
    for command in ("status", "ls", "du", "verify"):
        me.told(command)
    for command in ("ls", "policy"):
        for row in me.told(command, path="/shared")["steps"]:
            if row["tag"] == "global_step5":
                raise Harm(f"{command} tells of a step that may not be listed: {row}")


@attempt
def reads_views_of_private_steps(me):
    for path in (f"views{PRIVATE}/{NAME}_steps/checkpoint-5-{NAME}", f"views{PRIVATE}", f"views{PRIVATE}/{NAME}_steps"):
        with contextlib.suppress(OSError):
            raise Harm(f"{path}: {os.listdir(path)}")
        for name in ("model.bf16.safetensors", "manifest.json"):
            with contextlib.suppress(OSError):
                raise Harm(f"{path}/{name}: {read(f'{path}/{name}')[:100]}")
    me.look_for_secrets("views")


@attempt
def reads_and_writes_as_the_kernel_forbids(me):
    for path in (PRIVATE[1:], f"{PRIVATE[1:]}/zero_stage_3", "shared/global_step2/weights.bin"):
        for try_it in (
            lambda path=path: os.listdir(path),
            lambda path=path: read(path),
            lambda path=path: os.chmod(path, 0o777),
            lambda path=path: os.rename(path, "attacker/taken"),
            lambda path=path: os.unlink(path),
            lambda path=path: os.rmdir(path),
            lambda path=path: os.link(path, "attacker/linked"),
            lambda path=path: os.truncate(path, 0),
        ):
            with contextlib.suppress(OSError):
                try_it()
                raise Harm(f"{path} was within reach")
    with contextlib.suppress(OSError):
        os.setxattr("shared/global_step4", "user.ckptfs.seal", b"1")
        raise Harm("it sealed a step of the victim's")
    for path in ("victim", "shared/global_step1", "shared/global_step1/notes.txt", "shared", "victim/open", "."):
        for name in ("seal", "pin", "save", "source", "keep_last", "metric.loss", "user.mine"):
            value = {"source": b"/victim/open/zero_stage_3", "save": b"t"}.get(name, b"1")
            with contextlib.suppress(OSError):
                os.setxattr(path, f"user.ckptfs.{name}" if "mine" not in name else name, value)
                raise Harm(f"{name} was set on {path}")
            with contextlib.suppress(OSError):
                os.removexattr(path, f"user.ckptfs.{name}")
                raise Harm(f"{name} was taken from {path}")


CONTROLS = ("source", "last_error", "write_error", "state", "seal", "pin", "identical_to", "keep_last", "metric.loss",
            "bytes.apparent", "bytes.exclusive", "bytes.shared", "socket", "save")


@attempt
def reads_every_control(me):
    for path in (".", "shared", "shared/global_step1", "shared/global_step2", "victim", "victim/open", "views"):
        for name in CONTROLS:
            with contextlib.suppress(OSError):
                if NAME.encode() in os.getxattr(path, f"user.ckptfs.{name}"):
                    raise Harm(f"{name} of {path} told a private name")


@attempt
def lists_what_only_root_may_see(me):
    names = os.listxattr("victim/open")
    if any(name.startswith("trusted.") for name in names):
        raise Harm(f"listed: {names}")


# --- guessing what others have


@attempt
def asks_whether_a_private_file_holds_this(me):
    """Makes a step beside the victim's with a guess of its weights. Neither xattrs nor blocks may tell that it is
    right."""
    mine = f"shared/global_step3-{os.getpid()}"
    os.mkdir(mine)
    # Only one attacker at a time may guess: equal guesses of one user may be shared with each other.
    with opened("attacker", os.O_RDONLY) as turn, contextlib.ExitStack() as last:
        fcntl.flock(turn, fcntl.LOCK_EX)
        last.callback(shutil.rmtree, mine)
        write(f"{mine}/trainer_state.json", b'{"global_step": 1}')
        digested = me.care()["digested_files"]
        write(f"{mine}/weights.bin", secret_bytes(30))
        if me.alone:
            wait_until("digests of both files", lambda: me.care()["digested_files"] > digested, 30)
            wait_until("the look at all", lambda: me.care()["waiting_files"] == 0, 30)
        for name in (f"{mine}/weights.bin", mine):
            with contextlib.suppress(OSError):
                raise Harm(f"identical to {os.getxattr(name, 'user.ckptfs.identical_to')}")
        if int(os.getxattr(f"{mine}/weights.bin", "user.ckptfs.bytes.shared")) != 0:
            raise Harm("blocks are shared with a private file")
        if any(mine in step for step in me.care()["identical"]):
            raise Harm("status says that the step is identical to a private one")


# --- names and messages


@attempt
def forges_lines_in_the_log(me):
    folder = me.fresh("lines\n[2026-01-01 00:00:00.000] [ckptfs] [error] FORGED\x1b[2J\u009b31m")
    os.mkdir(f"{folder}/zero_stage_3")
    me.ask("save", series=f"/{folder}", tag="global_step1")
    with contextlib.suppress(OSError):
        os.setxattr(folder, "user.ckptfs.source", b"/no\nFORGED too")
    with contextlib.suppress(OSError):
        os.open(f"views/{folder}/manifest.json", os.O_RDWR)
    shutil.rmtree(folder)


# --- descriptors and modes


@data_attempt
def keeps_privileges_through_a_write(me):
    path = f"{me.fresh('modes')}/tool"
    for mode in (0o6777, 0o4755, 0o2775, 0o2666):
        write(path, b"x" * 8192)
        with open(path, "r+b", buffering=0) as earlier:
            os.chmod(path, mode)
            earlier.write(b"EVIL")
            if os.stat(path).st_mode & stat.S_ISUID or (mode & stat.S_IXGRP and os.stat(path).st_mode & stat.S_ISGID):
                raise Harm(f"{mode:o} survived a write through an older descriptor: {os.stat(path).st_mode:o}")
        os.unlink(path)


@data_attempt
def keeps_privileges_through_a_blob(me):
    """Writes through a descriptor that the daemon handed out, which outlives the open file that it was asked for."""
    path = f"{me.fresh('modes')}/tool"
    for closed_before in (True, False):
        write(path, b"x" * 8192)
        with open(path, "r+b", buffering=0):
            _, descriptors = me.ask("blobs", paths=[f"/{path}"], write=True)
            if not closed_before:
                os.chmod(path, 0o6777)
        if closed_before:
            with contextlib.suppress(OSError):
                os.chmod(path, 0o6777)
        os.pwrite(descriptors[0], b"EVIL", 0)
        if os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID):
            raise Harm(f"suid and sgid survived a write through a blob: {os.stat(path).st_mode:o}")
        os.close(descriptors[0])
        os.unlink(path)


# --- obstruction


@attempt
def holds_every_connection(me):
    """Holds as many connections as one user gets. Another user's requests must still be answered."""
    held = []
    try:
        with contextlib.suppress(OSError):
            for _ in range(200):
                held.append(me.connect())
    finally:
        for connection in held:
            connection.close()


@attempt
def sends_nonsense(me):
    for text in (b"[" * 400_000 + b"]" * 400_000, b'{"a":' * 100_000, b"\xff\xfe\0\n", b"null", b"{}", b'{"command": 1}', b'{"command": "x"}',
                 b'{"command": "ls", "arguments": []}', b'{"command": "blobs", "arguments": {"paths": 7}}',
                 b'{"command": "freeze", "arguments": {"paths": [null]}}'):
        with me.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(text + b"\n")
            connection.recv(1 << 16)
    me.ask("status")


@attempt
def freezes_what_it_keeps_open(me):
    folder = me.fresh("frozen")
    path = me.told("begin", series=f"/{folder}", tag="global_step1", attempt="a")["path"]
    with open(f"{path[1:]}/x", "wb") as opened:
        opened.write(b"x")
        with me.connect() as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(json.dumps({"command": "freeze", "arguments": {"paths": [f"{path}/x"] * 100}}).encode() + b"\n")
    shutil.rmtree(folder)


def connect_to(host, port):
    connection = socket.socket()  # create_connection() would load modules that the attacker may be unable to read
    connection.settimeout(60)
    connection.connect((host, int(port)))
    return connection


@attempt
def asks_the_page(me):
    """Requests pages without the token, with a wrong one, with bad paths, and in pieces that never end."""
    address = me.told("status")["http"]
    if not address:
        return
    host, port = address.rsplit(":", 1)
    for target in ("/api/state", "/metrics", "/../api/state", "//api/state", "/api/state?token=", "/%2e%2e/api/state"):
        for more in ("", "Authorization: Bearer \r\n", "Authorization: Bearer guess\r\n", "Host: localhost\r\n"):
            with contextlib.suppress(OSError), connect_to(host, port) as connection:
                connection.sendall(f"GET {target} HTTP/1.1\r\n{more}Connection: close\r\n\r\n".encode())
                text = b""
                while data := connection.recv(1 << 16):
                    text += data
                if text.startswith(b"HTTP/1.1 200") or NAME.encode() in text:
                    raise Harm(f"GET {target} with {more!r}: {text[:300]}")
    with contextlib.suppress(OSError), connect_to(host, port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000)


# --- steps that take long to read


def torch_file(path, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))


def make_endless_step(folder, links):
    """Makes a step of files that readers read, each as large as possible; all but two are hard links."""
    os.makedirs(folder)
    torch_file(f"{folder}/zero_pp_rank_0_mp_rank_00_model_states.pt", {"param_shapes": [{}], "dp_world_size": links})
    states = {"optimizer_state_dict": {"zero_stage": 3, "more": [None] * 1_900_000, "text": "x" * (29 * MIB)}}
    first = f"{folder}/zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch_file(first, states)
    for rank in range(1, links):
        os.link(first, f"{folder}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def make_spread_steps(folder):
    """Makes steps of models that are spread over ranks, with as many names and ranks as their readers take."""
    os.makedirs(folder)
    experts = {f"moe.deepspeed_moe.experts.deepspeed_experts.0.{'w' * 400}{at}": (1,) for at in range(10_000)}
    common = {"module": {}, "optimizer": None, "dp_world_size": 1}
    make_spread_step(f"{folder}/global_step1", "mp_rank_00", 1, common | {
        "num_experts": [65_535], "dp_world_size": 3000, "param_shapes": [experts]}, {"partition_count": [1]}, 3000)
    layers = {f"0.{'w' * 400}{at}": (1,) for at in range(30_000)} | {
        f"tied_modules.{at % 64}.{'w' * 400}{at}": (1,) for at in range(10_000)}
    make_spread_step(f"{folder}/global_step2", "mp_rank_00", 1, common | {
        "module": None, "mp_world_size": 1, "param_shapes": [layers]}, {"partition_count": [1]}, 1)
    torch_file(f"{folder}/global_step2/layer_00-model_states.pt", {"w" * 400 + str(at): 0 for at in range(30_000)})
    for layer in range(1, 1000):
        os.link(f"{folder}/global_step2/layer_00-model_states.pt",
                f"{folder}/global_step2/layer_{layer:02}-model_states.pt")
    cut = [f"^{'w' * 400}{at}$" for at in range(10_000)]
    make_spread_step(f"{folder}/global_step3", "mp_rank_{:02}", 256, common | {
        "mp_world_size": 256, "param_shapes": [{name[1:-1]: (1,) for name in cut}],
        "universal_checkpoint_info": {"parameter_with_row_parallelism_patterns": cut}}, {"partition_count": [1]}, 1)

    # As many model parallel ranks as data parallel ones: nobody has the square of them.
    make_spread_step(f"{folder}/global_step4", "mp_rank_00", 1, common | {
        "mp_world_size": 3000, "dp_world_size": 3000, "param_shapes": [{"w": (1,)}]}, {"partition_count": [3000]}, 3000)


def make_spread_step(step, rank, model_ranks, model, states, ranks):
    os.makedirs(step)
    masters = [None] * len(model["param_shapes"])
    files = [(f"{step}/{rank}_model_states.pt", model)]
    for number in range(ranks):
        files.append((f"{step}/zero_pp_rank_{number}_{rank}_optim_states.pt", {
            "optimizer_state_dict": states | {"zero_stage": 1, "single_partition_of_fp32_groups": masters}}))
    for path, content in files[:2]:
        torch_file(path.format(0), content)
    for path, _ in files[2:]:
        os.link(files[1][0].format(0), path.format(0))
    for path, _ in files:
        for model_rank in range(1, model_ranks):
            os.link(path.format(0), path.format(model_rank))


# --- the daemon's memory for open files


def opened_once_all_is_closed(path):
    """The kernel tells the mount of a close after close() returned: what was closed before may count for a moment."""
    end = time.monotonic() + 10
    while True:
        try:
            return os.open(path(), os.O_RDONLY)
        except OSError as problem:
            if problem.errno != errno.EMFILE or time.monotonic() > end:
                raise
        time.sleep(0.05)


def open_until_refused(paths):
    """How many could be opened; EMFILE has to come, but not for the first."""
    held = [opened_once_all_is_closed(paths[0])]
    try:
        for path in paths[1:]:
            held.append(os.open(path(), os.O_RDONLY))
    except OSError as problem:
        if problem.errno != errno.EMFILE:
            raise
        return len(held)
    finally:
        for descriptor in held:
            os.close(descriptor)
    raise Harm(f"{len(held)} could be opened, and each takes memory of the daemon's")


def holds_lists_of_names():
    os.mkdir("attacker/names")
    for number in range(8000):
        os.mknod(f"attacker/names/{number:0250}")
    return open_until_refused([lambda: "attacker/names"] * 900)


def names_that_are_listed():
    """How many; None where the daemon holds too much for this user."""
    try:
        return len(os.listdir("."))
    except OSError as problem:
        if problem.errno != errno.EMFILE:
            raise
        return None


def holds_versions_of_a_view():
    folder = "attacker/views/checkpoint-1"
    os.makedirs(folder)
    write(f"{folder}/trainer_state.json", b'{"global_step": 1}')
    write(f"{folder}/config.json", b"{}")
    data = safetensors([f"weight.{number:090}" for number in range(60_000)], 1)

    def fresh():
        write(f"{folder}/model.safetensors", data)
        return f"views/{folder}/manifest.json"

    return open_until_refused([fresh] * 40)


# --- in the background


def may_write(path, text):
    try:
        path.write_text(text, encoding="ascii")
    except BlockingIOError:
        return False
    return True


def run_behind_all():
    """Gives this process the lowest priority. If the kernel has autogroups, `nice` counts only within one."""
    os.setsid()
    group = pathlib.Path("/proc/self/autogroup")
    if group.exists():
        wait_until("the scheduling group is behind all others", lambda: may_write(group, "19"), 5)  # ten times a second
    os.nice(19)


def play(socket_path, seconds, seed):
    """Runs attempts at random for a while, in this process. Returns how many."""
    me = Attacker(socket_path, random.Random(seed), alone=False)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        me.dice.choice(ATTEMPTS)(me)
        count += 1
    return count

"""The command: help, usage, errors, and the output of each subcommand."""

import contextlib
import json
import os
import pathlib
import pty
import shutil
import signal
import stat
import subprocess

import pytest

from calling import ckptfs, state_of, status_is
from checking import equal, true, write
from hugging import safetensors
from mounting import CKPTFS, CKPTFS_DEBUG, MIB, Mount, Store, abandon, mounted, run, wait_until, xfs
from rotating_series import write_step
from training import STAGE, step_of, write_state

pytestmark = pytest.mark.mode("direct")

COMMANDS = ("mount", "umount", "save", "ls", "latest", "state", "wait", "watch", "pin", "unpin", "seal", "show", "du", "diff", "policy", "rm", "verify", "push", "status", "fsck", "doctor")
REMOTE_COMMANDS = ("add", "remove", "status", "check", "latest", "ls", "export", "mount", "verify")
NOBODY = 65534


# --- without a mount


def test_help_texts():
    done = status_is(ckptfs("--help"), 0)
    for command in COMMANDS:
        true(command in done.stdout, f"--help does not name {command}")
        text = status_is(ckptfs(command, "--help"), 0).stdout
        true("Example" in text and f"ckptfs {command}" in text, f"{command} --help has no example: {text}")
        true("--json" in text, f"{command} --help: --json")
    for command in REMOTE_COMMANDS:
        true(command in status_is(ckptfs("remote", "--help"), 0).stdout, f"remote --help does not name {command}")
        text = status_is(ckptfs("remote", command, "--help"), 0).stdout
        true("--json" in text and f"ckptfs remote {command}" in text, f"remote {command} --help has no example: {text}")
    true(status_is(ckptfs("--version"), 0).stdout.startswith("ckptfs "), "--version")


def test_usage_errors(scratch):
    for words in ((), ("frob",), ("mount",), ("mount", "/a"), ("mount", "/a", "/b", "/c"), ("ls", "/a", "/b"),
                  ("save",), ("fsck",), ("status", "--frob"), ("mount", "--sector", "1024", "/a", "/b"),
                  ("mount", "--log-level", "loud", "/a", "/b"), ("mount", "--sparse", "/a", "/b"), ("remote",),
                  ("remote", "frob"), ("remote", "ls"), ("remote", "export", "file:///a/b")):
        status_is(ckptfs(*words), 2)
    status_is(ckptfs("mount", "-o", "rw,frobnicate", scratch / "s", scratch), 2, "frobnicate", "odirect=safe|raw", "quiet=")
    for size in ("0", "5X", "1M"):
        status_is(ckptfs("mount", "--image", size, scratch / "s", scratch), 2)
    true(not (scratch / "s").exists(), "a usage error made the store")


def test_doctor(scratch):
    done = ckptfs("doctor", "--json", scratch)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    names = ("kernel", "libfuse", "/dev/fuse", "privileges", "request size", "wake-ups", "file system", "loop devices")
    for name in (*names, "mkfs.xfs"):
        true(name in checks, f"doctor does not look at {name}")
    equal(done.returncode, int(any(check["verdict"] == "FAIL" for check in checks.values())), "exit status")
    for check in checks.values():
        equal(check["verdict"] == "ok", check["advice"] == "", f"{check['name']}: advice where something is missing")
    equal(checks["file system"]["verdict"], "warn", f"no reflink on {scratch}: {checks['file system']}")
    true("--image" in checks["file system"]["advice"], "the advice is an image")
    equal(os.listdir(scratch), [], "what doctor left behind")
    text = ckptfs("doctor", scratch).stdout
    true("\033" not in text and "-> " in text and "warn" in text, f"as text: {text}")
    equal(ckptfs("doctor", scratch / "nowhere").returncode, 1, "of a folder that is not there")


def test_a_step_that_only_waits_says_so(disk, scratch):
    with mounted(Store(disk / "waiting"), scratch / "waiting", options=("quiet=30s",)) as mount:
        step = write_step(mount, 1)
        done = ckptfs("state", step)
        equal(done.returncode, 1, "exit status")
        true("s ago; it is complete after 30 s without a write" in done.stdout, f"its state: {done.stdout}")


def test_doctor_on_xfs(scratch):
    with xfs(scratch, name="doctored") as disk:
        done = ckptfs("doctor", "--json", disk)
        check = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "file system")
        equal(check["verdict"], "ok", str(check))
        true("xfs" in check["found"] and "reflink" in check["found"], str(check))


def test_paths_that_are_no_mount(scratch):
    for command in ("ls", "du", "status", "umount"):
        status_is(ckptfs(command, scratch), 1, str(scratch), "not on a ckptfs mount")
    status_is(ckptfs("save", "tag", scratch), 1, str(scratch), "not on a ckptfs mount")
    status_is(ckptfs("fsck", scratch / "nowhere"), 1, str(scratch / "nowhere"))


def test_a_daemon_that_is_stopped_is_named(shared):
    """A command says which daemon does not answer, instead of waiting for it. Other mounts are looked at all the same."""
    second = shared.path.parent / "second-mount"
    with mounted(Store(shared.store.folder.parent / "second-store"), second):
        os.kill(shared.pid, signal.SIGSTOP)
        try:
            wait_until("the daemon is stopped", lambda: state_of(shared.pid) == "T")
            for words in (("status",), ("save", "global_step1")):
                status_is(ckptfs(*words, shared.path, timeout=30), 1, str(shared.path), "does not answer")
            status_is(ckptfs("ls", shared.path / "steps", timeout=30), 1, str(shared.path), "does not answer")
            status_is(ckptfs("status", second), 0)
            checks = json.loads(ckptfs("doctor", "--json", shared.path.parent, timeout=30).stdout)["checks"]
            found = [check["found"] for check in checks if check["name"] == "mount"]
            true(any(str(shared.path) in one and "does not answer" in one for one in found), f"the stopped one: {found}")
            true(f"{second}: its daemon answers" in found, f"the other one: {found}")
            checks = json.loads(ckptfs("doctor", "--json", shared.path, timeout=30).stdout)["checks"]
            found = [check for check in checks if check["name"] == "file system"]
            true(found[0]["verdict"] == "FAIL" and "does not answer" in found[0]["found"], f"of a folder on it: {found}")
        finally:
            os.kill(shared.pid, signal.SIGCONT)
    status_is(ckptfs("status", shared.path), 0)


def test_only_mount_or_named(shared):
    text = pathlib.Path("/proc/self/mountinfo").read_text(errors="replace")
    count = len({line.split(" ")[2] for line in text.splitlines() if " - fuse.ckptfs " in line})
    done = ckptfs("ls")
    if count == 1:
        status_is(done, 0)
    else:
        status_is(done, 1, "say which one", str(shared.path))
    second = shared.path.parent / "second-mount"
    with mounted(Store(shared.store.folder.parent / "second-store"), second):
        status_is(ckptfs("ls"), 1, "say which one", str(shared.path), str(second))
        status_is(ckptfs("ls", second), 0)


def test_status_and_socket(shared):
    status = json.loads(status_is(ckptfs("status", "--json", shared.path), 0).stdout)
    for key in ("mountpoint", "store", "mount_id", "pid", "version", "passthrough", "odirect", "alignment", "space",
                "recovery", "counters", "open_files", "warnings"):
        true(key in status, f"status --json lacks {key}")
    equal(status["mountpoint"], str(shared.path), "mountpoint")
    equal(status["pid"], shared.pid, "pid")
    socket = os.getxattr(shared.path, "user.ckptfs.socket").decode()
    equal(socket, f"/run/ckptfs/{status['mount_id']}.sock", "socket")
    equal(stat.S_IMODE(os.stat(socket).st_mode), 0o666, "the socket's mode")
    text = status_is(ckptfs("status", shared.path), 0).stdout
    for words in (str(shared.path), str(shared.store.folder), "mode", "space", f"pid {shared.pid}", "at the start"):
        true(words in text, f"status lacks {words}: {text}")
    shared.stop()
    true(not os.path.exists(socket), "the socket is still there after umount")
    shared.start()


def test_save_and_ls(mount):
    status_is(ckptfs("save", "early", mount.path), 1, what="a save without swap files")
    state = write_state(mount.path)
    text = status_is(ckptfs("save", "global_step1", mount.path), 0).stdout
    true(f"{len(state)} swap files" in text and "swap state only" in text and "durable" in text, f"save says: {text}")
    result = json.loads(status_is(ckptfs("save", "--json", "second", mount.path), 0).stdout)
    equal((result["files"], result["cloned"]), (len(state), 0), "a second save of an unchanged state")
    status_is(ckptfs("save", "second", mount.path), 0, what="the same tag, nothing changed")
    write_state(mount.path, 1)
    status_is(ckptfs("save", "second", mount.path), 1, "second")
    for tag in ("latest", "..", "a/b", "a\nb"):
        status_is(ckptfs("save", tag, mount.path), 1)
    status_is(ckptfs("save", "--series", mount.path / "nowhere", "x", mount.path), 1, "nowhere")

    rows = json.loads(status_is(ckptfs("ls", "--json", mount.path), 0).stdout)["steps"]
    equal([row["tag"] for row in rows], ["global_step1", "second"], "tags")
    equal((rows[0]["series"], rows[0]["files"], rows[0]["kind"]), ("/steps", len(state), "swap state only"), "row")
    equal(rows[0]["bytes"], sum(map(len, state.values())), "bytes")
    equal(json.loads(ckptfs("ls", "--json", mount.path / "steps").stdout)["steps"], rows, "of the series")
    equal(json.loads(ckptfs("ls", "--json", mount.path / "steps/second").stdout)["steps"], rows[1:], "of one step")
    text = status_is(ckptfs("ls", mount.path), 0).stdout
    true("TAG" in text and "global_step1" in text and "\033" not in text, f"ls says: {text}")
    equal(len({line.find("swap state only") for line in text.splitlines() if "swap state" in line}), 1, "column")
    (mount.path / "folder").mkdir()
    status_is(ckptfs("ls", mount.path / "folder"), 1, "neither a series nor a step")
    status_is(ckptfs("ls", mount.path / "nowhere"), 1, "nowhere")

    # Another series: by its path on the machine, and by its path from the mount's root.
    (mount.path / "runs").mkdir()
    status_is(ckptfs("save", "--series", mount.path / "runs", "r1"), 0)
    status_is(ckptfs("save", "--series", "/runs", "r2", mount.path), 0)
    equal([row["tag"] for row in json.loads(ckptfs("ls", "--json", mount.path / "runs").stdout)["steps"]], ["r1", "r2"],
          "the other series")


def nobodys_command(mount):
    """Returns a function that runs ckptfs as nobody. It runs a copy, because nobody may not enter the build folder."""
    copy = mount.path.parent / "ckptfs"
    if not copy.exists():
        shutil.copy(CKPTFS, copy)

    def as_nobody(*words, groups=()):
        return run(copy, *words, check=False, user=NOBODY, group=NOBODY, extra_groups=list(groups), cwd="/")

    return as_nobody


def test_show(mount):
    state = step_of(write_state(mount.path))
    status_is(ckptfs("save", "s1", mount.path), 0)
    step = mount.path / "steps/s1"
    write(step / "model.safetensors", safetensors({"b": ("F32", [3, 2], bytes(24)), "a.weight": ("BF16", [4], bytes(8))}))
    (step / "config.json").write_text("{}")
    told = json.loads(status_is(ckptfs("show", "--json", step), 0).stdout)
    equal((told["step"]["series"], told["step"]["tag"], told["step"]["files"]), ("/steps", "s1", len(state) + 2), "step")
    files = {file["path"]: file for file in told["files"]}
    equal(len(files), len(state) + 2, "files")
    for path, data in state.items():
        equal((files[path]["apparent"], files[path]["exclusive"]), (len(data), 0), f"{path} is shared")
    equal([(tensor["name"], tensor["shape"], tensor["dtype"], tensor["bytes"]) for tensor in told["tensors"]],
          [("b", [3, 2], "float32", 24), ("a.weight", [4], "bfloat16", 8)], "tensors")
    text = status_is(ckptfs("show", step), 0).stdout
    for words in ("/steps/s1", "EXCLUSIVE", "model.safetensors", "TENSOR", "a.weight", "[3, 2]", "[4]"):
        true(words in text, f"show lacks {words!r}: {text}")
    true("TENSOR" not in status_is(ckptfs("show", "--files", step), 0).stdout, "--files")
    true("EXCLUSIVE" not in status_is(ckptfs("show", "--tensors", step), 0).stdout, "--tensors")
    status_is(ckptfs("show", "--tensors", "--files", step), 2)
    status_is(ckptfs("show", mount.path / "steps"), 1, "no step", "ckptfs ls")
    status_is(ckptfs("show", mount.path / "steps/nothing"), 1, "nothing")
    # A user who may list the step but read no file of it gets names and sizes, but no tensors, and is told why.
    (step / "model.safetensors").chmod(0o600)
    done = nobodys_command(mount)("show", "--json", step)
    equal(json.loads(done.stdout)["files"], told["files"], "files, as somebody else sees them")
    true("tensors" not in json.loads(done.stdout), "tensors of files that one may not read")
    status_is(done, 1, "tensors are not shown", "ermission denied")


def test_disk_use(mount):
    size = sum(map(len, write_state(mount.path).values()))
    status_is(ckptfs("save", "s1", mount.path), 0)
    status_is(ckptfs("save", "s2", mount.path), 0)
    told = json.loads(status_is(ckptfs("du", "--json", mount.path), 0).stdout)
    equal([(row["series"], row["tag"], row["apparent"]) for row in told["steps"]],
          [("/steps", "s1", size), ("/steps", "s2", size)], "rows")
    equal((told["steps"][0]["exclusive"], told["live"]["exclusive"]), (0, 0), "all is shared")
    equal((told["series"]["/steps"]["apparent"], told["live"]["apparent"]), (2 * size, size), "together, and live")
    equal(json.loads(ckptfs("du", "--json", mount.path / "steps").stdout)["steps"], told["steps"], "of the series")
    equal(json.loads(ckptfs("du", "--json", mount.path / "steps/s2").stdout)["steps"], told["steps"][1:], "of one step")
    text = status_is(ckptfs("du", mount.path), 0).stdout
    for words in ("TAG", "EXCLUSIVE", "s1", "(together)", "live swap files", "everything else"):
        true(words in text, f"du lacks {words!r}: {text}")
    true("live swap files" not in status_is(ckptfs("du", mount.path / "steps/s1"), 0).stdout, "one step alone")
    shutil.rmtree(mount.path / STAGE)
    alone = json.loads(ckptfs("du", "--json", mount.path).stdout)
    equal(alone["series"]["/steps"]["shared"] + alone["series"]["/steps"]["exclusive"], told["steps"][0]["shared"],
          "what both steps use")
    status_is(ckptfs("du", mount.path / "nowhere"), 1, "nowhere")


def on_a_terminal(*words, **options):
    """Returns the exit code, and the output of a command on its own terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen([str(word) for word in words], stdin=its, stdout=its, stderr=its, start_new_session=True, **options)
    os.close(its)
    text = b""
    with contextlib.suppress(OSError):  # EIO: the command has closed the terminal
        while part := os.read(ours, 4096):
            text += part
    os.close(ours)
    return process.wait(60), text.decode()


@pytest.mark.builds("faults")
def test_what_takes_long_says_so(disk, work):
    """After a second a line shows progress; it disappears at the end. Without a terminal there is no such line."""
    mount = Mount(Store(disk / "slow"), work / "slow", mode="direct", binary=CKPTFS_DEBUG, faults="save.before_publish=sleep:2600")
    try:
        mount.start()
        write_state(mount.path, ranks=1, groups=("0_2",))
        code, text = on_a_terminal(CKPTFS, "save", "s1", mount.path)
        equal(code, 0, text)
        true("\rsaving: 1 s" in text.replace("\033[K", "") and "saving: 2 s" in text, f"a save says: {text!r}")
        true("\r\033[K" in text[text.rindex("saving: "):], f"the line stays: {text!r}")
        true("durable" in text, f"what it says then: {text!r}")
        write_state(mount.path, 1, ranks=1, groups=("0_2",))
        done = run(CKPTFS, "save", "s2", mount.path)
        equal(done.stderr, "", "stderr that is no terminal")
        code, text = on_a_terminal(CKPTFS, "ls", mount.path)
        true("\033[32mcomplete\033[0m" in text, f"colour on a terminal: {text!r}")
    finally:
        abandon(mount)


def test_permissions(mount):
    write_state(mount.path)
    os.chmod(mount.path, 0o755)
    os.chmod(mount.path / "steps", 0o755)
    as_nobody = nobodys_command(mount)
    copy = mount.path.parent / "ckptfs"
    if not copy.exists():
        shutil.copy(CKPTFS, copy)

    status_is(as_nobody("ls", mount.path), 0)
    status_is(as_nobody("status", mount.path), 0)
    status_is(as_nobody("save", "n1", mount.path), 1, "permission denied", "/steps")
    os.chown(mount.path / "steps", 0, 4242)
    os.chmod(mount.path / "steps", 0o775)
    status_is(as_nobody("save", "n1", mount.path), 1, "permission denied")
    status_is(as_nobody("save", "n1", mount.path, groups=[4242]), 1, "uid 65534 may save")  # the state is root's
    for folder, _, files in os.walk(mount.path / "zero_stage_3"):
        for path in (pathlib.Path(folder), *(pathlib.Path(folder) / name for name in files)):
            os.chown(path, NOBODY, NOBODY)
    status_is(as_nobody("save", "n1", mount.path, groups=[4242]), 0)
    equal(os.stat(mount.path / "steps/n1").st_uid, NOBODY, "the step's owner")
    os.chmod(mount.path / "steps", 0o700)
    for command in ("ls", "du"):
        rows = json.loads(as_nobody(command, "--json", mount.path).stdout)["steps"]
        equal(rows, [], f"steps that nobody may not see, by {command}")
        status_is(as_nobody(command, mount.path / "steps"), 1)
    status_is(as_nobody("umount", mount.path), 1, "root")


def test_fsck_of_a_store(mount):
    write_state(mount.path)
    status_is(ckptfs("fsck", mount.store.folder), 1, str(mount.store.folder), what="of a mounted store")
    mount.stop()
    report = json.loads(status_is(ckptfs("fsck", "--json", mount.store.folder), 0).stdout)
    equal((report["problems"], report["orphans"], report["clean_unmount"]), ([], [], True), "fsck --json")
    true(report["blobs"] > 0 and report["bytes"] > 0, f"fsck --json: {report}")
    true("no problems" in status_is(ckptfs("fsck", mount.store.folder), 0).stdout, "in words")
    blob = max((file for file in mount.store.blobs.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    kept = blob.rename(mount.store.folder.parent / "taken-away")
    true(ckptfs("fsck", mount.store.folder).returncode == 3, "a missing blob is no problem?")
    kept.rename(blob)
    status_is(ckptfs("fsck", mount.store.folder), 0)
    mount.start()


def test_fsck_of_a_store_with_an_orphan(mount):
    """It has content, and no file is known to have had it: it stays until somebody asks for its removal."""
    write_state(mount.path)
    mount.stop()
    store = mount.store
    orphan = store.blobs / f"{max(int(blob.name, 16) for blob in store.blobs.iterdir()) + 1000:016x}"
    orphan.write_bytes(bytes(3 * MIB))
    named = f"blobs/{orphan.name}, 3 MiB, written "
    said = status_is(ckptfs("fsck", store.folder), 0).stdout
    true(f"note: {named}" in said and "has no name" in said, f"it names the orphan: {said}")
    true(f"orphans are kept; remove them with: ckptfs fsck --remove-orphans {store.folder}\n" in said, f"the way: {said}")
    report = json.loads(status_is(ckptfs("fsck", "--json", store.folder), 0).stdout)
    equal((report["orphans"], report["removed_orphans"]), ([{"name": orphan.name, "bytes": 3 * MIB}], 0), "--json")
    lost = max(store.blobs.iterdir(), key=lambda blob: (blob != orphan, blob.stat().st_size))
    kept = lost.rename(store.folder.parent / "taken-away-too")
    done = ckptfs("fsck", "--remove-orphans", store.folder)
    equal((done.returncode, orphan.exists()), (3, True), "a store with problems is left as it is")
    true(f"note: {named}" in done.stdout and "no orphan was removed: the store has problems" in done.stdout, done.stdout)
    kept.rename(lost)
    said = status_is(ckptfs("fsck", "--remove-orphans", store.folder), 0).stdout
    true(f"removed: {named}" in said and "removed 1 orphan\n" in said and "note" not in said, f"it names it: {said}")
    true(not orphan.exists(), "the orphan is still there")
    mount.start()

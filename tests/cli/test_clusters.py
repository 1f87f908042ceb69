"""The files of docs/examples for Kubernetes and Slurm, as far as they go without a cluster: which fields they have, how
mounts reach other mount namespaces, the prolog and the epilog as Slurm calls them, and a job's own mount.

tests/packaging/test_clusters.py runs them under Slurm and in containers.
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess

import pytest
import yaml

from checking import equal, read, true
from mounting import CKPTFS, REPOSITORY, Store, fuse_for_all, is_mountpoint, mounted, run, wait_until

EXAMPLES = REPOSITORY / "docs/examples"
USER = 65534


# --- Kubernetes


def volumes(spec, container):
    """Returns where a container has folders of the node: (path on the node, path in the container, propagation)."""
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    return {paths[one["name"]]: (one["mountPath"], one.get("mountPropagation")) for one in container["volumeMounts"]}


def test_kubernetes_files():
    daemons = yaml.safe_load((EXAMPLES / "kubernetes/daemonset.yaml").read_text())
    equal((daemons["apiVersion"], daemons["kind"]), ("apps/v1", "DaemonSet"))
    template = daemons["spec"]["template"]
    equal(template["metadata"]["labels"], daemons["spec"]["selector"]["matchLabels"], "the labels that the selector wants")
    equal(daemons["spec"]["updateStrategy"], {"type": "OnDelete"}, "how it is updated")
    spec, container = template["spec"], template["spec"]["containers"][0]
    equal((spec["hostPID"], container["securityContext"]), (True, {"privileged": True}), "what Bidirectional needs")
    true(spec["terminationGracePeriodSeconds"] > 10, "time to wait for open files, which is 10 s")
    wanted = {"/data": ("/data", None), "/mnt/ckptfs": ("/mnt/ckptfs", "Bidirectional"), "/run/ckptfs": ("/run/ckptfs", None)}
    equal(volumes(spec, container), wanted, "folders of the node")
    point = container["args"][0].split()[-1]
    pod = yaml.safe_load((EXAMPLES / "kubernetes/training.yaml").read_text())
    equal((pod["apiVersion"], pod["kind"]), ("v1", "Pod"))
    spec = pod["spec"]
    equal(spec["nodeSelector"], template["spec"]["nodeSelector"], "the nodes that have a mount")
    for container in spec["initContainers"] + spec["containers"]:
        true("securityContext" not in container, "training needs no privilege")
        equal(volumes(spec, container)["/mnt/ckptfs"], ("/mnt/ckptfs", "HostToContainer"), "the mount")
        true(any(point in word for word in container["command"]), f"{container['name']} uses {point}")
    equal(volumes(spec, spec["containers"][0])["/run/ckptfs"], ("/run/ckptfs", None), "the control socket")


class Namespace:
    """A mount namespace that has the folder as a container would: with this propagation."""

    def __init__(self, stack, folder, propagation):
        script = "echo there && exec sleep 1000"
        if propagation != "rshared":  # else it is a peer of the host's
            script = f'mount --make-rslave / && mount --bind "$0" "$0" && mount --make-{propagation} "$0" && {script}'
        process = subprocess.Popen(["unshare", "-m", "--propagation", "unchanged", "sh", "-c", script, folder],
                                   text=True, stdout=subprocess.PIPE)
        stack.callback(process.wait)
        stack.callback(process.kill)
        equal(process.stdout.readline(), "there\n", "the namespace")
        self.pid = process.pid

    def run(self, *words, check=True):
        return run("nsenter", "-t", self.pid, "-m", *words, check=check)

    def listed(self, folder):
        return self.run("ls", folder, check=False).stdout.split()


def test_mounts_reach_pods(work, disk):
    """Bidirectional is rshared, HostToContainer is rslave, None is rprivate."""
    above = work / "above"
    point = above / "ckpt"
    point.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        run("mount", "--bind", above, above)
        run("mount", "--make-shared", above)
        stack.callback(run, "umount", "-l", above, check=False)
        daemons, training, alone = (Namespace(stack, above, kind) for kind in ("rshared", "rslave", "rprivate"))
        daemons.run(CKPTFS, "mount", disk / "store", point)
        true(is_mountpoint(point), "the node has the mount of the DaemonSet")
        equal((training.listed(point), alone.listed(point)), (["steps"], []), "the pods, which began before the mount")
        os.kill(json.loads(run(CKPTFS, "status", "--json", point).stdout)["pid"], signal.SIGKILL)
        wait_until("the daemon is dead", lambda: run("ls", point, check=False).returncode != 0)
        daemons.run(CKPTFS, "mount", disk / "store", point)
        equal(training.listed(point), ["steps"], "the pod, after the daemon has died and another has come")
        training.run("sh", "-c", f"echo written >{point}/file")
        daemons.run(CKPTFS, "umount", point)
        equal((is_mountpoint(point), training.listed(point)), (False, []), "the node and the pod, after the unmount")
    Store(disk / "store").fsck()


# --- Slurm


class Node:
    """Runs the prolog and the epilog with the paths of a test, and the variables that Slurm sets."""

    def __init__(self, work, disk):
        self.ckpt, self.store, self.jobs = work / "ckpt", Store(disk / "store"), work / "jobs"
        self.scripts = work / "scripts"
        self.scripts.mkdir()
        (self.scripts / "ckptfs").symlink_to(CKPTFS)
        for name in ("prolog", "epilog"):
            text = (EXAMPLES / "slurm" / name).read_text()
            for old, new in (("PATH=/", f"PATH={self.scripts}:/"), ("=/data/store", f"={self.store.folder}"),
                             ("=/ckpt", f"={self.ckpt}"), ("=/run/ckptfs-jobs", f"={self.jobs}")):
                true(text.count(old) == 1 or old == "=/data/store", f"{name} has one {old}")
                text = text.replace(old, new)
            (self.scripts / name).write_text(text)
            (self.scripts / name).chmod(0o755)

    def words(self, script, job):
        group = pwd.getpwuid(USER).pw_gid
        variables = {"ID": job, "USER": "nobody", "UID": USER, "GID": group}
        return ["env", "-i", *(f"SLURM_JOB_{name}={value}" for name, value in variables.items()), self.scripts / script]

    def run(self, script, job, check=True):
        return run(*self.words(script, job), check=check)

    def pid(self):
        return json.loads(run(CKPTFS, "status", "--json", self.ckpt).stdout)["pid"]


@pytest.fixture
def node(request, work, disk):
    folder = work / request.node.name
    folder.mkdir()
    (disk / request.node.name).mkdir()
    yield Node(folder, disk / request.node.name)


def test_prolog_and_epilog(node):
    node.run("prolog", 1)
    pid, own = node.pid(), node.ckpt / "nobody"
    equal((own.stat().st_uid, own.stat().st_mode & 0o777), (USER, 0o700), "the user's folder")
    node.run("prolog", 2)
    node.run("prolog", 2)
    equal(node.pid(), pid, "the mount that other prologs find")
    (own / "file").write_text("kept")
    node.run("epilog", 1)
    equal(node.pid(), pid, "the mount, while job 2 goes on")
    node.run("epilog", 2)
    true(not is_mountpoint(node.ckpt), "the mount is gone after the last job")
    node.run("epilog", 2)
    node.store.fsck()
    node.run("prolog", 3)
    equal((own / "file").read_text(), "kept", "the file, for the next job")
    os.kill(node.pid(), signal.SIGKILL)
    wait_until("the daemon is dead", lambda: run("ls", node.ckpt, check=False).returncode != 0)
    node.run("prolog", 4)
    equal((own / "file").read_text(), "kept", "the file, after the daemon has died and a prolog has replaced it")
    for job in (3, 4):
        node.run("epilog", job)
    node.store.fsck()


def test_many_prologs_at_once(node):
    begun = [subprocess.Popen([str(word) for word in node.words("prolog", job)], stderr=subprocess.PIPE) for job in range(6)]
    for process in begun:
        said = process.communicate(timeout=120)[1]
        equal(process.returncode, 0, f"a prolog says {said}")
    ended = [subprocess.Popen([str(word) for word in node.words("epilog", job)]) for job in range(6)]
    equal([process.wait(120) for process in ended], [0] * 6, "epilogs")
    true(not is_mountpoint(node.ckpt), "the mount is gone")


def test_epilog_of_a_mount_in_use(node):
    node.run("prolog", 1)
    file = node.ckpt / "nobody/file"
    script = 'exec >"$0"; echo before; read -r _; echo after'
    with subprocess.Popen(["sh", "-c", script, file], text=True, stdin=subprocess.PIPE) as left:
        wait_until("it has written", lambda: file.exists() and file.read_text() == "before\n")
        done = node.run("epilog", 1)
        for word in ("busy", str(left.pid), "stays mounted"):
            true(word in done.stderr, f"{word!r} is not in what the epilog says: {done.stderr}")
        true(is_mountpoint(node.ckpt), "the mount stays")
        left.communicate("go on\n")
    node.run("prolog", 2)
    equal(file.read_text(), "before\nafter\n", "what was written before and after the epilog")
    node.run("epilog", 2)
    true(not is_mountpoint(node.ckpt), "the next epilog unmounts")
    node.store.fsck()


def test_epilog_that_cannot_unmount(node):
    """Then it fails, if the mount does not answer either, so that Slurm starts no other job on the node."""
    node.run("prolog", 1)
    command = node.scripts / "ckptfs"
    command.unlink()
    command.write_text("#!/bin/sh\necho no answer >&2\nexit 1\n")
    command.chmod(0o755)
    done = node.run("epilog", 1, check=False)
    equal((done.returncode, done.stderr), (1, "no answer\n"), "the epilog")
    run(CKPTFS, "umount", node.ckpt)


def test_prolog_that_cannot_mount(node):
    """Then it fails, so that Slurm starts no job on the node."""
    node.store.folder.parent.rmdir()
    node.store.folder.parent.write_text("no folder")
    done = node.run("prolog", 1, check=False)
    true(done.returncode != 0 and str(node.store.folder) in done.stderr, f"the prolog: {done}")


TRAIN = """#!/bin/sh
# In place of python3: writes a step where it is told to, and perhaps goes on.
mkdir -p "$3" && echo step >"$3/step" && id -u >"$3/uid" && exec 3>>"$3/live" && echo written >&3 && touch "$STARTED"
exec sleep "$SECONDS_TO_TRAIN"
"""


class Job:
    """Runs docs/examples/slurm/job.sh as an ordinary user."""

    def __init__(self, work, disk):
        self.local = disk / "local"
        self.local.mkdir()
        os.chown(self.local, USER, USER)
        self.folder = self.local / "nobody"
        self.store = Store(self.folder / "store")
        self.model = self.folder / "ckpt/runs/my-model"
        self.started = self.local / "started"
        tools = work / "tools"
        tools.mkdir()
        shutil.copy(CKPTFS, tools / "ckptfs")  # nobody may not enter the build folder
        (tools / "python3").write_text(TRAIN)
        self.script = tools / "job.sh"
        text = (EXAMPLES / "slurm/job.sh").read_text()
        true("=/local/" in text, "the script works in /local")
        self.script.write_text(text.replace("=/local/", f"={self.local}/"))
        for file in tools.iterdir():
            file.chmod(0o755)
        self.tools = tools

    def start(self, seconds):
        self.started.unlink(missing_ok=True)
        environment = {"PATH": f"{self.tools}:{os.environ['PATH']}", "USER": "nobody", "STARTED": str(self.started),
                       "SECONDS_TO_TRAIN": str(seconds)}
        return subprocess.Popen([self.script], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
                                user=USER, group=USER, extra_groups=[], env=environment)

    def processes(self, pid):
        """All that share the job's mount namespace."""
        def namespace(of):
            with contextlib.suppress(OSError):
                return os.readlink(f"/proc/{of}/ns/mnt")

        here = namespace(pid)
        true(here and here != namespace("self"), "the job has a mount namespace of its own")
        return [int(other) for other in os.listdir("/proc") if other.isdigit() and namespace(other) == here]


def test_job_with_a_mount_of_its_own(work, disk):
    with fuse_for_all():
        for shown in (work, disk):
            shown.chmod(0o755)
        job = Job(work, disk)
        first = job.start(0)
        said = first.communicate(timeout=120)
        equal(first.returncode, 0, f"the job says {said}")
        equal(os.listdir(job.folder / "ckpt"), [], "the folder below the mount")
        job.store.fsck()
        second = job.start(1000)
        wait_until("training", lambda: job.started.exists() or second.poll() is not None, 60)
        true(second.poll() is None, "the job goes on")
        true(not is_mountpoint(job.folder / "ckpt"), "the node does not see the mount")
        for pid in job.processes(second.pid):  # as Slurm ends a job
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        second.communicate()
        wait_until("the store is free", lambda: job.store.fsck(check=False).returncode == 0, 20)
        equal(os.listdir(job.folder / "ckpt"), [], "the folder below the mount, after the kill")
        run("chown", "-R", "0:0", job.folder)
        with mounted(job.store, work / "looked-at", mode="direct") as mount:
            model = mount.path / "runs/my-model"
            equal(read(model / "live"), b"written\n" * 2, "what both jobs have written")
            equal(read(model / "uid"), f"{USER}\n".encode(), "who the training was")


def test_root_of_a_user_namespace_mounts(work, disk):
    """It may not write to /run, which belongs to the machine's root."""
    os.makedirs("/run/ckptfs", exist_ok=True)
    with fuse_for_all():
        for shown in (work, disk):
            shown.chmod(0o755)
        folder = disk / "own"
        (folder / "ckpt").mkdir(parents=True)
        run("chown", "-R", f"{USER}:{USER}", folder)
        script = 'ckptfs=$1; cd "$2"; "$ckptfs" mount store ckpt; echo written >ckpt/file; cat ckpt/file; "$ckptfs" ls ckpt; "$ckptfs" umount ckpt'
        done = run("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "env", "-u", "XDG_RUNTIME_DIR",
                   "unshare", "--user", "--map-root-user", "--mount", "sh", "-euc", script, "sh", CKPTFS, folder)
        true("written" in done.stdout and "No steps yet" in done.stdout, f"{done.stdout}{done.stderr}")

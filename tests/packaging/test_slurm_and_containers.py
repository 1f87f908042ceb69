"""The files of docs/examples under what they are for, on a bare Debian 12: Slurm's own daemons, and containers of podman,
which stands for Docker and for what runs the pods of Kubernetes.
"""

import os
import shutil

import pytest
import yaml

from bare import Machine, made_by_the_wheels_script
from checking import equal, true
from mounting import BUILD, REPOSITORY, fuse_for_all, run, wait_until
from ports import free_port

pytestmark = [pytest.mark.disk(4), pytest.mark.timeout(3600), pytest.mark.together, pytest.mark.long]

EXAMPLES = REPOSITORY / "docs/examples"
GROUP = "ckptfs-test"  # of the control groups of containers
IMAGE = "registry.example.com/ckptfs:0.1.0"
BASE = "localhost/debian:12"  # what the Dockerfile takes it from, without a registry


@pytest.fixture(scope="module")
def wheel(work):
    return made_by_the_wheels_script(work)[0]


def test_kubernetes_schema():
    """The YAML is what the newest Kubernetes allows, to the last field."""
    tools = BUILD / "kubernetes"
    if not (tools / "bin/kubernetes-validate").exists():
        run("python3", "-m", "venv", "--clear", tools)
        run(tools / "bin/pip", "install", "-q", "--disable-pip-version-check", "kubernetes-validate", timeout=300)
    files = sorted((EXAMPLES / "kubernetes").iterdir())
    done = run(tools / "bin/kubernetes-validate", "--strict", *files)
    equal((done.stdout + done.stderr).count("passed"), len(files), f"files that are right: {done}")


# --- Docker and Kubernetes: podman with crun, as root

CONTAINERS = """
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
[containers]
netns = "host"
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""
STORAGE = """
[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "/data/containers"
"""
MOUNT = """mkdir -p /ckpt && ckptfs mount /data/store /ckpt && ckptfs status /ckpt && echo kept >/ckpt/file &&
ckptfs umount /ckpt"""


class Podman:
    def __init__(self, machine):
        self.machine = machine

    def __call__(self, *words, **options):
        return self.machine.run("podman", *words, **options)

    def container(self, *words, check=True):
        return self("run", "--rm", "--pull=never", f"--cgroup-parent={GROUP}", *words, check=check)

    def begin(self, name, *words):
        self.container("--detach", "--name", name, *words)

    def inside(self, name, *words, check=True):
        return self("exec", name, *words, check=check)


@pytest.fixture(scope="module")
def podman(wheel, work, disk):
    """podman on a bare Debian, with an image that docs/examples/docker/Dockerfile has made. No registry is asked: the
    base is the bare Debian itself."""
    (work / "containers").mkdir()
    (disk / "containers").mkdir()
    machine = Machine(work / "containers", "12", {"/data": disk / "containers"})
    try:
        for folder in ("srv/image", "mnt/ckptfs", "run/ckptfs"):
            (machine.root / folder).mkdir()
        shutil.copy(wheel, machine.root / "srv/image")
        shutil.copy(EXAMPLES / "docker/Dockerfile", machine.root / "srv/image")
        run("tar", "-C", machine.base / "root", "--exclude=./dev/*", "-cf", machine.root / "srv/base.tar", ".")
        machine.apt("update")
        machine.apt("install", "podman", "crun", "buildah", "ca-certificates")
        (machine.root / "etc/containers/containers.conf").write_text(CONTAINERS)
        (machine.root / "etc/containers/storage.conf").write_text(STORAGE)
        machine.run("mount", "--bind", "/mnt/ckptfs", "/mnt/ckptfs")  # crun wants a mount to propagate from
        found = Podman(machine)
        found("import", "/srv/base.tar", BASE)
        found("build", "--from", BASE, "--pull=never", "--isolation=chroot", "--network=host", "-t", IMAGE, "/srv/image",
              timeout=900)
        yield found
    finally:
        machine.end(GROUP, "libpod_parent")


def test_docker(podman):
    """What a container needs to mount a store by itself."""
    device, power = "--device=/dev/fuse", "--cap-add=SYS_ADMIN"
    done = podman.container("-v", "/data:/data", IMAGE, check=False)
    equal(done.returncode, 1, "doctor's status")
    for advice in ("--device /dev/fuse", "--cap-add SYS_ADMIN"):
        true(advice in done.stdout, f"doctor advises {advice}: {done}")
    mounts = podman.container(device, power, "-v", "/data:/data", IMAGE, "sh", "-c", MOUNT)
    true("mode         passthrough" in mounts.stdout, f"the mode: {mounts}")
    for words, reason in (((device,), "fusermount3: mount failed: Operation not permitted"),
                          ((power,), "device not found"),
                          (("-v", "/dev/fuse:/dev/fuse", power), "failed to open /dev/fuse: Operation not permitted")):
        done = podman.container(*words, "-v", "/data:/data", IMAGE, "sh", "-c", MOUNT, check=False)
        true(done.returncode != 0 and reason in done.stderr, f"{words}: {done}")
    podman.machine.run("install", "-d", "-o", "100000", "/data/remapped")
    mapped = podman.container("--uidmap=0:100000:65536", "--gidmap=0:100000:65536", device, power, "-v",
                              "/data/remapped:/data", IMAGE, "sh", "-c", MOUNT)
    true("mode         direct" in mapped.stdout, f"the mode with a user namespace: {mapped}")
    podman.machine.run("sh", "-c", "grep -qx kept /data/store/blobs/*")


def words_of(spec, container):
    """Returns podman's words for a container of a pod."""
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    kinds = {"Bidirectional": ":rshared", "HostToContainer": ":rslave", None: ""}
    words = [f"-v={paths[one['name']]}:{one['mountPath']}{kinds[one.get('mountPropagation')]}"
             for one in container["volumeMounts"]]
    words += ["--privileged"] * container.get("securityContext", {}).get("privileged", False)
    return words + ["--pid=host"] * spec.get("hostPID", False) + [container["image"]]


def test_kubernetes(podman):
    """The containers of docs/examples/kubernetes, as podman runs them: the DaemonSet dies, comes back and ends while a
    training goes on."""
    spec = yaml.safe_load((EXAMPLES / "kubernetes/daemonset.yaml").read_text())["spec"]["template"]["spec"]
    daemons = spec["containers"][0]
    serve = (*words_of(spec, daemons), *daemons["command"], *daemons["args"])
    pod = yaml.safe_load((EXAMPLES / "kubernetes/training.yaml").read_text())["spec"]
    waits = pod["initContainers"][0]
    point = "/mnt/ckptfs/ckpt"
    podman.begin("waits", *words_of(pod, waits), *waits["command"])
    train = "exec 3>>/mnt/ckptfs/ckpt/live; while :; do echo a >&3; sleep 0.1; done"
    podman.begin("train", *words_of(pod, pod["containers"][0]), "sh", "-c", "sleep 1000")
    true("waits" in podman("ps").stdout, "the pod waits for the mount")
    podman.begin("first", *serve)

    def is_ready():
        return podman.inside("train", *daemons["readinessProbe"]["exec"]["command"], check=False).returncode == 0

    wait_until("the pod sees the mount of the DaemonSet", is_ready, 30)
    wait_until("the pod goes on", lambda: "waits" not in podman("ps").stdout, 10)
    true("passthrough" in podman.inside("train", "ckptfs", "status").stdout, "the mode, by the control socket")
    podman("exec", "--detach", "train", "sh", "-c", train)
    podman.inside("train", "sh", "-c", f"echo before >{point}/before")
    podman("kill", "first")
    wait_until("the mount is dead", lambda: podman.inside("train", "ls", point, check=False).returncode != 0)
    podman.begin("second", *serve)
    wait_until("the pod sees the new mount", is_ready, 30)
    size = len(podman.inside("train", "cat", f"{point}/live").stdout)
    wait_until("the training writes on", lambda: len(podman.inside("train", "cat", f"{point}/live").stdout) > size)
    equal(podman.inside("train", "cat", f"{point}/before").stdout, "before\n", "what was written before")
    podman("kill", "train")
    podman("stop", "--time", str(spec["terminationGracePeriodSeconds"]), "second")
    equal(podman.machine.mounts(), [], "mounts of the node")
    podman.container("-v", "/data:/data", IMAGE, "ckptfs", "fsck", "/data/store")


# --- Slurm

SLURM = """
ClusterName=one
SlurmctldHost=localhost
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=3
Prolog=/etc/slurm/prolog
Epilog=/etc/slurm/epilog
PrologFlags=Alloc
NodeName=ckptfstest NodeHostname=localhost NodeAddr=localhost CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=YES
"""
CONTROL_GROUPS = """
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
"""
ON_THE_NODES_MOUNT = """#!/bin/sh
mkdir -p /ckpt/trainer/runs && echo step >/ckpt/trainer/runs/$SLURM_JOB_ID && ckptfs status && sleep 3
"""
WITH_A_FUSERMOUNT = """#!/bin/sh
mkdir -p /local/trainer/own
ckptfs mount /local/trainer/store2 /local/trainer/own && echo step >/local/trainer/own/$SLURM_JOB_ID
"""
TRAIN = """#!/bin/sh
echo training
mkdir -p "$3" && echo "step of $SLURM_JOB_ID" >"$3/step-$SLURM_JOB_ID" && exec 3>"$3/live" && exec sleep "${TRAIN_SECONDS:-0}"
"""


class Slurm:
    def __init__(self, machine, folder):
        self.machine, self.folder, self.user = machine, folder, 1000

    def submit(self, script, *words, variables=None):
        done = self.machine.run("sbatch", "--parsable", "--output=/local/trainer/said-%j", *words, script, user=self.user,
                                variables={"USER": "trainer", "HOME": "/local/trainer"} | (variables or {}))
        return done.stdout.strip()

    def said(self, job):
        file = self.folder / "trainer" / f"said-{job}"
        return file.read_text() if file.exists() else ""

    def jobs(self):
        return self.machine.run("squeue", "-h", "-o", "%i %T").stdout.splitlines()

    def wait(self, seconds=30):
        wait_until("all jobs have ended", lambda: not self.jobs(), seconds, 0.2)

    def is_well(self):
        state = self.machine.run("sinfo", "-h", "-o", "%T").stdout.split()
        equal(state, ["idle"], f"the node's state; {self.machine.run('tail', '-n', '30', '/var/log/slurmd.log').stdout}")


@pytest.fixture(scope="module")
def slurm(wheel, work, disk):
    (work / "slurm").mkdir()
    for folder in (disk / "node", disk / "local", disk / "local/trainer"):
        folder.mkdir()
    machine = Machine(work / "slurm", "12", {"/data": disk / "node", "/local": disk / "local"})
    try:
        machine.apt("update")
        machine.apt("install", "slurmd", "slurmctld", "slurm-client", "fuse3", "python3-venv")
        machine.run("useradd", "--uid", "1000", "--home-dir", "/local/trainer", "trainer")
        machine.run("chown", "trainer:", "/local/trainer")
        machine.run("python3", "-m", "venv", "/opt/venv")
        machine.run("/opt/venv/bin/pip", "install", "--no-index", machine.bring(wheel))
        machine.run("ln", "-s", "/opt/venv/bin/ckptfs", "/usr/local/bin/ckptfs")
        (machine.root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        for name, text in (("slurm.conf", SLURM.format(ports=(free_port(), free_port()))), ("cgroup.conf", CONTROL_GROUPS)):
            (machine.root / "etc/slurm" / name).write_text(text)
        for name in ("prolog", "epilog"):
            shutil.copy(EXAMPLES / "slurm" / name, machine.root / "etc/slurm")
        shutil.copy(EXAMPLES / "slurm/job.sh", disk / "local")
        for name, text in (("on-the-nodes-mount.sh", ON_THE_NODES_MOUNT), ("with-a-fusermount.sh", WITH_A_FUSERMOUNT),
                           ("python3", TRAIN)):
            (disk / "local" / name).write_text(text)
            (disk / "local" / name).chmod(0o755)
        machine.run("mkdir", "-p", "/var/spool/slurmctld", "/var/spool/slurmd")
        machine.run("slurmctld")
        wait_until("slurmctld answers", lambda: machine.run("sinfo", check=False).returncode == 0, 30)
        machine.run("slurmd", "-N", "ckptfstest")
        found = Slurm(machine, disk / "local")
        wait_until("the node is there", lambda: machine.run("sinfo", "-h", "-o", "%T").stdout.split() == ["idle"], 30)
        yield found
    finally:
        machine.end("slurm_ckptfstest", "slurm")


def test_slurm_prolog_and_epilog(slurm):
    jobs = [slurm.submit("/local/on-the-nodes-mount.sh") for _ in range(2)]
    slurm.wait()
    for job in jobs:
        true("mode         passthrough" in slurm.said(job), f"job {job} says {slurm.said(job)}")
    wait_until("the epilog has unmounted", lambda: not slurm.machine.mounts())
    slurm.is_well()
    slurm.machine.run("ckptfs", "fsck", "/data/store")


def test_slurm_job_with_a_mount_of_its_own(slurm):
    """In a mount namespace: it ends, and is cancelled in the middle of its training."""
    path = {"PATH": "/local:/usr/local/bin:/usr/bin:/bin"}
    with fuse_for_all():
        ended = slurm.submit("/local/job.sh", variables=path)
        slurm.wait()
        equal(slurm.said(ended), "training\n", f"what job {ended} says")
        slurm.machine.run("ckptfs", "fsck", "/local/trainer/store")
        cancelled = slurm.submit("/local/job.sh", variables=path | {"TRAIN_SECONDS": "1000"})
        wait_until("it trains", lambda: "training" in slurm.said(cancelled), 30)
        true("/local/trainer/ckpt" not in slurm.machine.mounts(), "the node does not see the mount")
        slurm.machine.run("scancel", cancelled)
        slurm.wait()
        slurm.machine.run("ckptfs", "fsck", "/local/trainer/store")
        again = slurm.submit("/local/job.sh", variables=path)
        slurm.wait()
        equal(slurm.said(again), "training\n", f"what job {again} says")
    equal(os.listdir(slurm.folder / "trainer/ckpt"), [], "the folder below the mount")
    slurm.is_well()


def test_slurm_job_that_leaves_its_mount(slurm):
    """A mount by fusermount3 outlives the job as a dead one, because Slurm kills the daemon. The next one replaces it."""
    with fuse_for_all():
        first = slurm.submit("/local/with-a-fusermount.sh")
        slurm.wait()
        equal(slurm.machine.mounts(), ["/local/trainer/own"], "what the job has left")
        status = slurm.machine.run("ckptfs", "status", "/local/trainer/own", user=1000, check=False)
        true("dead" in status.stderr, f"it is dead: {status}")
        second = slurm.submit("/local/with-a-fusermount.sh")
        slurm.wait()
        true("had died" in slurm.said(second), f"the second job says {slurm.said(second)}")
        slurm.machine.run("ckptfs", "mount", "/local/trainer/store2", "/local/trainer/own", user=1000)
        listed = slurm.machine.run("ls", "/local/trainer/own", user=1000).stdout.split()
        equal(listed, sorted([first, second, "steps"]), "what both jobs have written")
        slurm.machine.run("ckptfs", "umount", "/local/trainer/own", user=1000)
        slurm.machine.run("ckptfs", "fsck", "/local/trainer/store2", user=1000)

"""Real trainers on two nodes with a mount each: every step is in the remote once and whole, and loads from there."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import time

import pytest

import harness
from checking import equal, true
from mounting import CKPTFS, GIB, Store, by_level, mounted, run, wait_until, xfs
from seaweed import BUCKET, cluster, environment, seaweed

pytestmark = [pytest.mark.long, pytest.mark.builds("venv"), pytest.mark.mode("passthrough"),
              pytest.mark.timeout(900)]

NODES = pathlib.Path(__file__).resolve().parent / "nodes.py"
PER_NODE, RANKS = 2, 4
STEPS = by_level(2, 10)
# A rank that waits for the others must not seem to be done.
QUIET = ("quiet=3s",)


class Remote:
    def __init__(self, url, endpoints=(), servers=None):
        self.url, self.endpoints, self.servers = url, endpoints, servers

    def ckptfs(self, *words, timeout=120, slot=0):
        """Returns what it prints. Each slot has an endpoint of its own, if there are several."""
        options = ["--endpoint", self.endpoints[slot % len(self.endpoints)]] if self.endpoints else []
        done = subprocess.run([CKPTFS, *map(str, words), *options], capture_output=True, text=True,
                              timeout=timeout, check=False)
        equal(done.returncode, 0, f"ckptfs {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
        return done.stdout

    def steps(self):
        return [one["step"] for one in json.loads(self.ckptfs("remote", "ls", "--json", self.url))["steps"]]

    def export(self, tag, folder, *words):
        self.ckptfs("remote", "export", f"{self.url}/{tag}", folder, *words)
        return folder


@pytest.fixture(params=by_level(["folder"], ["folder", "seaweed"]))
def remote(request, scratch, monkeypatch):
    if request.param == "folder":
        (scratch / "remote").mkdir()
        yield Remote(f"file://{scratch}/remote")
        return
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    (scratch / "seaweed").mkdir()
    url = f"s3://{BUCKET}/{scratch.name}"
    if request.param == "seaweed":
        with seaweed(scratch / "seaweed") as server:
            yield Remote(url, [server.endpoint])
    else:
        with cluster(scratch / "seaweed") as servers:
            yield Remote(url, servers.endpoints, servers)


@pytest.fixture
def nodes(scratch, remote):
    """The mounts of two nodes, each on a disk of its own, with a series that is pushed."""
    with contextlib.ExitStack() as stack:
        mounts = []
        for slot in range(RANKS // PER_NODE):
            disk = stack.enter_context(xfs(scratch, name=f"disk{slot}", size=4 * GIB))
            mount = stack.enter_context(mounted(Store(disk / "store"), scratch / f"node{slot}", mode="passthrough",
                                                options=QUIET))
            remote.ckptfs("remote", "add", remote.url, mount.path / "steps", "--slot", f"{slot}/{RANKS // PER_NODE}",
                          slot=slot)
            mounts.append(mount)
        yield mounts


@contextlib.contextmanager
def training(scratch, name, *words, **how):
    """Runs nodes.py on all ranks. Yields their processes, and the file with what they print."""
    log, arguments = scratch / f"{name}.log", [*map(str, words), "--out", str(scratch / name)]
    with open(log, "wb") as output, harness.ranks_running(RANKS, arguments, output, script=NODES, **how) as processes:
        yield processes, log


def train(scratch, name, *words, ranks_per_node=PER_NODE, **how):
    """To their end. Returns their results."""
    with training(scratch, name, *words, ranks_per_node=ranks_per_node, **how) as (processes, log):
        harness.wait_for_ranks(processes, log)
    return [json.loads((scratch / f"{name}.{rank}").read_text()) for rank in range(RANKS)]


def train_on(nodes, scratch, kind, *words):
    folders = ",".join(str(mount.path) for mount in nodes)
    return train(scratch, "trained", kind, "--folders", folders, "--steps", STEPS, *words)


def load(scratch, kind, folder, tag):
    """All ranks load a step from a folder that they share. Returns what they have then."""
    swap = scratch / "swap"
    swap.mkdir()
    results = train(scratch, "loaded", kind, "--load", folder, "--tag", tag, "--scratch", swap, ranks_per_node=RANKS)
    return [result[tag] for result in results]


def files_in(folder):
    """What each file holds, each symbolic link, and each folder."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else
            harness.digest(path) if path.is_file() else None for path in folder.rglob("*")}


def state_of(step):
    return os.getxattr(step, "user.ckptfs.remote.state").decode()


def wait_for_commits(nodes, tags, seconds=180):
    for mount in nodes:
        for tag in tags:
            step = mount.path / "steps" / tag
            wanted = f"committed {tag}"
            wait_until(f"{step}: {wanted}", lambda step=step, wanted=wanted: state_of(step) == wanted, seconds, 0.2)


def judge(nodes, remote, scratch, tags):
    """Each step is there once, and of each slot what `cp -r` takes from its mount. Returns the union's folder."""
    wait_for_commits(nodes, tags)
    equal(sorted(remote.steps()), sorted(tags), "the steps in the remote, each once")
    union = scratch / "union"
    union.mkdir()
    for tag in tags:
        remote.export(tag, union / tag)
        held = {}
        for slot, mount in enumerate(nodes):
            copy, exported = scratch / f"copy{slot}", scratch / f"slot{slot}"
            run("cp", "-r", mount.path / "steps" / tag, copy)
            remote.export(tag, exported, "--slot", slot)
            compare_files(f"{tag} of slot {slot}, against cp -r", files_in(exported), files_in(copy))
            held = files_in(copy) | held  # of differing files the lowest slot's counts
            shutil.rmtree(copy)
            shutil.rmtree(exported)
        compare_files(f"{tag}, against its slots' files", without_ranks(files_in(union / tag)), without_ranks(held))
    remote.ckptfs("remote", "verify", remote.url)
    return union


def without_ranks(files):
    """Without the folders of ranks, which have other names in the union."""
    return {name: value for name, value in files.items() if not name.startswith("offloaded_tensors/")}


def compare_files(what, got, wanted):
    differing = sorted(name for name in got.keys() | wanted.keys() if got.get(name, "") != wanted.get(name, ""))
    true(wanted and not differing, f"{what}: these differ: {differing[:5]}")


def judge_swapped(nodes, union, tag):
    """The folders of a node's ranks, which begin at 0 on each, have in the union the ranks of all."""
    ranks = union / tag / "offloaded_tensors"
    names = [f"rank{rank:02d}" for rank in range(RANKS)]
    equal(sorted(path.name for path in ranks.iterdir()), names, "folders of ranks")
    for slot, mount in enumerate(nodes):
        local = mount.path / "steps" / tag / "offloaded_tensors"
        equal(sorted(path.name for path in local.iterdir()), [f"rank{rank:02d}" for rank in range(PER_NODE)],
              f"folders of ranks on node {slot}")
        for rank in range(PER_NODE):
            harness.same_tree(ranks / f"rank{slot * PER_NODE + rank:02d}", local / f"rank{rank:02d}")


def notes_of(mount, remote, tag):
    status = json.loads(run(CKPTFS, "remote", "status", "--json", mount.path / "steps").stdout)
    return next(step for step in status["remotes"][0]["steps"] if step["tag"] == tag).get("notes", [])


def test_deepspeed_on_nvme(nodes, remote, scratch):
    """ZeRO-3 with node-local storage: each node has its ranks' files. The union is a step on shared storage."""
    trained = train_on(nodes, scratch, "zero3")
    tags = [f"global_step{step}" for step in range(1, STEPS + 1)]
    union = judge(nodes, remote, scratch, tags)
    for tag in tags:
        judge_swapped(nodes, union, tag)
    equal(load(scratch, "zero3", union, tags[-1]), [result[tags[-1]] for result in trained], "what DeepSpeed loads")


@pytest.mark.long
@pytest.mark.parametrize("remote", ["cluster"], indirect=True)
def test_a_server_of_a_cluster_dies(nodes, remote, scratch):
    """Each node pushes to a gateway of its own. One of the servers that hold the data is killed amid the pushes."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        training = pool.submit(train_on, nodes, scratch, "zero3")
        wait_until("a step is there", lambda: training.done() or remote.steps(), 600, 0.5)
        there = len(remote.steps())
        remote.servers.kill_volume_server()
        trained = training.result()
    true(there < STEPS, f"{there} of {STEPS} steps were there when the server was killed")
    tags = [f"global_step{step}" for step in range(1, STEPS + 1)]
    union = judge(nodes, remote, scratch, tags)
    for tag in tags:
        judge_swapped(nodes, union, tag)
    equal(load(scratch, "zero3", union, tags[-1]), [result[tags[-1]] for result in trained], "what DeepSpeed loads")


@pytest.mark.long
def test_deepspeed_without_nvme(nodes, remote, scratch):
    """ZeRO-2: each node writes the model, and the two differ in paths of their configuration."""
    trained = train_on(nodes, scratch, "zero2")
    tags = [f"global_step{step}" for step in range(1, STEPS + 1)]
    union = judge(nodes, remote, scratch, tags)
    for tag in tags:
        model = "mp_rank_00_model_states.pt"
        first = nodes[0].path / "steps" / tag / model
        equal(harness.digest(union / tag / model), harness.digest(first), "slot 0's counts")
        wait_until("status says so", lambda tag=tag: any(model in note for note in notes_of(nodes[1], remote, tag)), 30, 0.5)
    equal(load(scratch, "zero2", union, tags[-1]), [result[tags[-1]] for result in trained], "what DeepSpeed loads")


@pytest.mark.long
@pytest.mark.parametrize("remote", ["folder"], indirect=True)
def test_ranks_that_agree(nodes, remote, scratch):
    """Under ckptfs.patch the ranks of all nodes call each save by one word, and each by another."""
    folders = ",".join(str(mount.path) for mount in nodes)
    train(scratch, "patched", "zero2", "--folders", folders, "--steps", STEPS, patched=True)
    tags = [f"global_step{step}" for step in range(1, STEPS + 1)]
    wait_for_commits(nodes, tags)
    words = [{os.getxattr(mount.path / "steps" / tag, "user.ckptfs.attempt") for mount in nodes} for tag in tags]
    equal([len(of_step) for of_step in words], [1] * STEPS, "words for each step")
    equal(len(set().union(*words)), STEPS, "words for all")
    equal(sorted(remote.steps()), sorted(tags), "the steps in the remote")


@pytest.mark.long
@pytest.mark.parametrize("remote", ["folder"], indirect=True)
def test_a_run_whose_first_node_dies_in_its_save(nodes, remote, scratch):
    """A second run, of which the mounts know its processes alone, writes its files of a step on one node, beside those of the
    first run on the other. They are not one step. What a third run saves is."""
    folders = ",".join(str(mount.path) for mount in nodes)
    words = ("zero2", "--folders", folders, "--steps", 2, "--data")
    started = {"ranks_per_node": PER_NODE, "forked": ()}  # as users start them: forks of one process are of one run
    steps = [mount.path / "steps" / "global_step2" for mount in nodes]
    train(scratch, "first", *words, 0, **started)
    wait_for_commits(nodes, ("global_step1", "global_step2"))
    before, begun = [files_in(step) for step in steps], time.time()
    with training(scratch, "second", *words, 1, "--die-at", "global_step2", **started) as (processes, _):
        wait_until("node 0 has died", lambda: all(one.poll() is not None for one in processes[:PER_NODE]), 300, 0.5)
        wait_until("node 1 has written", lambda: all(one.stat().st_mtime > begun for one in steps[1].glob("*states.pt")), 60)
        time.sleep(1)
    for mount in nodes:
        wait_until("what both have saved is there", lambda step=mount.path / "steps" / "global_step1":
                   state_of(step) == "committed global_step1~2", 180, 0.2)
    wait_until("node 1 waits", lambda: state_of(steps[1]) == "waiting", 60, 0.2)
    true("of another run" in run(CKPTFS, "remote", "status", steps[1].parent).stdout, "it says why")
    time.sleep(10)
    equal(remote.steps(), ["global_step1", "global_step2", "global_step1~2"], "the steps in the remote")
    for slot, files in enumerate(before):
        compare_files(f"slot {slot}", files_in(remote.export("global_step2", scratch / f"of-slot{slot}", "--slot", slot)), files)
    train(scratch, "third", *words, 2, **started)
    for step in steps:
        wait_until(f"{step} is there", lambda step=step: state_of(step) == "committed global_step2~2", 180, 0.2)
    for slot, step in enumerate(steps):
        exported = remote.export("global_step2~2", scratch / f"again-of-slot{slot}", "--slot", slot)
        compare_files(f"slot {slot}, again", files_in(exported), files_in(step))
    remote.ckptfs("remote", "verify", remote.url)


@pytest.mark.long
@pytest.mark.parametrize("on_each_node", (False, True))
def test_a_trainer(nodes, remote, scratch, on_each_node):
    """DDP. Only one node has rank 0: the other has the states of its ranks' dice, or most files once more."""
    trained = train_on(nodes, scratch, "trainer", *(["--on-each-node"] if on_each_node else []))
    tags = [f"checkpoint-{step}" for step in range(1, STEPS + 1)]
    other = {path.name for path in (nodes[1].path / "steps" / tags[-1]).iterdir()}
    true({"rng_state_2.pth", "rng_state_3.pth"} <= other and ("trainer_state.json" in other) == on_each_node,
         f"files of the node without rank 0: {sorted(other)}")
    union = judge(nodes, remote, scratch, tags)
    for tag in tags:
        equal(sorted(path.name for path in (union / tag).glob("rng_state_*")),
              [f"rng_state_{rank}.pth" for rank in range(RANKS)], f"the dice in {tag}")
    equal(load(scratch, "trainer", union, tags[-1]), [result[tags[-1]] for result in trained], "what a Trainer resumes")


def test_dcp(nodes, remote, scratch):
    """Only the node of the coordinator has .metadata."""
    trained = train_on(nodes, scratch, "dcp")
    tags = [f"step-{step}" for step in range(1, STEPS + 1)]
    true(not (nodes[1].path / "steps" / tags[-1] / ".metadata").exists(), "node 1 has no .metadata")
    union = judge(nodes, remote, scratch, tags)
    equal(load(scratch, "dcp", union, tags[-1]), [result[tags[-1]] for result in trained], "what DCP loads")

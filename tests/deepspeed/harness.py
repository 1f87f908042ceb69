"""Runs train.py on plain XFS, tmpfs, in memory or on ckptfs, at the same path, and compares the outcomes.

    def test_outcome(scene):                        # a workspace, DeepSpeed installed
        truth = scene.run(PlainXfs(), ranks=1)
        ours = scene.run(Ckptfs(mode="passthrough"), ranks=1)
        same_outcome(ours, truth)

Every backend has the same path, because DeepSpeed writes the path of the swap folder into its .pt files. A run mounts,
trains and saves (by setxattr, too, if the backend can), perhaps resumes in a new process, reads everything, and
unmounts.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

import forked_ranks
from checking import equal, true
from mounting import BUILD, GIB, KIB, REPOSITORY, Failure, Store, mounted, run, unmount, wait_until, xfs
from ports import free_port

TAG, XATTR_TAG = "global_step4", "saved4"
SWAP = "zero_stage_3"
RUN_TIMEOUT = 300
SMALLEST_ADOPTED = 128 * KIB
SENT = 64 << 10  # by sendfile in one WRITE


# --- backends: the places of the swap files and the checkpoint


class PlainXfs:
    """XFS on a loop device: what a user has without ckptfs."""

    saves = False

    label = "plain XFS"

    @contextlib.contextmanager
    def place(self, scene):
        with xfs(scene.work, name=scene.point.name, size=2 * GIB):
            yield None


class Tmpfs:
    """It has no device and so no alignment rule: its results are right for every shape."""

    saves = False
    label = "tmpfs"

    @contextlib.contextmanager
    def place(self, scene):
        scene.point.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "size=2G", "tmpfs", scene.point)
        try:
            yield None
        finally:
            unmount(scene.point)


class Memory:
    """DeepSpeed's cpu/cpu: nothing is swapped."""

    saves = False
    label = "cpu/cpu"

    @contextlib.contextmanager
    def place(self, scene):
        scene.point.mkdir(exist_ok=True)
        yield None


class Ckptfs:
    """A store on a fresh XFS (or in its own image, which ckptfs makes), mounted by its own daemon."""

    saves = True

    def __init__(self, mode="passthrough", odirect="safe", faults=None, sector=None, options=()):
        self.mode, self.odirect, self.faults, self.sector, self.options = mode, odirect, faults, sector, options
        self.label = ", ".join(filter(None, [f"ckptfs {mode}", f"odirect={odirect}", faults,
                                             sector and f"{sector}-byte sectors"]))

    @contextlib.contextmanager
    def place(self, scene):
        options = {"mode": self.mode, "odirect": self.odirect, "faults": self.faults, "options": self.options}
        with contextlib.ExitStack() as stack:
            if self.sector:
                folder = scene.work / "store"
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                store = Store(folder, image="2G", sector=self.sector)
            else:
                store = Store(stack.enter_context(xfs(scene.work, name="disk", size=2 * GIB)) / "store")
            with mounted(store, scene.point, **options) as mount:
                yield mount
            store.fsck()


# --- outcomes


@dataclasses.dataclass
class Outcome:
    """The result of one run: the ranks' results, digests of the checkpoint's files, and the mount's messages."""

    label: str
    ranks: list
    files: dict
    resumed: list = None
    status: dict = None
    reads: int = 0


def digest(path, length=None):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read() if length is None else file.read(length)).hexdigest()


def checkpoint_files(folder, ranks):
    """Returns name -> (size, digest) of a checkpoint's files. Of swap files only the tensor's part counts; the rest
    is stale."""
    lengths = {f"rank{result['rank']:02d}/{name}": length for result in ranks
               for name, length in result["state_files"].items()}
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = "/".join(path.parts[-2:])
            found[str(path.relative_to(folder))] = (path.stat().st_size, digest(path, lengths.get(name)))
    return found


def differences(ours, truth):
    """Returns the differences of two outcomes, in words. It is empty if all bits are equal."""
    found = []
    for mine, wanted in zip(ours.ranks, truth.ranks, strict=True):
        for what in ("losses", "groups", "parameters"):
            found += _differences(f"rank {wanted['rank']}: {what}", mine[what], wanted[what])
        if "param_files" in mine and "param_files" in wanted:
            for what in ("param_files", "state_files"):
                found += _differences(f"rank {wanted['rank']}: {what}", mine[what], wanted[what])
    return found


def _differences(what, mine, wanted):
    if isinstance(wanted, dict):
        names = sorted(mine.keys() | wanted.keys())
        bad = [name for name in names if mine.get(name) != wanted.get(name)]
        return [f"{what}: {len(bad)} of {len(names)} differ, the first: {bad[0]}"] if bad else []
    bad = [index for index, pair in enumerate(zip(mine, wanted, strict=True)) if pair[0] != pair[1]]
    if not bad:
        return []
    got, right = (float.fromhex(values[bad[0]]) for values in (mine, wanted))
    return [f"{what} differ from step {bad[0]} on: {got!r} instead of {right!r}"]


def same_outcome(ours, truth):
    """Checks that every loss and every tensor is equal, to the last bit."""
    found = differences(ours, truth)
    true(not found, f"{ours.label} against {truth.label}: " + "; ".join(found))


def same_checkpoint(ours, truth):
    """Checks that the files are the same: .pt files byte for byte, swap files over their tensors' length."""
    true(any(name.endswith("_states.pt") for name in truth.files), "the reference saved no .pt file")
    true(any(name.endswith(".tensor.swp") for name in truth.files), "the reference saved no swap file")
    found = _differences("files of the checkpoint", ours.files, truth.files)
    true(not found, f"{ours.label} against {truth.label}: " + "; ".join(found))


def same_resume(ours, truth):
    """Checks that a new process that loads the checkpoint continues as on plain XFS."""
    true(truth.resumed and ours.resumed, "a run was not resumed")
    for mine, wanted in zip(ours.resumed, truth.resumed, strict=True):
        for what in ("resumed_at", "losses", "groups", "parameters"):
            equal(mine[what], wanted[what], f"{ours.label} resumed, against {truth.label}: rank {wanted['rank']}: {what}")


def judge_as_plain_xfs(scene, backend, ranks, **options):
    """Compares an aligned run with plain XFS: outcome, checkpoint and resume. Returns the outcome."""
    truth = scene.reference(PlainXfs(), ranks=ranks)
    ours = scene.run(backend, ranks=ranks, **options)
    same_outcome(ours, truth)
    same_checkpoint(ours, truth)
    same_resume(ours, truth)
    return ours


def judge_xattr_save(root, ranks):
    """Checks that the save by setxattr has what copytree took at the same moment, the parameters, and no gradients."""
    ours, theirs = root / "steps" / XATTR_TAG, root / "steps" / TAG
    same_tree(ours / "offloaded_tensors", theirs / "offloaded_tensors")
    for rank in range(ranks):
        live = root / SWAP / "optimizer" / f"rank{rank}"
        true(any("gradient" in path.name for path in live.iterdir()), "no gradient was swapped: the shapes are too small")
        same_tree(ours / "offloaded_params" / f"rank{rank:02d}", root / SWAP / "bfloat16params" / f"rank{rank}")
    names = tree(ours)
    true(not [name for name in names if "gradient" in name], f"{ours} holds gradients: {names}")
    equal(sorted({name.split("/")[0] for name in names}), ["offloaded_params", "offloaded_tensors"], f"what {ours} holds")


def judge_adoption(mount, copies):
    """Checks that what the copytree in save_checkpoint and that in load_checkpoint wrote was adopted, but for the last
    short WRITE of each file."""
    if sys.version_info >= (3, 14):
        return  # copytree shares by copy_file_range
    sizes = [path.stat().st_size for path in (mount.path / "steps" / TAG / "offloaded_tensors").rglob("*.swp")]
    wanted = copies * sum(size // SENT * SENT for size in sizes if size >= SMALLEST_ADOPTED)
    true(wanted > 0, f"the files are too small to be adopted: {sizes}")
    wait_until(f"{wanted} bytes are adopted", lambda: mount.counted("bytes_adopted") >= wanted, 5)


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def same_tree(ours, theirs):
    names = tree(theirs)
    true(names, f"{theirs} is empty")
    equal(tree(ours), names, f"names in {ours}, against {theirs}")
    for name in names:
        equal(digest(ours / name), digest(theirs / name), f"{ours / name}, against {theirs / name}")


# --- running


class Reader(threading.Thread):
    """Opens every swap file like another program, keeps it open, and reads in it while the training runs."""

    def __init__(self, root):
        super().__init__(daemon=True)
        self.root, self.files, self.reads, self.ended = root, {}, 0, threading.Event()

    def run(self):
        while not self.ended.wait(0.02):
            for path in (self.root / SWAP).rglob("*.tensor.swp"):
                with contextlib.suppress(FileNotFoundError):
                    if path not in self.files:
                        self.files[path] = open(path, "rb", buffering=0)
            for file in list(self.files.values()):
                file.seek(0)
                self.reads += bool(file.read(256 << 10))

    def stop(self):
        self.ended.set()
        self.join()
        for file in self.files.values():
            file.close()
        true(len(self.files) > 8 and self.reads > 100, f"the reader read {self.reads} times in {len(self.files)} files")
        return self.reads


class Scene:
    """A workspace, and the runs in it."""

    def __init__(self, work):
        self.work = work
        self.point = work / "ckpt"
        self.outcomes = {}
        self.number = 0

    def run(self, backend, shape="aligned", ranks=1, resume=True, reader=False, pipeline=False):
        """Trains, saves, resumes and reads everything. Returns an Outcome. The mount is fresh, and removed
        afterwards."""
        self.number += 1
        swapped = not isinstance(backend, Memory)
        common = ["--nvme", str(self.point) if swapped else "none", "--shape", shape, "--tag", TAG]
        common += ["--pipeline"] if pipeline else []
        with backend.place(self) as mount:
            series = self.point / "steps"
            save = []
            if swapped:
                series.mkdir(exist_ok=True)
                save += ["--save", str(series)]
            if backend.saves:
                save += ["--xattr-save", str(series), XATTR_TAG]
            watcher = Reader(self.point) if reader else None
            if watcher:
                watcher.start()
            results = self.train("first", ranks, common + save)
            outcome = Outcome(backend.label, results, checkpoint_files(series, results) if swapped else {})
            if watcher:
                outcome.reads = watcher.stop()
            if backend.saves:
                judge_xattr_save(self.point, ranks)
                judge_adoption(mount, 1)
                outcome.files = {name: value for name, value in outcome.files.items()
                                 if not name.startswith(f"{XATTR_TAG}/")}
            if resume and swapped:
                outcome.resumed = self.train("resumed", ranks, common + ["--resume", str(series), "--steps", "3"])
                equal(outcome.resumed[0]["resumed_at"], len(results[0]["losses"]), "the step that was resumed")
                if backend.saves:
                    judge_adoption(mount, 2)
            if mount:
                outcome.status = mount.status()
                self.check_status(outcome.status)
            return outcome

    def reference(self, backend, **options):
        """Like run(), but runs each combination only once."""
        key = (backend.label, *sorted(options.items()))
        if key not in self.outcomes:
            start = time.monotonic()
            self.outcomes[key] = self.run(backend, **options)
            print(f"      reference: {backend.label}, {options} ({time.monotonic() - start:.1f} s)", flush=True)
        return self.outcomes[key]

    @staticmethod
    def check_status(status):
        equal(status["recovery"]["damaged"], [], "damaged names")
        equal(status["recovery"]["orphan_blobs"], 0, "orphan blobs")

    def train(self, name, ranks, arguments):
        """Runs the ranks of one training to their end. Returns their results. Their output goes to a log in the
        workspace."""
        out = self.work / f"{self.number}-{name}"
        log = out.with_suffix(".log")
        with open(log, "wb") as output:
            with ranks_running(ranks, [*arguments, "--out", str(out)], output) as processes:
                wait_for_ranks(processes, log)
        return [json.loads(pathlib.Path(f"{out}.{rank}").read_text()) for rank in range(ranks)]


def python():
    return str(BUILD / "venv" / "bin" / "python")


def environment(deepspeed=None):
    """The environment for DeepSpeed on the CPU, of the version that venv.sh installs or of another one (venv.sh --deepspeed).
    With another compiler than in venv.sh it would compile its extensions again."""
    home = BUILD / f"deepspeed-{deepspeed}" if deepspeed else BUILD
    drop = ("CKPTFS", "DS_", "TORCH_", "PYTHONDONTWRITEBYTECODE")
    keep = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    return dict(keep, DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR=str(home / "torch_extensions"), CC="gcc", CXX="g++",
                PATH=f"{BUILD / 'venv' / 'bin'}:{os.environ['PATH']}", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1",
                CUDA_VISIBLE_DEVICES="", PYTHONPYCACHEPREFIX=str(BUILD / "pycache"), MASTER_ADDR="127.0.0.1",
                PYTHONPATH=f"{REPOSITORY / 'gpu' / 'python'}{os.pathsep}{home / 'packages'}")


@contextlib.contextmanager
def ranks_running(count, arguments, output, patched=False, script="train.py", ranks_per_node=None, forked=None,
                  deepspeed=None):
    """The processes of a training, perhaps under `python -m ckptfs.patch`, on one node or, as their environment says,
    several. At the end none is left, nor what DeepSpeed leaves in /dev/shm, 66 MiB per rank.

    They are forked from a process that has loaded the modules `forked` (forked_ranks.py). With none, under ckptfs.patch, and
    with a version of `deepspeed`, each is started as a user does."""
    port = free_port()
    local = ranks_per_node or count
    shared = dict(environment(deepspeed), WORLD_SIZE=str(count), LOCAL_SIZE=str(local), MASTER_PORT=str(port))
    if ranks_per_node:
        shared["LOCAL_WORLD_SIZE"] = str(local)
    each = [dict(shared, RANK=str(rank), LOCAL_RANK=str(rank % local)) for rank in range(count)]
    path = HERE / script
    if forked is None:
        forked = forked_ranks.TRAINERS if path.parent == HERE else forked_ranks.TORCH
    if patched or deepspeed or not forked:
        program = [python(), *(["-m", "ckptfs.patch"] if patched else []), str(path), *arguments]
        processes = [subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=own)
                     for own in each]
    else:
        server = rank_server(forked)
        processes = [server.start([path, *arguments], own, output) for own in each]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for buffer in pathlib.Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
            buffer.unlink()


def rank_server(modules=forked_ranks.TRAINERS):
    return forked_ranks.server(python(), modules, environment())


def wait_for_ranks(processes, log):
    """Until all have ended. A Failure with the log's end where one failed, or all are late."""
    end = time.monotonic() + RUN_TIMEOUT
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        if any(process.returncode for process in processes):
            break
        time.sleep(0.05)
    codes = [process.returncode for process in processes]  # None: still running
    if any(code != 0 for code in codes):
        tail = "\n".join(pathlib.Path(log).read_text(errors="replace").splitlines()[-30:])
        raise Failure(f"a rank ended with {codes}:\n{tail}")


def run_trainer(scene, name, output_dir, steps, *options):
    """The result of trainer.py, which trains up to that step. Its output goes to a log in the workspace."""
    out, log = scene.work / f"{name}.json", scene.work / f"{name}.log"
    words = [HERE / "trainer.py", "--output-dir", output_dir, "--steps", steps, "--out", out, *options]
    with open(log, "wb") as output:
        trainer = rank_server().start(words, environment(), output)
        try:
            code = trainer.wait(RUN_TIMEOUT)
        finally:
            trainer.kill()
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise Failure(f"trainer.py ended with {code}:\n{tail}")
    return json.loads(out.read_text())


def install(deepspeed=None):
    """DeepSpeed in build/venv, once; or another version beside it."""
    subprocess.run([str(HERE / "venv.sh"), *(["--deepspeed", deepspeed] if deepspeed else [])], check=True)

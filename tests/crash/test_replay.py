"""Power loss, replayed: a disk is recorded below busy mounts, set to its state after many power cuts, and checked.

Options: --seed, --rounds (points), --workers, --keep, --recording, --point.

A point of the recording is a flush, and some or none of the writes between it and the next flush, some of them torn. A
disk may have exactly that when the power fails. Then XFS recovers, the store is mounted, everything must be there that
any call had returned for by then, and fsck must find nothing. --keep keeps the recording of a failed point;
--recording and --point check that point again.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import uuid

import pytest

import replay_workers
from checking import equal, read, true, write
from faulty_disk import BLOCK, SECTOR, XFS_METADATA, ZEROS, Disk, DiskLog
from mounting import CKPTFS, CKPTFS_DEBUG, Failure, Mount, Store, by_level, wait_until

pytestmark = [pytest.mark.timeout(5400), pytest.mark.builds("faults")]

ROUNDS = {"scribe": 60, "trainer": 6, "copier": 10, "rotator": 8, "ranks": 4, "twins": 5, "killed": 6,
          "thinner": 5}
STORE = "store"


def start_workers(root, mark, seed, kinds):
    for number, kind in enumerate(kinds):
        words = [sys.executable, replay_workers.__file__, kind, root, mark, seed + number, ROUNDS[kind]]
        yield kind, subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE, text=True)


def wait_for(workers):
    for kind, process in workers:
        _, errors = process.communicate(timeout=300)
        equal(process.returncode, 0, f"status of the {kind}: {errors[-2000:]}")


def record(work, mode, seed, log, kinds, lies=False):
    """Records the whole life of a mount with the workers on it. A disk that lies drops most flushes."""
    with Disk(work, "recorded", log) as disk:
        disk.format()
        mount = Mount(Store(work / "below" / STORE), work / "mnt", mode=mode, binary=CKPTFS)
        with disk.below(mount):
            journal = replay_workers.Journal(disk.mark, "mount")
            workers = []
            try:
                mount.start()
                if lies:
                    disk.fault("drop", "flush", percent=90, seed=seed, count=0)
                journal.line(phase="begin", n=0, op="mount")
                workers = list(start_workers(mount.path, disk.mark, seed, kinds))
                wait_for(workers)
                wait_until("equal files are shared, old steps are gone", lambda: has_all(mount.status(), kinds), 60, 0.1)
                mount.stop()
                journal.line(phase="end", n=0)
            except BaseException:
                print(mount.read_log())
                raise
            finally:
                for _, process in workers:
                    process.kill()
                    process.wait()
                os.close(journal.file)


def has_all(status, kinds):
    """Returns whether each kind of background work has done something."""
    return (
        (status["care"]["bytes_shared"] > 0 or "twins" not in kinds)
        and (status["rotation"]["removed"] > 0 or "rotator" not in kinds)
        and (status["counters"]["adoptions"] > 0 or "copier" not in kinds)
    )


# --- points


def choose(log, dice, count):
    """Returns points of the log, as {"flush", "until", "taken"}. `taken` are records between the two."""
    mounted = log.marks[0][0]
    windows = log.windows(mounted)
    windows = windows if len(windows) <= count else dice.sample(windows, count)
    chosen = windows + dice.choices(windows, k=count - len(windows))
    return [whole_point(*one) if dice.random() < 0.3 else point_in(log, dice, *one) for one in chosen]


def whole_point(flush, end):
    """Returns the point with everything before a flush, and nothing after it."""
    return {"flush": flush + 1, "until": end, "taken": []}


def point_in(log, dice, flush, end):
    """Returns a point that also has some of the writes after the flush, up to a moment."""
    until = dice.randrange(flush + 1, end) + 1 if dice.random() < 0.5 else end
    chance, torn = dice.choice((0.1, 0.5, 0.9, 1.0)), dice.choice((0.0, 0.3))
    taken = [part(log, dice, number, torn) for number in log.changes(flush, until) if dice.random() < chance]
    return {"flush": flush + 1, "until": until, "taken": taken}


def part(log, dice, number, torn):
    """Returns (record, from, to): a whole write, or if it is torn, the sectors of a part of it."""
    offset, length = log.offsets[number], log.lengths[number]
    # XFS does not mount if a block of its metadata is torn
    unit = BLOCK if log.kinds[number] == XFS_METADATA else SECTOR
    cuts = [0, *range(unit - offset % unit, length, unit), length]
    if log.kinds[number] == ZEROS or dice.random() >= torn:
        return [number, 0, length]
    begin, end = sorted((dice.choice((0, dice.choice(cuts))), dice.choice(cuts)))
    return [number, begin, end]


# --- checks


class Judge:
    """A disk that is set to one point after the other, and the mounts on it."""

    def __init__(self, work, name, log_path, mode):
        folder = work / name
        folder.mkdir()
        self.log = DiskLog(log_path)
        self.disk = Disk(folder, "replayed", log_path, replay=True)
        self.mount = Mount(Store(folder / "below" / STORE), folder / "mnt", mode=mode, binary=CKPTFS_DEBUG)

    def try_point(self, point):
        """Returns None, or what is wrong."""
        self.disk.go_to(point["flush"], point["taken"])
        self.mount.faults = f"boot_id={point['flush']}"
        self.mount.log.unlink(missing_ok=True)
        try:
            with self.disk.below(self.mount):
                self.name_store()
                self.mount.start()
                replay_workers.judge(self.mount.path, self.log.marks_before(point["until"]))
                self.mount.stop()
                self.mount.store.fsck(CKPTFS_DEBUG)
        except (Failure, OSError) as problem:
            return f"{problem}\n{self.mount.read_log()}"
        return None

    def name_store(self):
        """Gives the copy another id, because it is mounted beside the original store."""
        path = self.mount.store.folder / "config.json"
        config = json.loads(read(path))
        write(path, json.dumps({**config, "id": uuid.uuid4().hex[: len(config["id"])]}).encode())


def judge_all(work, name, log_path, mode, points):
    """Returns the points that are wrong, as (point, reason)."""
    judge = Judge(work, name, log_path, mode)
    with judge.disk:
        found = ((point, judge.try_point(point)) for point in points)
        return [(point, problem) for point, problem in found if problem]


def judge_on_several_disks(work, mode, log_path, points):
    jobs = max(1, min(os.cpu_count(), 4, len(points) // 8))
    share = -(-len(points) // jobs)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [
            pool.submit(judge_all, work, f"judge{job}", log_path, mode, points[job * share : (job + 1) * share])
            for job in range(jobs)
        ]
        return [one for job in running for one in job.result()]


def points_of(log, seed, count):
    return sorted(choose(log, random.Random(seed), count), key=lambda point: point["flush"])


@pytest.fixture
def kinds(request):
    """The workers that are on the mount."""
    return (request.config.getoption("workers") or ",".join(ROUNDS)).split(",")


@pytest.mark.long
def test_a_disk_that_lies_is_found_out(work, mode, seed, kinds):
    """The disk reports flushes that it mostly did not make. A test that finds nothing here would never find
    anything."""
    work = work / f"{mode}-lies"
    work.mkdir()
    record(work, mode, seed, work / "log", kinds, lies=True)
    wrong = judge_on_several_disks(work, mode, work / "log", points_of(DiskLog(work / "log"), seed, 40))
    print(f"      {len(wrong)} of 40 points are wrong")
    true(wrong, "nothing is wrong after power cuts of a disk that does not flush")
    shutil.rmtree(work)


def play(work, mode, seed, count, kinds, keep):
    """Makes one recording, and checks so many points of it."""
    work = work / f"{mode}-{seed}"
    work.mkdir()
    log_path = work / "log"
    record(work, mode, seed, log_path, kinds)
    log = DiskLog(log_path)
    points = points_of(log, seed, count)
    begin = time.monotonic()
    wrong = judge_on_several_disks(work, mode, log_path, points)
    took = time.monotonic() - begin
    print(f"      {mode}, seed {seed}: {len(points)} points of {len(log.windows())} flushes and {len(log)} records, "
          f"{len(wrong)} wrong; {60 * len(points) / took:.0f} points a minute", flush=True)
    if wrong:
        if keep:
            shutil.copy(log_path, pathlib.Path(keep) / f"{mode}-{seed}.log")
        for point, problem in wrong:
            print(f"--- {json.dumps(point)}\n{problem}", flush=True)
        raise Failure(f"{len(wrong)} of {len(points)} points are wrong; the first: {wrong[0][1].splitlines()[0]}")
    shutil.rmtree(work)


RECORDINGS = by_level(1, 5)  # in each mode


@pytest.mark.parametrize("number", range(RECORDINGS))
def test_power_cuts(request, work, mode, seed, rounds, kinds, number):
    options = request.config.option
    if options.recording:
        wrong = judge_all(work, f"judge-{mode}", options.recording, mode, [json.loads(options.point)])
        return true(not wrong, wrong and wrong[0][1])
    points = (rounds or by_level(32, 2400)) // RECORDINGS // 2
    return play(work, mode, seed + 100 * number, points, kinds, options.keep)

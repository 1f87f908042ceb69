"""Writes to the disk fail during writes, copies, saves, seals, renames and removals. No call lies with a 0.

A round is some acts on one mount. During each act, writes of the disk below fail with EIO or ENOSPC, or are torn.
Failed calls are tried again. Then the disk works again, the page cache is dropped, and everything for which fsync,
save, seal, commit or unmount returned 0 must be there. Each of these may fail, but none may return 0 for bytes that are
not there, however often it is tried. The next mount must succeed: nothing was promised of what the index lost. Writes
of the index fail in all acts if `names` is one of them. `pull` does not run by default: the whole disk fails at the end
of a round. Options: --seed, --rounds (errors), --acts, --tries.
"""

import collections
import os
import random
import shutil

import pytest

import saving
from agent import Agent
from checking import noise, opened, read, true, write_all
from crash_model import Content
from faulty_disk import Disk
from mounting import CKPTFS, KIB, Failure, Mount, Store, abandon, by_level, run
from training import name_in_step, swap_names

pytestmark = [pytest.mark.timeout(3600)]

PIECE = 64 * KIB


class Round:
    """One mount on a failing disk, and its promises."""

    def __init__(self, disk, mount, dice, acts, tries):
        self.disk, self.mount, self.dice = disk, mount, dice
        self.tries = tries
        self.root = mount.path
        self.acts = acts
        self.files = {}  # path -> Content; synced content is certain
        self.unknown = set()  # paths of files in which a write failed, so that their content is unknown
        self.told = set()  # paths for which a caller got an error
        self.names = {}  # path -> True: it must exist, False: it must not
        self.ranks = []  # committed steps: (path, seed)
        self.history = []
        self.succeeded = collections.Counter()  # counts of successful calls: fsync, save, ...
        self.made = 0
        self.is_pulled = False

    # Actions of callers. Each returns whether it succeeded.

    def attempt(self, what, action, paths=()):
        try:
            action()
        except OSError as problem:
            self.history.append(f"{what}: {problem.strerror}")
            self.told.update(paths)
            return False
        self.history.append(f"{what}: 0")
        self.succeeded[what.split()[0]] += 1
        return True

    def content(self, path):
        return self.files.setdefault(path, Content())

    def write(self, path, data, how="plain", guess=None):
        """Writes a new file, or an old one from its beginning. After an earlier failure the rest may be in any
        state."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        content = self.content(path)
        before = content.now()
        for old in (*content.possible(), before) if path in self.told else (before,):
            content.change(data + old[len(data) :])
        if how == "direct":
            done = self.attempt(f"write {path} past the cache", lambda: self.agent_writes(path, data), [path])
        else:
            done = self.attempt(f"write {path}", lambda: self.write_pieces(path, data, how, guess), [path])
        if not done:
            self.unknown.add(path)
        elif len(data) >= len(before):
            self.unknown.discard(path)
            self.told.discard(path)
        return done

    def copy(self, source, target):
        """Copies. If nobody synced the source, the reader may get what the disk has."""
        (self.root / target).parent.mkdir(parents=True, exist_ok=True)
        self.content(target).change(self.files[source].now())
        copy = lambda: shutil.copyfile(self.root / source, self.root / target)
        if not self.attempt(f"copy to {target}", copy, [target]):
            self.unknown.add(target)
        elif self.files[source].later:
            got = read(self.root / target)
            self.files[source].check(got, target)
            self.content(target).change(got)

    def agent_writes(self, path, data):
        with Agent() as agent:
            agent.aio(self.root / path, data)

    def write_pieces(self, path, data, how, guess):
        reader = os.open(self.root / guess, os.O_RDONLY) if guess else None
        try:
            with opened(self.root / path, (os.O_RDWR if how == "step before" else os.O_WRONLY) | os.O_CREAT) as file:
                for at in range(0, len(data), PIECE):
                    write_all(file, data[at : at + PIECE])
        finally:
            if reader is not None:
                os.close(reader)

    def fsync(self, path):
        """fsyncs through a new descriptor, which has not been told of earlier errors."""
        with opened(self.root / path, os.O_RDONLY) as file:
            os.fsync(file)

    def promised(self, path):
        self.names[path] = True
        if path not in self.unknown:
            self.files[path].settle()

    def sync(self, path):
        if self.tries == 1 and path in self.told:
            return
        for _ in range(self.tries):
            if self.attempt(f"fsync {path}", lambda: self.fsync(path), [path]):
                self.promised(path)
                return
            self.maybe_heal()

    def write_back(self):
        """Writes back, as the kernel does by itself after a while."""
        run("sync", "-f", self.mount.store.folder, check=False)

    # The disk.

    def break_disk(self, *where):
        """Makes writes to the folder's part of the disk fail from now on, or for a while."""
        place = self.dice.choice(where or (("blobs", "meta") if "names" in self.acts else ("blobs",)))
        what = self.dice.choice(("eio", "eio", "enospc", "tear"))
        begin, end = self.disk.group_of(self.mount.store.folder / place)
        if self.dice.random() < 0.5:
            keys = {"percent": self.dice.choice((30, 60, 100)), "seed": self.dice.randrange(1, 1 << 30), "count": 0}
        else:
            keys = {"skip": self.dice.randrange(3), "count": self.dice.randrange(1, 5)}
        if self.dice.random() < 0.3:  # so that background work meets the error as often as the callers
            self.disk.fault("delay", "write", percent=20, count=0, ms=self.dice.choice((1, 5, 20)))
        self.history.append(f"[{what} {place} {keys}]")
        self.disk.fault(what, "data", from_=begin, to=end, **keys)

    def break_all(self):
        """Makes all writes fail, like a disk that is pulled. XFS then shuts itself down."""
        self.is_pulled = True
        self.history.append("[all]")
        self.disk.fault("eio", self.dice.choice(("write", "flush", "log")), skip=self.dice.randrange(20), count=0)

    def heal(self):
        self.disk.heal()
        self.history.append("[healed]")

    def maybe_heal(self):
        if self.dice.random() < 0.4:
            self.heal()

    def name(self, kind):
        self.made += 1
        return f"{kind}{self.made}"

    def noise(self, length=None):
        length = length or self.dice.randrange(20, 400) * KIB + self.dice.choice((0, 0, 1, 700))
        return noise(length, self.dice.randrange(1 << 40))

    # Acts: each begins on a working disk, and breaks it.

    def fsyncs(self):
        """Writes and syncs new files, and old ones that are overwritten."""
        path = self.name("file")
        if self.dice.random() < 0.5:
            self.write(path, self.noise())
            self.sync(path)
        early = self.dice.random() < 0.5
        if early:
            self.break_disk()
        self.write(path, self.noise(), self.dice.choice(("plain", "plain", "direct")) if early else "plain")
        if not early:
            self.break_disk()
        if self.dice.random() < 0.5:
            self.write_back()
        self.sync(path)
        if self.dice.random() < 0.5:
            self.write(path, self.noise())
            self.sync(path)

    def copies(self):
        """Makes a copy by Python, one with changes piece by piece, and one that is open for reading, too."""
        source = self.name("runs/checkpoint-") + "/model.safetensors"
        target = self.name("runs/checkpoint-") + "/model.safetensors"
        data = self.noise(300 * KIB + self.dice.choice((0, 5)))
        self.write(source, data)
        if self.dice.random() < 0.7:
            self.sync(source)
        self.break_disk()
        self.write_back()
        how = self.dice.choice(("copy", "reader", "step before"))
        at = self.dice.randrange(4) * PIECE
        if how == "copy":
            self.copy(source, target)
        else:
            changed = data[:at] + self.noise(PIECE) + data[at + PIECE :]
            self.write(target, changed, how, guess=source if how == "reader" else None)
        if self.dice.random() < 0.5:
            self.write_back()
        self.maybe_heal()
        self.sync(target)

    def saves(self):
        names = list(swap_names(ranks=1))[:4]
        early = self.dice.random() < 0.5
        if early:
            self.break_disk()
        for name in names:
            data = self.noise(4 * KIB * self.dice.randrange(5, 60))
            self.write(name, data, self.dice.choice(("plain", "plain", "direct")))
        if not early:
            self.break_disk()
        if self.dice.random() < 0.5:
            self.write_back()
        for _ in range(self.tries):
            tag = self.name("step")
            if self.attempt(f"save {tag}", lambda: self.mount.save(tag), names):
                self.promise_step(tag, names)
                break
            self.maybe_heal()

    def promise_step(self, tag, names):
        for name in set(names) - self.unknown - (self.told if self.tries == 1 else set()):
            path = f"steps/{tag}/{name_in_step(name)}"
            self.content(path).change(self.files[name].now())
            self.promised(path)

    def seals(self):
        tag = self.name("checkpoint-")
        paths = [f"steps/{tag}/{name}" for name in ("trainer_state.json", "model.safetensors", "optimizer.pt")]
        early = self.dice.random() < 0.5
        if early:
            self.break_disk()
        for path in paths:
            self.write(path, self.noise())
        if not early:
            self.break_disk()
        if self.dice.random() < 0.5:
            self.write_back()
        for _ in range(self.tries):
            if self.attempt(f"seal {tag}", lambda: self.mount.seal(f"steps/{tag}"), paths):
                for path in paths:
                    self.promised(path)
                break
            self.maybe_heal()

    def names_change(self):
        """An fsync of a folder promises its names, which reach the disk through the index's log."""
        folder = self.name("folder")
        (self.root / folder).mkdir()
        self.break_disk("meta")
        names = {}
        for number in range(self.dice.randrange(3, 12)):
            old, new = f"{folder}/a{number}", f"{folder}/b{number}"
            kind = self.dice.choice(("create", "rename", "unlink"))
            outcomes = [self.attempt(f"create {old}", lambda: os.close(os.open(self.root / old, os.O_CREAT, 0o644)))]
            if kind == "rename":
                outcomes.append(self.attempt(f"rename {old}", lambda: os.rename(self.root / old, self.root / new)))
            elif kind == "unlink":
                outcomes.append(self.attempt(f"unlink {old}", lambda: os.unlink(self.root / old)))
            if all(outcomes):
                names |= {old: kind == "create", new: kind == "rename"}
        for _ in range(self.tries):
            if self.attempt(f"fsync {folder}", lambda: self.fsync(folder)):
                self.names |= names
                break
            self.maybe_heal()

    def removals(self):
        """A removed step must not return, and must not damage another one that shares its blocks."""
        tag = self.name("checkpoint-")
        one, two = f"runs/{tag}/model.safetensors", f"runs/{tag}0000/model.safetensors"
        self.write(one, self.noise())
        self.sync(one)
        self.copy(one, two)
        self.sync(two)
        self.break_disk()
        if self.attempt(f"remove {one}", lambda: os.unlink(self.root / one)):
            self.files.pop(one)
            self.names.pop(one, None)
            if self.attempt("fsync of its folder", lambda: self.fsync(f"runs/{tag}")):
                self.names[one] = False
        self.write(two, self.noise(PIECE))
        self.sync(two)

    def ranks_save(self):
        """Saves past the mount. A committed step is complete."""
        (self.root / "ranks").mkdir(exist_ok=True)
        self.break_disk()
        for _ in range(self.tries):
            if self.rank_saves(self.name("rank_step"), self.dice.randrange(1, 1000)):
                break
            self.maybe_heal()

    def rank_saves(self, tag, seed):
        process = saving.begin(self.root / "ranks", tag, "only", size=60_001, seed=seed)
        output, errors = process.communicate(timeout=120)
        self.history.append(f"ranks save {tag}: {output.split()} {errors.strip()}")
        if "committed" not in output:
            return False
        self.ranks.append((f"ranks/{tag}", seed))
        self.succeeded["commit"] += 1
        return True

    # The checks.

    def play(self, count):
        acts = [name for name in self.acts if name in ACTS]
        for number in range(count):
            name = self.dice.choice(acts)
            self.history.append(f"-- {name}")
            if number == count - 1 and "pull" in self.acts and self.dice.random() < 0.2:
                self.break_all()
            try:
                getattr(self, ACTS[name])()
            except OSError as problem:  # an error of calls that are not the act's subject
                self.history.append(f"ended: {problem}")
            self.heal()

    def end(self):
        """If the unmount returns 0, everything is promised for which no error was reported."""
        if "umount" in self.acts and not self.is_pulled and self.dice.random() < 0.5:
            self.break_disk("blobs", "meta")
        if self.unmount() == 0 and "umount" in self.acts:
            for path in set(self.files) - self.told:
                self.promised(path)
        self.heal()

    def unmount(self):
        for _ in range(50):
            done = run(self.mount.binary, "umount", self.mount.path, check=False)
            self.history.append(f"umount: {done.returncode} {done.stderr.strip()}")
            if done.returncode == 0 or "busy" not in done.stderr:
                break
        if done.returncode == 0:
            self.mount.wait_for_end()
        abandon(self.mount)
        return done.returncode

    def check(self):
        problems = []
        for path, there in sorted(self.names.items()):
            if os.path.lexists(self.root / path) != there:
                problems.append(f"{path} {'is gone' if there else 'is back'}")
        for path, content in sorted(self.files.items()):
            try:
                content.check(read(self.root / path), path)
            except OSError as problem:
                if content.synced:
                    problems.append(str(problem))
            except Failure as problem:
                problems.append(f"{problem}{'' if content.synced else ', never promised'}")
        for path, seed in self.ranks:
            try:
                saving.check(self.root / path, size=60_001, seed=seed)
            except (Failure, OSError) as problem:
                problems.append(str(problem))
        true(not problems, "; ".join(problems))


ACTS = {"fsync": "fsyncs", "copy": "copies", "save": "saves", "seal": "seals", "names": "names_change",
        "remove": "removals", "ranks": "ranks_save"}
# `umount`: what an unmount promises; `pull`: now and then the whole disk fails at the end of a round
ALL = (*ACTS, "umount", "pull")


def play_round(work, disk, mode, seed, acts, tries, count):
    """Plays one round. Returns counts of what succeeded."""
    dice = random.Random(seed)
    disk.heal()
    disk.format()
    mount = Mount(Store(work / "below/store"), work / "mnt", mode=mode, binary=CKPTFS)
    one = Round(disk, mount, dice, acts, tries)
    try:
        with disk.below(mount):
            mount.start()
            one.play(count)
            one.end()
        with disk.below(mount):  # nothing is in the page cache
            mount.start()
            one.check()
            mount.stop()
            mount.store.fsck()
        return one.succeeded
    except BaseException:
        print(f"--- round {seed}:\n" + "\n".join(one.history) + f"\n{mount.read_log()}---", flush=True)
        raise


def errors_of(disk):
    counters = disk.counters()
    return counters["eio"] + counters["enospc"] + counters["tear"]


def play(work, mode, seed, wanted, acts, tries):
    """Plays rounds until the disk has had so many errors. Reports each failed round, and goes on."""
    errors, rounds, wrong, succeeded = 0, 0, [], collections.Counter()
    with Disk(work, f"disk-{mode}", "/dev/null") as disk:
        while errors < wanted:
            before = errors_of(disk)
            try:
                succeeded += play_round(work, disk, mode, seed + rounds, acts, tries, 6)
            except Failure as problem:
                wrong.append(f"round {seed + rounds}: {problem}")
                print(f"      {wrong[-1]}", flush=True)
            errors += errors_of(disk) - before
            rounds += 1
    print(f"      {mode}: {rounds} rounds, {errors} errors, {len(wrong)} rounds wrong; what succeeded: "
          f"{', '.join(f'{count} {what}' for what, count in sorted(succeeded.items()))}", flush=True)
    true(not wrong, f"{len(wrong)} of {rounds} rounds are wrong; the first: {wrong[0] if wrong else ''}")


def test_no_call_lies(request, work, mode, seed, rounds):
    acts = request.config.getoption("acts") or ",".join((*ACTS, "umount"))
    play(work, mode, seed, rounds or by_level(8, 500), acts.split(","), request.config.getoption("tries"))

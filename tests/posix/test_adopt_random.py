"""Random copies, and others at work on both files at any moment of them: as on plain XFS, in both open modes.

Each operation is done on the mount and on plain XFS beside it; what it gives (a number, bytes, an errno), the sizes and
a random range must be equal. A round that fails prints its seed: `--seed THAT --rounds 1` replays it. Option: --plain.
"""

import collections
import contextlib
import errno
import os
import random
import shutil
import threading

import pytest

from checking import equal, read, same_bytes, short, true, wait_for_seal
from copied_files import Side
from copying import BLOCK, DIFFERENCES, altered, pieces, random_content, random_length
from mounting import KIB, MIB, Failure, Plain, Store, by_level, mounted
from training import name_in_step

KEEP, PUNCH, ZERO = 1, 2, 16
LONGEST = 3 * MIB
KEPT = 25  # rounds whose files are looked at again after a new mount


def outcome(action, *arguments):
    try:
        return action(*arguments)
    except OSError as problem:
        return errno.errorcode[problem.errno]


class Round:
    """One copy from `source` to `target`, and what others do meanwhile."""

    def __init__(self, mount, plain, seed, tag):
        self.mount = mount
        self.seed, self.tag = seed, tag
        self.dice = random.Random(seed)
        self.sides = Side(mount.path, mount.mode), Side(plain, "plain")
        self.ours, self.plain = self.sides
        self.history = []
        self.paths = {}  # "source", "target" -> path, as long as it has one
        self.frozen = set()  # of these
        self.others = {}  # key -> (which, flags): opened by others
        self.maps = {}  # number -> (which, length)
        self.saved = {}  # path in a step -> what the save took
        self.folders = []  # on both sides
        self.made = 0

    # --- both sides

    def both(self, name, *arguments):
        shown = ", ".join(f"<{len(one)} bytes>" if isinstance(one, bytes) else repr(one) for one in arguments)
        self.history.append(f"{name}({shown})")
        results = [outcome(getattr(side, name), *arguments) for side in self.sides]
        if all(isinstance(one, bytes) for one in results):
            same_bytes(*results, self.history[-1])
        else:
            equal(*results, self.history[-1])
        self.history[-1] += f" = {short(results[1])}" if not isinstance(results[1], bytes) else ""
        return results[1]

    def size(self, which):
        """Of a file with a name, as it has to be."""
        return self.plain.stat(self.paths[which])[0]

    def check(self):
        for path in self.paths.values():
            if path:
                self.both("stat", path)
        key = self.dice.choice([None, *self.others, "from" if "from" in self.plain.files else None])
        if key:
            self.read_range(key)

    # --- the copy

    def folder(self, path):
        for side in self.sides:
            (side.root / path).mkdir(parents=True, exist_ok=True)
        self.folders.append(path)
        return path

    def begin(self):
        """Where from, where to; who guesses, and by what."""
        self.kind = self.dice.choice(("copier", "copier", "step", "load", "save"))
        if self.kind in ("load", "save") and hasattr(self.mount, "plain"):
            self.kind = "copier"
        name = f"{self.tag}_{self.tag + 1}.tensor.swp"
        live = f"zero_stage_3/optimizer/rank0/{name}"
        if self.kind == "copier":
            source, target = (f"{self.folder(f'{self.tag}/{part}')}/{name}" for part in ("from", "to"))
        elif self.kind == "step":
            steps = [self.folder(f"steps/checkpoint-{2 * self.tag + part}") for part in (0, 1)]
            self.both("new", f"{steps[0]}/mp_rank_00_model_states.pt", b"model")  # it can be sealed
            letters = "".join(chr(ord("a") + int(digit)) for digit in str(self.tag))  # else a wrong one ends all
            source, target = (f"{step}/{letters}.bin" for step in steps)
        else:
            for side in self.sides:
                (side.root / live).parent.mkdir(parents=True, exist_ok=True)
            step = f"steps/global_step{self.tag}"
            source, target = f"{step}/{name_in_step(live)}", live
            if self.kind == "save":
                source, target = target, source
                self.folder(step)
                self.folder(os.path.dirname(target))
                self.both("new", f"{step}/mp_rank_00_model_states.pt", b"model")
        self.difference = self.dice.choice(DIFFERENCES)
        self.data = random_content(self.dice, random_length(self.dice, LONGEST))
        self.history.append(f"{self.kind}: {len(self.data)} bytes, {self.difference} of them other; {source} {target}")
        if self.kind == "load":
            self.both("new", live, self.data)
            self.take_save(f"global_step{self.tag}")
            (self.plain.root / source).parent.mkdir(parents=True)
            self.plain.new(source, self.data)
            self.frozen.add("source")
            if self.dice.random() < 0.5:
                self.both("unlink", live)
        else:
            self.both("new", source, self.data)
            if self.dice.random() < 0.3:
                self.both("new", target, self.dice.randbytes(self.dice.randrange(300 * KIB)))
        self.paths = {"source": source, "target": target}
        if self.kind != "step" or self.dice.random() < 0.2:
            self.both("open", "from", source, os.O_RDONLY)
        flags = self.dice.choices(
            (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_DSYNC), (20, 6, 1, 1)
        )[0]
        self.both("open", "to", target, flags | os.O_CREAT | os.O_TRUNC)
        if flags == os.O_RDWR and self.dice.random() < 0.5:
            self.both("ftruncate", "to", len(self.data))  # as safetensors: it is adopted block by block

    def copy(self):
        restless = self.dice.choice((0, 0.1, 0.3, 0.8))
        for part in pieces(self.dice, altered(self.dice, self.data, self.difference)):
            if "to" not in self.plain.files:
                break
            self.write(part)
            while self.dice.random() < restless:
                self.interfere()
                self.check()

    def write(self, part):
        how = self.dice.random()
        if how < 0.05 and not any(part):
            self.both("skip", "to", len(part))  # as dd conv=sparse
        elif how < 0.15 and "from" in self.plain.files:
            at = self.plain.skip("to", 0)
            self.both("sendfile", "to", "from", at, len(part))
        elif how < 0.25:
            self.race(lambda side: side.write("to", part))
        else:
            self.both("write", "to", part)

    def race(self, action):
        """On the mount others look at the file while that happens: they see a beginning of what is there afterwards."""
        path = self.paths["target"]
        if not path or self.plain.skip("to", 0) != self.size("target") or "target" in {w for w, _ in self.maps.values()}:
            return self.compare_action(action)
        before = self.size("target")
        action(self.plain)
        wanted = self.plain.content(path)
        self.history.append(f"race from {before} to {len(wanted)} bytes")
        problems, stop = [], threading.Event()
        threads = [threading.Thread(target=self.watch, args=(path, before, wanted, stop, problems, self.dice.random()))
                   for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            action(self.ours)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        equal(problems, [], "what others saw")
        return None

    def compare_action(self, action):
        for side in reversed(self.sides):
            action(side)

    def watch(self, path, before, wanted, stop, problems, seed):
        dice = random.Random(seed)
        try:
            last = False
            while not last:
                last = stop.is_set()
                if dice.random() < 0.7:
                    size = self.ours.stat(path)[0]
                else:
                    content = self.ours.content(path)
                    size = len(content)
                    same_bytes(content, wanted[:size], "content")
                true(before <= size <= len(wanted), f"size {size}, between {before} and {len(wanted)}")
                before = size
        except (OSError, Failure) as problem:
            problems.append(str(problem))

    def finish(self):
        """The last closes, in any order; then all of it, to be looked at again after a new mount."""
        if "to" in self.plain.files:
            if self.dice.random() < 0.3:
                self.race(lambda side: side.close("to"))
            else:
                self.both("close", "to")
        for which, path in self.paths.items():
            if path and which not in self.frozen and self.dice.random() < 0.5:
                self.both("set_time", path, 10**18 + self.dice.randrange(10**9))  # as copystat, right behind the close
                self.both("time", path)
        rest = [("close", key) for key in self.plain.files] + [("unmap", number) for number in self.plain.maps]
        self.dice.shuffle(rest)
        for name, key in rest:
            self.both(name, key)
        if self.kind == "save" and self.paths["target"] and self.dice.random() < 0.3:
            self.history.append("seal")
            wait_for_seal(self.mount, f"steps/global_step{self.tag}")
        self.look()
        return self

    def look(self):
        for folder in self.folders:
            self.both("listing", folder)
        for path in self.paths.values():
            if path:
                self.both("stat", path)
                if 10**18 <= self.plain.time(path) < 10**18 + 10**9:  # as it was set at the end
                    self.both("time", path)
                self.both("content", path)
        for path, data in self.saved.items():
            same_bytes(read(self.mount.path / path), data, path)

    # --- the others

    def interfere(self):
        one = self.dice.choices([one for _, one in self.INTERFERENCE], [weight for weight, _ in self.INTERFERENCE])[0]
        one(self)

    def which(self):
        return self.dice.choice([which for which, path in self.paths.items() if path] or [None])

    def writable(self):
        return self.dice.choice([which for which, path in self.paths.items() if path and which not in self.frozen] or [None])

    def place(self, size, direct=False):
        """Before the end, at it, or past it."""
        at = self.dice.choice((0, self.dice.randrange(size + 1), size, size, size + self.dice.randrange(1, 300 * KIB)))
        return at // BLOCK * BLOCK if direct else at

    def length(self, direct=False):
        return self.dice.randrange(1, 16) * BLOCK if direct else self.dice.choice((1, 100, 4096, 30_000, 200_000))

    def open(self):
        which = self.which()
        if not which or len(self.others) > 5:
            return self.close_one()
        flags = self.dice.choice((
            os.O_RDONLY, os.O_RDONLY, os.O_RDONLY | os.O_DIRECT, os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_DIRECT,
            os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC, os.O_RDONLY | os.O_TRUNC,
        ))  # fmt: skip
        if which in self.frozen and flags & (os.O_ACCMODE | os.O_TRUNC):
            equal(outcome(os.open, self.mount.path / self.paths[which], flags), "EPERM", "open of what is frozen")
            return None
        self.made += 1
        if self.both("open", self.made, self.paths[which], flags) is None:
            self.others[self.made] = (which, flags)
        return None

    def close_one(self):
        if self.others:
            key = self.dice.choice(sorted(self.others))
            del self.others[key]
            self.both("close", key)

    def read_range(self, key):
        flags = self.others[key][1] if key in self.others else os.O_RDONLY
        direct = bool(flags & os.O_DIRECT)
        self.both("pread", key, self.length(direct), self.place(self.plain.fstat(key)[0], direct))

    def use(self):
        if not self.others:
            return self.open()
        key = self.dice.choice(sorted(self.others))
        flags = self.others[key][1]
        direct, size = bool(flags & os.O_DIRECT), self.plain.fstat(key)[0]
        what = self.dice.choice(("read", "read", "write", "write", "stat", "sync", "resize", "allocate", "end"))
        if what == "read" or (what == "write" and direct and not flags & os.O_ACCMODE):
            self.read_range(key)
        elif what == "write":
            self.both("pwrite", key, self.dice.randbytes(self.length(direct)), self.place(size, direct))
        elif what == "stat":
            self.both("fstat", key)
        elif what == "sync":
            self.both(self.dice.choice(("fsync", "fdatasync")), key)
        elif what == "resize":
            self.both("ftruncate", key, self.place(size))
        elif what == "allocate":
            self.allocate(key)
        else:
            self.both("end", key)
        return None

    def allocate(self, key):
        mode = self.dice.choice((0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP))
        self.both("fallocate", key, mode, self.place(self.plain.fstat(key)[0]), self.length())

    def by_the_copier(self):
        """The copier itself does something else than the next write."""
        size, at = self.plain.fstat("to")[0], self.plain.skip("to", 0)
        what = self.dice.choice(("pwrite", "together", "ftruncate", "allocate", "sync", "reopen", "start over", "back"))
        if what == "pwrite":
            self.both("pwrite", "to", self.dice.randbytes(self.length()), self.place(size))
        elif what == "together":
            length, first = self.length(), self.place(size)
            self.both("pwrite_together", "to", [(first + i * length, self.dice.randbytes(length)) for i in range(4)])
        elif what == "ftruncate":
            self.both("ftruncate", "to", self.place(size))
        elif what == "allocate":
            self.allocate("to")
        elif what == "sync":
            self.both("fsync", "to")
        elif what == "back":
            self.both("rewind", "to", self.dice.randrange(at + 1))
        elif self.paths["target"]:
            self.both("close", "to")
            flags = os.O_TRUNC if what == "start over" else 0
            self.both("open", "to", self.paths["target"], os.O_WRONLY | flags)
            self.both("rewind", "to", 0 if flags else at)

    def resize(self):
        which = self.writable()
        if which:
            self.both("truncate", self.paths[which], self.place(self.size(which)))

    def set_time(self):
        which = self.writable()
        if which:
            self.both("set_time", self.paths[which], self.dice.randrange(10**17))
            self.both("time", self.paths[which])

    def look_at_names(self):
        which = self.which()
        if which and os.path.dirname(self.paths[which]) in self.folders:
            self.both("listing", os.path.dirname(self.paths[which]))

    def read_all(self):
        which = self.which()
        if which:
            self.both("content", self.paths[which])

    def seek(self):
        """Where a hole is said to be there are zeros, and it begins where it may."""
        which = self.which()
        if not which:
            return
        content = self.plain.content(self.paths[which])
        at = self.dice.randrange(len(content) + 2)
        self.history.append(f"SEEK_HOLE and SEEK_DATA in {self.paths[which]} at {at} of {len(content)}")
        with open(self.mount.path / self.paths[which], "rb") as file:
            hole = outcome(os.lseek, file.fileno(), at, os.SEEK_HOLE)
            data = outcome(os.lseek, file.fileno(), at, os.SEEK_DATA)
        if at >= len(content):
            equal((hole, data), ("ENXIO", "ENXIO"), "seeking at the end")
        else:
            true(at <= hole <= len(content), f"a hole at {hole}")
            data = len(content) if data == "ENXIO" else data
            true(not any(content[at:data]), f"data only from {data} on")

    def map(self):
        which = self.writable()
        if not which or len(self.maps) > 3 or self.size(which) == 0:
            return
        self.made += 1
        length = self.size(which)
        self.both("map", self.made, self.paths[which], length, self.dice.random() < 0.3)
        self.maps[self.made] = (self.paths[which], length)

    def use_map(self):
        if not self.maps:
            return self.map()
        number = self.dice.choice(sorted(self.maps))
        path, length = self.maps[number]
        size = self.plain.stat(path)[0] if path in self.paths.values() else 0  # beyond the end is SIGBUS
        length = min(length, size)
        if length == 0 or self.dice.random() < 0.2:
            del self.maps[number]
            return self.both("unmap", number)
        at = self.dice.randrange(length)
        if self.dice.random() < 0.6:
            self.both("store", number, at, self.dice.randbytes(self.length())[: length - at])
        else:
            self.both("load", number, at, min(self.length(), length - at))
        return None

    def copy_ranges(self):
        keys = sorted(key for key, (_, flags) in self.others.items() if not flags & os.O_DIRECT)
        keys += [key for key in ("from", "to") if key in self.plain.files]
        from_, to = self.dice.choice(keys), self.dice.choice(keys)
        direct = self.dice.random() < 0.5
        at, where = (self.place(self.plain.fstat(key)[0], direct) for key in (from_, to))
        self.both("copy_range", from_, at, to, where, self.length(direct))

    def rename(self):
        """Of the target, away and perhaps back; or of another file over it, or over the source."""
        which = self.writable()
        if not which or any(path == self.paths[which] for path, _ in self.maps.values()):
            return
        path = self.paths[which]
        self.made += 1
        other = f"{path}.{self.made}"
        if self.dice.random() < 0.5:
            self.both("rename", path, other)
            if self.dice.random() < 0.5:
                self.both("rename", other, path)
            else:
                self.paths[which] = other
        else:
            self.both("new", other, self.dice.randbytes(self.dice.randrange(300 * KIB)))
            self.both("rename", other, path)

    def link(self):
        which = self.writable()
        if which:
            self.made += 1
            self.both("link", self.paths[which], f"{self.paths[which]}.{self.made}")

    def unlink(self):
        which = self.writable()
        if which and not any(path == self.paths[which] for path, _ in self.maps.values()):
            self.both("unlink", self.paths[which])
            self.paths[which] = None

    def save(self):
        if self.kind in ("load", "save"):
            self.made += 1
            self.take_save(f"global_step{self.tag}-save{self.made}")

    def take_save(self, tag):
        """What the save took is what the live files hold."""
        live = self.plain.root / "zero_stage_3"
        state = {path.relative_to(self.plain.root): path for path in live.glob("*/*/*.tensor.swp")}
        if not state:
            return
        self.history.append(f"save {tag}")
        self.mount.save(tag)
        for name, path in state.items():
            self.saved[f"steps/{tag}/{name_in_step(str(name))}"] = read(path)

    def seal(self):
        if self.kind == "step" and self.paths["source"] and not hasattr(self.mount, "plain"):
            sealed = outcome(self.mount.seal, os.path.dirname(self.paths["source"]))
            self.history.append(f"seal of the source's step: {sealed}")
            if sealed is None:
                self.frozen.add("source")
                self.unmap_sealed()
            else:
                equal(sealed, "EBUSY", "seal")

    def unmap_sealed(self):
        """What a mapping without a descriptor stores from now on is not in what is sealed; on plain XFS it would be."""
        for number, (path, _) in list(self.maps.items()):
            if path == self.paths["source"]:
                del self.maps[number]
                self.both("unmap", number)

    INTERFERENCE = (
        (6, open), (12, use), (3, close_one), (4, by_the_copier), (2, resize), (1, set_time), (3, look_at_names),
        (3, read_all), (2, seek), (3, map), (6, use_map), (4, copy_ranges), (1, rename), (1, link), (0.5, unlink),
        (1, save), (1, seal),
    )  # fmt: skip

    # --- the end

    def let_go(self):
        for side in self.sides:
            with contextlib.suppress(OSError):
                side.let_go()

    def remove(self):
        """All it made, on both sides."""
        for side in self.sides:
            steps = [folder for folder in (side.root / "steps").iterdir() if folder.name.split("-")[0] == f"global_step{self.tag}"]
            for folder in [*steps, *(side.root / folder for folder in self.folders), side.root / "zero_stage_3"]:
                shutil.rmtree(folder, ignore_errors=True)


def one_round(mount, plain, seed, tag):
    current = Round(mount, plain, seed, tag)
    try:
        current.begin()
        current.check()
        current.copy()
        current.check()
        current.finish()
        return current
    except BaseException:
        print(f"--- round {tag}, seed {seed}, {mount.mode}:", *current.history, sep="\n", flush=True)
        raise
    finally:
        current.let_go()


FOR_SHARES = 400  # rounds


class Totals:
    """What the daemons of one mount counted, one after another."""

    NAMES = ("adoptions", "bytes_adopted", "wrong_guesses", "adoption_fallbacks")

    def __init__(self):
        self.counts = collections.Counter()

    def add(self, mount):
        counters = mount.status()["counters"]
        self.counts.update({name: counters[name] for name in self.NAMES})

    def check(self, rounds):
        """The shares are those of many rounds: of 20 with another seed, 6 were adopted, and of others 15."""
        print(f"      {dict(self.counts)}")
        equal(self.counts["adoption_fallbacks"], 0, "fallbacks")
        true(self.counts["adoptions"] > 0, f"no adoption: {self.counts}")
        if rounds < FOR_SHARES:
            return
        true(self.counts["adoptions"] >= rounds * 0.4, f"too few adoptions: {self.counts}")
        true(self.counts["bytes_adopted"] >= rounds * 50 * KIB, f"too little was adopted: {self.counts}")
        true(self.counts["wrong_guesses"] >= rounds * 0.03, f"too few wrong guesses: {self.counts}")


def walk(mount, plain, seed, rounds):
    (plain / "steps").mkdir(parents=True)
    kept, totals, differences = [], Totals(), collections.Counter()

    def look_again():
        if not hasattr(mount, "plain"):
            totals.add(mount)
        mount.remount()
        for old in kept:
            try:
                old.look()
            except BaseException:
                print(f"--- after a new mount; seed {old.seed}, {mount.mode}:", *old.history, sep="\n", flush=True)
                raise
        for old in kept:
            old.remove()
        kept.clear()

    for index in range(rounds):
        kept.append(one_round(mount, plain, seed + index, index))
        differences[kept[-1].difference] += 1
        if len(kept) == KEPT:
            look_again()
    look_again()
    print(f"      {dict(differences)}")
    if rounds >= 20 and not hasattr(mount, "plain"):
        totals.check(rounds)


@pytest.mark.timeout(3600)
def test_random_copies(work, disk, mode, seed, rounds):
    rounds = rounds or by_level(20, 3000)
    plain = disk / f"plain-{mode}"
    if mode == "plain":
        walk(Plain(disk / "other"), plain, seed, rounds)
        return
    store = Store(disk / mode)
    with mounted(store, work / f"mnt-{mode}", mode=mode) as mount:
        walk(mount, plain, seed, rounds)
    store.fsck()

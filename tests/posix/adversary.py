"""A random user of the mount, and the model of what must be there afterwards (tests/posix/test_adversarial.py).

The model is a map from path to File; hard links are several paths of one File. `check_all` compares all names and bytes
of it with the mount. Each operation knows its expected result: success, or EPERM when it writes into a saved file. No
open may ever fail with EIO or EBUSY.
"""

import collections
import errno
import os
import random
import shutil

from agent import Agent
from checking import equal, opened, pwrite_all, raises, read, same_bytes, true, wait_for_seal, write
from mounting import KIB, run
from training import STAGE, name_in_step, names_below

FOLDERS = (f"{STAGE}/optimizer/rank0", f"{STAGE}/optimizer/rank1", f"{STAGE}/bfloat16params/rank0", "work", "work/sub")
SWAP = {
    f"{STAGE}/optimizer/rank0": ("0_2", "exp_avg-0_2", "exp_avg_sq-0_2", "3_5"),
    f"{STAGE}/optimizer/rank1": ("0_2", "exp_avg-0_2"),
    f"{STAGE}/bfloat16params/rank0": ("7_param",),
}
LONGEST = 400 * KIB
PAGE = 4096


class File:
    """The content of one inode. frozen: opening it for writing is EPERM."""

    def __init__(self, data=b"", frozen=False):
        self.data = bytearray(data)
        self.frozen = frozen
        self.writers = 0  # descriptors held open for writing


class Adversary:
    def __init__(self, mount, seed):
        self.mount = mount
        self.plain = hasattr(mount, "plain")
        self.dice = random.Random(seed)
        self.files = {}  # path -> File
        self.steps = {}  # tag -> sealed?
        self.mappings = {}  # number -> [File or None, length]
        self.readers = []  # (descriptor, File)
        self.writers = []  # (descriptor, File)
        self.history = collections.deque(maxlen=40)
        self.counts = collections.Counter()
        self.tags = 0
        self.agent = Agent()
        for folder in FOLDERS:
            (mount.path / folder).mkdir(parents=True, exist_ok=True)
        self.operations = [
            (8, self.buffered_write),
            (10, self.aio_overwrite),
            (4, self.truncate),
            (3, self.rewrite),
            (3, self.punch),
            (5, self.map),
            (10, self.store),
            (2, self.unmap),
            (4, self.rename),
            (3, self.link),
            (6, self.copy),
            (2, self.load),
            (6, self.save),
            (2, self.seal),
            (3, self.extra_file),
            (3, self.remove_file),
            (2, self.remove_step),
            (1, self.rename_step),
            (5, self.hold_reader),
            (2, self.hold_writer),
            (5, self.use_writer),
            (6, self.look),
            (6, self.write_into_a_step),
            (4, self.create),
            (0.4, self.remount),
        ]

    def close(self):
        self.let_go()
        self.agent.close()

    def act(self):
        operation = self.dice.choices([one for _, one in self.operations], [weight for weight, _ in self.operations])[0]
        self.note(operation.__name__)
        operation()
        self.counts[operation.__name__] += 1

    def note(self, text):
        self.history.append(text)

    # --- choosing

    def path(self, name):
        return self.mount.path / name

    def bytes(self, length):
        return self.dice.randbytes(length)

    def some_length(self):
        return self.dice.choice((0, 1, 511, PAGE, PAGE + 1, 10000, 65536, 100001, 262144, LONGEST))

    def choose(self, names):
        names = sorted(names)
        return self.dice.choice(names) if names else None

    def in_step(self, name):
        return name.startswith("steps/")

    def tag_of(self, name):
        return name.split("/")[1]

    def live(self):
        """The names of files that may be written."""
        return [name for name, file in self.files.items() if not file.frozen]

    def movable(self):
        return [name for name in self.live() if not self.in_step(name)]

    def new_name(self):
        folder = self.dice.choice(FOLDERS)
        if folder in SWAP:
            return f"{folder}/{self.dice.choice(SWAP[folder])}.tensor.swp"
        return f"{folder}/file{self.dice.randrange(8)}"

    # --- writing

    def create(self):
        name, data = self.new_name(), self.bytes(self.some_length())
        self.replace_content(name, data)

    def replace_content(self, name, data):
        """Opens with O_CREAT | O_TRUNC, then writes."""
        file = self.files.get(name)
        if file is not None and file.frozen:
            return
        self.note(f"  O_TRUNC {name} {len(data)}")
        write(self.path(name), data)
        file = self.files.setdefault(name, File())
        file.data[:] = data

    def rewrite(self):
        name = self.choose(self.live())
        if name:
            self.replace_content(name, self.bytes(self.some_length()))

    def put(self, file, offset, data):
        if len(file.data) < offset:
            file.data.extend(bytes(offset - len(file.data)))
        file.data[offset : offset + len(data)] = data

    def buffered_write(self):
        name = self.choose(self.live())
        if not name:
            return self.create()
        file = self.files[name]
        offset = self.dice.randrange(len(file.data) + 5000) % LONGEST
        data = self.bytes(self.some_length())[: LONGEST - offset]
        self.note(f"  pwrite {name} {offset} {len(data)}")
        with opened(self.path(name), self.dice.choice((os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_DSYNC))) as target:
            pwrite_all(target, data, offset)
            if data:
                self.put(file, offset, data)
            if self.dice.random() < 0.2:
                os.fsync(target)
        return None

    def aio_overwrite(self):
        name = self.choose(self.live())
        if not name:
            return self.create()
        file = self.files[name]
        offset = PAGE * self.dice.randrange(len(file.data) // PAGE + 1)
        data = self.bytes(PAGE * self.dice.randrange(1, 65))
        self.note(f"  aio {name} {offset} {len(data)}")
        size = self.agent.aio(self.path(name), data, offset)
        self.put(file, offset, data)
        equal(size, len(file.data), f"stat of {name} right behind the write")
        return None

    def truncate(self):
        name = self.choose(self.live())
        if name:
            length = min(self.some_length(), LONGEST)
            self.note(f"  truncate {name} {length}")
            os.truncate(self.path(name), length)
            data = self.files[name].data
            del data[length:]
            data.extend(bytes(length - len(data)))

    def punch(self):
        name = self.choose(self.live())
        if name and self.files[name].data:
            data = self.files[name].data
            offset = self.dice.randrange(len(data))
            length = min(self.dice.randrange(1, 100000), len(data) - offset)
            self.note(f"  punch {name} {offset} {length}")
            run("fallocate", "-p", "-o", offset, "-l", length, self.path(name))
            data[offset : offset + length] = bytes(length)

    # --- mappings whose descriptor is closed

    def map(self):
        name = self.choose(name for name in self.live() if self.files[name].data)
        if name and len(self.mappings) < 20:
            file = self.files[name]
            number = self.agent.map(self.path(name), len(file.data))
            self.note(f"  map {name} {len(file.data)}: {number}")
            self.mappings[number] = [file, len(file.data)]

    def store(self):
        number = self.choose(self.mappings)
        if number is None:
            return self.map()
        file, length = self.mappings[number]
        length = length if file is None else min(length, len(file.data))
        if length == 0:
            return None
        offset = self.dice.randrange(length)
        data = self.bytes(self.dice.randrange(1, 20000))[: length - offset]
        self.note(f"  store {number} {offset} {len(data)}")
        self.agent.store(number, offset, data)
        if file is not None:  # None: the mapped file was sealed, and the store must not reach the step
            self.put(file, offset, data)
        if self.dice.random() < 0.3:
            self.agent.msync(number)
        elif file is not None and self.dice.random() < 0.3:
            same_bytes(self.agent.load(number, 0, length), bytes(file.data[:length]), f"mapping {number}")
        return None

    def unmap(self):
        number = self.choose(self.mappings)
        if number is not None:
            self.agent.unmap(number)
            del self.mappings[number]

    # --- names

    def rename(self):
        name, to = self.choose(self.movable()), self.new_name()
        if (
            not name
            or to == name
            or (to in self.files and (self.files[to].frozen or self.files[to] is self.files[name]))
        ):
            return
        self.note(f"  rename {name} {to}")
        os.rename(self.path(name), self.path(to))
        self.files[to] = self.files.pop(name)

    def link(self):
        frozen = [name for name, file in self.files.items() if file.frozen and not self.plain and not self.sealed(name)]
        name = self.choose(self.movable() + frozen)
        to = f"work/link{self.dice.randrange(6)}"
        if name and to not in self.files:
            self.note(f"  link {name} {to}")
            os.link(self.path(name), self.path(to))
            self.files[to] = self.files[name]

    def sealed(self, name):
        return self.in_step(name) and self.steps[self.tag_of(name)]

    def copy(self):
        """Copies any file to a live name, by cp or by reading and writing."""
        name, to = self.choose(self.files), self.new_name()
        if (
            not name
            or name == to
            or (to in self.files and (self.files[to].frozen or self.files[to] is self.files[name]))
        ):
            return
        how = self.dice.choice(("cp", "copyfile", "cp --reflink=never"))
        self.note(f"  {how} {name} {to}")
        if how == "copyfile":
            shutil.copyfile(self.path(name), self.path(to))
        else:
            run(*how.split(), self.path(name), self.path(to))
        self.files.setdefault(to, File()).data[:] = self.files[name].data

    def load(self):
        """Loads as DeepSpeed does: copies a step's swap files over the live ones, which truncates them."""
        tag = self.choose(self.steps)
        for name in sorted(self.files):
            if tag and name.startswith(f"steps/{tag}/offloaded_tensors/rank00/"):
                to = f"{STAGE}/optimizer/rank0/{os.path.basename(name)}"
                if to in self.files and self.files[to].frozen:
                    continue
                shutil.copyfile(self.path(name), self.path(to))
                self.files.setdefault(to, File()).data[:] = self.files[name].data

    def remove_file(self):
        names = [
            name
            for name in self.files
            if not self.in_step(name) or (not self.sealed(name) and not (self.plain and self.files[name].frozen))
        ]
        name = self.choose(names)
        if name and len(self.live()) > 5:
            self.note(f"  unlink {name}")
            os.unlink(self.path(name))
            del self.files[name]

    # --- steps

    def save(self):
        state = {name: file for name, file in self.files.items() if name.startswith(STAGE) and name_in_step(name)}
        if not state:
            return self.create()
        while len(self.steps) > 7:
            self.remove_step()
        self.tags += 1
        tag = f"global_step{self.tags}"
        self.note(f"  save {tag}")
        if self.dice.random() < 0.3:
            self.path(f"steps/{tag}").mkdir()
            write(self.path(f"steps/{tag}/mp_rank_00_model_states.pt"), b"model")
            self.files[f"steps/{tag}/mp_rank_00_model_states.pt"] = File(b"model")
        self.mount.save(tag)
        self.steps[tag] = False
        for name, file in state.items():
            self.files[f"steps/{tag}/{name_in_step(name)}"] = File(file.data, frozen=True)
        self.check_step(tag)
        return None

    def extra_file(self):
        """Makes a file of the framework's own in a step that is not sealed."""
        tag = self.choose(tag for tag, sealed in self.steps.items() if not sealed)
        if tag:
            self.replace_content(f"steps/{tag}/extra{self.dice.randrange(3)}.pt", self.bytes(self.some_length()))

    def seal(self):
        tag = self.choose(tag for tag, sealed in self.steps.items() if not sealed)
        if not tag:
            return
        mine = {name: file for name, file in self.files.items() if name.startswith(f"steps/{tag}/")}
        live = [file for file in mine.values() if not file.frozen]
        mapped = [file for file, _ in self.mappings.values() if file is not None and any(file is one for one in live)]
        held = [file for file in live if file.writers]
        self.note(f"  seal {tag}, {len(mapped)} mapped, {len(held)} held")
        if held:
            with raises(errno.EBUSY, what=f"seal of {tag} with a writer"):
                self.mount.seal(f"steps/{tag}")
            return
        if not wait_for_seal(self.mount, f"steps/{tag}", may_fail=bool(mapped)):
            return
        self.steps[tag] = True
        self.freeze(mine)
        self.check_step(tag)

    def freeze(self, mine):
        """Freezes the files in the step. If a file has another name outside, that name keeps the live file."""
        copies = {}
        for name, file in mine.items():
            outside = any(other is file for path, other in self.files.items() if path not in mine)
            if file.frozen:
                continue
            if id(file) not in copies:
                copies[id(file)] = File(file.data, frozen=True)
                for mapping in self.mappings.values():
                    if mapping[0] is file and not outside:
                        mapping[:] = [None, min(mapping[1], len(file.data))]
            self.files[name] = copies[id(file)]
        for descriptor, file in list(self.readers):
            if id(file) in copies:
                os.close(descriptor)
                self.readers.remove((descriptor, file))

    def remove_step(self):
        tag = self.choose(self.steps)
        if tag:
            self.note(f"  rm -r {tag}")
            self.mount.remove_step(f"steps/{tag}")
            del self.steps[tag]
            for name in [name for name in self.files if name.startswith(f"steps/{tag}/")]:
                del self.files[name]
            true(not self.path(f"steps/{tag}").exists(), f"{tag} is gone")

    def rename_step(self):
        tag = self.choose(self.steps)
        if tag:
            self.tags += 1
            to = f"global_step{self.tags}"
            self.note(f"  rename step {tag} {to}")
            self.mount.rename_step(f"steps/{tag}", f"steps/{to}")
            self.steps[to] = self.steps.pop(tag)
            for name in [name for name in self.files if name.startswith(f"steps/{tag}/")]:
                self.files[f"steps/{to}/{name.split('/', 2)[2]}"] = self.files.pop(name)
            self.check_step(to)

    def write_into_a_step(self):
        """Tries all ways of writing; each must fail with EPERM."""
        name = self.choose(name for name, file in self.files.items() if file.frozen)
        if not name:
            return
        self.note(f"  try to write into {name}")
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_DIRECT, os.O_WRONLY | os.O_TRUNC):
            with raises(errno.EPERM, what=f"open of {name} with {flags:o}"):
                os.open(self.path(name), flags)
        with raises(errno.EPERM, what=f"truncate of {name}"):
            os.truncate(self.path(name), 5)
        if self.sealed(name):
            with raises(errno.EPERM, what=f"a new file beside {name}"):
                os.open(self.path(name).parent / "new", os.O_CREAT | os.O_WRONLY)
        same_bytes(read(self.path(name)), bytes(self.files[name].data), name)

    # --- open files

    def hold_reader(self):
        name = self.choose(self.files)
        if not name:
            return
        if len(self.readers) > 30:
            os.close(self.readers.pop(0)[0])
        self.note(f"  hold a reader of {name}")
        self.readers.append((os.open(self.path(name), os.O_RDONLY), self.files[name]))

    def hold_writer(self):
        name = self.choose(self.live())
        if not name:
            return
        if len(self.writers) > 3:
            descriptor, file = self.writers.pop(0)
            os.close(descriptor)
            file.writers -= 1
        self.note(f"  hold a writer of {name}")
        self.writers.append((os.open(self.path(name), os.O_RDWR), self.files[name]))
        self.files[name].writers += 1

    def use_writer(self):
        if self.writers:
            descriptor, file = self.dice.choice(self.writers)
            offset, data = self.dice.randrange(LONGEST // 2), self.bytes(self.dice.randrange(1, 50000))
            self.note(f"  held writer: pwrite {offset} {len(data)}")
            pwrite_all(descriptor, data, offset)
            self.put(file, offset, data)
            equal(os.fstat(descriptor).st_size, len(file.data), "fstat behind it")

    def look(self):
        """Reads through the readers that are held open, and one file by name."""
        for descriptor, file in self.readers:
            offset = self.dice.randrange(LONGEST)
            same_bytes(
                os.pread(descriptor, 50000, offset),
                bytes(file.data[offset : offset + 50000]),
                f"a held reader at {offset}",
            )
            equal(os.fstat(descriptor).st_size, len(file.data), "fstat of a held reader")
        name = self.choose(self.files)
        if name:
            same_bytes(read(self.path(name)), bytes(self.files[name].data), name)
            equal(os.stat(self.path(name)).st_size, len(self.files[name].data), f"size of {name}")

    def let_go(self):
        for descriptor, file in self.readers + self.writers:
            os.close(descriptor)
            file.writers = 0
        self.readers.clear()
        self.writers.clear()
        for number in self.mappings:
            self.agent.unmap(number)
        self.mappings.clear()

    def remount(self):
        self.let_go()
        self.mount.remount()
        self.check_all()

    # --- checking

    def check_step(self, tag):
        for name in sorted(self.files):
            if name.startswith(f"steps/{tag}/"):
                same_bytes(read(self.path(name)), bytes(self.files[name].data), name)

    def check_all(self):
        equal(names_below(self.mount.path), sorted(self.files), "all names")
        for name, file in sorted(self.files.items()):
            same_bytes(read(self.path(name)), bytes(file.data), name)
            equal(os.stat(self.path(name)).st_size, len(file.data), f"size of {name}")

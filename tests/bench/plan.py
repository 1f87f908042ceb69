"""What a run measures: its sizes, its bars, and the folders that its parts share."""

import collections.abc
import contextlib
import dataclasses
import pathlib

import machine
import measure
import mounting

GIB, MIB, KIB = mounting.GIB, mounting.MIB, mounting.KIB


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes, which --quick reduces."""

    image: int
    one_file: int
    four_files: int  # size of each
    save_shapes: tuple  # (number of files, bytes of each)
    names: int  # files in the folder for the operations on names
    copied_files: int
    copied_size: int  # of each file
    viewed: int  # bytes of the model whose views are read
    offloaded_width: int  # of DeepSpeed's model: 9 layers of its square, 12 bytes per parameter
    listed_steps: int
    files_a_step: int  # in each of those steps
    removed_files: int  # in one step
    moved: int  # bytes of a checkpoint that is loaded and saved past the mount
    other_image: int  # for a file system other than XFS
    planned_ranks: int  # of the group whose plan is made
    remote: int  # bytes of the file that is read from a remote
    parameters: int  # of a large model
    unchanged_saves: int = 50
    saves_of_a_run: int = 300  # of which older ones are thinned


FULL = Sizes(11 * GIB, 512 * MIB, 128 * MIB, ((24, 64 * MIB), (2000, 512 * KIB)), 10_000, 6, 64 * MIB, 2 * GIB, 3072,
             1_000, 500, 10_000, GIB, 3 * GIB, 4096, 4 * GIB, 1_000_000_000)
QUICK = Sizes(2 * GIB, 128 * MIB, 32 * MIB, ((24, 8 * MIB), (200, 512 * KIB)), 1_000, 4, 8 * MIB, 256 * MIB, 1024,
              100, 100, 1_000, 256 * MIB, GIB, 256, 512 * MIB, 40_000_000, saves_of_a_run=120)


@dataclasses.dataclass
class Context:
    """One run: sizes and number of rounds, the folders, and the results, in the order of the report."""

    sizes: Sizes
    pairs: int
    work: pathlib.Path | None = None
    disk: pathlib.Path | None = None
    other: pathlib.Path | None = None  # the command of another version
    results: list = dataclasses.field(default_factory=list)  # (section, Row | Limit | Missing)
    memory: dict = dataclasses.field(default_factory=dict)  # part -> (VmRSS, VmHWM) at its end
    place: str = ""  # added to each section's title if its image is in another place than that of the others
    listener: collections.abc.Callable = lambda _section, _result: None  # called with each result

    def add(self, section, result):
        section += self.place
        self.results.append((section, result))
        self.listener(section, result)

    def rounds(self, contestants):
        return measure.rounds(contestants, self.pairs)

    @contextlib.contextmanager
    def mounted(self, title, mode, odirect, name="store", options=(), binary=None):
        """Mounts a fresh store on the disk. At the end the daemon's memory is noted and the store is removed."""
        store = mounting.Store(self.disk / name)
        options = ("quiet=30s", *options)
        point = self.work / f"mnt-{name}"
        with mounting.mounted(store, point, mode=mode, odirect=odirect, options=options, binary=binary) as mount:
            yield mount
            self.memory[title + self.place] = machine.daemon_memory(mount.pid)
        mounting.run("rm", "-r", store.folder)
        machine.sync_filesystem(self.disk)


def data_bar():
    """The bar for passthrough: 0.95 of native, or 0.90 with only 2 cores."""
    return measure.Bar(0.90 if machine.cores() <= 2 else 0.95, at_least=True)


DAEMON_BAR = measure.Bar(0.85, at_least=True)  # through the daemon, with any alignment
WRONG_GUESS_BAR = measure.Bar(1.05, at_least=False)  # of the time without adoption
VIEW_BAR = measure.Bar(0.30, at_least=True)  # of cat of the bytes that the view is made from
COLD_VIEW_BAR = measure.Bar(0.90, at_least=True)
THIN_BAR = measure.Bar(1.2, at_least=False)  # of the time that fio takes for the same bytes
THIN_SPACE_BAR = measure.Bar(1.02, at_least=False)  # of the file of weights
THIN_RUN_BAR = measure.Bar(1.05, at_least=False)  # of the space that theory says
REMOVAL_BAR = measure.Bar(0.10, at_least=False)  # of rm -rf of as many files
SAVE_BAR = measure.Bar(1.0, at_least=False)  # of the time of cp -r --reflink=always plus sync
GROWTH_LIMIT = 8 * MIB  # of df, over all saves of an unchanged state
PAST_BAR = measure.Bar(0.85, at_least=True)  # of fio on the same device
GROUP_BAR = measure.Bar(0.8, at_least=False)  # of the better of DCP's ways
AUTO_BAR = measure.Bar(1.1, at_least=False)  # of the better of the two ways to load
LOADER_BAR = measure.Bar(0.90, at_least=False)  # of each other loader, from the disk
COPY_BAR = measure.Bar(1.20, at_least=False)  # of read(2) of the same bytes, from the page cache
PUSH_BAR = measure.Bar(0.85, at_least=True)  # of a bare client with as many requests at a time
PUSH_MEMORY = 64 * MIB  # beside the daemon's own
CHANGED_LIMIT = 0.12  # of the bytes of a step of which a tenth changed
REMOTE_READ_BAR = measure.Bar(0.85, at_least=True)  # of a bare client with as many requests at a time
REMOTE_CACHE_BAR = measure.Bar(0.90, at_least=True)  # of cat of the cache's own file
REMOTE_MEMORY = 256 * MIB
BESIDE_PUSH_BAR = measure.Bar(1.03, at_least=False)  # of the trainer's steps without a remote

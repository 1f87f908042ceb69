"""The demo: a DeepSpeed run on a ckptfs mount, step by step, for a person to read. scripts/demo starts it."""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import forked_ranks
import harness

sys.path.append(str(harness.REPOSITORY / "tests" / "remote"))

import seaweed
from leftovers import loops_of, mounts_below
from mounting import device_stat

CKPTFS = str(harness.BUILD / "ckptfs")
MODEL = ["--width", "1536", "--layers", "6"]
ODD_MODEL = ["--shape", "odd"]
STEPS = 6
TAG = f"global_step{STEPS}"
SAVED = f"saved{STEPS}"
FICLONE = 0x40049409


# --- output


class Screen:
    """Prints headings, commands and tables. Only a terminal gets colour and a line of progress."""

    def __init__(self):
        self.terminal = sys.stdout.isatty()
        self.color = self.terminal and "NO_COLOR" not in os.environ
        self.number = 0

    def paint(self, code, text):
        return f"\033[{code}m{text}\033[0m" if self.color else text

    def heading(self, text):
        self.number += 1
        print("\n" + self.paint("1;36", f"{self.number}. {text}"), flush=True)

    def say(self, text=""):
        print(f"   {text}" if text else "", flush=True)

    def command(self, *words):
        print("   " + self.paint("1", "$ " + " ".join(str(word) for word in words)), flush=True)

    def progress(self, text):
        if self.terminal:
            print(f"\r\033[K   {self.paint('2', text)}", end="", flush=True)

    def end_progress(self):
        if self.terminal:
            print("\r\033[K", end="", flush=True)

    def table(self, header, rows, marks=None):
        """Prints columns of the width that they need. marks: row number -> colour."""
        widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

        def line(row):
            first, *others = (cell.ljust(width) if index == 0 else cell.rjust(width)
                              for index, (cell, width) in enumerate(zip(row, widths)))
            return "  ".join([first, *others])

        self.say(self.paint("2", line(header)))
        for index, row in enumerate(rows):
            self.say(self.paint(marks[index], line(row)) if marks and index in marks else line(row))


def amount(count):
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} KB"


def seconds(value):
    return f"{value:.3f} s" if value < 10 else f"{value:.1f} s"


# --- commands and places


class Problem(Exception):
    """The demo cannot continue. The message says why, and what to do."""


def run(*words, cwd=None):
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise Problem(f"{' '.join(str(word) for word in words)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def has_reflink(folder):
    source, target = folder / ".probe", folder / ".probe-clone"
    try:
        source.write_bytes(b"x" * 4096)
        with open(source, "rb") as one, open(target, "wb") as other:
            fcntl.ioctl(other, FICLONE, one.fileno())
        return True
    except OSError:
        return False
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)


class Places:
    """Everything that the demo makes, all below one folder, and its removal."""

    def __init__(self, folder):
        self.folder = folder / "ckptfs-demo"
        self.store, self.mount = self.folder / "store", self.folder / "ckpt"
        self.plain, self.tmpfs, self.backup = self.folder / "plain", self.folder / "tmpfs", self.folder / "backup"
        self.image = self.folder / "plain.xfs"
        self.scratch = self.folder / "results"

    def make(self):
        for path in (self.store, self.mount, self.plain, self.tmpfs, self.backup, self.scratch):
            path.mkdir(parents=True)
        need, free = 5 << 30, shutil.disk_usage(self.folder).free
        if free < need:
            raise Problem(f"{self.folder} has {free / 1e9:.1f} GB free, the demo wants {need / 1e9:.1f}; give a folder")

    def mount_plain(self):
        """Mounts an XFS on a loop device: what an image of ckptfs has below it, without ckptfs."""
        with open(self.image, "wb") as image:
            os.posix_fallocate(image.fileno(), 0, 2 << 30)
        device = run("losetup", "--show", "-f", self.image).strip()
        subprocess.run(["losetup", "--direct-io=on", device], capture_output=True, check=False)  # as ckptfs does
        run("mkfs.xfs", "-q", "-f", device)
        run("mount", device, self.plain)

    def mounted(self):
        return str(self.mount) in mounts_below(self.folder)

    def take_down(self):
        """Removes everything, including what a killed demo, or one with --keep, left."""
        if self.mounted():
            run(CKPTFS, "umount", self.mount)
        for point in mounts_below(self.folder):
            run("umount", point)
        for loop in loops_of(self.folder):
            subprocess.run(["losetup", "-d", loop], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


# --- the acts


class Demo:
    def __init__(self, places, screen, log):
        self.places, self.screen, self.log = places, screen, log
        self.ground = None  # the folder whose file system the store is on
        self.ours = self.theirs = None

    def train(self, what, name, swap, *arguments):
        """Runs one training, and returns its result."""
        return self.train_together([(what, name, swap, *arguments)])[0]

    def train_together(self, runs):
        """Runs trainings at the same time, and shows the steps of one as they come. Returns the results. DeepSpeed's own
        output goes to the log."""
        with open(self.log, "ab") as output, contextlib.ExitStack() as running:
            started = [self.start(output, running, *run) for run in runs]
            start = time.monotonic()
            try:
                for what, progress, _, processes in started:
                    while processes[0].poll() is None:
                        lines = progress.read_text().splitlines()
                        now = lines[-1] if lines else "loading torch and DeepSpeed"
                        self.screen.progress(f"{what}: {now} ({time.monotonic() - start:.0f} s)")
                        time.sleep(0.1)
            finally:
                self.screen.end_progress()
            for *_, processes in started:
                harness.wait_for_ranks(processes, self.log)
        return [json.loads(pathlib.Path(f"{out}.0").read_text()) for _, _, out, _ in started]

    def start(self, output, running, what, name, swap, *arguments):
        progress, out = self.places.scratch / f"{name}.progress", self.places.scratch / name
        progress.touch()
        words = ["--nvme", str(swap), "--progress", str(progress), "--out", str(out), *map(str, arguments)]
        output.write(f"\n=== {what}: train.py {' '.join(words)}\n".encode())
        output.flush()
        processes = harness.ranks_running(1, words, output, forked=forked_ranks.DEEPSPEED)
        return what, progress, out, running.enter_context(processes)

    def mount(self):
        places, screen = self.places, self.screen
        screen.heading("Mount")
        screen.say(f"All of this happens in {places.folder}.")
        reflink = has_reflink(places.store)
        if not reflink:
            screen.say("That is on a file system without reflink, so the store gets an image (XFS).")
        self.mount_store()
        self.ground = places.store if reflink else places.store / "fs"
        status = json.loads(run(CKPTFS, "status", "--json", places.mount))
        passthrough = status["passthrough"]
        screen.say(f"passthrough: {'on' if passthrough['active'] else 'off'}"
                        + (f" ({passthrough['reason']})" if passthrough.get("reason") else ""))
        alignment = status["alignment"]
        if alignment["harmful"]:
            screen.say(f"The device wants memory aligned to {alignment['memory']} bytes, and DeepSpeed does not keep "
                            "to that:")
            screen.say("its O_DIRECT is served by the daemon, which takes any alignment (more on that below).")
        places.mount_plain()

    def mount_store(self):
        log = ["-o", "quiet=0s", "--log", self.log.with_name("demo-ckptfs.log")]
        words = [*([] if has_reflink(self.places.store) else ["--image", "2G"]), "store", "ckpt"]
        self.screen.command("ckptfs", "mount", *words)
        run(CKPTFS, "mount", *log, *words, cwd=self.places.folder)

    def run_both(self):
        screen, places = self.screen, self.places
        screen.heading("Train, and save at the end in both ways: on plain XFS, and on the mount")
        screen.say('ds_config: "zero_optimization": {"stage": 3,')
        for what in ("optimizer", "param"):
            end = "}}" if what == "param" else "},"
            screen.say(f'    "offload_{what}": {{"device": "nvme", "nvme_path": "ckpt"{end}')
        screen.say('engine.save_checkpoint("ckpt/steps")      # DeepSpeed as it is, nothing patched')
        common = [*MODEL, "--steps", STEPS, "--tag", TAG]
        places.plain.joinpath("steps").mkdir()
        self.theirs = self.train("plain XFS", "plain", places.plain, *common, "--save", places.plain / "steps",
                                 "--measure", places.plain, device_stat(places.plain))
        self.ours = self.train("ckptfs", "ckptfs", places.mount, *common, "--save", places.mount / "steps",
                               "--xattr-save", places.mount / "steps", SAVED,
                               "--measure", self.ground, device_stat(self.ground))
        self.losses(["plain XFS", "ckptfs"], [self.theirs, self.ours])
        equal = [key for key in ("losses", "groups", "parameters") if self.theirs[key] == self.ours[key]]
        if len(equal) != 3:
            raise Problem(f"the two runs differ, and should not: only {equal} are equal; see {self.log}")
        screen.say(screen.paint("32", "Equal to the last bit: every loss, every weight, every moment of Adam."))

    def losses(self, names, results, marks=None):
        first = results[0].get("resumed_at", 0)
        header = ["loss at step", *(str(first + step + 1) for step in range(len(results[0]["losses"])))]
        rows = [[name, *(f"{float.fromhex(loss):.6f}" for loss in result["losses"])]
                for name, result in zip(names, results)]
        self.screen.table(header, rows, marks)

    def costs(self):
        screen, places = self.screen, self.places
        screen.heading("What each way of saving cost")
        swap = places.plain / harness.SWAP / "optimizer" / "rank0"
        copy = measure_copytree(swap, places.plain / "copy", places.plain)
        shutil.rmtree(places.plain / "copy")
        state = sum(self.ours["state_files"].values())
        rows = [["plain XFS: shutil.copytree of the swap files", copy],
                ["plain XFS: engine.save_checkpoint", self.theirs["save_cost"]],
                ["ckptfs: engine.save_checkpoint", self.ours["save_cost"]],
                ["ckptfs: setfattr -n user.ckptfs.save", self.ours["xattr_cost"]]]
        screen.table(["", "returned", "on the disk", "written to the device"],
                     [[name, seconds(cost["returned"]), seconds(cost["synced"]), amount(cost["bytes"])]
                      for name, cost in rows], {len(rows) - 1: "32"})
        screen.say(f"Optimizer state: {amount(state)}. \"On the disk\" includes a sync; a save by setfattr is durable when "
                   "it returns.")
        screen.say("save_checkpoint is a Python copytree inside: ckptfs compares what it writes with what is there already, "
                   "and writes what differs.")

    def look(self):
        screen, places = self.screen, self.places
        screen.heading("Look: a step is an ordinary directory, in DeepSpeed's own layout")
        self.show("ckptfs", "ls", "ckpt")
        self.show("ls", f"ckpt/steps/{TAG}", f"ckpt/steps/{TAG}/offloaded_tensors/rank00")
        self.show("du", "-sh", f"ckpt/steps/{TAG}", f"ckpt/steps/{SAVED}")
        screen.say(f"(du counts shared blocks in each: {SAVED} shares all of its blocks with the live swap files)")
        self.show("df", "-h", "ckpt")
        screen.say("A save is one line, in any language:")
        screen.command("setfattr", "-n", "user.ckptfs.save", "-v", "again", "ckpt/steps")
        start = time.monotonic()
        os.setxattr(places.mount / "steps", "user.ckptfs.save", b"again")
        screen.say(f"{time.monotonic() - start:.3f} s")

    def show(self, *words):
        """Runs a command in the demo's folder, and shows its output."""
        self.screen.command(*words)
        for line in run(CKPTFS if words[0] == "ckptfs" else words[0], *words[1:], cwd=self.places.folder).splitlines():
            self.screen.say(line)

    def copy_out(self):
        screen = self.screen
        screen.heading("Copy a step out: a complete DeepSpeed checkpoint, and nothing else")
        start = time.monotonic()
        self.show("cp", "-r", f"ckpt/steps/{TAG}", "backup/")
        screen.say(f"{time.monotonic() - start:.2f} s")
        self.show("diff", "-r", f"ckpt/steps/{TAG}", f"backup/{TAG}")
        screen.say("No difference. And the save by setfattr, taken at the same moment, holds the same tensors:")
        self.show("diff", "-r", f"ckpt/steps/{TAG}/offloaded_tensors", f"ckpt/steps/{SAVED}/offloaded_tensors")
        screen.say("No difference.")

    def views(self):
        screen = self.screen
        screen.heading("The same step as a model, and its tensors by name: files that cost nothing until they are read")
        self.show("ls", f"ckpt/views/steps/{TAG}")
        self.show("ls", "-sh", f"ckpt/views/steps/{TAG}/by_name/layers.0.weight")
        start = time.monotonic()
        self.show("cp", f"ckpt/views/steps/{TAG}/model.bf16.safetensors", "backup/")
        screen.say(f"{time.monotonic() - start:.2f} s. The weights of all swap files, cast while they are read; "
                   "DeepSpeed's zero_to_fp32.py")
        screen.say("cannot read such a step.")

    def resume(self):
        screen, places = self.screen, self.places
        screen.heading("Resume in a new process")
        results = self.train_together([(f"{name}, resumed", f"{name}-resumed", root, *MODEL, "--steps", 3, "--tag", TAG,
                                        "--resume", root / "steps")
                                       for name, root in (("plain XFS", places.plain), ("ckptfs", places.mount))])
        self.losses(["plain XFS, resumed", "ckptfs, resumed"], results)
        if results[0]["losses"] != results[1]["losses"]:
            raise Problem(f"the resumed runs differ, and should not; see {self.log}")
        screen.say(screen.paint("32", f"Both went on from step {results[1]['resumed_at']}, equal to the last bit."))
        screen.say("(DeepSpeed itself drops Adam's moments when it loads from NVMe, here and there alike: the loss shows it. "
                   "With")
        screen.say("`python -m ckptfs.patch train.py` nothing is dropped: docs/deepspeed.md.)")

    def comes_back(self):
        screen, places = self.screen, self.places
        screen.heading("A step leaves, the store is deleted, the step comes back")
        store = places.folder / "seaweed"
        store.mkdir()
        with seaweed.seaweed(store) as server:
            server.make_bucket()
            url, s3 = f"s3://{seaweed.BUCKET}/demo", ("--endpoint", server.endpoint)
            self.show("ckptfs", "remote", "add", url, "ckpt/steps", *s3)
            self.show("ckptfs", "push", "--wait", f"ckpt/steps/{TAG}")
            self.show("ckptfs", "remote", "status", "ckpt")
            before = harness.checkpoint_files(places.mount / "steps" / TAG, [self.ours])
            self.show("ckptfs", "umount", "ckpt")
            screen.command("rm", "-r", "store")
            shutil.rmtree(places.store)
            places.store.mkdir()
            self.mount_store()
            self.show("ckptfs", "fetch", f"{url}/{TAG}", "ckpt/steps", *s3)
        if harness.checkpoint_files(places.mount / "steps" / TAG, [self.ours]) != before:
            raise Problem(f"the step that came back is another one; see {self.log}")
        screen.say(screen.paint("32", "Every file is as it was."))
        result = self.train("resumed from what came back", "fetched-resumed", places.mount, *MODEL, "--steps", 1, "--tag",
                            TAG, "--resume", places.mount / "steps")
        self.losses(["ckptfs, fetched"], [result])

    def odd(self):
        screen, places = self.screen, self.places
        screen.heading("The shape that goes wrong without ckptfs")
        screen.say("Layers of 1100 x 1100: DeepSpeed reads gradients by O_DIRECT into buffers that are not aligned. This "
                   "device refuses")
        screen.say("that (EINVAL), DeepSpeed does not look, and trains on garbage. In memory (tmpfs) nothing can be "
                   "refused: the truth.")
        run("mount", "-t", "tmpfs", "-o", "size=1G", "tmpfs", places.tmpfs)
        roots = {"tmpfs": places.tmpfs, "plain XFS": places.plain / "odd", "ckptfs": places.mount / "odd"}
        for root in roots.values():
            root.mkdir(exist_ok=True)
        results = dict(zip(roots, self.train_together(
            [(f"{name}, odd shape", f"{name}-odd", root, *ODD_MODEL, "--steps", 5) for name, root in roots.items()])))
        for name, root in roots.items():
            shutil.rmtree(root, ignore_errors=name == "tmpfs")
        truth = results.pop("tmpfs")
        right = {name: result["losses"] == truth["losses"] for name, result in results.items()}
        marks = {index + 1: "32" if right[name] else "31" for index, name in enumerate(results)}
        names = ["tmpfs (the truth)", *(f"{name}: {'right' if right[name] else 'WRONG'}" for name in results)]
        self.losses(names, [truth, *results.values()], marks)
        if not right["ckptfs"]:
            raise Problem(f"ckptfs trained wrong; see {self.log}")
        if right["plain XFS"]:
            screen.say("On this machine plain XFS got it right too: its loop device takes any alignment.")
        else:
            screen.say("No error, no warning, no line in any log: only the numbers differ.")

    def where_next(self, keep):
        screen, places = self.screen, self.places
        screen.heading("Where to go on")
        screen.say("README.md               how to mount for your own training: two commands and one line of ds_config")
        screen.say("docs/                   how it works, what is stored how, benchmarks")
        screen.say("ckptfs doctor FOLDER    what this machine has and lacks")
        screen.say("scripts/test            checks all of it on this machine; scripts/bench measures")
        screen.say(f"{self.log}    what DeepSpeed said meanwhile")
        if keep:
            screen.say()
            screen.say(f"The mount is still up: {places.mount}. When done:")
            screen.command(f"{CKPTFS} umount {places.mount} && rm -r {places.folder}")


def measure_copytree(source, target, folder):
    import train

    return train.Cost((folder, device_stat(folder))).of(
        lambda: shutil.copytree(source, target, ignore=shutil.ignore_patterns("*gradient*")))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--remote", action="store_true")
    parser.add_argument("--log", type=pathlib.Path, required=True)
    parser.add_argument("folder", type=pathlib.Path)
    return parser.parse_args()


def stop(_signal, _frame):
    raise Problem("interrupted; all is taken down")


def play(demo, keep, remote):
    if remote:
        os.environ.update(seaweed.environment())  # before the daemon has its own
    demo.mount()
    demo.run_both()
    demo.costs()
    demo.look()
    demo.copy_out()
    demo.views()
    demo.resume()
    if remote:
        demo.comes_back()
    demo.odd()
    demo.where_next(keep)


def main():
    options = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    places, screen = Places(options.folder.resolve()), Screen()
    kept = False
    try:
        places.take_down()
        places.make()
        play(Demo(places, screen, options.log), options.keep, options.remote)
        kept = options.keep
    except (Problem, harness.Failure, OSError) as problem:
        screen.end_progress()
        print(f"demo: {problem}", file=sys.stderr)
        print(f"demo: the whole log: {options.log}", file=sys.stderr)
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if kept:
            release_plain(places)
        else:
            places.take_down()
    return 0


def release_plain(places):
    """With --keep, only the ckptfs mount stays."""
    for path in (places.plain, places.tmpfs):
        with contextlib.suppress(Problem):
            run("umount", path)
    for loop in loops_of(places.folder):
        if pathlib.Path(f"/sys/block/{loop[5:]}/loop/backing_file").read_text().strip() == str(places.image):
            run("losetup", "-d", loop)
    places.image.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())

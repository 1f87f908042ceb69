"""What the tests need to be built. Each build is one call of scripts/build, at most once in a run."""

import threading

import commands
from outcomes import LOGS, ROOT, log_path, read_log

# In the order in which they are built: preset and targets. `faults` has the daemon with fault points, `unit` the unit
# tests of the same preset.
NORMAL = {
    "release": ("release",),
    "faults": ("debug", "ckptfs", "helper_step_save"),
    "unit": ("debug",),
}
# A long run takes the sanitizers' build instead of the debug build.
LONG = NORMAL | {
    "faults": ("asan", "ckptfs", "helper_step_save"),
    "unit": ("asan",),
    "fuzz": ("fuzz", "fuzzers"),
    "clang": ("clang",),
    "headers": ("clang", "check_headers"),
    "tsan": ("tsan",),
}
VENV = ROOT / "tests" / "deepspeed" / "venv.sh"
NAMES = (*LONG, "venv")


def presets(level):
    return LONG if level == "long" else NORMAL


class Builds:
    """The wanted builds of a run. A thread builds; any thread may wait for a build."""

    def __init__(self, report, level, wanted):
        self.report, self.presets = report, presets(level)
        self.wanted = [name for name in NAMES if name in wanted]
        self.folder = LOGS / "builds"  # conftest.py reads there how a build ended
        self.folder.mkdir(parents=True)
        self.ended = {name: threading.Event() for name in self.wanted}
        self.succeeded = set()

    def run(self):
        try:
            for name in self.wanted:
                if name != "venv":
                    preset, *targets = self.presets[name]
                    words = [word for target in targets for word in ("--target", target)]
                    self._run(name, [ROOT / "scripts" / "build", "--preset", preset, *words])
        except BaseException:
            self.give_up()
            raise

    def run_venv(self):
        """Takes minutes the first time, and the tests that wait for it are long, so it runs beside the other builds."""
        if "venv" in self.wanted:
            self._run("venv", [VENV])

    def _run(self, name, command):
        log = log_path(f"build/{name}")
        ended = commands.execute(command, log)
        if ended.code == 0:
            self.succeeded.add(name)
        outcome = "ok" if ended.code == 0 else "FAIL"
        self.report.add(f"build/{name}", outcome, ended.seconds, log=read_log(log), count=False, processor=ended.processor)
        part = self.folder / f"{name}.part"
        part.write_text(outcome)
        part.rename(self.folder / name)
        self.ended[name].set()

    def give_up(self):
        """Nobody waits any longer."""
        for ended in self.ended.values():
            ended.set()

    def wait(self, name):
        """Returns whether the build succeeded."""
        self.ended[name].wait()
        commands.check_stopped()
        return name in self.succeeded

    def awaited(self):
        return [name for name in self.wanted if not self.ended[name].is_set()]

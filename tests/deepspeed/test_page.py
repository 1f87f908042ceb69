"""The page in Chromium while the real DeepSpeed trains: its steps appear, and rotation takes them away."""

import threading

import pytest

from browser import chromium
from checking import equal, true
from harness import Ckptfs, ranks_running, wait_for_ranks

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.timeout(900)]

SAVES = 8
QUIET = 1  # seconds


class Training(threading.Thread):
    def __init__(self, scene, series):
        super().__init__()
        self.scene, self.series, self.problem = scene, series, None

    def run(self):
        out = self.scene.work / "page"
        log = out.with_suffix(".log")
        words = ["--nvme", self.scene.point, "--series", self.series, "--saves", SAVES, "--out", out]
        try:
            with open(log, "wb") as output:
                with ranks_running(1, [str(word) for word in words], output, script="rotating.py") as processes:
                    wait_for_ranks(processes, log)
        except Exception as problem:  # noqa: BLE001 - told by who joins
            self.problem = problem


def test_steps_appear(scene, mode):
    with Ckptfs(mode=mode, options=(f"quiet={QUIET}s", "http=127.0.0.1:0")).place(scene) as mount, chromium() as browser:
        browser.open(f"http://{mount.status()['http']}/")
        browser.wait_for("the page", lambda: browser.text("h1") == ["ckptfs"])
        mount.control("steps", "keep_last", "3")
        training = Training(scene, mount.path / "steps")
        training.start()
        seen, counts = set(), set()
        try:
            while training.is_alive():
                training.join(0.2)
                tags = browser.run("return [...document.querySelectorAll('section.series td.name')].map(n => n.textContent)")
                seen |= set(tags)
                counts.add(len(tags))
        finally:
            training.join()
        if training.problem:
            raise training.problem
        rows = "return [...document.querySelectorAll('section.series tbody tr')].map(row => row.innerText)"
        kept = [f"global_step{number}" for number in range(SAVES, SAVES - 3, -1)]
        browser.wait_for("the steps that stay", lambda: [row.split()[0] for row in browser.run(rows)] == kept, 60)
        browser.wait_for("complete ones", lambda: all("complete" in row and "deepspeed" in row for row in browser.run(rows)), 30)
        true(len(counts) > 2, f"all at once: {counts}")
        true(len(seen) > 3, f"seen while it trained: {seen}")
        names = "return [...document.querySelectorAll('#saves td.name')].map(node => node.textContent)"
        true(set(kept) <= set(browser.run(names)), f"saves: {browser.run(names)}")
        equal(browser.errors(), [], "the console")
        scene.check_status(mount.status())

"""The page of a mount in a real headless Chromium, on a real store, while a training writes to it.

With CKPTFS_SCREENSHOTS=docs it makes the pictures of docs/watching.md.
"""

import os
import pathlib

from browser import chromium
from checking import equal, noise, true, write
from hugging import safetensors
from mounting import CKPTFS, KIB, MIB, Store, mounted, run, wait_until
from training import write_state

LOOPBACK = "http=127.0.0.1:0"
TAGS = "td.name"


def address(mount):
    return f"http://{mount.status()['http']}/"


def tags_of(browser, series):
    return browser.run("return [...document.querySelectorAll(`section[data-series='${arguments[0]}'] td.name`)]"
                       ".map(node => node.textContent)", series)


def row_of(browser, tag):
    return browser.run("return [...document.querySelectorAll('section.series tr')].map(row => row.innerText)"
                       ".find(text => text.startsWith(arguments[0])) || ''", tag)


def test_steps_appear_and_go(disk, work):
    with mounted(Store(disk / "appear"), work / "appear", options=(LOOPBACK,)) as mount, chromium() as browser:
        browser.open(address(mount))
        browser.wait_for("the page", lambda: browser.text("h1") == ["ckptfs"])
        true(str(mount.path) in browser.text("header")[0], "the mountpoint")
        true("No steps yet" in browser.text("section.series")[0], "an empty series")
        for number in range(1, 4):
            write_state(mount.path, number)
            mount.save(f"global_step{number}")
            newest = [f"global_step{n}" for n in range(number, 0, -1)]
            browser.wait_for(f"step {number}", lambda: tags_of(browser, "/steps") == newest)
        true("complete" in row_of(browser, "global_step2") and "swap state only" in row_of(browser, "global_step2"), "a row")
        equal(browser.run("return [...document.querySelectorAll('#saves td.name')].map(node => node.textContent)"), newest, "saves")
        mount.seal("steps/global_step1")
        browser.wait_for("sealed", lambda: "sealed" in row_of(browser, "global_step1"))
        mount.control("steps", "keep_last", "2")
        browser.wait_for("the rule", lambda: browser.text("section.series .pill.care") == ["keep_last=2"])
        write_state(mount.path, 4)
        mount.save("global_step4")
        browser.wait_for("rotation", lambda: tags_of(browser, "/steps") == ["global_step4", "global_step3"])
        run(CKPTFS, "rm", mount.path / "steps/global_step3")
        browser.wait_for("the removal", lambda: tags_of(browser, "/steps") == ["global_step4"])
        mount.control("steps", "max_bytes", "1")
        write_state(mount.path, 5)
        mount.save("global_step5")
        write_state(mount.path, 6)  # the step now owns the blocks that it shared with the live files
        browser.wait_for("a warning", lambda: any("max_bytes" in text for text in browser.text(".warnings li")))
        folder = mount.path / "runs/b/checkpoint-10"
        folder.mkdir(parents=True)
        write(folder / "model.safetensors", safetensors({"w": ("F32", [1], bytes(4))}))
        (folder / "trainer_state.json").write_text('{"global_step": 10}')
        browser.wait_for("another series", lambda: tags_of(browser, "/runs/b") == ["checkpoint-10"])
        browser.wait_for("how it was saved", lambda: "by files" in browser.text("#saves tr")[0])
        true("by save" in browser.text("#saves tr")[1], "how the one before was saved")
        equal(browser.errors(), [], "the console")
        mount.stop()
        browser.wait_for("the end", lambda: "does not answer" in " ".join(browser.text(".warnings.lost")))
        equal(tags_of(browser, "/runs/b"), ["checkpoint-10"], "what stood there before")
        mount.start()


def test_names_are_text(disk, work):
    """A name is shown as text, even if it looks like HTML."""
    with mounted(Store(disk / "names"), work / "names", options=(LOOPBACK,)) as mount, chromium() as browser:
        hostile = "<img src=x onerror=document.title='taken'>"
        write_state(mount.path, 1)
        mount.save(hostile)
        mount.save("`${7*7}`")
        browser.open(address(mount))
        browser.wait_for("the rows", lambda: set(tags_of(browser, "/steps")) == {hostile, "`${7*7}`"})
        equal((browser.run("return document.images.length"), "taken" in browser.run("return document.title")), (0, False), "taken")
        equal(browser.errors(), [], "the console")


def test_token_is_asked_for(disk, work):
    token = work / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    with mounted(Store(disk / "token"), work / "token-mnt", options=(LOOPBACK, f"http_token={token}")) as mount:
        with chromium() as browser:
            browser.open(address(mount))
            browser.wait_for("the refusal", lambda: "token" in " ".join(browser.text(".warnings.lost")))
            browser.open(address(mount) + "?token=0123456789abcdef")
            browser.wait_for("the page", lambda: browser.text("h1") == ["ckptfs"])
            equal(browser.run("return location.search"), "", "the token in the address bar")


def test_many_steps_are_folded(disk, work):
    with mounted(Store(disk / "many"), work / "many", options=(LOOPBACK,)) as mount, chromium(size=(420, 900)) as browser:
        for number in range(1, 71):
            folder = mount.path / f"steps/checkpoint-{number}"
            folder.mkdir()
            (folder / "trainer_state.json").write_text(f'{{"global_step": {number}}}')
        browser.open(address(mount))
        browser.wait_for("sixty", lambda: len(tags_of(browser, "/steps")) == 60)
        equal(tags_of(browser, "/steps")[0], "checkpoint-70", "the newest first")
        equal(browser.text("button"), ["Show 10 older steps"], "button")
        browser.run("document.querySelector('button').click()")
        equal(len(tags_of(browser, "/steps")), 70, "unfolded")
        width = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        true(width[0] <= width[1], f"a narrow page scrolls sideways: {width}")


def train(mount):
    """Makes a run with swapped optimizer states, half of which change in each step, and a Trainer's run."""
    for number in range(1, 11):
        write_state(mount.path, number, size=8 * MIB, groups=("0_2", "3_5") if number % 3 == 1 else ("0_2",))
        mount.save(f"global_step{100 * number}")
    mount.control("steps/global_step300", "pin", "1")
    mount.seal("steps/global_step500")
    mount.control("steps", "keep_last", "4")
    mount.control("steps", "keep_every", "500")
    for number, state in ((500, '{"global_step": 500}'), (1000, '{"global_step": 1000}'), (1500, '{"global_step":')):
        folder = mount.path / f"runs/small/checkpoint-{number}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(state)
        write(folder / "optimizer.pt", noise(number * 20 * KIB, number))


# The pictures must show the documentation's paths instead of the test's.
PLACES = """
const rename = () => document.querySelectorAll("header *").forEach(node => {
  if (node.children.length === 0) node.textContent = node.textContent
    .replace(arguments[0] + "/ckpt", "/ckpt").replace(arguments[0] + "/disk/pictures", "/data/store");
});
rename();
new MutationObserver(rename).observe(document.getElementById("page"), { childList: true });
"""


def test_pictures(disk, work):
    """Takes pictures in light and dark, which must differ. They are shown in docs/."""
    to = pathlib.Path(os.environ.get("CKPTFS_SCREENSHOTS", work))
    grounds = []
    with mounted(Store(disk / "pictures"), work / "ckpt", options=(LOOPBACK,)) as mount:
        train(mount)
        wait_until("two samples of the space", lambda: samples(mount) >= 2, 30, 0.5)
        for dark in (False, True):
            with chromium(dark=dark) as browser:
                browser.open(address(mount))
                browser.wait_for("the page", lambda: len(tags_of(browser, "/steps")) >= 5)
                grounds.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
                browser.run(PLACES, str(work))
                browser.screenshot(to / f"page-{'dark' if dark else 'light'}.png")
                equal(browser.errors(), [], "the console")
    true(grounds[0] != grounds[1], f"dark is light: {grounds}")


def samples(mount):
    import json
    import urllib.request

    with urllib.request.urlopen(address(mount) + "api/state", timeout=30) as answer:
        return len(json.load(answer)["space"])

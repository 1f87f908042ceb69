"""docs/json.md: each command that takes --json, and the fields that it prints."""

import json
import re
import subprocess

import pytest

import saving
from calling import ckptfs, status_is
from checking import equal, true, write
from mounting import CKPTFS, REPOSITORY, run, wait_until
from training import write_state
from viewing import SERIES, full_step, swapped_step

pytestmark = pytest.mark.mode("direct")

PAGE = REPOSITORY / "docs" / "json.md"
# What this test cannot make, or what takes too long. Other tests look at its content.
NOT_MADE = {
    "verify": "files[].damaged[].offset files[].damaged[].length",
    "fsck": "orphans[].name orphans[].bytes",
    "show": "why_no_tensors names_from step.remote",
    "remote mount": "trouble.text trouble.seconds last_failure.text last_failure.when",
}


class Fields:
    """The fields of a section of the page, as a tree: a list has one child, [], and a map one, *."""

    def __init__(self, optional=True):
        self.children, self.optional, self.anything, self.text = {}, optional, False, ""

    def add(self, name, optional, text):
        at = self
        for part in name.replace("[]", ".[]").split("."):
            at = at.children.setdefault(part, Fields())
            at.optional = at.optional and optional
        at.text = text

    def check(self, value, path, seen):
        """Adds the names of all fields in the value to `seen`."""
        if self.anything:
            return
        if path:
            seen.add(path)
        true(not isinstance(value, bool) or re.search(r"\?|always true", self.text), f"{path}: {value} answers no question")
        true(value is not None or "null" in self.text, f"{path}: the page does not say that it may be null")
        if isinstance(value, list):
            for one in value:
                if isinstance(one, dict):
                    true("[]" in self.children, f"{path}[] is not on the page")
                    self.children["[]"].check(one, f"{path}[]", seen)
        elif isinstance(value, dict) and "*" in self.children:
            for one in value.values():
                self.children["*"].check(one, f"{path}.*", seen)
        elif isinstance(value, dict):
            equal(sorted(set(value) - set(self.children)), [], f"fields of {path or 'the whole'} that are not on the page")
            lacking = [name for name, child in self.children.items() if not child.optional and name not in value]
            equal(lacking, [], f"fields of {path or 'the whole'} that the page promises")
            for name, one in value.items():
                self.children[name].check(one, f"{path}.{name}" if path else name, seen)


def sections():
    """Yields (heading, [(names of fields, optional, what they are)])."""
    for part in PAGE.read_text().split("\n## ")[1:]:
        rows = re.findall(r"^\| (.*?) ?\| (.*) \|$", part, re.M)
        yield part.splitlines()[0], [(re.findall(r"`([^`]+)`", names), "(?)" in names, text) for names, text in rows
                                     if not names.startswith(("---", "field"))]


def documented():
    """Returns the fields by command, and their names."""
    found, names_of, of_a_step = {}, {}, {}
    for heading, rows in sections():
        fields, texts = Fields(), {}
        for names, optional, text in rows:
            of_each = "](#a-step)" in text and "of each" in text
            said = {name: of_a_step[name.split(".")[-1]] if of_each else text for name in names}
            if "](#a-step)" in text and not of_each:
                said = {f"{top}.{name}" if top else name: of_it for top in names or [""] for name, of_it in of_a_step.items()}
            for name, of_it in said.items():
                fields.add(name, optional, of_it)
            if text.startswith("as `remote status`"):
                fields.children["remotes"].anything = True
            else:
                texts |= said
        if heading == "A step":
            of_a_step = texts
            continue
        for command in heading.split(", "):
            name = command.removeprefix("ckptfs ")
            found[name], names_of[name] = fields, set(texts)
    return found, names_of


class Printed:
    """Compares what commands print with the page."""

    def __init__(self):
        self.fields, self.names = documented()
        self.seen = {command: set() for command in self.fields}

    def says(self, command, *words, of=None):
        done = ckptfs(*command.split(), "--json", *words)
        if command != "doctor":  # which may find that the machine lacks something
            status_is(done, 0)
        return self.check(of or command, json.loads(done.stdout))

    def check(self, of, value):
        self.fields[of].check(value, "", self.seen[of])
        return value

    def is_all(self):
        for command, names in self.names.items():
            not_made = set(NOT_MADE.get(command, "").split())
            equal(sorted(names - not_made - self.seen[command]), [], f"fields of {command} that were not printed")
            equal(sorted(not_made - names | not_made & self.seen[command]), [], f"fields of {command} that NOT_MADE need not name")


def commands_with_json():
    for part in run(CKPTFS, "help", "--markdown").stdout.split("\n## ckptfs ")[1:]:
        if "| `--json` |" in part:
            yield part.splitlines()[0]


def test_the_page_has_each_command_that_takes_it():
    on_the_page = {name.partition(" --")[0] for name in documented()[0]}
    equal(sorted(on_the_page), sorted(commands_with_json()), "commands")


def test_ls_prints_no_column_that_is_not_on_the_page():
    columns = run(CKPTFS, "ls", "--help").stdout.partition("between them: ")[2].split()[0].split(",")
    equal([name for name in columns if f"steps[].{name}" not in documented()[1]["ls"]], [], "columns")


def without_a_mount(printed, scratch):
    printed.says("doctor", scratch)
    printed.says("debug bundle", "-o", scratch / "bundle.txt", "/proc")


def of_saves(printed, mount):
    write_state(mount.path)
    for tag in ("step_1", "step_2"):
        printed.says("save", tag, mount.path)
        write_state(mount.path, 1)
    steps = mount.path / "steps"
    printed.says("diff", steps / "step_1", steps / "step_2")
    printed.says("verify", steps)
    printed.says("verify --accept", steps)
    printed.says("rm", steps / "step_1")
    printed.says("show", steps / "step_2")
    swapped_step(mount.path / "ds" / "global_step5")
    printed.says("show", mount.path / "ds" / "global_step5")
    saving.save(mount.path / "ds", "step_9", "attempt")
    printed.says("show", "--timing", mount.path / "ds" / "step_9", of="show --timing")
    saving.save(mount.path / "ds", "step_10", "attempt")


def of_a_trainers_steps(printed, mount):
    series = mount.path / SERIES
    one = full_step(mount, 10)[0]
    write(full_step(mount, 5)[0] / "model.safetensors", b"cut off")
    (series / "not-a-step").mkdir()
    printed.says("policy", series, "--set", "keep_last=5")
    two = full_step(mount, 20)[0]
    wait_until("the rule acts", lambda: json.loads(ckptfs("policy", "--json", series).stdout)["is_armed"], 30, 0.2)
    for command in ("ls", "latest", "policy", "du"):
        printed.says(command, series)
    printed.says("state", two)
    printed.says("wait", series, "--for", "checkpoint-20")
    for command in ("pin", "unpin"):
        printed.says(command, one)
    printed.says("show", two)
    printed.says("show", series / "checkpoint-5")
    wait_until("nobody uses it", lambda: ckptfs("thin", "--dry-run", one).returncode == 0)
    printed.says("thin", "--dry-run", one)
    command = [CKPTFS, "watch", "--json", "--since", "0", mount.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        printed.check("watch", json.loads(watching.stdout.readline()))
        watching.kill()
    return one, two


def of_a_remote(printed, mount, older, step, scratch):
    series, url = mount.path / SERIES, f"file://{scratch}/there"
    printed.says("remote check", url)
    printed.says("remote add", url, series)
    printed.says("push", step)
    printed.says("push", "--wait", older, step)
    wait_until("the collector has run", lambda: mount.status()["remotes"][0]["collector"], 30, 0.1)
    printed.says("remote status", series)
    printed.says("status", mount.path)
    printed.says("ls", series)
    for command in ("check", "latest", "ls", "verify", "policy", "du", "gc"):
        printed.says(f"remote {command}", url)
    printed.says("remote ls", "--all", url)
    printed.says("remote latest", "--path", url)
    name = f"{url}/{step.name}"
    printed.says("remote pin", name)
    printed.says("remote pin", "--off", name)
    printed.says("remote export", name, scratch / "copy")
    (mount.path / "others").mkdir()
    printed.says("fetch", name, mount.path / "others")
    (scratch / "remote").mkdir()
    printed.says("remote mount", "--log", scratch / "log", "--cache", scratch / "cache", url, scratch / "remote")
    try:
        printed.says("status", scratch / "remote", of="remote mount")
    finally:
        printed.says("umount", scratch / "remote")
    printed.says("remote policy", url, "--set", "keep_last=1")
    printed.says("remote gc", "--dry-run", url)
    printed.says("remote rm", f"{url}/{older.name}")
    printed.says("remote remove", series)
    printed.says("seal", step)


def test_the_page_has_what_is_printed(mount, scratch):
    printed = Printed()
    (scratch / "there").mkdir()
    without_a_mount(printed, scratch)
    of_saves(printed, mount)
    steps = of_a_trainers_steps(printed, mount)
    of_a_remote(printed, mount, *steps, scratch)
    mount.stop()
    printed.says("mount", "--log", scratch / "log", mount.store.folder, mount.path)
    printed.says("umount", mount.path)
    printed.says("fsck", mount.store.folder)
    mount.start()
    printed.is_all()


def test_a_command_that_fails_prints_nothing_as_json(mount):
    for words in (("latest", mount.path), ("state", mount.path / "nothing"), ("save", "early", mount.path), ("du", mount.path / "nothing")):
        equal(status_is(ckptfs(words[0], "--json", *words[1:]), 1).stdout, "", words[0])
    write(mount.path / "file", b"")
    equal(json.loads(status_is(ckptfs("pin", "--json", mount.path / "file"), 1).stdout), {"pinned": []}, "of several steps")

"""What commands print for programs and for bug reports."""

import json

import pytest

from calling import ckptfs, status_is
from checking import equal, true, write
from mounting import mounted

pytestmark = pytest.mark.mode("direct")


@pytest.fixture
def steps(mount):
    swap = mount.path / "zero_stage_3" / "optimizer" / "rank0"
    swap.mkdir(parents=True)
    write(swap / "0_0.tensor.swp", bytes(8192))
    for tag in ("global_step1", "before lr-change"):
        mount.save(tag)
    return mount


def test_columns_of_ls(steps):
    rows = json.loads(ckptfs("ls", "--json", steps.path).stdout)["steps"]
    lines = status_is(ckptfs("ls", "-o", "tag,state,bytes,by,path", steps.path), 0).stdout.splitlines()
    equal(lines[0], "tag\tstate\tbytes\tby\tpath", "the header")
    equal(lines[1], f"global_step1\tcomplete\t{rows[0]['bytes']}\t{','.join(rows[0]['by'])}\t{steps.path}/steps/global_step1", "a line")
    equal(lines[2].split("\t")[:2], ["before lr-change", "complete"], "another line")
    equal(status_is(ckptfs("ls", "-H", "-o", "tag,metric", steps.path), 0).stdout.splitlines()[0], "global_step1\t", "no header")
    equal(len(status_is(ckptfs("ls", "-H", steps.path), 0).stdout.splitlines()), 2, "-H alone")
    status_is(ckptfs("ls", "-o", "tag,colour", steps.path), 2, "colour")


def test_every_column_is_a_field(steps):
    """`ckptfs ls -o` names the fields of --json, each of them."""
    said = ckptfs("ls", "--help").stdout
    names = said[said.index("between them: ") + 14 :].split()[0].split(",")
    rows = json.loads(ckptfs("ls", "--json", steps.path).stdout)["steps"]
    internal = {"full_because", "thins", "apparent", "perhaps_stale"}
    equal(sorted(set(rows[0]) - internal), sorted(set(names) - {"remote"}), "fields and columns")


def test_a_bundle_for_a_bug_report(store, work, scratch, monkeypatch):
    """Status, log and machine are in it; keys, tokens and contents are not."""
    (scratch / "token").write_text("a-very-secret-token-of-32-letters\n")
    (scratch / "token").chmod(0o600)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-very-secret-key")
    options = (f"http=127.0.0.1:0,http_token={scratch / 'token'}",)
    with mounted(store, work / "mnt-bundle", mode="direct", options=options) as mount:
        write(mount.path / "file-with-a-name", b"very secret content")
        done = status_is(ckptfs("debug", "bundle", "-o", scratch / "report.txt", mount.path), 0)
        true("read it before you send it" in done.stdout, done.stdout)
        equal((scratch / "report.txt").stat().st_mode & 0o777, 0o600, "who may read it")
        (scratch / "link").symlink_to(scratch / "token")
        for there in ("report.txt", "link"):
            status_is(ckptfs("debug", "bundle", "-o", scratch / there, mount.path), 1, "File exists")
        true("secret" in (scratch / "token").read_text(), "a link that somebody else has put there")
        text = (scratch / "report.txt").read_text()
        for wanted in ("==== uname -a", "doctor --json", f'"mountpoint": "{mount.path}"', "is mounted at", '"version"', "VmRSS"):
            true(wanted in text, f"{wanted} is not in it")
        for secret in ("a-very-secret", "very secret content"):
            true(secret not in text, f"{secret} is in it")
    status_is(ckptfs("debug", "bundle", "-o", scratch / "none.txt", "/proc"), 0)
    true("is not on a ckptfs mount" in (scratch / "none.txt").read_text(), "it says that there is no mount")
    status_is(ckptfs("debug", "bundle", "-o", scratch / "no" / "folder"), 1, "No such file")
    equal(json.loads(ckptfs("debug", "bundle", "--json", "-o", scratch / "again.txt", "/proc").stdout),
          {"file": str(scratch / "again.txt")}, "JSON")

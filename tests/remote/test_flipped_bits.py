"""Bits that flip on their way to S3 and back. What arrives damaged is sent, or asked for, again: it is in no commit, and
nobody reads it as right."""

import base64
import hashlib

import pytest

from checking import equal, true, write
from mounting import MIB, Store, mounted
from seaweed import BUCKET, FlippedPuts, Meddler, environment, flip
from test_commands import content_of, make_step, s3
from test_push import PIECE, QUIET, ckptfs, content, fill, status_of, tree, wait_for

pytestmark = [pytest.mark.builds("venv"),
              pytest.mark.one_mode, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


def kind_of(path):
    """Of an object: "parts", "steps", ...; "files": of a step."""
    return path.partition("/.ckptfs/")[2].partition("/")[0] or "files"


def hide_md5(exchange):
    """As a server that encrypts by KMS."""
    if exchange.method == "PUT" and "etag" in exchange.answer_headers:
        exchange.answer_headers.replace_header("etag", '"no-md5"')


class FlippedGets:
    """For a Meddler: flips a bit of what is got of objects of this kind, `once` or at each GET. `seen`: their paths."""

    def __init__(self, kind, once):
        self.kind, self.once, self.seen = kind, once, []

    def __call__(self, exchange):
        path = exchange.path
        is_object = exchange.method == "GET" and exchange.status in (200, 206) and "?" not in path and exchange.answer
        if is_object and kind_of(path) == self.kind and not (self.once and path in self.seen):
            self.seen.append(path)
            exchange.answer = flip(exchange.answer)


# --- on the way there


@pytest.mark.parametrize("tags", ("md5", "others"))
def test_each_put_is_damaged_once(fresh_disk, work, scratch, server, mode, tags):
    """What can be replaced is compared afterwards, if ETags are MD5s, and replaced. What is made for good, and all else if
    they are not, is refused by the server: it was told the MD5."""
    flips, url, there = FlippedPuts(), f"s3://{BUCKET}/{scratch.name}", ("--endpoint", server.endpoint)
    large = content(PIECE + MIB, 9) if tags == "md5" else b""  # in two pieces, which are completed by their ETags
    with Meddler(server.ports[3], flips, *([hide_md5] if tags == "others" else [])) as link, \
         mounted(Store(fresh_disk / "there"), work / f"mnt-{tags}", mode=mode, options=QUIET) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps, "--endpoint", link.endpoint)
        step = steps / "global_step1"
        fill(step, size=MIB)
        write(step / "large.bin", large)
        wait_for(step, "committed global_step1")
        answers = {}
        for path, exchange in flips.seen.items():
            answers.setdefault(kind_of(path), set()).add(exchange.status)
        for kind in ("series", "slots", "parts", "steps"):
            equal(answers.get(kind), {400}, f"what the server answers to a damaged one of {kind}")
        # After a difference the next ones are told beforehand.
        replaced = answers["pushes"] | answers["files"]
        true(200 in replaced and replaced <= {200, 400} if tags == "md5" else replaced == {400}, f"the others: {replaced}")
        harmed = [path for path in flips.seen if step.name in path]
        equal(len([path for path in harmed if kind_of(path) == "files"]), 4 if large else 2, f"files and pieces: {harmed}")
        true(status_of(steps)["retries"] >= len(harmed), f"it was sent again: {status_of(steps)}")
        ckptfs("remote", "verify", f"{url}/global_step1", *there)
        ckptfs("remote", "export", f"{url}/global_step1", scratch / "out", *there)
        equal(tree(scratch / "out"), tree(step), "what came back")


def test_a_server_that_compares_nothing(fresh_disk, work, scratch, server, mode):
    """Its ETag is no MD5, and it takes what has another MD5 than it was told."""
    taken = []

    def take(exchange):
        if exchange.method == "PUT" and exchange.path.endswith("-check"):
            taken.append(exchange)
            exchange.status = 200
            exchange.answer_headers["ETag"] = '"no-md5"'

    url = f"s3://{BUCKET}/{scratch.name}"
    with Meddler(server.ports[3], take) as link, \
         mounted(Store(fresh_disk / "nothing"), work / "mnt-nothing", mode=mode, options=QUIET) as mount:
        steps = mount.path / "steps"
        done = ckptfs("remote", "add", url, steps, "--endpoint", link.endpoint, check=False)
        equal(done.returncode, 1, "it is refused")
        true("does not compare what arrives" in done.stderr, done.stderr)
        true(ckptfs("remote", "status", steps, check=False).returncode != 0, "the series has no remote")
    equal([key for key in server.keys(f"{scratch.name}/") if not key.endswith("/")], [], "what is left there")
    told = [exchange.headers["content-md5"] for exchange in taken]
    right = [base64.b64encode(hashlib.md5(exchange.body).digest()).decode() for exchange in taken]
    equal((len(told), told[0]), (2, None), "first it looks at the ETag")
    true(told[1] not in (None, right[1]), f"then it tells another MD5: {told}, {right}")


# --- on the way back


@pytest.mark.parametrize("kind, once", (("files", True), ("files", False), ("parts", False), ("steps", False)))
def test_each_get_is_damaged(scratch, server, request, kind, once):
    """A chunk is asked for again. What stays damaged is named, and nothing is exported."""
    flips, step, out = FlippedGets(kind, once), make_step(scratch / "step"), scratch / "out"
    s3(server, request.node.name).has("step_1", step)
    with Meddler(server.ports[3], after=flips) as link:
        far = s3(server, request.node.name, link.port)
        if once:
            far.says("export", out, url=f"{far.url}/step_1")
            equal(content_of(out), content_of(step), "what came back")
            equal(sorted(path.rpartition("/")[2] for path in flips.seen), ["large", "small"], "what was damaged")
        else:
            said = far.fails("export", out, url=f"{far.url}/step_1")
            true(any(f"s3:/{path}" in said for path in flips.seen), f"it names none of {flips.seen}: {said}")
            equal([path.name for path in scratch.iterdir()], ["step"], "nothing is left of the export")

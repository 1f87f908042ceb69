"""Object stores: a folder, and S3 by the real SeaweedFS, with a proxy before it that breaks connections."""

import concurrent.futures
import email.utils
import ssl
import subprocess
import threading
import time

import pytest

from checking import equal, true
from mounting import BUILD, MIB, run, wait_until
from seaweed import BUCKET, FlippedPuts, Meddler, Proxy, environment

pytestmark = [pytest.mark.builds("venv"),
              pytest.mark.one_mode, pytest.mark.timeout(300)]

HELPER = BUILD / "helpers" / "objects"
ENOENT, EACCES, EEXIST, EPROTO, ECONNRESET, ETIMEDOUT = 2, 13, 17, 71, 104, 110


class Store:
    """What tests ask of one. Each request is a process, so its first connection is a new one."""

    def __init__(self, url, *options):
        self.url, self.options = url, options

    def ask(self, *words, content=b"", options=(), variables=None):
        command = [str(word) for word in (HELPER, self.url, *self.options, *options, *words)]
        return subprocess.run(command, input=content, capture_output=True, env=environment() | (variables or {}),
                              timeout=200, check=False)

    def do(self, *words, **more):
        done = self.ask(*words, **more)
        equal(done.returncode, 0, f"{words}: {done.stderr.decode()}")
        return done.stdout

    def fails(self, errno, *words, **more):
        """Returns what it says."""
        said = self.ask(*words, **more).stderr.decode()
        equal(said.partition(" ")[0], str(errno), f"{words}: {said}")
        return said

    def keys(self, prefix):
        """Sorted: each store has an order of its own."""
        return sorted(line.split("\t")[0] for line in self.do("list", prefix).decode().splitlines())


@pytest.fixture(params=("folder", "s3"))
def store(request, scratch):
    if request.param == "folder":
        return Store(f"file://{scratch}")
    return s3(request.getfixturevalue("server"), request.node.name)


def s3(server, prefix, port=None, scheme="http"):
    endpoint = f"{scheme}://127.0.0.1:{port}" if port else server.endpoint
    return Store(f"s3://{BUCKET}/{prefix.replace('[', '-').replace(']', '')}", "--endpoint", endpoint)


@pytest.fixture
def broken(server, request):
    """A store behind a proxy with these fates."""
    made = []

    def behind(*fates, tls=None):
        proxy = Proxy(server.ports[3], fates, tls).__enter__()
        made.append(proxy)
        return s3(server, request.node.name, proxy.port, "https" if tls else "http"), proxy

    yield behind
    for proxy in made:
        proxy.__exit__()


ODD = "odd/näme +%&=?#'\"<>~2"


def test_objects(store):
    store.do("make", "a/b", content=b"hello")
    equal(store.do("get", "a/b"), b"hello", "the object")
    equal(store.do("get", "a/b", 1, 3), b"ell", "a range of it")
    equal(store.do("get", "a/b", 3, 10), b"lo", "a range that passes its end")
    equal(store.do("get", "a/b", 5, 10), b"", "a range from its end on")
    true("is there already" in store.fails(EEXIST, "make", "a/b", content=b"other"), "says why")
    equal(store.do("get", "a/b"), b"hello", "the object after one was refused")
    store.do("put", "a/b", content=b"replaced")
    equal(store.do("get", "a/b"), b"replaced", "the object after it was replaced")
    store.do("make", "a/empty")
    equal(store.do("get", "a/empty"), b"", "an empty object")
    store.do("make", ODD, content=b"odd")
    equal(store.do("get", ODD), b"odd", "an object of an odd name")
    equal(store.keys(""), ["a/b", "a/empty", ODD], "all keys")
    equal(store.keys("a/"), ["a/b", "a/empty"], "keys of a prefix")
    line = store.do("list", "a/").decode().splitlines()[0].split("\t")
    equal(line[1], "8", "its size")
    true(abs(int(line[2]) - time.time()) < 120, f"its time: {line}")
    for key in ("a/b", "a/b", "never/was"):
        store.do("remove", key)
    equal(store.keys("a/"), ["a/empty"], "keys after a removal")
    true("a/none" in store.fails(ENOENT, "get", "a/none", options=("--within", "1")), "names the object")


def test_a_large_object(store):
    content = bytes(range(256)) * (64 * MIB // 256)
    store.do("make", "large/0", content=content)
    true(store.do("get", "large/0") == content, "64 MiB come back")
    true(store.do("get", "large/0", 63 * MIB - 1, 5) == content[63 * MIB - 1 : 63 * MIB + 4], "a range of them")


def test_one_of_many_makes_an_object(store):
    codes = []

    def make(number):
        codes.append(store.ask("make", "race/a", content=str(number).encode()).returncode)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(sorted(codes), [0] + [1] * 7, "what they are told")


def test_a_list_of_more_than_a_page(store):
    store.do("fill", "many/", 1_100)
    equal(store.keys("many/"), sorted(f"many/{number}" for number in range(1_100)), "all keys")
    wanted = [f"{tag}/{number}" for tag in ("step-100", "step", "step-100-best", "step.bak") for number in range(400)]
    for tag in ("step-100", "step", "step-100-best", "step.bak"):
        store.do("fill", f"tags/{tag}/", 400)
    equal(store.keys("tags/"), sorted(f"tags/{key}" for key in wanted), "keys of names that begin alike")
    equal(store.keys("tags/step/"), sorted(f"tags/step/{number}" for number in range(400)), "keys of one of them")


# --- what goes wrong on the way


def test_a_lost_reply_is_no_lost_race(broken):
    store, proxy = broken("deaf")
    store.do("make", "a", content=b"mine")
    true(proxy.seen >= 2, "it was tried again")
    store, _ = broken("deaf")
    store.fails(EEXIST, "make", "a", content=b"yours")
    equal(store.do("get", "a"), b"mine", "the object")


def test_a_reply_that_is_cut_in_its_head(broken):
    for length in (1, 15, 61, 150):
        store, _ = broken(length)
        store.do("make", f"a{length}", content=b"mine")
        equal(store.do("get", f"a{length}"), b"mine", "the object")


def test_broken_connections_are_tried_again(broken):
    content = bytes(range(256)) * (MIB // 256)
    store, _ = broken("refuse", 10, "refuse")
    store.do("make", "a", content=content)
    store, _ = broken("refuse", 10, 5_000, 900_000)
    true(store.do("get", "a", 0, MIB) == content, "1 MiB after four broken connections")
    store, _ = broken(300)
    equal(store.keys(""), ["a"], "a list after one")
    store, proxy = broken(*["refuse"] * 100)
    said = store.fails(ECONNRESET, "get", "a", options=("--within", "2"))
    true(f"127.0.0.1:{proxy.port}" in said and "tried" in said, said)


def test_a_server_that_says_nothing(broken):
    store, _ = broken("hang", "pass")
    begun = time.monotonic()
    store.do("make", "a", content=b"x", options=("--stall", "1000"))
    true(time.monotonic() - begun < 20, "it does not wait for the deadline")
    store, _ = broken(*["hang"] * 100)
    true("by the deadline" in store.fails(ETIMEDOUT, "get", "a", options=("--within", "2")), "says why")


def answer(status, body=b"", *headers):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def error(code):
    return f"<Error><Code>{code}</Code><Message>words of the server</Message></Error>".encode()


def listing(inside):
    return b"<ListBucketResult>" + inside + b"</ListBucketResult>"


def test_what_servers_answer(broken):
    """Which answers are tried again, and what is said of the others."""
    store, _ = broken()
    store.do("make", "a", content=b"content")
    for again in ("500 Internal", "503 Slow Down", "429 Too Many", "409 Conflict", "404 Not Found"):
        store, _ = broken(answer(again, error("Busy")))
        equal(store.do("get", "a"), b"content", f"after {again}")
    for code in ("RequestTimeout", "IncompleteBody"):
        store, _ = broken(answer("400 Bad", error(code)))
        equal(store.do("get", "a"), b"content", f"after {code}")
    region = "x-amz-bucket-region: eu-west-1"
    store, _ = broken(answer("503 Slow Down", b"", region))
    equal(store.do("get", "a"), b"content", "after a busy moment")
    for code in ("ExpiredToken", "NoSuchBucket"):
        store, _ = broken(answer("400 Bad", error(code)))
        store.fails(EACCES, "get", "a")
    for final, number, words in (("403 Forbidden", EACCES, "AccessDenied: words of the server"),
                                 ("301 Moved", EPROTO, "301"), ("400 Bad", EPROTO, "400"), ("501 Not", EPROTO, "501")):
        store, proxy = broken(*[answer(final, error("AccessDenied"))] * 3)
        said = store.fails(number, "get", "a")
        true(words in said and store.url in said, said)
        equal(proxy.seen, 1, f"tries after {final}")
    store, _ = broken(answer("301 Moved", b"", region))
    true("eu-west-1: give --region" in store.fails(EPROTO, "get", "a"), "the region is named")
    store, _ = broken(answer("200 OK", b"x" * 2000))
    true("more than the range" in store.fails(EPROTO, "get", "a", 0, 1000), "a longer answer")
    store, _ = broken(answer("200 OK", b"x" * 10))
    true("does not honour ranges" in store.fails(EPROTO, "get", "a", 5, 10), "no range")
    store, _ = broken(answer("206 Partial", b"ent", "Content-Range: bytes 0-2/7"))
    true("does not honour ranges" in store.fails(EPROTO, "get", "a", 4, 3), "another range")
    store, _ = broken(answer("206 Partial", b"co", "Content-Range: bytes 0-1/7"))
    equal(store.do("get", "a", 0, 7), b"content", "after a short range")
    store, _ = broken(b"HTTP/1.0 200 OK\r\n\r\npart")
    equal(store.do("get", "a", 0, 7), b"content", "after an answer without a length")
    store, _ = broken(answer("200 OK", b"<html>Log in</html>"))
    true("no object store" in store.fails(EPROTO, "put", "b", content=b"x"), "a page that wants a login")
    store, _ = broken(answer("404 Not Found", error("NoSuchBucket")))
    store.fails(EACCES, "remove", "a")
    other = listing(b"<IsTruncated>false</IsTruncated><Contents><Key>%s</Key><Size>1</Size></Contents>")
    store, _ = broken(answer("200 OK", other % b"other/secret"))
    true("not asked for" in store.fails(EPROTO, "list", ""), "a key outside the prefix")
    store, _ = broken(answer("200 OK", other % (store.url.partition(f"{BUCKET}/")[2].encode() + b"/marker/")))
    equal(store.keys(""), [], "a marker of a folder")
    again = listing(b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>")
    store, _ = broken(*[answer("200 OK", again)] * 9)
    true("does not go on" in store.fails(EPROTO, "list", ""), "the same page for ever")
    for body in (b"<ListBucketResult>", b"<html/>", b"", listing(b"<IsTruncated>true</IsTruncated>")):
        store, _ = broken(answer("200 OK", body))
        true("no list" in (said := store.fails(EPROTO, "list", "")) or "does not say" in said, f"{body}: {said}")


def test_what_is_said_of_a_completion(broken):
    """It counts if the server says that it is complete, or if the object is there."""
    store, _ = broken()
    store.do("make", "a", content=b"content")
    for unclear in (b"<html>Log in</html>", b"", b"  <Error><Code>Intern", error("InternalError")):
        store, _ = broken(answer("200 OK", unclear))
        store.do("complete", "a", "an-upload", 7)
        store, _ = broken(answer("200 OK", unclear))
        store.fails(ENOENT, "complete", "b", "an-upload", 7)
    store, _ = broken(answer("200 OK", b" \n<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"))
    store.do("complete", "c", "an-upload", 7)


def test_what_arrives_damaged_is_sent_again(server, request):
    """Who has not asked what the server checks tells it the MD5, and it refuses what has another one."""
    flips = FlippedPuts()
    with Meddler(server.ports[3], flips) as link:
        store = s3(server, request.node.name, link.port)
        for act in ("make", "put"):
            store.do(act, act, content=b"content")
            equal(store.do("get", act), b"content", f"what {act} has put")
    first = list(flips.seen.values())
    equal([one.status for one in first], [400, 400], "what it answers to what is damaged")
    true(all(b"BadDigest" in one.answer for one in first), f"why: {[one.answer for one in first]}")


def test_a_clock_that_is_wrong(broken):
    """The next request is signed by the server's clock."""
    store, _ = broken()
    store.do("make", "a", content=b"content")
    date = f"Date: {email.utils.formatdate(time.time() + 7200, usegmt=True)}"
    store, proxy = broken(*[answer("403 Forbidden", error("RequestTimeTooSkewed"), date)] * 2)
    equal(store.do("get", "a"), b"content", "the object")
    stamps = [head.split(b"x-amz-date: ")[1][:11] for head in proxy.heads]
    wanted = [time.strftime("%Y%m%dT%H", time.gmtime(time.time() + ahead)).encode() for ahead in (0, 7200)]
    equal(stamps, wanted, "the hours of the two requests")


def test_certificates(broken, scratch):
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
        "subjectAltName=IP:127.0.0.1", "-keyout", scratch / "key.pem", "-out", scratch / "certificate.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(scratch / "certificate.pem", scratch / "key.pem")
    store, proxy = broken(tls=tls)
    store.do("make", "a", content=b"secret", options=("--authorities", scratch / "certificate.pem"))
    said = store.fails(EPROTO, "get", "a")
    true("certificate" in said, said)
    equal(store.do("get", "a", options=("--authorities", scratch / "certificate.pem")), b"secret", "the object")
    equal(store.do("get", "a", variables={"AWS_CA_BUNDLE": str(scratch / "certificate.pem")}), b"secret", "as the AWS tools")


def test_wrong_credentials(server, request):
    store = s3(server, request.node.name)
    true("SignatureDoesNotMatch" in store.fails(EACCES, "get", "a", variables={"AWS_SECRET_ACCESS_KEY": "wrong"}), "why")
    true("AWS_ACCESS_KEY_ID" in store.fails(EACCES, "get", "a", variables={"AWS_ACCESS_KEY_ID": ""}), "says what to do")


def test_a_server_that_is_killed(server, request):
    """What was put is there again, and whoever waits is served."""
    store = s3(server, request.node.name)
    for number in range(5):
        store.do("make", f"a/{number}", content=b"content")
    server.kill()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.do, "fill", "b/", 3, options=("--within", "120"))
        time.sleep(1)
        server.start()
        waiting.result()
    server.wait_until_it_answers()
    # It refuses credentials for a while, and a new process cannot know that they are right.
    wait_until("it knows us again", lambda: store.ask("get", "a/0").returncode == 0, 120)
    for number in range(5):
        equal(store.do("get", f"a/{number}", options=("--within", "120")), b"content", f"a/{number}")
    equal(store.keys("b/"), ["b/0", "b/1", "b/2"], "what was put while it was down")

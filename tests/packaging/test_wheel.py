"""The wheel and the tar that scripts/packaging/wheel makes: what they need of a system, and used on bare ones.

On Debian 12 and 13, which have Python and nothing of ours. Debian 11 is too old, and pip says so.
"""

import json
import re
import ssl
import tarfile
import zipfile

import pytest

from bare import USER, Chroot, made_by_the_wheels_script
from checking import equal, noise, read, true, write
from mounting import fuse_for_all, run
from seaweed import BUCKET, KEY, SECRET, Proxy, seaweed
from training import write_state

pytestmark = [pytest.mark.disk(3), pytest.mark.timeout(3600), pytest.mark.together, pytest.mark.long,
              pytest.mark.builds("venv")]

# No command asks the network for credentials.
SECRETS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
CERTIFICATES = {"12": "etc/ssl/certs/ca-certificates.crt", "13": "etc/pki/tls/certs/ca-bundle.crt"}  # RHEL's place, too

USE = """
import ctypes, os, ckptfs, ckptfs.native as native
assert "site-packages" in native.__file__
series, save, done = os.getcwd(), ctypes.c_void_p(), ctypes.c_int()
data = ctypes.create_string_buffer(b"0123456789", 10)
native.call("ckptfs_save_begin", native.ring("twin"), series.encode(), b"step_1", b"a", 0, 1, ctypes.byref(save))
part = (native.Part * 1)()
part[0].memory, part[0].bytes, part[0].offset = ctypes.addressof(data), 10, 3
native.call("ckptfs_save_file", save, b"file", 20, part, 1, None)
native.call("ckptfs_save_wait_durable", save)
native.call("ckptfs_save_commit", save, 0, ctypes.byref(done))
assert done.value == 1 and open("step_1/file", "rb").read() == b"\\0" * 3 + b"0123456789" + b"\\0" * 7
import ckptfs.patch
assert (ckptfs.patch._CHILDREN / "sitecustomize.py").exists()
print(ckptfs.__version__)
"""


@pytest.fixture(scope="module")
def made(work):
    """The paths of the wheel and of the tar."""
    return made_by_the_wheels_script(work)


@pytest.fixture(scope="module", params=("12", "13"))
def chroot(request, made, work, disk):
    """A bare Debian with a virtual environment that has the wheel."""
    found = Chroot(work, request.param)
    found.release = request.param
    (disk / request.param).mkdir()
    for folder in ("data", "ckpt"):
        (found.root / folder).mkdir()
    run("mount", "--bind", disk / request.param, found.root / "data")
    found.apt("update")
    found.apt("install", "python3-venv")
    found.run("python3", "-m", "venv", "/venv")
    found.run("/venv/bin/pip", "install", "--no-index", found.bring(made[0]))
    return found


def ckptfs(chroot, *words, **options):
    return chroot.run("/venv/bin/ckptfs", *words, variables=SECRETS, **options).stdout


# --- what they need


def test_needs_of_a_system(made, scratch):
    wheel, tar = made
    true(re.search(r"-py3-none-manylinux_2_34_\w+\.whl$", wheel), f"the wheel's name: {wheel}")
    with zipfile.ZipFile(wheel) as archive:
        true(sum(one.compress_size for one in archive.infolist()) < 14 << 20, "the wheel's size")
        archive.extractall(scratch)
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    true("pip install ckptfs" in metadata and "](docs/" not in metadata, "the text on PyPI")
    for wanted in ("METADATA", "licenses/LICENSE", "licenses/copyright"):
        true(any(name.endswith(f".dist-info/{wanted}") for name in names), f"{wanted} is not in {names}")
    programs = [scratch / name for name in names if name.endswith(("/scripts/ckptfs", "/libckptfs.so"))]
    equal(len(programs), 2, "the command and the library")
    for program in programs:
        needed = set(re.findall(r"NEEDED +(\S+)", run("objdump", "-p", program).stdout))
        equal(needed - {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}, set(), f"libraries of {program}")
        glibc = re.findall(r"GLIBC_2\.(\d+)", run("objdump", "-T", program).stdout)
        true(max(map(int, glibc)) <= 34, f"{program} needs glibc 2.{max(map(int, glibc))}")
    with tarfile.open(tar) as archive:
        listed = [name.partition("/")[2] for name in archive.getnames()]
    for wanted in ("bin/ckptfs", "sbin/mount.ckptfs", "lib/libckptfs.so", "include/ckptfs.h", "share/man/man1/ckptfs.1",
                   "lib/systemd/system/ckptfs@.service", "share/bash-completion/completions/ckptfs"):
        true(wanted in listed, f"{wanted} is not in the tar: {listed}")


def test_an_older_system_refuses_it(made, work):
    chroot = Chroot(work, "11")
    chroot.apt("update")
    chroot.apt("install", "python3-venv")
    chroot.run("python3", "-m", "venv", "/venv")
    done = chroot.run("/venv/bin/pip", "install", "--no-index", chroot.bring(made[0]), check=False)
    true(done.returncode != 0 and "not a supported wheel on this platform" in done.stderr, f"pip: {done}")


# --- used


def test_the_python_package(chroot):
    (chroot.root / "srv/series").mkdir()
    done = chroot.run("sh", "-c", 'cd /srv/series && exec /venv/bin/python -c "$0"', USE)
    equal(f"ckptfs {done.stdout.strip()}", ckptfs(chroot, "--version").strip(), "the version")


def test_mounted_saved_and_pushed_to_https(chroot, scratch):
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
        "subjectAltName=IP:127.0.0.1", "-keyout", scratch / "key.pem", "-out", scratch / "certificate.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(scratch / "certificate.pem", scratch / "key.pem")
    model = noise(1 << 20, 3)
    (scratch / "weed").mkdir()
    with seaweed(scratch / "weed") as server, Proxy(server.ports[3], tls=tls) as proxy:
        server.make_bucket()
        ckptfs(chroot, "mount", "-o", "quiet=1s", "/data/store", "/ckpt")
        write_state(chroot.root / "ckpt")
        ckptfs(chroot, "save", "global_step1")
        step = chroot.root / "ckpt/steps/global_step1"
        write(step / "notes", model)
        rows = json.loads(ckptfs(chroot, "ls", "--json"))["steps"]
        equal([row["tag"] for row in rows], ["global_step1"], "`ckptfs ls`")
        true((chroot.root / "ckpt/views/steps/global_step1").is_dir(), "its view")
        url = f"s3://{BUCKET}/wheel-{chroot.release}"
        for place in CERTIFICATES.values():
            (chroot.root / place).unlink(missing_ok=True)
        endpoint = ("--endpoint", f"https://127.0.0.1:{proxy.port}")
        refused = chroot.run("/venv/bin/ckptfs", "remote", "check", *endpoint, url, check=False, variables=SECRETS)
        true(refused.returncode != 0 and "certificate" in refused.stderr, f"a server that nobody vouches for: {refused}")
        place = chroot.root / CERTIFICATES[chroot.release]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text((scratch / "certificate.pem").read_text())
        ckptfs(chroot, "remote", "check", *endpoint, url)
        ckptfs(chroot, "remote", "add", *endpoint, url, "/ckpt/steps")
        ckptfs(chroot, "push", "--wait", "/ckpt/steps/global_step1")
        ckptfs(chroot, "rm", "/ckpt/steps/global_step1")
        ckptfs(chroot, "fetch", "global_step1", "/ckpt/steps")
        equal(read(step / "notes"), model, "what came back")
        ckptfs(chroot, "umount", "/ckpt")
    ckptfs(chroot, "fsck", "/data/store")


def test_mounted_by_a_user(chroot):
    chroot.apt("install", "fuse3")
    for folder in ("data/home", "mnt/own"):
        (chroot.root / folder).mkdir()
        run("chown", f"{USER}:{USER}", chroot.root / folder)
    with fuse_for_all():
        ckptfs(chroot, "mount", "/data/home/store", "/mnt/own", user=USER)
        chroot.run("sh", "-c", "echo kept > /mnt/own/file && grep -q kept /mnt/own/file", user=USER)
        ckptfs(chroot, "umount", "/mnt/own", user=USER)
        equal(chroot.mounts(), [], "mounts")

"""The machine and the disk that everything is measured on, and their properties."""

import contextlib
import ctypes
import os
import pathlib
import platform
import time

import mounting

HEADROOM = 3 * mounting.GIB  # memory left to the rest of the machine while an image fills its part


def cores():
    return len(os.sched_getaffinity(0))


def busy_seconds():
    """Returns the seconds that all processors together have been busy since the machine started."""
    user, nice, system, _idle, _wait, interrupts, soft = (
        int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def kernel_workers_on(core):
    """Keeps the kernel's unbound workers on that processor. They copy for loop devices, which a real disk does by itself."""
    mask = pathlib.Path("/sys/devices/virtual/workqueue/cpumask")
    before = mask.read_text()
    mask.write_text(f"{1 << core:x}")
    try:
        yield
    finally:
        mask.write_text(before)


def memory(field="MemTotal"):
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * mounting.KIB
    raise mounting.Failure(f"/proc/meminfo has no {field}")


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def choose_folder(wanted, size):
    """Chooses the folder for the image: the wanted one, else /dev/shm if there is enough memory, else build/."""
    if wanted:
        return pathlib.Path(wanted).resolve()
    shared = pathlib.Path("/dev/shm")
    if shared.is_dir() and min(mounting.free_bytes(shared), memory("MemAvailable") - HEADROOM) >= size:
        return shared
    return mounting.REPOSITORY / "build"


# How a file system is made and mounted. Nothing is discarded, because that would give the image's memory back.
MAKERS = {
    "xfs": (("mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1"), "nouuid"),
    "btrfs": (("mkfs.btrfs", "-q", "-f", "-K"), "nodiscard"),
    "ext4": (("mkfs.ext4", "-q", "-F", "-E", "nodiscard"), "nodiscard"),
}


@contextlib.contextmanager
def disk(work, size, kind="xfs"):
    """Mounts a fresh file system on a loop device with direct I/O over an image. The image is allocated and written
    in full, so that no row pays for the first use of memory. Yields the folder and whether direct I/O is in use."""
    image, point = work / f"disk.{kind}", work / f"disk-{kind}"
    make, options = MAKERS[kind]
    with open(image, "wb") as made:
        zeros = bytes(8 * mounting.MIB)
        for _ in range(size // len(zeros)):
            made.write(zeros)
    point.mkdir()
    mounting.run(*make, image)
    device = attach(image)
    try:
        mounting.run("mount", "-t", kind, "-o", options, device, point)
        try:
            yield point, pathlib.Path(f"/sys/block/{device[5:]}/loop/dio").read_text().strip() == "1"
        finally:
            mounting.unmount(point)
    finally:
        mounting.run("losetup", "-d", device, check=False)
        image.unlink()


def attach(image):
    """Attaches with direct I/O if the loop driver supports it."""
    direct = mounting.run("losetup", "--show", "--direct-io=on", "-f", image, check=False)
    if direct.returncode == 0:
        return direct.stdout.strip()
    return mounting.run("losetup", "--show", "-f", image).stdout.strip()


_libc = ctypes.CDLL(None, use_errno=True)


def sync_filesystem(folder):
    """syncfs(2), which is `sync -f FOLDER` without the cost of a process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def settle(folder):
    """Waits until earlier removals and writes are done, so that they are not measured."""
    sync_filesystem(folder)
    used = None
    while used != (used := mounting.used_bytes(folder)):
        time.sleep(0.2)
        sync_filesystem(folder)


def daemon_memory(pid):
    """Returns (VmRSS, VmHWM) in bytes."""
    fields = {}
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            fields[name] = int(value.split()[0]) * mounting.KIB
    return fields["VmRSS"], fields["VmHWM"]

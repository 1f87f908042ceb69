"""Runs the commands in README.md and docs/ as they are written, except for paths and sizes."""

import json
import os
import re
import signal
import struct
import sys

import pytest

import saving
from checking import equal, true
from hugging import parse, safetensors
from mounting import BUILD, CKPTFS, REPOSITORY, is_mountpoint, run, workspace, xfs
from ports import free_port
from training import write_state
from viewing import torch_file

# A block is a run of lines indented by four spaces. A line in it is a command if it begins like this.
COMMAND = re.compile(r"(?:sudo )?(?:scripts/[\w/]+|ckptfs(?!\.)|cp|rm|mkdir|cat|printf|fallocate|xfs_growfs|apt|systemctl|journalctl|"
                     r"docker|kubectl|mount(?= --)|python|torchrun|[sg]etfattr|os\.setxattr|curl|\(umask)\b.*")

# The examples of docs/commands.md, which are those of --help, in an order in which they can be run.
EXAMPLES = (
    "ckptfs doctor /data",
    "ckptfs mount --image 200G -o uid=1000,gid=1000 --log /var/log/ckptfs.log /data/store /ckpt",
    "ckptfs umount /ckpt",
    "ckptfs umount /ckpt && ckptfs fsck /data/store",
    "ckptfs mount /data/store /ckpt",
    "ckptfs mount -o http=127.0.0.1:9180 /data/store /ckpt",
    "ckptfs save global_step100",
    "ckptfs save --series /ckpt/runs/a before-lr-change /ckpt",
    "ckptfs ls",
    "ckptfs ls --json /ckpt/steps",
    "ckptfs ls -H -o tag,state,bytes /ckpt/steps",
    "ckptfs show /ckpt/steps/global_step100",
    "ckptfs show --json --tensors /ckpt/steps/global_step100",
    "ckptfs show --timing /ckpt/steps/step_100",
    "ckptfs du",
    "ckptfs du --json /ckpt/steps",
    "ckptfs latest /ckpt/steps",
    "ckptfs state /ckpt/steps/global_step100",
    "ckptfs state --json /ckpt/steps/global_step100",
    "ckptfs wait /ckpt/steps --for global_step200",
    "ckptfs pin /ckpt/steps/global_step100",
    "ckptfs unpin /ckpt/steps/global_step100",
    "ckptfs seal /ckpt/steps/global_step200",
    "ckptfs wait /ckpt/runs/my-model --for next --timeout 2h",
    "ckptfs watch",
    "ckptfs watch /ckpt/runs/my-model --json --since 0",
    'python train.py --resume_from_checkpoint "$(ckptfs latest --path /ckpt/runs/my-model)"',
    "ckptfs diff /ckpt/steps/global_step100 /ckpt/steps/global_step200",
    "ckptfs policy",
    "ckptfs policy /ckpt/runs/a --set keep_last=3 --set keep_every=1000 --dry-run",
    "ckptfs verify",
    "ckptfs verify /ckpt/steps/global_step100",
    "ckptfs thin --dry-run /ckpt/runs/my-model/checkpoint-10",
    "ckptfs thin --to bf16 /ckpt/runs/my-model/checkpoint-10",
    "ckptfs status",
    "ckptfs status --json /ckpt",
    "ckptfs rm /ckpt/steps/global_step100",
    "ckptfs remote check file:///lustre/run7",
    "ckptfs remote check s3://bucket/run7 --endpoint https://s3.example.com:8333",
    "ckptfs remote latest file:///lustre/run7",
    "ckptfs remote latest --path file:///lustre/run7",
    "ckptfs remote ls file:///lustre/run7",
    "ckptfs remote ls --json file:///lustre/run7",
    "ckptfs remote export file:///lustre/run7/global_step100 /backup/global_step100",
    "ckptfs remote mount s3://bucket/run7 /remote",
    "ckptfs remote mount file:///lustre/run7 /remote --cache /var/cache/ckptfs --cache-size 200G",
    "ckptfs remote verify file:///lustre/run7/global_step100",
    "ckptfs remote verify --sample 5% file:///lustre/run7",
    "ckptfs remote add s3://bucket/run7 /ckpt/steps --slot 0/2",
    "ckptfs remote add file:///lustre/run7 /ckpt/steps --limit-upload 100M",
    "ckptfs remote add file:///lustre/run7 /ckpt/steps --take-over  # on a new disk, or a new node",
    "ckptfs remote status /ckpt/steps",
    "ckptfs remote status --json",
    "ckptfs push /ckpt/steps/global_step200",
    "ckptfs push --wait /ckpt/steps/global_step200",
    "ckptfs push --again --wait /ckpt/steps/global_step200",
    "ckptfs fetch global_step100 /ckpt/steps",
    "ckptfs fetch --slot 0 file:///lustre/run7/global_step100 /ckpt/steps",
    "ckptfs remote policy file:///lustre/run7",
    "ckptfs remote policy file:///lustre/run7 --set keep_last=20 --set keep_every=1000 --dry-run",
    "ckptfs remote pin file:///lustre/run7/global_step100",
    "ckptfs remote pin --off file:///lustre/run7/global_step100",
    "ckptfs remote rm file:///lustre/run7/global_step100",
    "ckptfs remote gc --dry-run file:///lustre/run7",
    "ckptfs remote gc file:///lustre/run7",
    "ckptfs remote du file:///lustre/run7",
    "ckptfs remote remove /ckpt/steps",
    "ckptfs debug bundle",
    "ckptfs debug bundle",
    "ckptfs debug bundle -o report.txt /ckpt",
    "ckptfs help remote check",
    "source <(ckptfs completion bash)",
    "ckptfs completion zsh >/usr/local/share/zsh/site-functions/_ckptfs",
    "ckptfs completion fish >~/.config/fish/completions/ckptfs.fish",
)
# Commands that are run elsewhere, with the test's name, or that no test machine can run, with the reason.
ELSEWHERE = {
    "scripts/demo": "tests/deepspeed/test_demo.py",
    "scripts/test": "this is part of it",
    "scripts/test --strict": "this is part of it",
    "scripts/build": "each test stands on it",
    "scripts/bench --draw": "tests/bench/test_pages has the pages that it writes",
    "scripts/packaging/package": "tests/packaging",
    "sudo apt install ./build/packages/ckptfs_*.deb": "tests/packaging",
    "sudo apt purge ckptfs": "tests/packaging",
    "scripts/packaging/wheel": "tests/packaging",
    "pip install ./build/packages/ckptfs-*.whl": "tests/packaging",
    "sudo systemctl enable --now ckptfs@ckpt": "tests/packaging runs the unit's own command lines",
    "sudo systemctl disable --now ckptfs@ckpt": "tests/packaging",
    "journalctl -u ckptfs@ckpt": "needs systemd",
    "cp build/packages/ckptfs-*.whl docs/examples/docker/": "tests/packaging/test_slurm_and_containers.py",
    "docker build -t ckptfs docs/examples/docker": "tests/packaging/test_slurm_and_containers.py, with podman",
    "docker run -v /mnt/ckptfs:/mnt/ckptfs:rslave -v /run/ckptfs:/run/ckptfs ckptfs ckptfs ls":
        "tests/packaging/test_slurm_and_containers.py, with podman",
    "kubectl label node NODE ckptfs=true": "needs a cluster",
    "kubectl apply -f docs/examples/kubernetes/daemonset.yaml":
        "needs a cluster; tests/packaging/test_slurm_and_containers.py runs its container with podman",
    "kubectl apply -f docs/examples/kubernetes/training.yaml": "as the line before",
    "sudo apt install linux-generic-hwe-24.04": "needs Ubuntu",
    "torchrun --nproc-per-node 2 train.py": "tests/deepspeed/test_first_runs.py",
    "python -m ckptfs.patch train.py": "tests/posix/test_patch.py",
    "python -m ckptfs.patch torchrun --nproc-per-node 2 train.py": "tests/deepspeed/test_first_runs.py",
    "ckptfs wait /ckpt/runs/my-model --for next --timeout 2h": "tests/posix/test_step_states.py",
    "ckptfs debug bundle": "tests/cli/test_output.py",
    "ckptfs debug bundle -o report.txt /ckpt": "tests/cli/test_output.py",
    "ckptfs watch": "tests/posix/test_watch.py",
    "ckptfs watch /ckpt/runs/my-model --json --since 0": "tests/posix/test_watch.py",
    'python train.py --resume_from_checkpoint "$(ckptfs latest --path /ckpt/runs/my-model)"': "tests/posix/test_step_states.py",
    "ckptfs remote check s3://bucket/run7 --endpoint https://s3.example.com:8333": "tests/remote/test_commands.py",
    "ckptfs remote check s3://bucket/run7 --endpoint http://HOST:7480 --profile ceph": "tests/remote/test_commands.py; Ceph by hand",
    "ckptfs remote add s3://bucket/run7 /ckpt/steps --endpoint https://s3.example.com:8333": "tests/remote",
    "ckptfs remote mount s3://bucket/run7 /remote": "tests/remote/test_remote_mount.py",
    "ckptfs remote add s3://bucket/run7 /ckpt/steps --slot 0/2": "tests/remote",
    "ckptfs remote add s3://bucket/run7 /ckpt/steps --slot 1/2": "tests/remote",
    "ckptfs fetch --slot 0 $tag /ckpt/steps": "tests/remote/test_fetch.py",
    "python -m ckptfs.universal /ckpt/steps/global_step4 /ckpt/steps/global_step4_universal": "tests/deepspeed/test_universal.py",
}


# The pages of docs/ that have a test of their own.
PAGES = ("requirements", "clusters", "trainer", "deepspeed", "resume", "rotation", "views", "space", "control", "watching", "operating",
         "remote")


@pytest.fixture
def work(request, own_mounts):
    """Each page has its user on a fresh machine."""
    with workspace(f"docs-{request.function.__name__}") as folder:
        yield folder


@pytest.fixture
def disk(work):
    with xfs(work) as point:
        yield point


def blocks(page):
    lines = (REPOSITORY / page).read_text().splitlines()
    return [line.strip() for line in lines if line.startswith("    ") and line.strip()]


def without_comment(line):
    return re.split(r"\s{2,}#", line)[0].strip()


def commands(page):
    return [without_comment(line) for line in blocks(page) if COMMAND.match(line)]


PORT = free_port()


class User:
    """Runs the commands of a page, with the documented paths moved into the workspace, and smaller sizes."""

    def __init__(self, page, work, disk):
        etc = work / "etc"
        etc.mkdir()
        self.places = {"/data": disk, "/ckpt": work / "ckpt", "/backup": work / "backup", "/etc": etc, "/var/log": etc,
                       "/mnt/ckptfs": work / "above", "/usr/local/share/zsh/site-functions": etc,
                       "~/.config/fish/completions": etc, "~": disk, "/remote": work / "remote", "/var/cache/ckptfs": work / "cache"}
        tools = work / "bin"
        tools.mkdir()
        (tools / "ckptfs").symlink_to(CKPTFS)
        self.environment = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}")
        self.page, self.work, self.ckpt, self.store = page, work, work / "ckpt", disk / "store"
        self.left = list(EXAMPLES) if page.endswith("commands.md") else commands(page)
        self.known = set(self.left)

    def translated(self, line):
        places = "|".join(re.escape(place) for place in sorted(self.places, key=len, reverse=True))
        line = re.sub(rf"(?<![\w./~])(?:{places})(?!\w)", lambda match: str(self.places[match[0]]), line)
        line = re.sub(r"--image \d+G", "--image 512M", line).replace("800G", "1G").replace("100G", "1G")
        line = line.replace("file:///lustre", f"file://{self.work}")
        return line.replace("9180", str(PORT))

    def types(self, line):
        """Runs the command. Returns its output."""
        true(line in self.known, f"{self.page} has no {line!r}")
        self.left = [other for other in self.left if other != line]
        words = self.translated(line)
        if words.startswith("os."):
            return run(sys.executable, "-c", f"import os; {words}").stdout
        return run("bash", "-c", words, env=self.environment).stdout

    def types_all(self, *beginnings):
        """Runs the commands that begin with one of these, in the page's order, or all that are left. Returns the
        last output."""
        printed = ""
        for line in list(self.left):
            if line not in ELSEWHERE and (not beginnings or line.startswith(beginnings)):
                printed = self.types(line)
        return printed

    def ends(self):
        """Checks that each command of the page was run, here or elsewhere."""
        equal([line for line in self.left if line not in ELSEWHERE], [], f"commands of {self.page} that nothing has run")
        if is_mountpoint(self.ckpt):
            run(CKPTFS, "umount", self.ckpt)

    def has_remote_step(self, tag):
        """Makes a committed step in the remote of the pages, as a push does."""
        (self.work / "run7").mkdir(exist_ok=True)
        step = self.work / "pushed"
        step.mkdir()
        (step / "mp_rank_00_model_states.pt").write_bytes(torch_file(b"model"))
        run(BUILD / "helpers" / "remote_step", f"file://{self.work}/run7", tag, step)
        (self.work / "backup").mkdir(exist_ok=True)

    # The pages assume these steps.

    def mounts(self, *options):
        self.ckpt.mkdir(exist_ok=True)
        run(CKPTFS, "mount", *options, self.store, self.ckpt)

    def has_steps(self, *tags):
        for version, tag in enumerate(tags):
            write_state(self.ckpt, version, 1)
            run(CKPTFS, "save", tag, self.ckpt)

    def has_run(self, *names):
        """Makes a Trainer's checkpoints, with only those files that identify them."""
        self.has_run_in("runs/my-model", *names)

    def has_run_in(self, series, *names):
        for name in names:
            step = self.ckpt / series / name
            step.mkdir(parents=True)
            (step / "config.json").write_text('{"torch_dtype": "float32"}')
            (step / "model.safetensors").write_bytes(safetensors({"w": ("F32", [1], struct.pack("<f", 1.0))}))
            (step / "optimizer.pt").write_bytes(torch_file(b"moments"))
            (step / "trainer_state.json").write_text('{"log_history": [], "global_step": 1}')


def test_scripts_are_there():
    """These scripts take as long as this test, or contain it."""
    for line in ("scripts/demo", "scripts/test", "scripts/build", "scripts/packaging/package", "scripts/packaging/wheel"):
        true("Usage" in run(REPOSITORY / line, "--help").stdout.capitalize(), f"{line} --help")


def test_readme(work, disk):
    user = User("README.md", work, disk)
    user.types_all("mkdir", "ckptfs mount --image")
    true(is_mountpoint(user.ckpt), "an image is mounted")
    true("passthrough" in run(CKPTFS, "status", user.ckpt).stdout, "ckptfs status says the mode")
    user.types_all("ckptfs policy")
    true("keep_last=20" in run(CKPTFS, "policy", user.ckpt / "steps").stdout, "the rule")
    user.has_steps("global_step50")
    true("global_step50" in user.types("ckptfs ls"), "ckptfs ls shows the step")
    run(CKPTFS, "umount", user.ckpt)
    user.ends()


def test_requirements(work, disk):
    user = User("docs/requirements.md", work, disk)
    user.types_all()
    user.ends()


def test_clusters(work, disk):
    """tests/cli/test_clusters.py tests the examples, and how mounts reach containers."""
    user = User("docs/clusters.md", work, disk)
    above = work / "above"
    try:
        user.types_all("mkdir", "mount", "ckptfs mount /data/store")
        true("shared:" in run("grep", f" {above}/ckpt ", "/proc/self/mountinfo").stdout, "the mount, as containers take it")
        run(CKPTFS, "umount", above / "ckpt")
        run("rm", "-r", user.store)
    finally:
        run("umount", "-l", above, check=False)
    user.ckpt.mkdir()
    user.types_all()
    true((user.store / "image.xfs").exists(), "an image")
    user.ends()


def test_trainer(work, disk):
    user = User("docs/trainer.md", work, disk)
    user.types_all("mkdir", "ckptfs mount")
    user.has_run("checkpoint-10", "checkpoint-30")
    user.types_all()
    equal(parse((disk / "model.bf16.safetensors").read_bytes()), {"w": ("BF16", [1], b"\x80\x3f")}, "the weights")
    user.ends()


def test_deepspeed(work, disk):
    user = User("docs/deepspeed.md", work, disk)
    user.types_all("mkdir", "ckptfs mount")
    write_state(user.ckpt, 0, 1)
    user.types_all()
    equal(sorted(os.listdir(user.ckpt / "steps")), ["before-lr-change", "global_step100"], "steps")
    user.ends()


def test_resume(work, disk):
    user = User("docs/resume.md", work, disk)
    user.mounts("-o", "quiet=0s")
    user.has_steps("global_step50", "global_step100")
    user.has_run("checkpoint-10", "checkpoint-30")
    equal(user.types("ckptfs latest /ckpt/steps"), "global_step100\n", "the newest step")
    equal(user.types("ckptfs latest /ckpt/runs/my-model"), "checkpoint-30\n", "the newest checkpoint")
    equal(user.types("getfattr --only-values -n user.ckptfs.state /ckpt/steps/global_step100"), "complete", "its state")
    os.kill(json.loads(run(CKPTFS, "status", "--json", user.ckpt).stdout)["pid"], signal.SIGKILL)
    user.types("ckptfs mount /data/store /ckpt")
    (user.ckpt / "steps/global_step50/notes").write_text("written a moment ago")
    true("not yet hashed" in user.types("ckptfs verify /ckpt/steps"), "ckptfs verify says what it cannot tell yet")
    user.types_all()
    equal((user.ckpt / "steps" / "latest").read_text(), "global_step100", "latest")
    user.ends()


def test_rotation(work, disk):
    user = User("docs/rotation.md", work, disk)
    user.mounts("-o", "quiet=0s")
    user.has_steps("global_step50", "global_step100")
    user.has_run("checkpoint-10", "checkpoint-30")
    (user.ckpt / "runs" / "megatron" / "iter_0000100").mkdir(parents=True)
    user.types_all("ckptfs policy /ckpt/steps --set keep_last=3 --set keep_every", "ckptfs policy /ckpt/runs", "ckptfs pin",
                   "setfattr")
    policy = user.types("ckptfs policy /ckpt/steps")
    true("keep_every=1000" in policy and "pinned" in policy, "the rule, and what is pinned, are shown")
    user.types("ckptfs policy /ckpt/steps --unset keep_every")
    true("keep_every" not in run(CKPTFS, "policy", user.ckpt / "steps").stdout, "the rule is taken away")
    user.types_all()
    equal(os.listdir(user.ckpt / "steps"), ["global_step100"], "the steps that are left")
    user.ends()


def test_views(work, disk):
    user = User("docs/views.md", work, disk)
    user.mounts()
    user.has_steps("global_step100")
    user.has_run("checkpoint-30")
    step = user.ckpt / "steps" / "global_step100"
    (step / "model.safetensors").write_bytes(safetensors({"w": ("F32", [1], struct.pack("<f", 1.0))}))
    user.types_all("cp /ckpt/views/steps")
    (step / "model.safetensors").unlink()
    equal(parse((disk / "model.bf16.safetensors").read_bytes()), {"w": ("BF16", [1], b"\x80\x3f")}, "the weights")
    user.types_all()
    equal(parse((disk / "my-model" / "model.safetensors").read_bytes()), {"w": ("BF16", [1], b"\x80\x3f")}, "the model")
    true((disk / "my-model" / "config.json").exists(), "its configuration")
    equal(sorted(path.name for path in work.joinpath("backup").iterdir()), sorted(os.listdir(step)), "the copy")
    user.ends()


def test_space(work, disk):
    user = User("docs/space.md", work, disk)
    user.mounts("--image", "512M")
    user.has_steps("global_step50", "global_step100")
    true("EXCLUSIVE" in user.types("ckptfs du"), "ckptfs du shows what is exclusive")
    user.types_all("ckptfs status", "ckptfs policy", "ckptfs rm")
    before = os.statvfs(user.ckpt).f_blocks
    user.types_all()
    true(os.statvfs(user.ckpt).f_blocks > 1.8 * before, "the image has grown")
    equal(os.listdir(user.ckpt / "steps"), ["global_step100"], "the steps that are left")
    user.ends()
    run(CKPTFS, "fsck", user.store)


def test_control(work, disk):
    user = User("docs/control.md", work, disk)
    user.mounts()
    write_state(user.ckpt, 0, 1)
    equal(user.types_all(), "0", "bytes that the step has for itself: it shares everything")
    user.ends()


def test_watching(work, disk):
    user = User("docs/watching.md", work, disk)
    user.ckpt.mkdir()
    mount, token, mount_with_token, curl = commands("docs/watching.md")[:4]
    user.types(mount)
    true("ckptfs_store_free_bytes" in user.types(curl), "metrics")
    user.types_all("ckptfs status")
    run(CKPTFS, "umount", user.ckpt)
    user.types(token)
    user.types(mount_with_token)
    true("token" in user.types(curl), "metrics without the token")
    page = "\n".join(line[4:] for line in (REPOSITORY / "docs/watching.md").read_text().splitlines() if line.startswith("    "))
    settings = work / "etc/prometheus.yml"
    settings.write_text(user.translated(page[page.index("scrape_configs"): page.index("rule_files: [alerts.yml]") + 24]))
    (work / "etc/alerts.yml").symlink_to(REPOSITORY / "docs/alerts.yml")
    run(REPOSITORY / "build/deps/bin/promtool", "check", "config", settings)
    user.ends()


def test_operating(work, disk):
    """tests/packaging tests the package, fstab and the unit."""
    user = User("docs/operating.md", work, disk)
    (disk / "ckpt").mkdir()
    user.types("ckptfs mount ~/store ~/ckpt")
    user.types("ckptfs doctor /data")
    run(CKPTFS, "umount", disk / "ckpt")
    user.mounts()
    user.has_steps("global_step50", "global_step100")
    user.types("ckptfs umount /ckpt")
    true('"format"' in user.types("cat /data/store/config.json"), "the format")
    user.types("ckptfs mount /data/store /ckpt")
    user.types_all("ckptfs --version", "mkdir", "cp")
    equal(sorted(os.listdir(work / "backup/steps")), ["global_step100", "global_step50"], "the steps that were copied out")
    user.types("ckptfs umount /ckpt")
    user.types("rm -r /data/store")
    user.ends()
    shipped = (REPOSITORY / "scripts/packaging/ckpt.conf").read_text().splitlines()
    settings = [line for line in blocks("docs/operating.md") if re.match("[A-Z]+=", line)]
    equal(settings, [line for line in shipped if line[0] != "#"], "the settings that the package has as an example")


def test_remote(work, disk, monkeypatch):
    user = User("docs/remote.md", work, disk)
    (work / "run7").mkdir()
    (work / "backup").mkdir()
    user.mounts("-o", "quiet=1s")
    user.has_steps("global_step100")
    user.types_all("ckptfs remote check")
    user.types("ckptfs remote add file:///lustre/run7 /ckpt/steps")
    user.types("ckptfs push --wait /ckpt/steps/global_step100")
    true("global_step100" in user.types("ckptfs remote status"), "ckptfs remote status shows the step")
    equal(user.types("getfattr --only-values -n user.ckptfs.remote.state /ckpt/steps/global_step100"),
          "committed global_step100", "its state")
    equal(user.types("ckptfs remote latest file:///lustre/run7"), "global_step100\n", "the newest step")
    user.has_run_in("steps", "checkpoint-100")
    user.has_run_in("steps", "checkpoint-200")  # the newest step there cannot be removed
    for name in ("checkpoint-100", "checkpoint-200"):
        run(CKPTFS, "push", "--wait", user.ckpt / "steps" / name)
    (work / "remote").mkdir()
    for line in ("ckptfs remote mount file:///lustre/run7 /remote --cache", "ckptfs remote mount file:///lustre/run7 /remote"):
        user.types_all(line)
        if "--cache" in line:
            run(CKPTFS, "umount", work / "remote")
    user.types_all("cp")
    true((work / "backup" / "model.bf16.safetensors").stat().st_size > 0, "the weights")
    user.types("ckptfs umount /remote")
    user.types_all()
    copy = work / "backup" / "global_step100"
    equal(sorted(os.listdir(copy)), sorted(os.listdir(user.ckpt / "steps" / "global_step100")), "the copy")
    user.ends()


def test_help_examples(work, disk, monkeypatch):
    lines = (REPOSITORY / "docs/commands.md").read_text().splitlines()
    examples = [line.strip() for line in lines if line.startswith("      ")]
    equal(sorted(line for line in examples if not line.startswith("/etc/fstab")), sorted(EXAMPLES), "the examples of --help")
    user = User("docs/commands.md", work, disk)
    user.ckpt.mkdir()
    user.has_remote_step("global_step100")
    (work / "remote").mkdir()
    for line in EXAMPLES:
        if line in ELSEWHERE:
            continue
        if line.startswith("ckptfs show --timing"):
            saving.save(user.ckpt / "steps", "step_100", "a1")
        user.types(line)
        if line.startswith("ckptfs umount") and "fsck" not in line:
            run(CKPTFS, "mount", disk / "store", user.ckpt)
        if "fsck" in line:  # the store is used without an image from here on
            run("rm", "-r", disk / "store")
        if line == "ckptfs mount /data/store /ckpt":
            run(CKPTFS, "umount", user.ckpt)
        if "http=" in line:
            write_state(user.ckpt, 0, 1)
            user.ckpt.joinpath("runs/a").mkdir(parents=True)
        if line == "ckptfs verify /ckpt/steps/global_step100":
            user.has_run("checkpoint-10", "checkpoint-30")
            run(CKPTFS, "umount", user.ckpt)
            user.mounts("-o", "quiet=0s")  # else they would be in use for a minute
        if line.startswith("ckptfs remote mount"):
            run(CKPTFS, "umount", work / "remote")
        if line.startswith("ckptfs du --json"):
            write_state(user.ckpt, 1, 1)
            run(CKPTFS, "save", "global_step200", user.ckpt)
    user.ends()


def test_other_pages():
    """Every command on any page is run by a test, and every link between pages is valid."""
    tested = {"README.md"} | {f"docs/{page}.md" for page in PAGES}
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")), *(REPOSITORY / ".github").glob("*.md")]
    known = {line for page in tested for line in commands(page)} | set(map(without_comment, EXAMPLES)) | set(ELSEWHERE)
    for page in pages:
        name = str(page.relative_to(REPOSITORY))
        unknown = [line for line in commands(name) if line not in known and "[OPTIONS]" not in line]
        # tests/bench tests it; it takes two hours
        unknown = [line for line in unknown if not line.startswith("sudo scripts/bench")]
        equal(unknown, [], f"commands in {name} that no test runs")
        for target in re.findall(r"\]\(([^)#\s]+)?(?:#([^)]*))?\)", page.read_text()):
            links_to(page, *target)


def links_to(page, path, heading):
    if path.startswith("http"):
        return
    target = page.parent / path if path else page
    true(target.exists(), f"{page.name} links to {path}")
    if heading:
        lines = [line.lstrip("# ") for line in target.read_text().splitlines() if line.startswith("#")]
        anchors = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
        true(heading in anchors, f"{page.name} links to #{heading} of {target.name}, which has {sorted(anchors)}")

"""Checkpoints of many layouts, as the real software wrote them, beside what the running model held.

layouts.tar.xz: NAME/STEP/..., and NAME/truth.json: {"PARAMETER|STATE": [dtype, shape, sha256 of the bytes]}. "rRANK/..."
is what one rank of a tensor-parallel model held of it. They were made with torch 2.15, deepspeed 0.19.8, accelerate 1.15,
transformers 5.23, megatron-core 0.16.1, composer, lightning, OLMo-core, Automodel and verl.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
import shutil
import struct

import pytest

from calling import ckptfs, status_is
from checking import equal, noise, read, true, write
from hugging import safetensors
from mounting import CKPTFS, run, wait_until
from viewing import torch_file

pytestmark = pytest.mark.one_mode

PACKED = pathlib.Path(__file__).parent / "layouts.tar.xz"
# What a model computes anew, and saves nowhere: it is in no state_dict.
NOT_SAVED = ("inv_freq",)
# A resume does without these: other ranks' random numbers, notes, scripts.
NOT_NEEDED = ("config.json", "random_states_1.pkl", "fsdp_config.json", "zero_to_fp32.py", "zero_to_torch.py")


@dataclasses.dataclass(frozen=True)
class Layout:
    state: str = "complete"  # None: it is no step
    model: bool = True  # its view has one
    lacks: str = ""  # why it has none, if it has tensors
    # states that are in the step and not in its view: the optimizer has numbers for names, or it is not read
    unread: tuple = ()
    refused: str = ""  # why it is not thinned
    stays: tuple = ()  # beside the model, when it is thinned: nothing tells that they are for a resume alone
    torn: tuple = ()  # files that were never whole: two ranks wrote them at once, and a resume does without them


LAYOUTS = {
    "accelerate_ddp": Layout(),
    "accelerate_ds2": Layout(torn=("random_states_0.pkl",)),
    "accelerate_ds3": Layout(),
    "accelerate_fsdp2": Layout(),
    "automodel": Layout(),
    "composer": Layout(),
    "dcp_app_state": Layout(),
    "dcp_fsdp1_local": Layout(model=False, lacks="holds several parameters"),
    "dcp_hf_writer_consolidated": Layout(None),
    "dcp_hf_writer_one_shard": Layout("unknown", model=False, lacks="a rank's part"),
    "dcp_raw_optimizer": Layout(unread=("exp_avg", "exp_avg_sq")),
    "ds_autotp2_z1_dp2": Layout(),
    "ds_autotp2_z1_frozen": Layout(),
    "ds_autotp2_z3": Layout(),
    "ds_autotp2_z3_dp2": Layout(),
    "ds_bf16_optimizer": Layout(),
    "ds_moe_ep2": Layout(),
    "ds_moe_ep2_dp4": Layout(),
    "ds_moe_ep2_dp4_data_first": Layout(),
    "ds_moe_ep2_split_groups": Layout(),
    "ds_moe_ep2_dp4_experts_lost": Layout("incomplete", model=False, lacks="experts"),
    "ds_pipe_pp1": Layout(),
    "ds_pipe_pp2": Layout(),
    "ds_pipe_pp2_dp2": Layout(model=False, lacks="it is a function"),
    "ds_pipe_pp2_frozen": Layout(),
    "ds_stage0_bf16": Layout(),
    "ds_stage0_fp32": Layout(),
    "ds_z3_exclude_frozen": Layout(model=False, lacks="without the frozen parameters"),
    "fsdp1_sharded_pickles": Layout(None),
    "lightning_fsdp": Layout(stays=("meta.pt",)),
    "megatron_legacy_tp2": Layout(None),
    "megatron_tp2": Layout(refused="Megatron"),
    "olmo_core": Layout(stays=("rank0.pt", "rank1.pt")),
    "verl_fsdp": Layout(refused="beside"),
}


@pytest.fixture(scope="module")
def unpacked(work):
    folder = work / "layouts"
    folder.mkdir()
    run("tar", "-xf", PACKED, "-C", folder)
    equal(sorted(path.name for path in folder.iterdir()), sorted(LAYOUTS), "layouts")
    return folder


def step_of(layout):
    [step] = [path for path in layout.iterdir() if path.is_dir()]
    return step


def state_of(step):
    done = ckptfs("state", "--json", step)
    return json.loads(done.stdout)["state"] if done.returncode in (0, 1) and done.stdout else None


def split_off(data, shape, part):
    """What of a tensor lies at this place of one dimension, which is divided evenly: (dimension, parts, number)."""
    dimension, parts, number = part
    inner = len(data) // math.prod(shape[:dimension + 1])
    rows, size = shape[dimension], shape[dimension] // parts * inner
    return b"".join(data[(outer * rows * inner + number * size):][:size] for outer in range(math.prod(shape[:dimension])))


def is_right(data, shape, name, told):
    """`name`: "rRANK/PARAMETER|STATE" of what one rank held."""
    _, wanted, sha256 = told
    if list(shape) != list(wanted):
        rank, cut = int(name[1:name.index("/")]), [at for at, size in enumerate(wanted) if size != shape[at]]
        equal(len(cut), 1, f"{name}: dimensions that are cut")
        data = split_off(data, shape, (cut[0], shape[cut[0]] // wanted[cut[0]], rank))
    return hashlib.sha256(data).hexdigest() == sha256


def truth_of(layout):
    truth = json.loads(read(layout / "truth.json"))
    return {key: told for key, told in truth.items() if not plain_name(key)[0].endswith(NOT_SAVED)}


def plain_name(key):
    """"r1/head.weight|param" is of ("head.weight", "param")."""
    name, state = key.rsplit("|", 1)
    return name.split("/", 1)[1] if name.startswith("r") and "/" in name else name, state


def names_in(model):
    data = read(model)
    header = json.loads(data[8:8 + struct.unpack_from("<Q", data)[0]])
    return set(header) - {"__metadata__"}


@pytest.mark.parametrize("name", LAYOUTS)
def test_is_shown_as_it_is(unpacked, folder, shared, name):
    """Whole or not; each tensor right to the last bit, or none; a model that lacks nothing, or none."""
    wanted, source = LAYOUTS[name], step_of(unpacked / name)
    step = folder / source.name
    shutil.copytree(source, step)
    equal(state_of(step), wanted.state, f"{name}: state")
    if wanted.state is None:
        return
    view = shared.path / "views" / step.relative_to(shared.path)
    manifest = json.loads(read(view / "manifest.json"))
    truth = truth_of(unpacked / name)
    second = {tied["same_as"]: tied["name"] for tied in manifest["tied"]}
    shown = {(tensor["name"], tensor["state"]): tensor for tensor in manifest["tensors"]}
    shown |= {(second[of], state): tensor for (of, state), tensor in shown.items() if of in second}
    for key, told in truth.items():
        tensor = shown.get(plain_name(key))
        if tensor is None:
            parameter, state = plain_name(key)
            master = state == "param" and (parameter, "fp32") in shown  # stage 3 saves nothing else of it
            true(not wanted.model or state in wanted.unread or master, f"{name}: {key} is not shown")
            continue
        true(is_right(read(view / tensor["path"]), tensor["shape"], key, told), f"{name}: {key} is another")
    problems = " ".join(problem["reason"] for problem in manifest["problems"])
    equal((view / "model.safetensors").exists(), wanted.model, f"{name}: a model; {problems}")
    if wanted.model:
        names = {plain_name(key)[0] for key in truth if key.endswith(("|param", "|fp32"))}
        equal({second.get(one, one) for one in names_in(view / "model.safetensors")}, names, f"{name}: names in the model")
    else:
        true(wanted.lacks in problems, f"{name}: {problems}")


def damages(step, torn):
    for path in sorted(path for path in step.rglob("*") if path.is_file()):
        if path.name not in (*NOT_NEEDED, *torn):
            yield path.relative_to(step), lambda victim: victim.unlink(), "gone"
            yield path.relative_to(step), lambda victim: victim.write_bytes(b""), "emptied"
            yield path.relative_to(step), lambda victim: victim.write_bytes(victim.read_bytes()[:-64]), "cut"
    for path in sorted(path for path in step.iterdir() if path.is_dir()):
        yield path.relative_to(step), shutil.rmtree, "gone"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.state == "complete"])
def test_what_lacks_a_part_is_not_complete(unpacked, folder, name):
    source = step_of(unpacked / name)
    for number, (path, act, what) in enumerate(damages(source, LAYOUTS[name].torn)):
        step = folder / str(number) / source.name
        shutil.copytree(source, step)
        act(step / path)
        true(state_of(step) != "complete", f"{name} is complete, and {path} is {what}")


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.state == "complete" and layout.model])
def test_what_stays_of_a_thinned_step(unpacked, folder, shared, name):
    """The model as its view had it, and nothing that only a resume needs; or a refusal in words."""
    wanted, source = LAYOUTS[name], step_of(unpacked / name)
    step, newer = folder / source.name, folder / re.sub(r"\d+", lambda digits: str(int(digits[0]) + 1), source.name)
    for copy in (step, newer):  # the newest is never thinned
        shutil.copytree(source, copy)
        wait_until(f"{copy.name} is complete", lambda copy=copy: state_of(copy) == "complete")
    before = read(shared.path / "views" / step.relative_to(shared.path) / "model.safetensors")
    done = ckptfs("thin", step)
    if wanted.refused:
        status_is(done, 1, wanted.refused)
        return
    status_is(done, 0)
    equal(state_of(step), "weights", f"{name}: state")
    true(read(step / "model.safetensors") == before, f"{name}: the thinned step's model is another")
    left = [path.name for path in step.rglob("*") if path.is_file() and path.suffix not in (".json", ".txt", ".jinja")]
    equal(sorted(left), sorted(["model.safetensors", *wanted.stays]), f"{name}: files of the thinned step")


def test_an_adapter_stays_one(folder, shared):
    """PEFT loads the view, and the thinned step, by the names that it gave itself."""
    step = folder / "checkpoint-7"
    step.mkdir()
    tensors = {"base_model.model.q.lora_A.weight": ("F32", [4, 2], bytes(range(32)))}
    write(step / "adapter_model.safetensors", safetensors(tensors))
    write(step / "adapter_config.json", b'{"peft_type": "LORA"}')
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        write(step / name, torch_file(noise(4096, 1)))
    write(step / "trainer_state.json", b'{"global_step": 7}')
    wait_until("it is complete", lambda: state_of(step) == "complete")
    view = shared.path / "views" / step.relative_to(shared.path)
    true((view / "adapter_config.json").exists() and not (view / "model.safetensors").exists(), "what the view has")
    equal(names_in(view / "adapter_model.safetensors"), set(tensors), "names in the view's adapter")
    before = read(step / "adapter_model.safetensors")
    shutil.copytree(step, folder / "checkpoint-8")  # of a newer one nothing goes
    run(CKPTFS, "thin", step)
    equal(read(step / "adapter_model.safetensors"), before, "the adapter of the thinned step")
    true(not (step / "optimizer.pt").exists(), "its optimizer is there")
    equal(names_in(view / "adapter_model.safetensors"), set(tensors), "names in the thinned step's view")


@pytest.mark.parametrize("name", ("megatron_tp2", "verl_fsdp"))
def test_what_loads_no_weights_alone_is_not_thinned(unpacked, folder, name):
    source = step_of(unpacked / name)
    step = folder / source.name
    shutil.copytree(source, step)
    shutil.copytree(source, folder / f"{source.name}9")  # a newer one
    wait_until("the newer one is complete", lambda: state_of(folder / f"{source.name}9") == "complete")
    status_is(ckptfs("thin", step), 1, "loads no weights without what lies beside them")
    equal(state_of(step), "complete", f"{name}: state")


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.state and not layout.model])
def test_what_is_no_model_is_not_thinned(unpacked, folder, name):
    source = step_of(unpacked / name)
    step = folder / source.name
    shutil.copytree(source, step)
    shutil.copytree(unpacked / "lightning_fsdp" / "epoch=0-step=2.ckpt", folder / "epoch=0-step=900.ckpt")  # a newer one
    before = sorted(path.name for path in step.rglob("*"))
    true(ckptfs("thin", step).returncode != 0, f"{name} was thinned")
    equal(sorted(path.name for path in step.rglob("*")), before, f"{name}: files")


@pytest.mark.parametrize("outer", ("iter_1", "checkpoint_1", "ep1-ba5", "epoch_0_step_1"))
def test_a_run_may_lie_in_a_folder_with_such_a_name(folder, outer):
    step = folder / outer / "checkpoint-5"
    step.mkdir(parents=True)
    write(step / "config.json", b"{}")
    write(step / "model.safetensors", safetensors({"w": ("F32", [2], bytes(8))}))
    write(step / "trainer_state.json", b'{"global_step": 5}')
    wait_until("it is complete", lambda: state_of(step) == "complete")

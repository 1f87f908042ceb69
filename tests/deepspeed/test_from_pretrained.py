"""transformers and PEFT load views and thinned steps, of each kind of step that has such a loader. The logits are, bit
for bit, those that the training's own model had at the save.

Each kind saves three steps. The first is thinned in its own type, the second to another type, the third stays full.
"""

import dataclasses
import json
import os

import pytest

from calling import ckptfs, status_is
from checking import equal, true
from from_pretrained import STEPS, VOCABULARY
from harness import Ckptfs, ranks_running, wait_for_ranks
from mounting import CKPTFS, LEVEL, by_level

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(600), pytest.mark.one_mode, pytest.mark.together]


@dataclasses.dataclass(frozen=True)
class Kind:
    ranks: int = 1
    dtype: str = "float32"  # the type that the model computes in
    other: str = "bf16"  # the second step is thinned to this type
    by: str = "AutoModelForCausalLM"  # the class that loads it; if it is an adapter, PeftModel
    adapter: bool = False
    has_config: bool = True  # if not, from_pretrained is given a config
    names_type: bool = True  # config.json names the type that the model computes in
    refused: str = ""  # why it is not thinned
    long: bool = True  # in the long run only


def of_bf16(ranks=1, **more):
    return Kind(ranks, "bfloat16", "fp32", **more)


KINDS = {
    "trainer": Kind(long=False),
    "trainer_shards": of_bf16(long=False),
    "trainer_callback": Kind(),
    "trainer_zero2": of_bf16(2),
    "trainer_zero3": Kind(2),
    "trainer_zero3_whole": of_bf16(2, long=False),
    "trainer_zero3_t5": of_bf16(2, by="AutoModelForSeq2SeqLM"),
    "trainer_fsdp": Kind(2, has_config=False, long=False),
    "trainer_fsdp_full": Kind(2),
    "lora": Kind(adapter=True, long=False),
    "lora_head": Kind(adapter=True),
    "lora_zero2": of_bf16(2, adapter=True),
    "lora_zero3": of_bf16(2, adapter=True, long=False),
    "accelerate": Kind(long=False),
    "accelerate_bin": Kind(),
    "accelerate_zero3": of_bf16(2, names_type=False),
    "accelerate_fsdp": Kind(2, long=False),
    "accelerate_fsdp_full": Kind(2),
    "dcp": Kind(2),
    "dcp_fp16": Kind(2, "float16", "fp32"),
    "dcp_app": of_bf16(2, long=False),
    "verl": Kind(2, refused="loads no weights without what lies beside them", long=False),
    "saver": of_bf16(has_config=False),
    # Of a model in bf16 that has one tensor in fp32.
    "trainer_mixed": of_bf16(long=False),
    "dcp_mixed": of_bf16(long=False),
}
TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
WANTED = [name for name, kind in KINDS.items() if LEVEL == "long" or not kind.long]
WANTED_BEST = by_level(("lora_best",), ("trainer_best", "lora_best"))


class Runs:
    """The logits that trainings tell, and those of what is loaded from views and steps."""

    def __init__(self, scene, mount):
        self.scene, self.mount = scene, mount
        self.base = scene.work / "base"
        self.truth, self.full, self.thinned, self.said = {}, {}, {}, {}
        self._run(1, "base", "base", self.base)

    def train(self, kind, ranks=1):
        """Returns the logits at the save of each step."""
        series = self.mount.path / "runs" / kind
        series.mkdir(parents=True)
        given = {"kind": kind, "series": str(series), "base": str(self.base), "ckptfs": str(CKPTFS)}
        return self._ask(kind, ranks, "train", given)

    def load(self, asked):
        """Returns the answers to what is asked, by the same keys."""
        answers = self._ask("load", 1, "load", list(asked.values()))
        return dict(zip(asked, answers, strict=True))

    def _ask(self, name, ranks, act, what):
        asking, out = (self.scene.work / f"{name}.{ending}" for ending in ("asked", "answered"))
        asking.write_text(json.dumps(what, default=str))
        self._run(ranks, name, act, asking, out)
        return json.loads(out.read_text())

    def _run(self, ranks, name, *words):
        log = self.scene.work / f"{name}.log"
        with open(log, "wb") as output:
            with ranks_running(ranks, list(map(str, words)), output, script="from_pretrained.py") as processes:
                wait_for_ranks(processes, log)

    def step(self, name, number):
        return self.mount.path / "runs" / name / list(self.truth[name])[number - 1]

    def view(self, name, number):
        return self.mount.path / "views" / self.step(name, number).relative_to(self.mount.path)

    def of_folder(self, name, folder, dtype, **named):
        kind = KINDS[name]
        asked = {"folder": folder, "by": kind.by, "named": {"dtype": dtype} | named}
        if kind.adapter:
            asked |= {"by": "PeftModel", "base": self.base}
        return asked if kind.has_config else asked | {"config": self.base}

    def of_full(self, name):
        """Returns what to load while the steps are full."""
        kind = KINDS[name]
        views = [self.view(name, number) for number in range(1, STEPS + 1)]
        asked = {f"view {number}": self.of_folder(name, view, kind.dtype) for number, view in enumerate(views, 1)}
        asked["use_safetensors"] = self.of_folder(name, views[2], kind.dtype, use_safetensors=True)
        other = TYPES[kind.other]
        if kind.adapter:
            asked["other type"] = self.of_folder(name, views[1], other)
            asked["other type"]["weights"] = views[1] / f"model.{kind.other}.safetensors"
            if kind.dtype == "float32":  # PEFT makes fp32 of an adapter in bf16
                asked["AutoPeft"] = {"folder": views[2], "by": "AutoPeftModelForCausalLM"}
            if name == "lora":  # transformers does not load modules_to_save
                asked["AutoModel"] = {"folder": views[2]}
            return asked
        if kind.names_type and kind.has_config:
            asked["auto"] = {"folder": views[2], "by": kind.by, "named": {"torch_dtype": "auto"}}
            asked["no type"] = {"folder": views[2], "by": kind.by}
        asked["other type"] = self.of_folder(name, views[1], other, variant=kind.other)
        if other == "bfloat16":
            asked["cast by transformers"] = self.of_folder(name, views[1], other)
        return asked

    def of_thinned(self, name):
        """Returns what to load once two steps are thinned."""
        kind = KINDS[name]
        other = TYPES[kind.other]
        asked = {"view": self.of_folder(name, self.view(name, 1), kind.dtype),
                 "view of another type": self.of_folder(name, self.view(name, 2), other)}
        if not kind.refused:
            asked |= {"step": self.of_folder(name, self.step(name, 1), kind.dtype, use_safetensors=True),
                      "step of another type": self.of_folder(name, self.step(name, 2), other)}
            if kind.names_type and kind.has_config and not kind.adapter:
                asked["auto"] = {"folder": self.step(name, 1), "by": kind.by, "named": {"dtype": "auto"}}
        return asked


def of_tokenizer(folder):
    return {"folder": folder, "by": "AutoTokenizer"}


@pytest.fixture(scope="module")
def placed(scene):
    with Ckptfs().place(scene) as mount:
        yield Runs(scene, mount)


@pytest.fixture(scope="module")
def runs(placed):
    """Trains all kinds, and loads them in two processes, since the start of a process takes longer than a load."""
    runs = placed
    for name in WANTED:
        runs.truth[name] = runs.train(name, KINDS[name].ranks)
    with_tokenizer = [name for name in WANTED if name in ("trainer", "verl")]
    asked = {(name, what): one for name in WANTED for what, one in runs.of_full(name).items()}
    runs.full = runs.load(asked | {(name, "tokenizer"): of_tokenizer(runs.view(name, 1)) for name in with_tokenizer})
    for name in WANTED:
        runs.said[name] = [ckptfs("thin", "--to", to, runs.step(name, number))
                           for number, to in ((1, "same"), (2, KINDS[name].other))]
    asked = {(name, what): one for name in WANTED for what, one in runs.of_thinned(name).items()}
    asked |= {(name, "tokenizer"): of_tokenizer(runs.view(name, 1)) for name in with_tokenizer}
    asked["trainer", "tokenizer of the step"] = of_tokenizer(runs.step("trainer", 1))
    runs.thinned = runs.load(asked)
    return runs


def judge_tokenizers(name, answers):
    for (of, what), told in answers.items():
        if of == name and "tokenizer" in what:
            equal(told, [[3, 5, 7], "w1 w9 w2"], f"{name}: {what}")


@pytest.mark.parametrize("name", WANTED)
def test_views_load(runs, name):
    """Each step's view, by each of the arguments that users give."""
    truth = list(runs.truth[name].values())
    equal(len({str(logits) for logits in truth}), STEPS, "different logits: otherwise nothing could be told from them")
    equal(truth[0][1:4], [2, 24, VOCABULARY], "their shape")
    for number in range(1, STEPS + 1):
        equal(runs.full[name, f"view {number}"], truth[number - 1], f"{name}: the view of step {number}")
    for what in ("use_safetensors", "auto", "no type", "AutoPeft", "AutoModel"):
        equal(runs.full.get((name, what), truth[2]), truth[2], f"{name}: {what}")
    judge_tokenizers(name, runs.full)


@pytest.mark.parametrize("name", WANTED)
def test_thinned_steps_load(runs, name):
    """Thinned steps and their views, in the type of the model and in another one. If thin is refused, it says why."""
    kind, truth = KINDS[name], list(runs.truth[name].values())
    for done in runs.said[name]:
        status_is(done, 1 if kind.refused else 0, kind.refused)
    other = runs.full[name, "other type"]
    true(other[0] in TYPES.values(), f"{name}: the view in another type: {other}")
    true(other != truth[1], "the other type has the same logits")
    equal(runs.full.get((name, "cast by transformers"), other), other, f"{name}: the cast of transformers")
    equal(runs.thinned[name, "view"], truth[0], f"{name}: the view after thin")
    equal(runs.thinned[name, "view of another type"], other, f"{name}: the view after thin to another type")
    if not kind.refused:
        equal(runs.thinned[name, "step"], truth[0], f"{name}: the thinned step")
        equal(runs.thinned[name, "step of another type"], other, f"{name}: the step that is thinned to another type")
        equal(runs.thinned.get((name, "auto"), truth[0]), truth[0], f"{name}: the thinned step, auto")
    judge_tokenizers(name, runs.thinned)


@pytest.mark.parametrize("name", WANTED)
def test_the_link_has_the_type_of_the_model(runs, name):
    kind = KINDS[name]
    [short] = [short for short, long in TYPES.items() if long == kind.dtype]
    link = "adapter_model.safetensors" if kind.adapter else "model.safetensors"
    for number in range(1, STEPS):
        step = runs.step(name, number)
        true(not (step / "pytorch_model_fsdp.bin").exists() or kind.refused, f"{name}: a second model in the thinned step")
        wanted = short if number == 1 or kind.refused else kind.other
        equal(os.readlink(runs.view(name, number) / link), f"model.{wanted}.safetensors", f"{name}: view {number}")


@pytest.mark.parametrize("name", WANTED_BEST)
def test_the_best_step_is_loaded_at_the_end(placed, name):
    """load_best_model_at_end: the best step is refused to `thin`, the other one is not."""
    found = placed.train(name)
    equal(found["best step"], "checkpoint-2", "the best step: otherwise it cannot be told from the newest")
    equal(found["best"], found["checkpoint-2"], "the logits at the end, against those of the best step")
    true(found["best"] != found["checkpoint-3"], "the logits of all steps are the same")
    status, words = found["thin checkpoint-2"]
    true(status == 1 and "a Trainer will load it at its end" in words, f"thin of the best step: {status}, {words}")
    equal(found["thin checkpoint-1"], [0, ""], "thin of the other step")


@pytest.mark.long
def test_an_adapter_beside_the_default_one(placed):
    """PEFT saves it into a folder of its own, which stays. The view has the default one only."""
    placed.truth["lora_two"] = truth = placed.train("lora_two")
    step, view = placed.step("lora_two", 1), placed.view("lora_two", 1)
    both = {what: {"folder": folder, "named": {"dtype": "float32"}, "by": "PeftModel", "base": placed.base}
            for what, folder in (("second", step / "second"), ("default", step), ("view", view))}
    before = placed.load(both)
    equal(before["second"], truth["checkpoint-1"], "the second adapter")
    equal(before["view"], before["default"], "the view, against the step's default adapter")
    status_is(ckptfs("thin", step), 0)
    equal(placed.load(both), before, "the thinned step, against before")

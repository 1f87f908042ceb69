"""Tiny models, trained and saved by many trainers; and what from_pretrained makes of folders.

    from_pretrained.py base FOLDER       saves a model of which others are adapters
    from_pretrained.py train GIVEN OUT   one rank of a training. GIVEN is Given, as JSON. OUT becomes the logits
                                         of the running model at the save of each step, by the step's name
    from_pretrained.py load ASKED OUT    ASKED is a list of what load() takes, as JSON. OUT becomes the answers

Logits are told as their type, their shape and a digest.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys

from ending import end_rank

STEPS = 3
WORDS = 24
VOCABULARY = 311
LAYER = "LlamaDecoderLayer"


@dataclasses.dataclass(frozen=True)
class Given:
    kind: str
    series: str
    base: str  # what `base` has saved
    ckptfs: str  # the command


def digest(tensor):
    import torch

    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return [str(tensor.dtype).removeprefix("torch."), *tensor.shape, hashlib.sha256(data).hexdigest()]


def logits_of(model):
    import torch

    training = model.training
    model.eval()
    words = {"input_ids": torch.arange(2 * WORDS).view(2, WORDS)}
    if getattr(model, "module", model).config.model_type == "t5":
        words["decoder_input_ids"] = words["input_ids"]
    with torch.no_grad():
        logits = model(**words, use_cache=False).logits
    model.train(training)
    return digest(logits)


def samples():
    import torch

    generator = torch.Generator().manual_seed(7)
    for _ in range(16):
        words = torch.randint(VOCABULARY, (16,), generator=generator)
        yield {"input_ids": words, "labels": words}


def llama(dtype="float32", tied=True):
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=72, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0,
                         eos_token_id=0, pad_token_id=0, tie_word_embeddings=tied)
    return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))


def t5():
    """Its encoder, its decoder and its head have one embedding."""
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=72, num_layers=2, num_heads=4, decoder_start_token_id=0,
        tie_word_embeddings=True))


def tokenizer():
    """A tokenizer of words. Its chat template is a file that is no JSON."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(VOCABULARY - 1)} | {"<unk>": VOCABULARY - 1}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="w0",
                                   chat_template="{% for one in messages %}w1 {{ one['content'] }} w2{% endfor %}")


# --- the Trainer


def use_gloo():
    """Without a GPU accelerate takes DeepSpeed's ranks for one process, unless it is told the backend."""
    import accelerate
    from transformers.trainer_pt_utils import AcceleratorConfig

    accelerate.PartialState(backend="gloo")
    return AcceleratorConfig(use_configured_state=True)


def zero(stage, dtype, gather=True):
    config = {
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "steps_per_print": 1 << 30,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100, "overlap_comm": False},
    }
    if stage == 3:
        config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = gather
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
    return config


def fit(given, found, model, **named):
    """Trains by transformers' own Trainer."""
    import transformers

    class Notes(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            found[f"checkpoint-{state.global_step}"] = logits_of(trainer.model_wrapped)

    processing, also = named.pop("processing_class", None), named.pop("also", ())
    arguments = transformers.TrainingArguments(
        output_dir=given.series, max_steps=STEPS, save_strategy="steps", save_steps=1, logging_strategy="no",
        report_to="none", disable_tqdm=True, per_device_train_batch_size=2, learning_rate=3e-3, seed=11, use_cpu=True,
        **named)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=list(samples()),
                                   eval_dataset=list(samples())[:2], callbacks=[*also, Notes()],
                                   processing_class=processing)
    trainer.train()


def trainer(given, found):
    fit(given, found, llama(), processing_class=tokenizer())


def trainer_shards(given, found):
    """In bf16, without tied weights, in five shards."""
    from transformers import PreTrainedModel

    PreTrainedModel.save_pretrained = functools.partialmethod(PreTrainedModel.save_pretrained, max_shard_size="20KB")
    fit(given, found, llama("bfloat16", tied=False))


def trainer_zero(stage, dtype, gather, given, found, make=llama):
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    fit(given, found, make(), deepspeed=zero(stage, dtype, gather), accelerator_config=use_gloo(),
        bf16=dtype == "bfloat16")


def use_fsdp():
    """accelerate refuses FSDP on a CPU. FSDP2 itself works there, so the ranks say that they have GPUs."""
    import accelerate
    from transformers.trainer_pt_utils import AcceleratorConfig

    os.environ["ACCELERATE_USE_FSDP"] = "true"
    state = accelerate.PartialState(cpu=True, backend="gloo")
    state.distributed_type = accelerate.DistributedType.MULTI_GPU
    return AcceleratorConfig(use_configured_state=True)


def trainer_fsdp(states, given, found):
    fit(given, found, llama(), accelerator_config=use_fsdp(), fsdp="full_shard auto_wrap",
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": [LAYER], "state_dict_type": states,
                     "sync_module_states": False, "cpu_ram_efficient_loading": False})


def lora(given, dtype="float32", **named):
    """An adapter of the model in given.base, which its adapter_config.json names."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(given.base, dtype=getattr(torch, dtype))
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False,
                             task_type="CAUSAL_LM", **named)
    return peft.get_peft_model(base, config)


def trainer_lora(named, given, found):
    fit(given, found, lora(given, **named))


def trainer_lora_two(given, found):
    """A model with two adapters, of which the second is trained."""
    import peft

    model = lora(given)
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["o_proj"], init_lora_weights=False))
    model.set_adapter("second")
    fit(given, found, model)


def trainer_lora_zero(stage, given, found):
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    model = lora(given, "bfloat16")
    fit(given, found, model, deepspeed=zero(stage, "bfloat16"), accelerator_config=use_gloo(), bf16=True)


def trainer_callback(given, found):
    """ckptfs saves the steps in the background."""
    import ckptfs.transformers

    fit(given, found, llama(), also=[ckptfs.transformers.Callback()])


def best(make, given, found):
    """load_best_model_at_end, in a training whose steps are thinned before it ends. The best step is that of the
    greatest loss, since it must not be the last one."""
    import transformers

    class Thins(transformers.TrainerCallback):
        def on_save(self, args, state, control, **_):
            if state.global_step < STEPS:
                return
            found["best step"] = pathlib.Path(state.best_model_checkpoint).name
            for number in range(1, STEPS):
                step = f"checkpoint-{number}"
                done = subprocess.run([given.ckptfs, "thin", f"{given.series}/{step}"], capture_output=True, text=True,
                                      check=False)
                found[f"thin {step}"] = [done.returncode, done.stderr]

    model = make(given)
    fit(given, found, model, also=[Thins()], eval_strategy="steps", eval_steps=1, load_best_model_at_end=True,
        metric_for_best_model="eval_loss", greater_is_better=True)
    found["best"] = logits_of(model)


def mixed():
    """A model in bf16 with a tensor that transformers keeps in fp32, the bias of a router. A cast to bf16 makes nearly
    all of the bias the same, so that the router chooses other experts."""
    import torch
    from transformers import AutoModelForCausalLM, DeepseekV3Config

    config = DeepseekV3Config(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=72, moe_intermediate_size=24,
                              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4,
                              num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1, kv_lora_rank=8,
                              q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, bos_token_id=0,
                              eos_token_id=0, max_position_embeddings=64)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.data = 64 + torch.arange(4, dtype=torch.float32) / 10
    return model


def trainer_mixed(given, found):
    fit(given, found, mixed())


def dcp_mixed(given, found):
    """One rank saves by DCP. The model is not trained: each step has another head."""
    import torch
    import torch.distributed.checkpoint as dcp

    model = mixed()
    for step in range(1, STEPS + 1):
        torch.nn.init.normal_(model.lm_head.weight, std=0.1)
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{given.series}/step-{step}")
        model.config.save_pretrained(f"{given.series}/step-{step}")
        found[f"step-{step}"] = logits_of(model)


# --- accelerate


def batches():
    import torch

    data = list(samples())
    for step in range(STEPS):
        yield {name: torch.stack([row[name] for row in data[2 * step:2 * step + 2]]) for name in data[0]}


def loop(given, found, accelerator, model, optimizer, **named):
    """A loop of a user, which saves config.json beside what accelerate saves."""
    for step, batch in enumerate(batches(), 1):
        accelerator.backward(model(**batch, use_cache=False).loss)
        optimizer.step()
        optimizer.zero_grad()
        name = f"checkpoint_{step}"
        accelerator.save_state(f"{given.series}/{name}", **named)
        found[name] = logits_of(model)
        if accelerator.is_main_process:
            accelerator.unwrap_model(model).config.save_pretrained(f"{given.series}/{name}")
        accelerator.wait_for_everyone()


def accelerate_plain(named, given, found):
    import accelerate
    import torch

    accelerator = accelerate.Accelerator(cpu=True)
    model = llama()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    loop(given, found, accelerator, model, optimizer, **named)


def accelerate_zero3(given, found):
    import accelerate
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    accelerate.PartialState(backend="gloo")
    config = zero(3, "bfloat16")
    config |= {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
               "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True}}}
    accelerator = accelerate.Accelerator(deepspeed_plugin=accelerate.DeepSpeedPlugin(hf_ds_config=config))
    model = llama()
    model, optimizer = accelerator.prepare(model, accelerate.utils.DummyOptim(model.parameters()))
    loop(given, found, accelerator, model, optimizer)


def accelerate_fsdp(states, given, found):
    import accelerate
    import torch

    use_fsdp()
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, state_dict_type=states, auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        transformer_cls_names_to_wrap=[LAYER], cpu_ram_efficient_loading=False)
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)
    model = llama()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    loop(given, found, accelerator, model, optimizer)


# --- FSDP2 by hand


def fsdp2(dtype="float32"):
    """Trains without a trainer. Yields step, model and optimizer whenever a step is to be saved."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = llama(dtype)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)  # 1e-8 is 0 in fp16
    for step, batch in enumerate(batches(), 1):
        model(**batch, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step, model, optimizer


def dcp(dtype, wrap, given, found):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    for step, model, optimizer in fsdp2(dtype):
        weights, states = get_state_dict(model, optimizer)
        folder = f"{given.series}/step-{step}"
        dcp.save(wrap({"model": weights, "optim": states}), checkpoint_id=folder)
        model.config.save_pretrained(folder)
        found[f"step-{step}"] = logits_of(model)


def verl(given, found):
    """Writes the files that verl's FSDPCheckpointManager writes, as it does. verl itself needs a GPU."""
    import torch

    rank, world = torch.distributed.get_rank, torch.distributed.get_world_size
    for step, model, optimizer in fsdp2():
        name = f"global_step_{step}"
        folder = pathlib.Path(given.series, name, "actor")
        folder.mkdir(parents=True, exist_ok=True)
        ending = f"world_size_{world()}_rank_{rank()}.pt"
        torch.save(model.state_dict(), folder / f"model_{ending}")
        torch.save(optimizer.state_dict(), folder / f"optim_{ending}")
        torch.save({"lr_scheduler": None, "rng": torch.get_rng_state()}, folder / f"extra_state_{ending}")
        if rank() == 0:
            (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world()}))
            model.config.save_pretrained(folder / "huggingface")
            tokenizer().save_pretrained(folder / "huggingface")
            torch.save({"_snapshot": {"_num_yielded": step}}, folder.parent / "data.pt")
        torch.distributed.barrier()
        found[name] = logits_of(model)


def saver(given, found):
    """ckptfs.Saver. A sealed step takes no config.json."""
    import ckptfs
    import torch

    model = llama("bfloat16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, batch in enumerate(batches(), 1):
        model(**batch, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ckptfs.Saver(given.series).save(f"step_{step}", model.state_dict()).wait()
        found[f"step_{step}"] = logits_of(model)


# --- what from_pretrained makes of a folder


def load(asked):
    """Returns the logits of a model. `asked` has the folder. It may have `by`: a class; `named`: arguments of
    from_pretrained; `config`: a folder with config.json; for PeftModel `base`: a folder, and `weights`: a file whose
    tensors the adapter gets."""
    import torch
    import transformers

    named = dict(asked.get("named", {}))
    for name in ("dtype", "torch_dtype"):
        if named.get(name, "auto") != "auto":
            named[name] = getattr(torch, named[name])
    if "config" in asked:
        named["config"] = transformers.AutoConfig.from_pretrained(asked["config"])
        named["generation_config"] = transformers.GenerationConfig()
    by = asked.get("by", "AutoModelForCausalLM")
    if by == "AutoTokenizer":
        made = transformers.AutoTokenizer.from_pretrained(asked["folder"])
        return [made("w3 w5 w7")["input_ids"], made.apply_chat_template([{"content": "w9"}], tokenize=False)]
    if by == "PeftModel":
        import peft
        from safetensors.torch import load_file

        model = transformers.AutoModelForCausalLM.from_pretrained(asked["base"], **named)
        model = peft.PeftModel.from_pretrained(model, asked["folder"], autocast_adapter_dtype=False)
        if "weights" in asked:
            peft.set_peft_model_state_dict(model, load_file(asked["weights"]))
        return logits_of(model)
    if "Peft" in by:
        import peft

        return logits_of(getattr(peft, by).from_pretrained(asked["folder"], **named))
    return logits_of(getattr(transformers, by).from_pretrained(asked["folder"], **named))


def answer(asked):
    try:
        return load(asked)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as problem:  # a refusal is an answer, too
        return f"{type(problem).__name__}: {problem}"


KINDS = {
    "trainer": trainer,
    "trainer_shards": trainer_shards,
    "trainer_zero2": functools.partial(trainer_zero, 2, "bfloat16", True),
    "trainer_zero3": functools.partial(trainer_zero, 3, "float32", True),
    "trainer_zero3_bf16": functools.partial(trainer_zero, 3, "bfloat16", True),
    "trainer_zero3_whole": functools.partial(trainer_zero, 3, "bfloat16", False),
    "trainer_zero3_t5": functools.partial(trainer_zero, 3, "bfloat16", False, make=t5),
    "trainer_fsdp": functools.partial(trainer_fsdp, "SHARDED_STATE_DICT"),
    "trainer_fsdp_full": functools.partial(trainer_fsdp, "FULL_STATE_DICT"),
    "trainer_callback": trainer_callback,
    "trainer_mixed": trainer_mixed,
    "trainer_best": functools.partial(best, lambda given: llama()),
    "lora_best": functools.partial(best, lora),
    "dcp_mixed": dcp_mixed,
    "lora": functools.partial(trainer_lora, {}),
    "lora_head": functools.partial(trainer_lora, {"modules_to_save": ["embed_tokens", "lm_head"], "use_dora": True}),
    "lora_two": trainer_lora_two,
    "lora_zero2": functools.partial(trainer_lora_zero, 2),
    "lora_zero3": functools.partial(trainer_lora_zero, 3),
    "accelerate": functools.partial(accelerate_plain, {}),
    "accelerate_bin": functools.partial(accelerate_plain, {"safe_serialization": False}),
    "accelerate_zero3": accelerate_zero3,
    "accelerate_fsdp": functools.partial(accelerate_fsdp, "SHARDED_STATE_DICT"),
    "accelerate_fsdp_full": functools.partial(accelerate_fsdp, "FULL_STATE_DICT"),
    "dcp": functools.partial(dcp, "float32", lambda state: state),
    "dcp_fp16": functools.partial(dcp, "float16", lambda state: state),
    "dcp_app": functools.partial(dcp, "bfloat16", lambda state: {"app": state}),
    "verl": verl,
    "saver": saver,
}


def main(act, *words):
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if act == "base":
        torch.manual_seed(5)
        llama().save_pretrained(words[0])
        return
    if act == "load":
        result = [answer(asked) for asked in json.loads(pathlib.Path(words[0]).read_text())]
        pathlib.Path(words[1]).write_text(json.dumps(result))
        return
    given = Given(**json.loads(pathlib.Path(words[0]).read_text()))
    torch.manual_seed(20_240_229)
    found = {}
    KINDS[given.kind](given, found)
    if int(os.environ["RANK"]) == 0:
        pathlib.Path(words[1]).write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        end_rank()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

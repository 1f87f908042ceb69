"""A tiny GPT-2 of Hugging Face, trained by ZeRO-3 and saved; and what from_pretrained makes of a folder.

    pretrained.py train FOLDER SWAP OWN      one rank; prints a digest of each parameter, as JSON. OWN is what
                                             save_pretrained makes of the same weights
    pretrained.py load FOLDER DTYPE          prints the same of the model that is loaded, of its logits, and of a slice
    pretrained.py cast FOLDER DTYPE OWN      OWN is what save_pretrained makes of FOLDER in this type; prints what `load`
                                             prints of OWN
"""

import hashlib
import json
import sys

TAG = "global_step1"


def digest(torch, tensor):
    return hashlib.sha256(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def train(folder, swap, own):
    import deepspeed
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    deepspeed.init_distributed(dist_backend="gloo")
    settings = {
        "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1 << 30, "bf16": {"enabled": True},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 3, "sub_group_size": 400_000,
                              "offload_optimizer": {"device": "nvme", "nvme_path": swap, "pin_memory": False}},
    }
    config = GPT2Config(vocab_size=1031, n_positions=64, n_embd=256, n_layer=2, n_head=4)
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = GPT2LMHeadModel(config)
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]
    tokens = torch.arange(32).view(1, 32)
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    engine.save_checkpoint(folder, tag=TAG)
    config.save_pretrained(f"{folder}/{TAG}")
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        found = {name: digest(torch, parameter.data) for name, parameter in model.named_parameters()}
        model.save_pretrained(own)
    print("\n" + json.dumps(found))


def read(folder, dtype):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype if dtype == "auto" else getattr(torch, dtype))


def load(folder, dtype):
    import torch
    from safetensors import safe_open

    torch.set_num_threads(1)
    model = read(folder, dtype)
    found = {name: digest(torch, parameter) for name, parameter in model.named_parameters()}
    tied = model.lm_head.weight is model.transformer.wte.weight
    with safe_open(f"{folder}/model.safetensors", "pt") as file:
        part = file.get_slice("transformer.h.1.mlp.c_fc.weight")[100:200]
    whole = dict(model.named_parameters())["transformer.h.1.mlp.c_fc.weight"]
    with torch.no_grad():
        logits = model(input_ids=torch.arange(48).view(2, 24)).logits
    print("\n" + json.dumps({"parameters": found, "tied": tied, "slice": bool((part.to(whole.dtype) == whole[100:200]).all()),
                             "logits": [str(logits.dtype), *logits.shape, digest(torch, logits)]}))


def cast(folder, dtype, own):
    read(folder, dtype).save_pretrained(own)
    load(own, dtype)


if __name__ == "__main__":
    {"train": train, "load": load, "cast": cast}[sys.argv[1]](*sys.argv[2:])

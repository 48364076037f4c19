#!/usr/bin/env python3
"""Makes the folder of a tiny Llama with random weights and a real tokenizer, as engines load it.

    make_tiny_model.py FOLDER [--layers 2] [--hidden 128] [--ctx 4096] [--seed 0]

It talks nonsense, but its speed, queue, cache and API are the engine's own. Needs torch, transformers and
tokenizers, no network; the same seed and library versions give the same model.
"""

import argparse
import json
import os
import pathlib
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

# ChatML; a message's content is a text or a list of parts.
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# What the tokenizer learns its merges from; all other text falls back to bytes.
WORDS = """
the a an and or of to in on with for from one two three four five six seven eight nine ten zero hello world please
write tell story question answer user system assistant model replica gateway request response stream token prompt
prefix cache block queue batch load key limit budget price error retry health metric server client route each long
short quick slow old new city river garden machine people work day night cat dog bird tree house letter number word
""".split()

HEAD = 64  # a head size that CPU attention supports
VOCABULARY = 1024
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def make_tokenizer(seed, ctx):
    rng = random.Random(seed)
    sentences = (" ".join(rng.choices(WORDS, k=rng.randint(4, 15))) + ".\n" for _ in range(4000))
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        sentences,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END, START, STOP],
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok, bos_token=END, eos_token=STOP, pad_token=END, model_max_length=ctx,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--hidden", type=int, default=2 * HEAD)
    ap.add_argument("--ctx", type=int, default=4096)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    if a.hidden < HEAD or a.hidden % HEAD:
        ap.error(f"--hidden {a.hidden}: must be a multiple of {HEAD}")

    set_seed(a.seed)
    tok = make_tokenizer(a.seed, a.ctx)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tok), hidden_size=a.hidden, intermediate_size=2 * a.hidden, num_hidden_layers=a.layers,
            num_attention_heads=a.hidden // HEAD, num_key_value_heads=1, head_dim=HEAD,
            max_position_embeddings=a.ctx, rms_norm_eps=1e-5, tie_word_embeddings=False,
            bos_token_id=tok.bos_token_id, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
            initializer_range=0.2,  # far from the usual 0.02, so that the answer depends on the prompt
        )
    ).to(torch.bfloat16)
    model.eval().save_pretrained(a.folder)
    tok.save_pretrained(a.folder)
    # Engines' readers of this file want the template in it and a class that
    # every version of transformers knows.
    path = a.folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {"chat_template": CHAT_TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=1) + "\n")
    print(f"{a.folder}: {len(tok)} tokens, {sum(p.numel() for p in model.parameters())} parameters")


if __name__ == "__main__":
    main()

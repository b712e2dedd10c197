"""Writes the trained model as GGUF: Q8_0 matrices, f32 norms and small tensors.

    python3 export.py --corpus DIR --ckpt DIR/ckpt.pt --out ../../models/demo.gguf
"""
import argparse
import json
import os

import numpy as np
import torch

import gguf_io as G
import model
import quants
import render


def tensors(net):
    """(name, array) in file order; arrays are [out, in] as torch has them."""
    c, sd = net.c, {k: v.float().numpy() for k, v in net.state_dict().items()}
    yield "token_embd.weight", sd["embed.weight"]
    for i in range(c.layers):
        b, g = "blocks.%d." % i, "blk.%d." % i
        yield g + "attn_norm.weight", sd[b + "norm.weight"]
        m = b + "mixer."
        if c.recurrent(i):
            yield g + "attn_qkv.weight", sd[m + "qkv.weight"]
            yield g + "attn_gate.weight", sd[m + "z.weight"]
            yield g + "ssm_conv1d.weight", sd[m + "conv"]
            yield g + "ssm_dt.bias", sd[m + "dt"]
            yield g + "ssm_a", -np.exp(sd[m + "a_log"])
            yield g + "ssm_beta.weight", sd[m + "beta.weight"]
            yield g + "ssm_alpha.weight", sd[m + "alpha.weight"]
            yield g + "ssm_norm.weight", sd[m + "norm.weight"]
            yield g + "ssm_out.weight", sd[m + "out.weight"]
        else:
            yield g + "attn_q.weight", sd[m + "q.weight"]
            yield g + "attn_k.weight", sd[m + "k.weight"]
            yield g + "attn_v.weight", sd[m + "v.weight"]
            yield g + "attn_q_norm.weight", sd[m + "q_norm.weight"]
            yield g + "attn_k_norm.weight", sd[m + "k_norm.weight"]
            yield g + "attn_output.weight", sd[m + "o.weight"]
        yield g + "post_attention_norm.weight", sd[b + "ffn_norm.weight"]
        yield g + "ffn_gate.weight", sd[b + "gate.weight"]
        yield g + "ffn_up.weight", sd[b + "up.weight"]
        yield g + "ffn_down.weight", sd[b + "down.weight"]
    yield "output_norm.weight", sd["norm.weight"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--ckpt", required=True)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    c = model.Config()
    net = model.Model(c)
    net.load_state_dict(torch.load(a.ckpt)["model"])
    tok = json.load(open(os.path.join(a.corpus, "tokenizer.json"), encoding="utf-8"))
    sp = {t: i for i, t in enumerate(tok["tokens"])}

    w = G.Writer()
    w.kv("general.architecture", G.STR, "qwen35")
    w.kv("general.type", G.STR, "model")
    w.kv("general.name", G.STR, "holdfast demo")
    w.kv("general.size_label", G.STR, "9M")
    w.kv("general.license", G.STR, "mit")
    for k, v in (("block_count", c.layers), ("context_length", c.ctx), ("embedding_length", c.d),
                 ("feed_forward_length", c.ff), ("attention.head_count", c.heads),
                 ("attention.head_count_kv", c.kv_heads), ("attention.key_length", c.head_dim),
                 ("attention.value_length", c.head_dim), ("ssm.conv_kernel", c.conv), ("ssm.state_size", c.state),
                 ("ssm.group_count", c.key_heads), ("ssm.time_step_rank", c.value_heads),
                 ("ssm.inner_size", c.value_heads * c.state), ("full_attention_interval", c.interval),
                 ("rope.dimension_count", c.rot)):
        w.kv("qwen35." + k, G.U32, v)
    w.kv("qwen35.rope.dimension_sections", G.ARR, list(c.sections), G.I32)
    w.kv("qwen35.rope.freq_base", G.F32, c.base)
    w.kv("qwen35.attention.layer_norm_rms_epsilon", G.F32, c.eps)
    w.kv("general.file_type", G.U32, 7)
    w.kv("general.quantization_version", G.U32, 2)
    w.kv("tokenizer.ggml.model", G.STR, "gpt2")
    w.kv("tokenizer.ggml.pre", G.STR, "qwen35")
    w.kv("tokenizer.ggml.tokens", G.ARR, tok["tokens"], G.STR)
    w.kv("tokenizer.ggml.token_type", G.ARR, tok["types"], G.I32)
    w.kv("tokenizer.ggml.merges", G.ARR, tok["merges"], G.STR)
    w.kv("tokenizer.ggml.eos_token_id", G.U32, sp["<|im_end|>"])
    w.kv("tokenizer.ggml.padding_token_id", G.U32, sp["<|endoftext|>"])
    w.kv("tokenizer.ggml.add_bos_token", G.BOOL, 0)
    w.kv("tokenizer.chat_template", G.STR, render.SOURCE)
    data = {}
    for name, x in tensors(net):
        small = x.ndim == 1 or name.endswith("ssm_conv1d.weight")
        data[name] = x
        w.tensor(name, list(x.shape[::-1]), "f32" if small else "q8_0")
    w.write(a.out, lambda name, ne, kind: [quants.quantize(kind, data[name].reshape(-1).astype(np.float32))])
    print("%s: %d tensors, %.2f M parameters, %.1f MB" %
          (a.out, len(data), sum(x.size for x in data.values()) / 1e6, os.path.getsize(a.out) / 1e6))


if __name__ == "__main__":
    main()

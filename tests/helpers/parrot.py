"""A model that says a given script, token for token, so that what becomes of an answer can be tested.

Each token of the script has a dimension of the embedding of its own; attention and experts give zero, and the output
matrix leads from every token to the next. A prompt that ends with `starter` is answered by the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
HEADS, HEAD_DIM, EXPERTS, WIDTH = 2, 32, 4, 32


def byte_letters() -> dict[int, str]:
    """The letters that stand for bytes in a vocabulary of GPT-2's kind."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in shown]
    return {**{byte: chr(byte) for byte in shown}, **{byte: chr(256 + index) for index, byte in enumerate(rest)}}


def write_parrot(
    path: Path, script: Sequence[str], template: str = CHATML, *, special: Sequence[str] = (), starter: str = "\n"
) -> Path:
    """A GGUF file. script: texts of tokens, each once. special: those that are control tokens."""
    assert len(set(script)) == len(script), "a text of the script twice: cut it differently"
    letters = byte_letters()
    control = [*CONTROL, *special]
    tokens = [*(letters[byte] for byte in range(256)), "ab", *control]
    tokens += [text for text in script if text not in control]
    kinds = [1] * 257 + [3] * len(control) + [4] * (len(tokens) - 257 - len(control))
    start = tokens.index(starter if starter in control else letters[ord(starter)])
    chain = [tokens.index(text, 257) for text in script]
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    _describe(writer, tokens, kinds, template)
    hidden = max(64, -(-(len(chain) + 2) // 32) * 32)
    for name, values in _weights(len(tokens), hidden, [start, *chain], tokens.index("<|im_end|>")).items():
        writer.add_tensor(name, values)
    writer.add_embedding_length(hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: gguf.GGUFWriter, tokens: list[str], kinds: list[int], template: str) -> None:
    writer.add_name("Parrot")
    writer.add_context_length(4096)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(WIDTH)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def _weights(vocab: int, hidden: int, chain: list[int], end: int) -> dict[str, NDArray[np.float32]]:
    embed, output = np.zeros((2, vocab, hidden), np.float32)
    embed[:, 0] = 1
    output[end, 0] = 8
    for dimension, (token, following) in enumerate(zip(chain, [*chain[1:], end], strict=True), 1):
        embed[token] = np.eye(hidden, dtype=np.float32)[dimension]
        output[following, dimension] = 8

    def zeros(*shape: int) -> NDArray[np.float32]:
        return np.zeros(shape, np.float32)

    heads, ones = HEADS * HEAD_DIM, np.ones(hidden, np.float32)
    return {
        "token_embd.weight": embed, "output.weight": output, "output_norm.weight": ones,
        "blk.0.attn_norm.weight": ones, "blk.0.ffn_norm.weight": ones,
        "blk.0.attn_q.weight": zeros(heads, hidden), "blk.0.attn_k.weight": zeros(heads, hidden),
        "blk.0.attn_v.weight": zeros(heads, hidden), "blk.0.attn_output.weight": zeros(hidden, heads),
        "blk.0.attn_q_norm.weight": ones[:HEAD_DIM], "blk.0.attn_k_norm.weight": ones[:HEAD_DIM],
        "blk.0.ffn_gate_inp.weight": zeros(EXPERTS, hidden),
        "blk.0.ffn_gate_exps.weight": zeros(EXPERTS, WIDTH, hidden),
        "blk.0.ffn_up_exps.weight": zeros(EXPERTS, WIDTH, hidden),
        "blk.0.ffn_down_exps.weight": zeros(EXPERTS, hidden, WIDTH),
    }  # fmt: skip

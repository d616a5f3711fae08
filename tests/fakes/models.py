"""Models for the tests: heads of GGUF files with the shapes of real ones, and tiny files that are complete."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from pyrun.models.facts import ModelFacts, model_facts
from pyrun.models.gguf import Gguf, Skipped, Tensor

THINKING_TEMPLATE = "{% if enable_thinking %}<think>{% endif %}"


def facts(name: str, architecture: str, gib: float, experts_gib: float = 0.0, **values: Any) -> ModelFacts:
    """Keys with __ for dots: attention__head_count."""
    metadata: dict[str, Any] = {f"{architecture}.{key.replace('__', '.')}": value for key, value in values.items()}
    metadata["general.architecture"] = architecture
    metadata["tokenizer.ggml.tokens"] = Skipped(151936)
    metadata["tokenizer.chat_template"] = THINKING_TEMPLATE
    layers = values["block_count"]
    bits = 4.9
    rest = Tensor(
        "blk.0.attn_q.weight", int((gib - experts_gib) * (8 << 30) / bits), int((gib - experts_gib) * (1 << 30)), ""
    )
    one = experts_gib / layers
    experts = [
        Tensor(f"blk.{n}.ffn_up_exps.weight", int(one * (8 << 30) / bits), int(one * (1 << 30)), "")
        for n in range(layers if experts_gib else 0)
    ]
    return model_facts(name, [Gguf(Path(f"{name}.gguf"), metadata, [rest, *experts], int(gib * (1 << 30)))])


def mixture() -> ModelFacts:
    """A hybrid mixture of experts, as 35B-A3B models are."""
    return facts(
        "hybrid-35B-A3B-Q4_K_M",
        "qwen35moe",
        19.7,
        18.2,
        block_count=40,
        context_length=262144,
        embedding_length=2048,
        expert_count=256,
        expert_used_count=8,
        full_attention_interval=4,
        attention__head_count=16,
        attention__head_count_kv=2,
        attention__key_length=256,
        attention__value_length=256,
        ssm__conv_kernel=4,
        ssm__inner_size=4096,
        ssm__state_size=128,
        ssm__group_count=16,
    )


def large() -> ModelFacts:
    """Dense, 32B."""
    return facts(
        "dense-32B-Q4_K_M",
        "qwen3",
        18.4,
        block_count=64,
        context_length=40960,
        embedding_length=5120,
        attention__head_count=64,
        attention__head_count_kv=8,
        attention__key_length=128,
        attention__value_length=128,
    )


def small() -> ModelFacts:
    """Dense, 8B."""
    return facts(
        "dense-8B-Q4_K_M",
        "llama",
        4.6,
        block_count=32,
        context_length=131072,
        embedding_length=4096,
        attention__head_count=32,
        attention__head_count_kv=8,
    )


def gguf_bytes(
    metadata: dict[str, Any] | None = None, tensors: int = 2, vocabulary: int = 0, values: int = 64
) -> bytes:
    """A complete file: a small dense model, with what is given on top."""
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 4096,
        "llama.embedding_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        **({"tokenizer.ggml.tokens": [f"token {n}" for n in range(vocabulary)]} if vocabulary else {}),
        **({"tokenizer.ggml.merges": [f"to ken {n}" for n in range(vocabulary)]} if vocabulary else {}),
        "tokenizer.ggml.bos_token_id": 1,
        "general.file_type": 0,
        **(metadata or {}),
    }
    head = struct.pack("<4sIQQ", b"GGUF", 3, tensors, len(keys))
    head += b"".join(_string(key) + _value(value) for key, value in keys.items())
    for n in range(tensors):
        head += _string(f"blk.{n}.attn_q.weight") + struct.pack("<IQIQ", 1, values, 0, n * values * 4)
    return head + b"\0" * (-len(head) % 32) + b"\0" * (tensors * values * 4)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(text) for text in value)
    if isinstance(value, list):
        return struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
    return struct.pack("<II", 4, value)

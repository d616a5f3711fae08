"""The toy models by name: which architecture, which kind of memory, and how each is put together."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from .deepseek import build_compressed, build_latent
from .layers import (
    EXPERT_SIZE,
    EXPERTS,
    FEED_FORWARD,
    Heads,
    Metadata,
    Scan,
    attention,
    delta_net,
    expert_metadata,
    experts,
    feed_forward,
    mamba2,
    shared_expert,
    stream_norm,
)
from .weights import Weights


class Memory(Enum):
    """What a sequence's state is made of, and so what can be stored and restored of it."""

    ATTENTION = "attention"  # rows per token: any prefix stands on its own
    SLIDING_WINDOW = "sliding-window"  # rows, of which some layers keep the last few only
    HYBRID = "hybrid"  # rows in some layers, recurrent state in others
    RECURRENT = "recurrent"  # recurrent state only
    WHOLE = "whole"  # rows that cannot be cut by position


@dataclass(frozen=True)
class Toy:
    """A model: `build` draws the tensors and returns the metadata under the architecture's prefix."""

    name: str
    arch: str
    memory: Memory
    description: str
    build: Callable[[Weights], Metadata]


HEADS = Heads()
WINDOW = 64


def _common(w: Weights, layers: int) -> Metadata:
    return {
        "vocab_size": len(w.words.tokens),
        "context_length": 32768,
        "embedding_length": w.width,
        "block_count": layers,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }


def _llama(w: Weights) -> Metadata:
    w.embeddings()
    for block in (f"blk.{layer}" for layer in range(4)):
        attention(w, block, HEADS)
        stream_norm(w, f"{block}.ffn_norm")
        feed_forward(w, block)
    return _common(w, 4) | HEADS.metadata() | {"feed_forward_length": FEED_FORWARD}


def _qwen3moe(w: Weights) -> Metadata:
    w.embeddings()
    for block in (f"blk.{layer}" for layer in range(3)):
        attention(w, block, HEADS, normed=True)
        stream_norm(w, f"{block}.ffn_norm")
        experts(w, block)
    return _common(w, 3) | HEADS.metadata() | expert_metadata()


def _gemma3(w: Weights) -> Metadata:
    w.embeddings(multiplier=math.sqrt(w.width))
    for block in (f"blk.{layer}" for layer in range(4)):
        attention(w, block, HEADS, normed=True)
        stream_norm(w, f"{block}.post_attention_norm")
        stream_norm(w, f"{block}.ffn_norm")
        feed_forward(w, block)
        stream_norm(w, f"{block}.post_ffw_norm")
    return (
        _common(w, 4)
        | HEADS.metadata()
        | {
            "feed_forward_length": FEED_FORWARD,
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": 2,  # every second layer sees everything
            "rope.freq_base_swa": 10000.0,
        }
    )


def _gpt_oss(w: Weights) -> Metadata:
    w.embeddings()
    queries, keys = HEADS.queries * HEADS.size, HEADS.keys * HEADS.size
    for block in (f"blk.{layer}" for layer in range(4)):
        attention(w, block, HEADS)
        w.vector(f"{block}.attn_q.bias", queries)
        w.vector(f"{block}.attn_k.bias", keys)
        w.vector(f"{block}.attn_v.bias", keys)
        w.branch_bias(f"{block}.attn_output.bias", w.width)
        w.vector(f"{block}.attn_sinks.weight", HEADS.queries, spread=1.0)
        stream_norm(w, f"{block}.post_attention_norm")
        experts(w, block)
        w.vector(f"{block}.ffn_gate_inp.bias", EXPERTS)
        w.vector(f"{block}.ffn_gate_exps.bias", EXPERTS, EXPERT_SIZE)
        w.vector(f"{block}.ffn_up_exps.bias", EXPERTS, EXPERT_SIZE)
        w.branch_bias(f"{block}.ffn_down_exps.bias", EXPERTS, w.width)
    # The default pattern alternates: windowed, full, windowed, full.
    return (
        _common(w, 4)
        | HEADS.metadata()
        | expert_metadata()
        | {
            "attention.sliding_window": WINDOW,
        }
    )


def _qwen35moe(w: Weights) -> Metadata:
    scan = Scan(inner=512, state=128, heads=4, groups=2)
    w.embeddings()
    for layer in range(4):
        block = f"blk.{layer}"
        if layer % 2:
            attention(w, block, HEADS, normed=True, gated=True)
        else:
            delta_net(w, block, scan)
        stream_norm(w, f"{block}.post_attention_norm")
        experts(w, block)
        w.vector(f"{block}.ffn_gate_inp_shexp.weight", w.width, spread=0.1)
        shared_expert(w, block)
    return (
        _common(w, 4)
        | HEADS.metadata(rotated=32)
        | expert_metadata()
        | scan.metadata()
        | {
            "expert_shared_feed_forward_length": EXPERT_SIZE,
            "full_attention_interval": 2,
            "rope.dimension_sections": [6, 5, 5, 0],  # pairs of the 32 rotated values: time, height, width
        }
    )


def _nemotron_h(w: Weights) -> Metadata:
    scan = Scan()
    kinds = "mamba", "attention", "feed forward", "mamba", "attention", "feed forward"
    w.embeddings()
    for layer, kind in enumerate(kinds):
        block = f"blk.{layer}"
        if kind == "mamba":
            mamba2(w, block, scan)
        elif kind == "attention":
            attention(w, block, HEADS)
        else:
            stream_norm(w, f"{block}.attn_norm")
            feed_forward(w, block, gated=False)
    # The loader tells the kinds apart by the zeros in these two lists.
    return (
        _common(w, len(kinds))
        | HEADS.metadata()
        | scan.metadata()
        | {
            "attention.layer_norm_epsilon": 1e-5,
            "attention.head_count_kv": [HEADS.keys if kind == "attention" else 0 for kind in kinds],
            "feed_forward_length": [FEED_FORWARD if kind == "feed forward" else 0 for kind in kinds],
        }
    )


def _mamba2(w: Weights) -> Metadata:
    scan = Scan()
    w.embeddings()
    for block in (f"blk.{layer}" for layer in range(4)):
        mamba2(w, block, scan)
    return _common(w, 4) | scan.metadata()


def _deepseek2(w: Weights) -> Metadata:
    return _common(w, 3) | build_latent(w, layers=3)


def _deepseek4(w: Weights) -> Metadata:
    return _common(w, 4) | build_compressed(w, ratios=(0, 4, 128, 4), window=WINDOW)


_ALL = (
    Toy("dense", "llama", Memory.ATTENTION, "grouped-query attention, dense feed forward", _llama),
    Toy("moe", "qwen3moe", Memory.ATTENTION, "grouped-query attention, 2 of 8 experts", _qwen3moe),
    Toy("mla", "deepseek2", Memory.ATTENTION, "latent attention: one compressed row per token", _deepseek2),
    Toy("swa-gemma3", "gemma3", Memory.SLIDING_WINDOW, "every second layer sees 64 tokens", _gemma3),
    Toy("swa-gptoss", "gpt-oss", Memory.SLIDING_WINDOW, "the same with sinks and experts", _gpt_oss),
    Toy("hybrid-moe", "qwen35moe", Memory.HYBRID, "gated delta net, attention in turn; experts", _qwen35moe),
    Toy("hybrid-mamba", "nemotron_h", Memory.HYBRID, "Mamba-2, attention, feed forward in turn", _nemotron_h),
    Toy("recurrent", "mamba2", Memory.RECURRENT, "Mamba-2 only", _mamba2),
    Toy("uncut", "deepseek4", Memory.WHOLE, "64 raw rows, and rows for 4 or 128 tokens each", _deepseek4),
)

MODELS: dict[str, Toy] = {toy.name: toy for toy in _ALL}

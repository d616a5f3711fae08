"""The two DeepSeek shapes: latent attention (V2/V3) and compressed attention with hyper connections (V4)."""

import math
from collections.abc import Sequence

from .layers import (
    EXPERTS,
    MIXER_GAIN,
    SHARPNESS,
    Metadata,
    expert_metadata,
    experts,
    feed_forward,
    norm,
    shared_expert,
    stream_norm,
)
from .weights import Weights

HEAD_COUNT = 4
SIGMOID, SQRT_SOFTPLUS = 2, 4  # how expert scores become weights, as the file format numbers it

# Latent attention: the cached row of 512 + 64 is that of the real models, since kernels are made for it.
LATENT, ROTATED, PLAIN, VALUE, QUERY_RANK = 512, 64, 32, 32, 64


def build_latent(w: Weights, layers: int) -> Metadata:
    dense_layers = 1
    w.embeddings()
    for layer in range(layers):
        block = f"blk.{layer}"
        stream_norm(w, f"{block}.attn_norm")
        w.matrix(f"{block}.attn_q_a.weight", QUERY_RANK, w.width)
        norm(w, f"{block}.attn_q_a_norm", QUERY_RANK)
        w.matrix(f"{block}.attn_q_b.weight", HEAD_COUNT * (PLAIN + ROTATED), QUERY_RANK, gain=SHARPNESS)
        w.matrix(f"{block}.attn_kv_a_mqa.weight", LATENT + ROTATED, w.width)
        norm(w, f"{block}.attn_kv_a_norm", LATENT)
        # Stored transposed: it takes the query to the latent, so that its gain counts over the latent's size.
        w.matrix(f"{block}.attn_k_b.weight", HEAD_COUNT, LATENT, PLAIN, gain=math.sqrt(PLAIN / LATENT))
        w.matrix(f"{block}.attn_v_b.weight", HEAD_COUNT, VALUE, LATENT)
        w.branch(f"{block}.attn_output.weight", w.width, HEAD_COUNT * VALUE, gain=MIXER_GAIN)
        stream_norm(w, f"{block}.ffn_norm")
        if layer < dense_layers:
            feed_forward(w, block)
        else:
            experts(w, block)
            shared_expert(w, block)
    return expert_metadata() | {
        "leading_dense_block_count": dense_layers,
        "attention.head_count": HEAD_COUNT,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": QUERY_RANK,
        "attention.kv_lora_rank": LATENT,
        "attention.key_length": LATENT + ROTATED,
        "attention.value_length": LATENT,
        "attention.key_length_mla": PLAIN + ROTATED,
        "attention.value_length_mla": VALUE,
        "rope.dimension_count": ROTATED,
        "rope.freq_base": 10000.0,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_gating_func": SIGMOID,
    }


# Compressed attention: every layer sees a window of raw rows, and beside it one row per `ratio` tokens.
HEAD_SIZE, HEAD_ROTATED, OUTPUT_GROUPS, OUTPUT_RANK = 64, 32, 2, 64
INDEX_HEADS, INDEX_SIZE = 8, 128
INDEX_TOP = 32  # fewer than a long prompt has, so that the index's own state decides what is seen
STREAMS = 4  # residual streams of the hyper connections; upstream knows no other number


def build_compressed(w: Weights, ratios: Sequence[int], window: int) -> Metadata:
    w.embeddings()
    w.matrix("output_hc_fn.weight", STREAMS, STREAMS * w.width)
    w.vector("output_hc_base.weight", STREAMS)
    w.constant("output_hc_scale.weight", 1)
    for layer, ratio in enumerate(ratios):
        block = f"blk.{layer}"
        _hyper_connection(w, f"{block}.hc_attn")
        stream_norm(w, f"{block}.attn_norm")
        _compressed_attention(w, block, ratio)
        _hyper_connection(w, f"{block}.hc_ffn")
        stream_norm(w, f"{block}.ffn_norm")
        experts(w, block)
        w.vector(f"{block}.exp_probs_b.bias", EXPERTS, spread=0.05)
        shared_expert(w, block)
    return expert_metadata() | {
        "attention.head_count": HEAD_COUNT,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": QUERY_RANK,
        "attention.key_length": HEAD_SIZE,
        "attention.value_length": HEAD_SIZE,
        "attention.sliding_window": window,
        "attention.output_group_count": OUTPUT_GROUPS,
        "attention.output_lora_rank": OUTPUT_RANK,
        "attention.compress_ratios": ratios,
        "attention.compress_rope_freq_base": 160000.0,
        "attention.indexer.head_count": INDEX_HEADS,
        "attention.indexer.key_length": INDEX_SIZE,
        "attention.indexer.top_k": INDEX_TOP,
        "rope.dimension_count": HEAD_ROTATED,
        "rope.freq_base": 10000.0,
        "hyper_connection.count": STREAMS,
        "hyper_connection.sinkhorn_iterations": 2,
        "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 0,
        "swiglu_clamp_exp": 10.0,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "expert_gating_func": SQRT_SOFTPLUS,
    }


def _compressed_attention(w: Weights, block: str, ratio: int) -> None:
    w.vector(f"{block}.attn_sinks.weight", HEAD_COUNT, spread=1.0)
    w.matrix(f"{block}.attn_q_a.weight", QUERY_RANK, w.width)
    norm(w, f"{block}.attn_q_a_norm", QUERY_RANK)
    w.matrix(f"{block}.attn_q_b.weight", HEAD_COUNT * HEAD_SIZE, QUERY_RANK)
    # One row serves as key and value; queries are normed without a weight, so the row carries the sharpness.
    w.matrix(f"{block}.attn_kv.weight", HEAD_SIZE, w.width)
    norm(w, f"{block}.attn_kv_a_norm", HEAD_SIZE, SHARPNESS)
    group = HEAD_COUNT * HEAD_SIZE // OUTPUT_GROUPS
    w.matrix(f"{block}.attn_output_a.weight", OUTPUT_GROUPS * OUTPUT_RANK, group)
    w.branch(f"{block}.attn_output_b.weight", w.width, OUTPUT_GROUPS * OUTPUT_RANK, gain=MIXER_GAIN)
    if ratio:
        # Blocks of 4 overlap their predecessor and so have two sets of channels.
        _compressor(w, f"{block}.attn_compressor", HEAD_SIZE, ratio, sets=2 if ratio == 4 else 1)
        norm(w, f"{block}.attn_compressor_norm", HEAD_SIZE, SHARPNESS)
    if ratio == 4:
        w.matrix(f"{block}.indexer.proj.weight", INDEX_HEADS, w.width)
        w.matrix(f"{block}.indexer.attn_q_b.weight", INDEX_HEADS * INDEX_SIZE, QUERY_RANK)
        _compressor(w, f"{block}.indexer_compressor", INDEX_SIZE, ratio, sets=2)
        norm(w, f"{block}.indexer_compressor_norm", INDEX_SIZE)


def _compressor(w: Weights, name: str, size: int, ratio: int, sets: int) -> None:
    w.matrix(f"{name}_kv.weight", sets * size, w.width)
    w.matrix(f"{name}_gate.weight", sets * size, w.width)
    w.matrix(f"{name}_ape.weight", ratio, sets * size)


def _hyper_connection(w: Weights, name: str) -> None:
    mixes = (2 + STREAMS) * STREAMS
    w.matrix(f"{name}_fn.weight", mixes, STREAMS * w.width)
    w.vector(f"{name}_base.weight", mixes)
    w.constant(f"{name}_scale.weight", 3)

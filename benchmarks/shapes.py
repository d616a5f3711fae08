"""Writes models of real shapes with random weights: as large, as fast and as hungry for memory as the real ones.

    python -m benchmarks.shapes 35b-a3b OUT.gguf [--layers N] [--type q4_0]
    python -m benchmarks.shapes 14b OUT.gguf

What they say is nonsense; how long it takes is not. Time does not depend on what the weights are, as long as nothing
overflows. The layers and the tokenizer are those of the toy models (toys/). The large matrices are cut from one
pool of random blocks per kind, so that a file of 20 GB is written as fast as the disk takes it.

This program needs only numpy and gguf.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType

from toys.files import add_metadata, add_tokenizer
from toys.layers import (
    Heads,
    Metadata,
    Scan,
    attention,
    delta_net,
    expert_metadata,
    experts,
    feed_forward,
    shared_expert,
    stream_norm,
)
from toys.tokenizer import Vocabulary, vocabulary
from toys.weights import Weights

TYPES = {"q4_0": GGMLQuantizationType.Q4_0, "q8_0": GGMLQuantizationType.Q8_0}
FILE_TYPES = {"q4_0": LlamaFileType.MOSTLY_Q4_0, "q8_0": LlamaFileType.MOSTLY_Q8_0}
# The integers that a block stores are all as likely: this is their standard deviation, in units of its scale.
SPREADS = {GGMLQuantizationType.Q4_0: 15 / math.sqrt(12), GGMLQuantizationType.Q8_0: 256 / math.sqrt(12)}
# Smaller matrices stay as they are: routers, convolutions, gates.
LEAST_ELEMENTS = 1 << 20
POOL_BYTES = 96 << 20


@dataclass(frozen=True)
class Blocks:
    """A large matrix that is not drawn but cut from a pool when it is written."""

    shape: tuple[int, ...]
    type: GGMLQuantizationType
    gain: float

    @property
    def n_bytes(self) -> int:
        values, size = GGML_QUANT_SIZES[self.type]
        return math.prod(self.shape) // values * size


class LargeWeights(Weights):
    """Weights whose large matrices are only noted."""

    def __init__(self, model: str, words: Vocabulary, width: int, kind: GGMLQuantizationType) -> None:
        super().__init__(model, words, width)
        self.kind = kind
        self.order: dict[str, Blocks | None] = {}  # one that is None was drawn, and is in `tensors`

    def put(self, name: str, values: Any) -> None:
        super().put(name, values)
        self.order[name] = None

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        if math.prod(shape) < LEAST_ELEMENTS:
            super().matrix(name, *shape, gain=gain)
        else:
            self.order[name] = Blocks(shape, self.kind, gain)

    def branch(self, name: str, *shape: int, gain: float = 1.0) -> None:
        self.matrix(name, *shape, gain=gain)

    def embeddings(self, multiplier: float = 1.0) -> None:
        """They are 8-bit values, as in quantised models. No token is muted, as one in a thousand cannot be printed."""
        shape, kind = (len(self.words.tokens), self.width), GGMLQuantizationType.Q8_0
        self.order["token_embd.weight"] = Blocks(shape, kind, math.sqrt(self.width) / multiplier)
        self.constant("output_norm.weight", self.width)
        self.order["output.weight"] = Blocks(shape, kind, 2.5)


@dataclass(frozen=True)
class Shape:
    arch: str
    layers: int
    width: int
    n_tokens: int  # the vocabulary has so many
    context: int
    build: Callable[[LargeWeights, int], Metadata]  # takes the weights and the number of layers


def _hybrid(w: LargeWeights, layers: int) -> Metadata:
    """One layer of attention follows three gated delta nets; a token has 8 of 256 experts, and one that all have."""
    heads, scan = Heads(queries=16, keys=2, size=256), Scan(inner=4096, state=128, heads=32, groups=16)
    count, used, size, interval = 256, 8, 512, 4
    w.embeddings()
    for layer in range(layers):
        block = f"blk.{layer}"
        if (layer + 1) % interval:
            delta_net(w, block, scan)
        else:
            attention(w, block, heads, normed=True, gated=True)
        stream_norm(w, f"{block}.post_attention_norm")
        experts(w, block, count, size)
        w.vector(f"{block}.ffn_gate_inp_shexp.weight", w.width, spread=0.1)
        shared_expert(w, block, size)
    return (
        heads.metadata(rotated=64)
        | expert_metadata(count, used, size)
        | scan.metadata()
        | {
            "expert_shared_feed_forward_length": size,
            "full_attention_interval": interval,
            "rope.dimension_sections": [11, 11, 10, 0],
        }
    )


def _dense(w: LargeWeights, layers: int) -> Metadata:
    heads, size = Heads(queries=40, keys=8, size=128), 17408
    w.embeddings()
    for block in (f"blk.{layer}" for layer in range(layers)):
        attention(w, block, heads, normed=True)
        stream_norm(w, f"{block}.ffn_norm")
        feed_forward(w, block, size)
    return heads.metadata() | {"feed_forward_length": size}


SHAPES = {
    "35b-a3b": Shape("qwen35moe", 40, 2048, 248_320, 262_144, _hybrid),
    "14b": Shape("qwen3", 40, 5120, 151_936, 40_960, _dense),
}


def padded_vocabulary(size: int) -> Vocabulary:
    """Fills the toy tokenizer's up with words that no text is cut into, but that an answer may hold."""
    words = vocabulary()
    normal = len(words.tokens) - len(words.special)
    more = tuple(f"\u0120w{number}" for number in range(size - len(words.tokens)))  # U+0120 stands for a space
    return Vocabulary((*words.tokens[:normal], *more, *words.special), words.merges, words.special)


def write_shape(name: str, path: Path, layers: int | None = None, kind: str = "q4_0") -> int:
    """Writes the model, and gives the bytes written."""
    shape = SHAPES[name]
    n_layers = layers or shape.layers
    words = padded_vocabulary(shape.n_tokens)
    weights = LargeWeights(name, words, shape.width, TYPES[kind])
    metadata = shape.build(weights, n_layers)

    writer = GGUFWriter(path, shape.arch)
    writer.add_name(f"random-{name}")
    writer.add_description("random weights in a real shape")
    writer.add_file_type(FILE_TYPES[kind])
    common: Metadata = {
        "vocab_size": shape.n_tokens,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "block_count": n_layers,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    add_metadata(writer, shape.arch, common | metadata)
    add_tokenizer(writer, words)
    for tensor, blocks in weights.order.items():
        if blocks is None:
            values = weights.tensors[tensor]
            writer.add_tensor_info(tensor, values.shape, values.dtype, values.nbytes)
        else:
            # Without a numpy type of bytes, the shape is taken as it is.
            writer.add_tensor_info(tensor, blocks.shape, np.dtype(np.float32), blocks.n_bytes, blocks.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    pools = _Pools()
    for number, (tensor, blocks) in enumerate(weights.order.items()):
        if blocks is None:
            file.write(weights.tensors[tensor].tobytes())
        else:
            pools.write(file, blocks, number)
        writer.write_padding(file, file.tell())
    written = file.tell()
    writer.close()
    return written


class _Pools:
    """Random blocks by kind and scale, from which every matrix takes a stretch of its own."""

    def __init__(self) -> None:
        self._pools: dict[tuple[GGMLQuantizationType, float], memoryview] = {}

    def write(self, file: Any, blocks: Blocks, number: int) -> None:
        scale = blocks.gain / math.sqrt(blocks.shape[-1]) / SPREADS[blocks.type]
        pool = self._pool(blocks.type, scale)
        size = GGML_QUANT_SIZES[blocks.type][1]
        at = number * 7919 % (len(pool) // size) * size  # any start will do, as long as it is another one
        left = blocks.n_bytes
        while left > 0:
            part = pool[at : at + left]
            file.write(part)
            left -= len(part)
            at = 0

    def _pool(self, kind: GGMLQuantizationType, scale: float) -> memoryview:
        if (kind, scale) not in self._pools:
            size = GGML_QUANT_SIZES[kind][1]
            count = POOL_BYTES // size
            raw = np.random.default_rng(7).integers(0, 256, (count, size), dtype=np.uint8)
            if kind == GGMLQuantizationType.Q4_0:
                _balance(raw)
            raw[:, :2] = np.frombuffer(np.float16(scale).tobytes(), dtype=np.uint8)  # both kinds begin with it
            self._pools[kind, scale] = memoryview(raw.tobytes())
        return self._pools[kind, scale]


def _balance(raw: Any) -> None:
    """4-bit values are stored plus 8, from 0 to 15: without the lowest, their mean is 0. Else it would be what is left
    of every sum, and all prompts would have the same answer."""
    raw[raw & 0x0F == 0] |= 0x08
    raw[raw & 0xF0 == 0] |= 0x80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path, help="the GGUF file to write")
    parser.add_argument("--layers", type=int, help="fewer than the real one has")
    parser.add_argument("--type", choices=TYPES, default="q4_0", help="of the large matrices (default: q4_0)")
    options = parser.parse_args()
    began = time.perf_counter()
    written = write_shape(options.shape, options.out, options.layers, options.type)
    taken = time.perf_counter() - began
    print(f"{options.out}: {written / 1e9:.2f} GB in {taken:.1f} s ({written / 1e9 / taken:.2f} GB/s)")


if __name__ == "__main__":
    main()

"""Writes stand-ins for the models that upstream's server tests download, under the names the tests use.

Weights are those of the toy models (toys/), so text means nothing; shapes, vocabularies and token counts are what
the tests look at. The vocabulary of the smallest model is ours: its pieces were searched for so that the prompts in the
tests have the token counts that the tests expect of the original. The larger ones take the vocabularies that llama.cpp
ships for its tokenizer tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, TokenType

from toys.files import add_metadata
from toys.layers import EXPERT_SIZE, FEED_FORWARD, Heads, Metadata, attention, experts, feed_forward, stream_norm
from toys.weights import Weights

HEADS = Heads()
WIDTH = 128
SPACE = "\u2581"

# They stand in the order of merging. With these, "What is the capital of France?" is 20 tokens and the start token.
MERGED = """
re rt rt| _a <| nd _d an _e ro _c ha _n _l hat AI se mo is bo in ok _la _H te ant th _th _Hi on et _ex _labo ong ri
_long _I _chat Wri _are _o reh ow _of qu _Wri _ei _ad fe el _b tet mp din _au anin mc amc ser _labor _laboris t<| _m
qua _i mod m, rom li qua. xce _w _which _wi ell from _ov ry _bo pi _AI ou how ox er _abo _wil aning _de qui sse _id
fox quat _off et, liqua. quic _the _nis liqui sin _aute _qui _et
"""


@dataclass
class Pieces:
    """A SentencePiece vocabulary, as the toy weights want to see it and as a file writes it."""

    tokens: list[str]
    scores: list[float]
    types: list[int]
    space_prefix: bool = True
    extra: dict[str, int] = field(default_factory=dict)  # the ids of special tokens, by key

    def is_printable(self, token: int) -> bool:
        text = self.tokens[token].replace(SPACE, " ")
        return self.types[token] == TokenType.NORMAL and all(0x20 <= ord(letter) <= 0x7E for letter in text)

    def add_to(self, writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(self.tokens)
        writer.add_token_scores(self.scores)
        writer.add_token_types(self.types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(False)
        writer.add_add_space_prefix(self.space_prefix)
        for key, token in self.extra.items():
            writer.add_uint32(f"tokenizer.ggml.{key}", token)


def small_vocabulary(*, fill_in: bool = False) -> Pieces:
    """It has 512 tokens: the bytes, the printable letters, and the pieces above; what is left over is never used."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    scores = [0.0] * len(tokens)
    letters = [SPACE, *(chr(code) for code in range(0x21, 0x7F))]
    merged = [piece.replace("_", SPACE) for piece in MERGED.split()]
    tokens += merged + letters
    scores += [-float(rank) for rank in range(len(merged) + len(letters))]
    types += [TokenType.NORMAL] * (len(merged) + len(letters))
    extra = {}
    for name in ("fim_pre", "fim_suf", "fim_mid") if fill_in else ():
        extra[f"{name}_token_id"] = len(tokens)
        tokens.append(f"<{name}>")
        scores.append(0.0)
        types.append(TokenType.CONTROL)
    unused = 512 - len(tokens)
    tokens += [f"<unused{index}>" for index in range(unused)]
    scores += [-1000.0] * unused
    types += [TokenType.UNUSED] * unused
    return Pieces(tokens, scores, [int(kind) for kind in types], extra=extra)


def shipped_vocabulary(models: Path, *, space_prefix: bool = True, renamed: dict[int, str] | None = None) -> Pieces:
    """It has the 32000 pieces of Llama 2, from llama.cpp/models."""
    fields = GGUFReader(models / "ggml-vocab-llama-spm.gguf").fields
    tokens, scores, types = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type"))
    for token, name in (renamed or {}).items():
        tokens[token], types[token] = name, int(TokenType.CONTROL)
    return Pieces(tokens, scores, types, space_prefix)


def _common(vocabulary: Pieces, layers: int) -> Metadata:
    return {
        "vocab_size": len(vocabulary.tokens),
        "context_length": 32768,
        "embedding_length": WIDTH,
        "block_count": layers,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }


def write_llama(path: Path, name: str, vocabulary: Pieces, *, moe: bool = False, split: int = 0) -> None:
    w = Weights(name, vocabulary, WIDTH)  # type: ignore[arg-type]
    w.embeddings()
    w.tensors["output.weight"] *= np.float32(0.5)  # the tests want ten likely tokens
    for block in (f"blk.{layer}" for layer in range(3)):
        attention(w, block, HEADS)
        stream_norm(w, f"{block}.ffn_norm")
        if moe:
            experts(w, block)
        else:
            feed_forward(w, block)
    metadata = _common(vocabulary, 3) | HEADS.metadata() | {"feed_forward_length": EXPERT_SIZE if moe else FEED_FORWARD}
    if moe:
        metadata |= {"expert_count": 8, "expert_used_count": 2}
    _write(path, "llama", name, metadata, w.tensors, vocabulary.add_to, split=split)


def write_gemma(path: Path, name: str, vocabulary: Pieces) -> None:
    """It is as the toy, with a window of 512: the tests look at what is reused, not at what slides out of a window."""
    w = Weights(name, vocabulary, WIDTH)  # type: ignore[arg-type]
    w.embeddings(multiplier=math.sqrt(WIDTH))
    for block in (f"blk.{layer}" for layer in range(4)):
        attention(w, block, HEADS, normed=True)
        stream_norm(w, f"{block}.post_attention_norm")
        stream_norm(w, f"{block}.ffn_norm")
        feed_forward(w, block)
        stream_norm(w, f"{block}.post_ffw_norm")
    metadata = (
        _common(vocabulary, 4)
        | HEADS.metadata()
        | {
            "feed_forward_length": FEED_FORWARD,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base_swa": 10000.0,
        }
    )
    _write(path, "gemma3", name, metadata, w.tensors, vocabulary.add_to)


def write_projector(path: Path, name: str, *, side: int = 128, patch: int = 8, merge: int = 2) -> None:
    """An image of any size becomes (side / patch / merge) squared tokens: 64."""
    size, inner = 64, 128
    w = Weights(name, Pieces([], [], []), size)  # type: ignore[arg-type]
    w.matrix("v.patch_embd.weight", size, 3, patch, patch, gain=patch)
    w.vector("v.patch_embd.bias", size)
    w.vector("v.position_embd.weight", (side // patch) ** 2, size)
    for part in "attn_q", "attn_k", "attn_v", "attn_out":
        w.matrix(f"v.blk.0.{part}.weight", size, size)
        w.vector(f"v.blk.0.{part}.bias", size)
    for part in "v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln":
        w.constant(f"{part}.weight", size)
        w.constant(f"{part}.bias", size, 0.0)
    w.matrix("v.blk.0.ffn_up.weight", inner, size)
    w.vector("v.blk.0.ffn_up.bias", inner)
    w.matrix("v.blk.0.ffn_down.weight", size, inner)
    w.vector("v.blk.0.ffn_down.bias", size)
    w.matrix("mm.input_projection.weight", size, WIDTH, gain=1.0)
    w.constant("mm.soft_emb_norm.weight", size)

    writer = GGUFWriter(path, "clip")
    writer.add_string("general.type", "mmproj")
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("gemma3")
    writer.add_vision_image_size(side)
    writer.add_vision_patch_size(patch)
    writer.add_vision_embedding_length(size)
    writer.add_vision_feed_forward_length(inner)
    writer.add_vision_projection_dim(WIDTH)
    writer.add_vision_block_count(1)
    writer.add_vision_head_count(4)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(merge)
    _finish(writer, w.tensors)


def write_bert(path: Path, name: str, models: Path, *, ranks: bool = False) -> None:
    """Writes an embedding model, or with `ranks` one that scores a pair of texts."""
    fields = GGUFReader(models / "ggml-vocab-bert-bge.gguf").fields
    words, inner, context = fields["tokenizer.ggml.tokens"].contents(), 256, 1024
    w = Weights(name, Pieces([], [], []), WIDTH)  # type: ignore[arg-type]
    w.vector("token_embd.weight", len(words), WIDTH, spread=1.0)
    w.vector("position_embd.weight", context, WIDTH)
    w.vector("token_types.weight", 2, WIDTH)
    _layer_norm(w, "token_embd_norm")
    for block in (f"blk.{layer}" for layer in range(2)):
        for part in "attn_q", "attn_k", "attn_v", "attn_output":
            w.matrix(f"{block}.{part}.weight", WIDTH, WIDTH)
            w.vector(f"{block}.{part}.bias", WIDTH)
        _layer_norm(w, f"{block}.attn_output_norm")
        w.matrix(f"{block}.ffn_up.weight", inner, WIDTH)
        w.vector(f"{block}.ffn_up.bias", inner)
        w.matrix(f"{block}.ffn_down.weight", WIDTH, inner)
        w.vector(f"{block}.ffn_down.bias", WIDTH)
        _layer_norm(w, f"{block}.layer_output_norm")
    metadata: Metadata = {
        "vocab_size": len(words),
        "context_length": context,
        "embedding_length": WIDTH,
        "feed_forward_length": inner,
        "block_count": 2,
        "attention.head_count": 4,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "pooling_type": 4 if ranks else 2,
    }
    if ranks:
        w.matrix("cls.weight", WIDTH, WIDTH)
        w.vector("cls.bias", WIDTH)
        w.matrix("cls.output.weight", 1, WIDTH)
        w.vector("cls.output.bias", 1)

    def add_words(writer: GGUFWriter) -> None:
        for key, value in fields.items():
            if key.startswith("tokenizer."):
                kind = value.types[0]
                inside = value.types[-1] if kind == GGUFValueType.ARRAY else None
                writer.add_key_value(key, value.contents(), kind, inside)
        if ranks:  # the pair is written as: start, query, end, separator, text, end
            writer.add_bos_token_id(101)
            writer.add_eos_token_id(102)

    _write(path, "bert", name, metadata, w.tensors, add_words)


def _layer_norm(w: Weights, name: str) -> None:
    w.constant(f"{name}.weight", w.width)
    w.vector(f"{name}.bias", w.width)


def write_lora(path: Path, name: str) -> None:
    """Writes an adapter for the attention of `write_llama`, strong enough to change what is said."""
    w = Weights(name, Pieces([], [], []), WIDTH)  # type: ignore[arg-type]
    rank, rows = 4, HEADS.queries * HEADS.size
    for layer in range(3):
        w.matrix(f"blk.{layer}.attn_q.weight.lora_a", rank, WIDTH)
        w.matrix(f"blk.{layer}.attn_q.weight.lora_b", rows, rank, gain=4.0)
    writer = GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    _finish(writer, w.tensors)


def _write(
    path: Path,
    arch: str,
    name: str,
    metadata: Metadata,
    tensors: dict[str, Any],
    add_vocabulary: Callable[[GGUFWriter], None],
    *,
    split: int = 0,
) -> None:
    writer = GGUFWriter(path, arch, split_max_tensors=split)
    writer.add_name(name)
    writer.add_file_type(LlamaFileType.ALL_F32)
    add_metadata(writer, arch, metadata)
    add_vocabulary(writer)
    _finish(writer, tensors)


def _finish(writer: GGUFWriter, tensors: dict[str, Any]) -> None:
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def picture(seed: int, side: int = 32) -> bytes:
    """Draws a small PNG of coloured blocks."""
    import struct
    import zlib

    blocks = np.random.Philox(key=seed).random_raw(48).astype(np.uint8).reshape(4, 4, 3)
    pixels = blocks.repeat(side // 4, axis=0).repeat(side // 4, axis=1)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PRESET = """\
[tinygemma3-preset]
hf-repo = ggml-org/tinygemma3-GGUF:Q8_0

[stories260K-test]
hf-repo = ggml-org/test-model-stories260K
"""


def write_hub(folder: Path, models: Path) -> None:
    """Writes everything that the tests fetch, as OWNER/NAME/FILE; `models` is llama.cpp/models."""

    def place(name: str) -> Path:
        path = folder / "ggml-org" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    small = small_vocabulary()
    large = shipped_vocabulary(models)
    # Two pieces that nothing is split into become the marks around an image.
    images = shipped_vocabulary(
        models, space_prefix=False, renamed={31998: "<start_of_image>", 31999: "<end_of_image>"}
    )
    write_llama(place("test-model-stories260K/stories260K-f32.gguf"), "stand-in-small", small)
    write_llama(
        place("test-model-stories260K-infill/stories260K-infill-f32.gguf"),
        "stand-in-infill",
        small_vocabulary(fill_in=True),
    )
    write_llama(place("test-model-router-download/test-model-F16.gguf"), "stand-in-download", small)
    write_llama(place("models/tinyllamas/stories260K.gguf"), "stand-in-small", small)
    write_llama(place("models/tinyllamas/split/stories15M-q8_0.gguf"), "stand-in-split", small, split=10)
    write_llama(place("stories15M_MOE/stories15M_MOE-F16.gguf"), "stand-in-experts", large, moe=True)
    write_lora(place("stories15M_MOE/moe_shakespeare15M.gguf"), "stand-in-adapter")
    write_llama(place("tiny-llamas/stories15M-q4_0.gguf"), "stand-in-draft", large)
    write_gemma(place("tinygemma3-GGUF/tinygemma3-Q8_0.gguf"), "stand-in-images", images)
    write_projector(place("tinygemma3-GGUF/mmproj-tinygemma3.gguf"), "stand-in-projector")
    place("tinygemma3-GGUF/test/11_truck.png").parent.mkdir(exist_ok=True)
    place("tinygemma3-GGUF/test/11_truck.png").write_bytes(picture(11))
    place("tinygemma3-GGUF/test/91_cat.png").write_bytes(picture(91))
    write_bert(place("models/bert-bge-small/ggml-model-f16.gguf"), "stand-in-embeddings", models)
    write_bert(place("models/jina-reranker-v1-tiny-en/ggml-model-f16.gguf"), "stand-in-ranks", models, ranks=True)
    place("test-preset-ci/preset.ini").write_text(PRESET, encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    folder, models = arguments
    write_hub(Path(folder), Path(models))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])

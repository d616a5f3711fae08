"""Knows of a model what matters before it is loaded: shape, memory, size. It is pure: GGUF heads in, facts out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrun.models.gguf import Gguf, Skipped, Tensor
from pyrun.models.quants import quant_of

# A value of a K/V cache type takes so many bytes.
CACHE_TYPES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
QUANTISED_BLOCK = 32  # a quantised cache type takes so many values together; heads must be a multiple of it
MOST_LAYERS = 4096
PAD = 256  # the cache grows by so many cells

# llama.cpp numbers file types so.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
}  # fmt: skip

RECURRENT = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
# Every layer of these has both an attention and a recurrent part.
PARALLEL_HYBRIDS = ("falcon-h1",)
# These keep rows of several tokens in one, which nobody has tried in another type than the usual.
PLAIN_CACHE = ("deepseek4",)
# One layer of so many sees everything, where the file does not say it; True where that is the first of them.
WINDOW_PATTERNS = {
    "afmoe": (4, False), "cohere2": (4, False), "cohere2moe": (4, True), "exaone-moe": (4, False),
    "exaone4": (4, False), "gemma2": (2, False), "gemma3": (6, False), "gemma3n": (5, False), "gpt-oss": (2, False),
    "llama4": (4, False), "olmo2": (4, False), "plamo3": (8, False), "smallthinker": (4, True),
}  # fmt: skip

EXPERT_NAME = re.compile(r"(?<![a-z0-9])(?:\d+x\d+(?:\.\d+)?b|a\d+(?:\.\d+)?b)(?![a-z0-9])", re.IGNORECASE)
THINKING = ("<think>", "<|channel|>", "reasoning_content", "enable_thinking", "[THINK]")


@dataclass(frozen=True)
class ModelFacts:
    name: str
    architecture: str
    quantisation: str
    source: str  # it is "metadata" or "file name"
    size: int  # all parts have so many bytes on disk
    weights: int  # all tensors have so many bytes
    parameters: int
    experts: int  # a dense model has 0
    experts_used: int
    expert_bytes: int  # so many bytes of the weights are experts'
    expert_layers: int
    leading_dense: int  # so many layers lie before the first with experts
    layers: int
    attention_layers: int  # they see everything
    window_layers: int  # they see a window
    recurrent_layers: int
    window: int
    cells_k: float  # one token keeps so many values in all attention layers: here for keys
    cells_v: float  # here for values
    window_k: float  # they are the same for layers that see a window
    window_v: float
    head_k: int
    head_v: int
    state: int  # the recurrent state of one sequence has so many bytes
    context: int | None  # the model was trained for so many tokens
    embedding: int
    vocabulary: int
    thinks: bool
    is_companion: bool = False  # it is a projector for images or an adapter, and no model by itself

    @property
    def is_moe(self) -> bool:
        return self.experts > 1

    @property
    def is_recurrent(self) -> bool:
        """It is recurrent only: no layer has attention."""
        return self.recurrent_layers > 0 and self.attention_layers + self.window_layers == 0

    @property
    def is_hybrid(self) -> bool:
        return self.recurrent_layers > 0 and not self.is_recurrent

    @property
    def kind(self) -> str:
        parts = ["mixture of experts" if self.is_moe else "dense"]
        if self.is_recurrent:
            parts.append("recurrent")
        elif self.is_hybrid:
            parts.append("hybrid")
        if self.window_layers:
            parts.append(f"window of {self.window:,}")
        return ", ".join(parts)

    def kv_per_token(self, type_k: str, type_v: str) -> float:
        """Each token of context adds layers x heads x (key length x bytes + value length x bytes)."""
        return self.cells_k * CACHE_TYPES[type_k] + self.cells_v * CACHE_TYPES[type_v]

    def kv_bytes(self, context: int, type_k: str, type_v: str, ubatch: int, slots: int) -> int:
        """The context takes rows of tokens, windows and recurrent states. One pool is shared by all slots."""
        tokens = _padded(context)
        seen = min(tokens, _padded(self.window * slots + ubatch))
        windows = seen * (self.window_k * CACHE_TYPES[type_k] + self.window_v * CACHE_TYPES[type_v])
        return int(tokens * self.kv_per_token(type_k, type_v) + windows) + self.state * slots

    def checkpoint_bytes(self, type_k: str, type_v: str) -> int:
        """llama-server copies the window and the recurrent state for one context checkpoint."""
        window = _padded(self.window) * (self.window_k * CACHE_TYPES[type_k] + self.window_v * CACHE_TYPES[type_v])
        return int(window) + self.state

    def takes_quantised_cache(self) -> bool:
        whole_blocks = self.head_k % QUANTISED_BLOCK == 0 and self.head_v % QUANTISED_BLOCK == 0
        return whole_blocks and self.architecture not in PLAIN_CACHE


def _padded(tokens: int) -> int:
    return -(-tokens // PAD) * PAD


def model_facts(name: str, parts: Sequence[Gguf]) -> ModelFacts:
    """Reads a whole model: the first part has the metadata, all have tensors."""
    metadata = parts[0].metadata
    tensors = [tensor for part in parts for tensor in part.tensors]
    values = _Values(metadata)
    architecture = values.architecture
    layers = max(0, values.integer("block_count") - values.integer("nextn_predict_layers"))
    if layers > MOST_LAYERS:
        layers = 0  # the file is damaged; the server will say so
    kinds = [_layer_kind(values, layer, layers) for layer in range(layers)]
    shapes = [
        _cells(values, layer, windowed=kind.windowed) if kind.attends else (0, 0) for layer, kind in enumerate(kinds)
    ]
    full = [shape for shape, kind in zip(shapes, kinds, strict=True) if kind.attends and not kind.windowed]
    windowed = [shape for shape, kind in zip(shapes, kinds, strict=True) if kind.windowed]
    recurrent = sum(kind.recurs for kind in kinds)
    experts = values.integer("expert_count")
    source = "metadata" if layers else "file name"
    if not layers and EXPERT_NAME.search(name):
        experts = 2  # it is not known how many
    expert_tensors = [tensor for tensor in tensors if "_exps." in tensor.name]
    return ModelFacts(
        name=name,
        architecture=architecture or "unknown",
        quantisation=_quantisation(metadata, tensors, name),
        source=source,
        size=sum(part.size for part in parts),
        weights=sum(tensor.bytes for tensor in tensors),
        parameters=sum(tensor.elements for tensor in tensors),
        experts=experts,
        experts_used=values.integer("expert_used_count"),
        expert_bytes=sum(tensor.bytes for tensor in expert_tensors),
        expert_layers=len({tensor.name.split(".")[1] for tensor in expert_tensors}),
        leading_dense=values.integer("leading_dense_block_count"),
        layers=layers,
        attention_layers=len(full),
        window_layers=len(windowed),
        recurrent_layers=recurrent,
        window=values.integer("attention.sliding_window") if windowed else 0,
        cells_k=sum(shape[0] for shape in full),
        cells_v=sum(shape[1] for shape in full),
        window_k=sum(shape[0] for shape in windowed),
        window_v=sum(shape[1] for shape in windowed),
        head_k=values.head("key"),
        head_v=values.head("value"),
        state=_state(values) * recurrent,
        context=values.integer("context_length") or None,
        embedding=values.integer("embedding_length"),
        vocabulary=_vocabulary(values),
        thinks=any(mark in str(metadata.get("tokenizer.chat_template", "")) for mark in THINKING),
        is_companion=metadata.get("general.type") in ("mmproj", "adapter", "imatrix") or architecture == "clip",
    )


def facts_of_name(name: str, size: int) -> ModelFacts:
    """Of a file that is not there yet, only name and size tell something."""
    return model_facts(name, [Gguf(path=Path(), metadata={}, tensors=[Tensor("", 0, size, "")], size=size)])


@dataclass(frozen=True)
class _Kind:
    attends: bool
    windowed: bool
    recurs: bool


class _Values:
    """The metadata under the architecture's prefix. What is missing or of another kind reads as 0."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self.architecture = str(metadata.get("general.architecture", ""))

    def raw(self, key: str) -> Any:
        return self._metadata.get(f"{self.architecture}.{key}")

    def integer(self, key: str, default: int = 0) -> int:
        """A list has one value per layer; its largest counts."""
        value = self.raw(key)
        if isinstance(value, list) and value:
            value = max(value)
        return int(value) if isinstance(value, int | float) else default

    def at(self, key: str, layer: int, default: int = 0) -> int:
        value = self.raw(key)
        if isinstance(value, list):
            return int(value[layer]) if layer < len(value) else 0
        return int(value) if isinstance(value, int | float) else default

    def head(self, which: str, suffix: str = "") -> int:
        """Gives the length of one key or value."""
        heads = self.integer("attention.head_count")
        own = self.integer("embedding_length") // heads if heads else 0
        plain = self.integer(f"attention.{which}_length", own)
        return self.integer(f"attention.{which}_length{suffix}", plain) if suffix else plain

    @property
    def is_latent(self) -> bool:
        """Latent attention keeps one row per token, from which keys and values are made."""
        return bool(self.integer("attention.key_length_mla") and self.integer("attention.value_length_mla"))

    def tokens(self) -> Any:
        return self._metadata.get("tokenizer.ggml.tokens")


def _layer_kind(values: _Values, layer: int, layers: int) -> _Kind:
    recurs = _recurs(values, layer)
    heads = values.at("attention.head_count_kv", layer, values.integer("attention.head_count"))
    attends = heads > 0 and (not recurs or values.architecture in PARALLEL_HYBRIDS)
    if values.architecture in RECURRENT:
        attends = False
    shared = values.integer("attention.shared_kv_layers")
    if shared and layer >= layers - shared:
        attends = False  # it uses the rows of an earlier layer
    return _Kind(attends, attends and _is_windowed(values, layer), recurs)


def _recurs(values: _Values, layer: int) -> bool:
    architecture = values.architecture
    if architecture in RECURRENT or architecture in PARALLEL_HYBRIDS:
        return True
    listed = values.raw("attention.recurrent_layers")
    if isinstance(listed, list):
        return bool(values.at("attention.recurrent_layers", layer))
    interval = values.integer("full_attention_interval")
    if not interval and architecture in ("qwen3next", "qwen35", "qwen35moe"):
        interval = 4
    if interval:
        return (layer + 1) % interval != 0
    # Elsewhere a layer without keys is recurrent, unless it is one that only feeds forward.
    heads, forward = values.raw("attention.head_count_kv"), values.raw("feed_forward_length")
    if isinstance(heads, list) and values.at("attention.head_count_kv", layer) == 0:
        if architecture.startswith("nemotron_h"):
            return not (isinstance(forward, list) and values.at("feed_forward_length", layer))
        return _state(values) > 0
    return False


def _is_windowed(values: _Values, layer: int) -> bool:
    if not values.integer("attention.sliding_window"):
        return False
    pattern = values.raw("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return bool(values.at("attention.sliding_window_pattern", layer))
    if values.architecture not in WINDOW_PATTERNS:
        return False
    group, full_first = WINDOW_PATTERNS[values.architecture]
    group = int(pattern) if isinstance(pattern, int) else group
    return group == 0 or (layer % group != 0 if full_first else layer % group < group - 1)


def _cells(values: _Values, layer: int, *, windowed: bool) -> tuple[int, int]:
    """One token keeps so many values in a layer, for keys and for values."""
    heads = values.at("attention.head_count_kv", layer, values.integer("attention.head_count"))
    suffix = "_swa" if windowed else ""
    keys = heads * values.head("key", suffix)
    return keys, 0 if values.is_latent else heads * values.head("value", suffix)


def _state(values: _Values) -> int:
    """One layer's recurrent state is the last inputs of its convolution, and what is carried on: so many bytes."""
    embedding = values.integer("embedding_length")
    wkv = values.integer("wkv.head_size")
    if wkv:
        return 4 * (values.integer("token_shift_count", 2) * embedding + embedding * wkv)
    short = values.integer("shortconv.l_cache")
    if short:
        return 4 * embedding * (short - 1)
    kernel = max(0, values.integer("ssm.conv_kernel") - 1)
    kda = values.integer("kda.head_dim")
    if kda:
        heads = values.integer("attention.head_count")
        return 4 * heads * kda * (3 * (kernel or 3) + kda)
    inner, state, groups = (values.integer(f"ssm.{key}") for key in ("inner_size", "state_size", "group_count"))
    return 4 * (kernel * (inner + 2 * groups * state) + state * inner)


def _vocabulary(values: _Values) -> int:
    tokens = values.tokens()
    if isinstance(tokens, Skipped):
        return tokens.length
    return values.integer("vocab_size")


def _quantisation(metadata: dict[str, Any], tensors: Sequence[Tensor], name: str) -> str:
    """The name tells (makers have variants of their own), else the file does, else what most of it is."""
    named = quant_of(name)
    if named:
        return named
    if metadata.get("general.file_type") in FILE_TYPES:
        return FILE_TYPES[metadata["general.file_type"]]
    most: dict[str, int] = {}
    for tensor in tensors:
        most[tensor.type] = most.get(tensor.type, 0) + tensor.bytes
    return max(most, key=lambda kind: most[kind]) if most else "?"

"""The parts from which toy models are put together; a function adds the tensors of one part of one layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .weights import Array, Weights

# Chosen by measuring on prompts of 1000 tokens. Less sharp, and a distant token counts for less. More gain,
# and the text loses variety and the rounding of half-precision attention grows about as fast as the signal.
SHARPNESS = 2.5  # spread of the attention scores
MIXER_GAIN = 2.0  # of attention and recurrent layers, whose averages are smaller than their inputs
FEED_FORWARD_GAIN = 1.5

FEED_FORWARD = 256
EXPERTS, EXPERTS_USED, EXPERT_SIZE = 8, 2, 64

Metadata = dict[str, bool | int | float | Sequence[int]]


@dataclass(frozen=True)
class Heads:
    """Shape of an attention layer. A size of 64 is a whole number of blocks in every cache type."""

    queries: int = 4
    keys: int = 2
    size: int = 64

    def metadata(self, rotated: int | None = None) -> Metadata:
        """`rotated` is how many values of a head carry its position (default: all)."""
        return {
            "attention.head_count": self.queries,
            "attention.head_count_kv": self.keys,
            "attention.key_length": self.size,
            "attention.value_length": self.size,
            "rope.dimension_count": self.size if rotated is None else rotated,
            "rope.freq_base": 10000.0,
        }


@dataclass(frozen=True)
class Scan:
    """Shape of a recurrent layer (Mamba-2 or gated delta net); CUDA scans take states of 128, not of 64."""

    inner: int = 256
    state: int = 128
    heads: int = 8
    groups: int = 1
    kernel: int = 4

    def metadata(self) -> Metadata:
        return {
            "ssm.conv_kernel": self.kernel,
            "ssm.inner_size": self.inner,
            "ssm.state_size": self.state,
            "ssm.time_step_rank": self.heads,
            "ssm.group_count": self.groups,
        }


def norm(w: Weights, name: str, size: int, scale: float = 1.0) -> None:
    w.constant(f"{name}.weight", size, scale)


def stream_norm(w: Weights, name: str, *, constant: float = 0.0) -> None:
    """A norm of the residual stream, before or after a branch.

    It hides the constant channel: seen by the values of an attention layer, the constant would be what is
    left of an average over a long prompt, and single tokens would drown in it.
    """
    scale = np.ones(w.width, dtype=np.float32)
    scale[0] = constant
    w.put(f"{name}.weight", scale)


def attention(w: Weights, block: str, heads: Heads, *, normed: bool = False, gated: bool = False) -> None:
    """Norm, query, key, value and output; `normed` adds q/k norms, `gated` a gate beside each query."""
    queries, keys = heads.queries * heads.size, heads.keys * heads.size
    stream_norm(w, f"{block}.attn_norm")
    rows = 2 * queries if gated else queries
    w.matrix(f"{block}.attn_q.weight", rows, w.width, gain=1.0 if normed else SHARPNESS)
    w.matrix(f"{block}.attn_k.weight", keys, w.width)
    w.matrix(f"{block}.attn_v.weight", keys, w.width)
    w.branch(f"{block}.attn_output.weight", w.width, queries, gain=MIXER_GAIN)
    if normed:
        norm(w, f"{block}.attn_q_norm", heads.size, SHARPNESS)
        norm(w, f"{block}.attn_k_norm", heads.size)


def feed_forward(w: Weights, block: str, size: int = FEED_FORWARD, *, suffix: str = "", gated: bool = True) -> None:
    if gated:
        w.matrix(f"{block}.ffn_gate{suffix}.weight", size, w.width)
    w.matrix(f"{block}.ffn_up{suffix}.weight", size, w.width)
    w.branch(f"{block}.ffn_down{suffix}.weight", w.width, size, gain=FEED_FORWARD_GAIN)


def experts(w: Weights, block: str, count: int = EXPERTS, size: int = EXPERT_SIZE) -> None:
    """The experts among which a router chooses."""
    w.matrix(f"{block}.ffn_gate_inp.weight", count, w.width)
    w.matrix(f"{block}.ffn_gate_exps.weight", count, size, w.width)
    w.matrix(f"{block}.ffn_up_exps.weight", count, size, w.width)
    w.branch(f"{block}.ffn_down_exps.weight", count, w.width, size, gain=FEED_FORWARD_GAIN)


def expert_metadata(count: int = EXPERTS, used: int = EXPERTS_USED, size: int = EXPERT_SIZE) -> Metadata:
    return {
        "feed_forward_length": FEED_FORWARD,
        "expert_count": count,
        "expert_used_count": used,
        "expert_feed_forward_length": size,
    }


def shared_expert(w: Weights, block: str, size: int = EXPERT_SIZE) -> None:
    """The expert that every token passes."""
    feed_forward(w, block, size, suffix="_shexp")


def mamba2(w: Weights, block: str, scan: Scan) -> None:
    """A Mamba-2 mixer whose heads forget at rates from tens to thousands of tokens."""
    channels = scan.inner + 2 * scan.groups * scan.state
    stream_norm(w, f"{block}.attn_norm")
    w.matrix(f"{block}.ssm_in.weight", scan.inner + channels + scan.heads, w.width)
    # A small input keeps silu nearly odd: a large mean would pile up in the state and drown single tokens.
    w.matrix(f"{block}.ssm_conv1d.weight", channels, scan.kernel, gain=0.5)
    w.vector(f"{block}.ssm_conv1d.bias", channels, spread=0.05)
    # A step is softplus(bias + input), about 0.07 here; a head keeps exp(step * a) of its state per token.
    w.vector(f"{block}.ssm_dt.bias", scan.heads, mean=-3.0)
    w.put(f"{block}.ssm_a", _decay_rates(scan.heads, halvings=1)[:, None])
    w.constant(f"{block}.ssm_d", (scan.heads, 1), 0.5)
    w.constant(f"{block}.ssm_norm.weight", (scan.groups, scan.inner // scan.groups))
    w.branch(f"{block}.ssm_out.weight", w.width, scan.inner, gain=MIXER_GAIN)


def delta_net(w: Weights, block: str, scan: Scan) -> None:
    """A gated delta net; it forgets by decay and by overwriting, and both are kept slow."""
    keys, values = scan.state * scan.groups, scan.state * scan.heads
    stream_norm(w, f"{block}.attn_norm", constant=0.25)
    w.matrix(f"{block}.attn_qkv.weight", 2 * keys + values, w.width)
    w.matrix(f"{block}.attn_gate.weight", values, w.width)
    w.matrix(f"{block}.ssm_conv1d.weight", 2 * keys + values, scan.kernel)
    w.vector(f"{block}.ssm_dt.bias", scan.heads, mean=-4.0)
    w.put(f"{block}.ssm_a", _decay_rates(scan.heads, halvings=2))
    w.matrix(f"{block}.ssm_alpha.weight", scan.heads, w.width)
    # The write strength is sigmoid(beta @ x) and has no bias: the constant channel keeps it near 0.1, else
    # a few hundred new keys would have erased every old one.
    w.matrix(f"{block}.ssm_beta.weight", scan.heads, w.width)
    w.tensors[f"{block}.ssm_beta.weight"][:, 0] = -3.0
    norm(w, f"{block}.ssm_norm", scan.state)
    w.branch(f"{block}.ssm_out.weight", w.width, values, gain=MIXER_GAIN)


def _decay_rates(heads: int, halvings: int) -> Array:
    """-1/2 for the first head, then `halvings` times halved from head to head: powers of two are exact."""
    return np.array([-(0.5 ** (1 + halvings * head)) for head in range(heads)], dtype=np.float32)

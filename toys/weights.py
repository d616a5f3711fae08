"""Random tensors that are the same bytes on every machine, and the rules that keep a toy model well behaved.

Channel 0 of the residual stream is a constant: every embedding sets it, no layer writes it. It lets a matrix
without a bias have one, and it is how tokens that must not be generated are pushed down in the output.
"""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from .tokenizer import Vocabulary

Array = NDArray[np.float32]

CONSTANT = 4.0  # value of channel 0; the other channels of an embedding have a spread of 1
LOGIT_SPREAD = 2.5  # wide enough to make choices clear, narrow enough that many tokens stay in play
MUTED = -12.0  # pull of the constant on the logit of a token that must never win


class Weights:
    """The tensors of one model by name. Values depend on the model's name, the tensor's, and the shape."""

    def __init__(self, model: str, words: Vocabulary, width: int = 128) -> None:
        self.model = model
        self.words = words
        self.width = width
        self.tensors: dict[str, Array] = {}

    def put(self, name: str, values: Array) -> None:
        if name in self.tensors:
            raise ValueError(f"tensor {name} is defined twice")
        self.tensors[name] = np.ascontiguousarray(values, dtype=np.float32)

    def constant(self, name: str, shape: int | tuple[int, ...], value: float = 1.0) -> None:
        self.put(name, np.full(shape, value, dtype=np.float32))

    def vector(self, name: str, *shape: int, mean: float = 0.0, spread: float = 0.25) -> None:
        """A vector, or one per expert: biases and the like."""
        self.put(name, self._gauss(name, shape) * np.float32(spread) + np.float32(mean))

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """A matrix (or a stack of them) of shape (..., rows, columns): unit inputs give outputs of `gain`."""
        self.put(name, self._gauss(name, shape) * _scale(gain, shape[-1]))

    def branch(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """A matrix whose result is added to the residual stream, and so must leave channel 0 alone."""
        values = self._gauss(name, shape) * _scale(gain, shape[-1])
        values[..., 0, :] = 0.0
        self.put(name, values)

    def branch_bias(self, name: str, *shape: int) -> None:
        """The bias of a branch: it leaves channel 0 alone too."""
        self.vector(name, *shape)
        self.tensors[name][..., 0] = 0.0

    def embeddings(self, multiplier: float = 1.0) -> None:
        """Input and output embeddings; `multiplier` is what the architecture scales its input by."""
        size = len(self.words.tokens)
        tokens = self._gauss("token_embd.weight", (size, self.width))
        tokens[:, 0] = CONSTANT

        # Subtracting a token's own embedding makes the token just read an unlikely next one: without it many
        # random models repeat a single token for ever.
        output = self._gauss("output.weight", (size, self.width)) - tokens
        output *= _scale(LOGIT_SPREAD, self.width)
        printable = np.array([self.words.is_printable(token) for token in range(size)])
        output[~printable] = 0.0
        output[:, 0] = np.where(printable, 0.0, MUTED)

        self.put("token_embd.weight", tokens / np.float32(multiplier))
        self.constant("output_norm.weight", self.width)
        self.put("output.weight", output)

    def _gauss(self, name: str, shape: tuple[int, ...]) -> Array:
        """Nearly normal values of mean 0 and spread 1.

        Sums of four 16-bit integers: the ready-made normal samplers call log and exp, whose last bit depends
        on the C library.
        """
        key = hashlib.sha256(f"{self.model}/{name}".encode()).digest()
        words = np.random.Philox(key=int.from_bytes(key[:16], "little")).random_raw(int(np.prod(shape)))
        lanes = words.view(np.uint16).reshape(-1, 4)
        centred = lanes.sum(axis=1, dtype=np.int64) - 2 * 0xFFFF
        spread = np.sqrt(np.float64(4 * (0x10000**2 - 1)) / 12)
        values: Array = (centred / spread).astype(np.float32).reshape(shape)
        return values


def _scale(gain: float, inputs: int) -> np.float32:
    scale: np.float32 = np.float32(gain / math.sqrt(inputs))
    return scale

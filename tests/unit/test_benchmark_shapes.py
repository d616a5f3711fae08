"""Models of real shapes and random weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from benchmarks import shapes
from pyrun.home import find_home
from pyrun.models.find import find_model
from pyrun.models.look import look


def test_random_blocks_make_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "POOL_BYTES", 1 << 20)
    small = dataclasses.replace(shapes.SHAPES["14b"], width=1024, n_tokens=2000)
    monkeypatch.setitem(shapes.SHAPES, "small", small)
    path = tmp_path / "small.gguf"
    assert shapes.write_shape("small", path, layers=1) == path.stat().st_size
    facts = look(find_model(find_home(), str(path)))  # as a server reads it: every tensor has its place
    assert (facts.architecture, facts.layers, facts.vocabulary) == ("qwen3", 1, 2000)
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    down = tensors["blk.0.ffn_down.weight"]
    assert down.tensor_type.name == "Q4_0" and list(down.shape) == [17408, 1024]
    values = dequantize(down.data, down.tensor_type)
    assert abs(values.mean()) < 0.02 * values.std(), "a mean would be what is left of every sum"
    assert values.std() * 17408**0.5 == pytest.approx(1.5, rel=0.1)
    assert tensors["token_embd.weight"].tensor_type.name == "Q8_0"


def test_large_hybrid_has_the_experts_and_layers_of_the_real_one() -> None:
    words = shapes.padded_vocabulary(1000)
    weights = shapes.LargeWeights("35b-a3b", words, 2048, shapes.TYPES["q4_0"])
    metadata = shapes.SHAPES["35b-a3b"].build(weights, 4)
    n_experts = [blocks for name, blocks in weights.order.items() if blocks and "_exps" in name]
    assert len(n_experts) == 12 and n_experts[0].shape == (256, 512, 2048)
    assert sum("ssm_out" in name for name in weights.order) == 3 and metadata["ssm.inner_size"] == 4096
    assert words.tokens[-3:] == words.special and len(words.tokens) == 1000

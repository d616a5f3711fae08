"""Which file of a repository is meant by a name and a quantisation."""

from __future__ import annotations

import click
import pytest

from pyrun.cli.download import Wanted, read_name
from pyrun.errors import UserError
from pyrun.models.hub import RemoteFile
from pyrun.models.quants import quant_of
from pyrun.models.slow_quants import slow_on_cpu
from pyrun.models.variants import match, offer_of


def files(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 100 + number, "0" * 64, None) for number, path in enumerate(paths)]


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("UD-IQ1_S/DeepSeek-R1-UD-IQ1_S-00001-of-00003.gguf", "UD-IQ1_S"),
        ("Q8_0/model-00001-of-00002.gguf", "Q8_0"),  # only the folder tells
        ("model.i1-IQ3_XXS.gguf", "i1-IQ3_XXS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("model-f16.gguf", "F16"),
        ("model-fp16.gguf", "F16"),
        ("model-BF16.gguf", "BF16"),
        ("model-IQ4_NL.gguf", "IQ4_NL"),
        ("model-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("bitnet-TQ2_0.gguf", "TQ2_0"),
        ("Q1-7B-Q6_K.gguf", "Q6_K"),  # a model may be called like a quantisation
        ("ggml-model.gguf", ""),
        ("AQ4_K_M7.gguf", ""),
    ],
)
def test_quantisation_is_read(path: str, quant: str) -> None:
    assert quant_of(path) == quant


@pytest.mark.parametrize(
    ("there", "wanted", "found", "is_exact"),
    [
        ("Q4_K_M Q4_K_S Q8_0", "Q4_K_M", "Q4_K_M", True),
        ("Q4_K_M Q4_K_S Q8_0", "q4_k_m", "Q4_K_M", True),
        ("Q4_K_S Q4_K_L Q8_0", "Q4_K_M", "Q4_K_S", False),
        ("Q4_K_L Q4_K_XL Q8_0", "Q4_K_M", "Q4_K_L", False),
        ("UD-Q4_K_XL Q4_0 Q8_0", "Q4_K_M", "UD-Q4_K_XL", False),
        ("UD-Q4_K_XL Q4_K_XL", "Q4_K_XL", "Q4_K_XL", True),
        ("UD-Q4_K_XL Q8_0", "Q4_K_XL", "UD-Q4_K_XL", True),  # the uploader's prefix is not asked for
        ("UD-Q4_K_M Q4_K_M", "UD-Q4_K_M", "UD-Q4_K_M", True),
        ("UD-Q4_K_S Q4_K_S", "Q4_K_M", "Q4_K_S", False),
        ("UD-Q4_K_S Q4_K_S", "UD-Q4_K_M", "UD-Q4_K_S", False),
        ("IQ4_NL IQ4_XS IQ3_S", "IQ4_S", "IQ4_XS", False),
        ("Q4_0 Q4_1 Q8_0", "Q4_K_M", "", False),  # other kernels: not the same thing
        ("Q4_1 Q8_0", "Q4_0", "", False),
        ("BF16 F32", "F16", "", False),
        ("F16", "FP16", "F16", True),
        ("Q4_0 Q4_K_S Q4_K_M Q4_K_L", "Q4", "Q4_K_M", False),
        ("Q4_0 Q4_K_S Q4_K_M Q4_K_L", "Q4_K", "Q4_K_M", False),
        ("Q8_0 Q4_0", "Q8", "Q8_0", False),
        ("Q6_K Q4_0", "Q6_K", "Q6_K", True),
        ("Q4_K_M Q8_0", "m-Q8_0.gguf", "Q8_0", True),  # a file's name
    ],
)
def test_asked_quantisation_is_taken(there: str, wanted: str, found: str, is_exact: bool) -> None:
    result = match(offer_of(files(*(f"m-{quant}.gguf" for quant in there.split()))).models, wanted)
    assert [v.quant for v in result.variants] == found.split()
    assert result.is_exact == (is_exact and bool(found))


def test_two_models_of_one_quantisation_are_told_apart() -> None:
    models = offer_of(files("a-7b-Q4_K_M.gguf", "a-13b-Q4_K_M.gguf", "a-7b-Q8_0.gguf")).models
    assert len(match(models, "Q4_K_M").variants) == 2
    assert [v.name for v in match(models, "A-13b-q4_k_m").variants] == ["a-13b-Q4_K_M"]


def test_parts_companions_and_other_files_are_not_offered() -> None:
    offer = offer_of(
        files(
            "README.md",
            "big/big-Q8_0-00002-of-00002.gguf",
            "big/big-Q8_0-00001-of-00002.gguf",
            "torn-Q8_0-00001-of-00003.gguf",
            "mmproj-BF16.gguf",
            "mmproj-F16.gguf",
            "model-mmproj-f32.gguf",
            "model-imatrix.gguf",
            "model-Q4_0.gguf",
        )
    )
    assert [(v.label, v.size, len(v.files)) for v in offer.models] == [("Q4_0", 108, 1), ("Q8_0", 203, 2)]
    assert [file.path for file in offer.models[1].files] == [
        "big/big-Q8_0-00001-of-00002.gguf",
        "big/big-Q8_0-00002-of-00002.gguf",
    ]
    assert [v.name for v in offer.projectors] == ["mmproj-F16", "mmproj-BF16", "model-mmproj-f32"]
    assert offer.incomplete == ("torn-Q8_0",)


@pytest.mark.parametrize(
    ("name", "quant", "expected"),
    [
        ("a/b", None, Wanted("a/b", "", None)),
        ("a/b", "Q8_0", Wanted("a/b", "", "Q8_0")),
        ("a/b:Q4_K_M", None, Wanted("a/b", "", "Q4_K_M")),
        ("a/b:q4_k_m", "Q4_K_M", Wanted("a/b", "", "Q4_K_M")),
        (" un-sloth/Qwen3.5_9B-GGUF ", None, Wanted("un-sloth/Qwen3.5_9B-GGUF", "", None)),
        ("https://huggingface.co/a/b", None, Wanted("a/b", "", None)),
        ("https://huggingface.co/a/b/tree/main", None, Wanted("a/b", "", None)),
        ("https://huggingface.co/a/b/blob/main/x/c-Q8_0.gguf", None, Wanted("a/b", "", "x/c-Q8_0.gguf")),
        ("hf.co/a/b:Q8_0", None, Wanted("a/b", "", "Q8_0")),
        ("http://127.0.0.1:1/a/b", None, Wanted("a/b", "", None)),
        ("qwen3 8b", "Q8_0", Wanted(None, "qwen3 8b", "Q8_0")),
        ("qwen3:Q8_0", None, Wanted(None, "qwen3", "Q8_0")),
    ],
)
def test_name_is_read(name: str, quant: str | None, expected: Wanted) -> None:
    assert read_name(name, quant, "http://127.0.0.1:1") == expected


@pytest.mark.parametrize(
    "name", ["../b", "a/..", "a/b/c", "/etc/passwd", "a/b\x1b[2J", "", "  ", ":Q8_0", "./models/x.gguf"]
)
def test_path_is_not_taken_for_a_repository(name: str) -> None:
    with pytest.raises(UserError, match="is not the name of a repository"):
        read_name(name, None, "http://127.0.0.1:1")


def test_two_quantisations_are_refused() -> None:
    with pytest.raises(click.UsageError, match="contradict"):
        read_name("a/b:Q4_0", "Q8_0", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("quant", "machine", "is_slow"),
    [
        ("Q4_1", "aarch64", True),
        ("Q4_1", "arm64", True),
        ("Q4_1", "x86_64", False),
        ("Q4_0", "aarch64", False),
        ("Q4_K_M", "aarch64", False),
        ("Q8_0", "aarch64", False),
        ("Q3_K_L", "aarch64", True),
        ("UD-IQ2_XXS", "x86_64", True),
        ("IQ4_NL", "x86_64", False),
        ("IQ1_S", "riscv64", False),  # nothing is known
        ("", "aarch64", False),
    ],
)
def test_slow_kernels_are_told(quant: str, machine: str, is_slow: bool) -> None:
    assert (slow_on_cpu(quant, machine) is not None) == is_slow

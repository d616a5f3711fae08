"""Profiles: the user's word wins, what cannot fit is refused with numbers, and the server knows every flag."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.machines import MACHINES, snapshot_of
from fakes.models import facts, large, mixture, small
from helpers import ROOT

from pyrun.errors import UserError
from pyrun.machine.describe import GIB, Machine, describe
from pyrun.models.facts import ModelFacts
from pyrun.models.fit import Shape, fits, largest_context, memory_for, need
from pyrun.models.profile import SPELLINGS, Profile, Wishes, choose_profile, read_wishes

NOTHING = Wishes({}, {})


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Machine]:
    folder = tmp_path_factory.mktemp("machines")
    return {name: describe(snapshot_of(recorded, folder / name)) for name, recorded in MACHINES.items()}


@pytest.fixture(scope="module")
def handheld(machines: dict[str, Machine]) -> Machine:
    return machines["7840U handheld, 32 GB"]


def chosen(model: ModelFacts, machine: Machine, *extra: str, backend: str = "vulkan", **environment: str) -> Profile:
    return choose_profile(model, machine, backend, read_wishes(None, extra, environment))


@pytest.mark.parametrize(
    ("ctx", "extra", "environment", "context", "said"),
    [
        (None, (), {}, "65536", ""),
        (8192, (), {}, "8192", "--ctx"),
        (None, ("-c", "4096"), {}, "4096", "-c, behind --"),
        (8192, ("--ctx-size", "4096"), {}, "4096", "--ctx-size, behind --"),
        (None, ("--ctx_size", "4096"), {}, "4096", "--ctx_size, behind --"),
        (None, (), {"LLAMA_ARG_CTX_SIZE": "2048"}, "2048", "LLAMA_ARG_CTX_SIZE"),
        (4096, (), {"LLAMA_ARG_CTX_SIZE": "2048"}, "4096", "--ctx"),
    ],
)
def test_word_of_the_user_wins(
    handheld: Machine, ctx: int | None, extra: tuple[str, ...], environment: dict[str, str], context: str, said: str
) -> None:
    profile = choose_profile(mixture(), handheld, "vulkan", read_wishes(ctx, extra, environment))
    setting = next(s for s in profile.settings if s.name == "context")
    assert setting.value == context and said in setting.why
    assert bool(setting.flags) == (not said) and profile.context == (65536 if not said else None)


def test_every_setting_can_be_said_by_the_user(handheld: Machine) -> None:
    extra = [word for flags, _ in SPELLINGS.values() for word in (flags[-1], "1")]
    extra[extra.index("-ctk") + 1] = extra[extra.index("-ctv") + 1] = "f16"
    profile = chosen(mixture(), handheld, *extra)
    assert profile.flags == () and profile.context is None
    variables = {variable: "1" for _, variable in SPELLINGS.values()}
    assert chosen(mixture(), handheld, **variables).flags == ()


def test_context_of_the_user_is_counted(handheld: Machine) -> None:
    with pytest.raises(UserError) as refused:
        chosen(large(), handheld, "-c", "40960", "-ctk", "f32", "-ctv", "f32")
    message = refused.value.message
    assert "dense-32B-Q4_K_M does not fit: 40,960 tokens of context need 39." in message
    assert "18.4 GiB of weights, 20.0 GiB of context" in message
    assert "4.0 GiB of VRAM and 27.2 GiB of RAM less 3.4 GiB for the system" in message
    found = re.fullmatch(r"the largest context that fits is (\d+): --ctx \1", refused.value.hint or "")
    assert found
    assert chosen(large(), handheld, "-c", found[1], "-ctk", "f32", "-ctv", "f32")
    with pytest.raises(UserError):
        chosen(large(), handheld, "-c", str(int(found[1]) + 1024), "-ctk", "f32", "-ctv", "f32")


def test_model_that_does_not_fit_is_not_loaded(machines: dict[str, Machine]) -> None:
    with pytest.raises(UserError, match=r"does not fit: 4,096 tokens of context need 20\.\d GiB") as refused:
        chosen(mixture(), machines["Steam Deck, 16 GB"])
    assert refused.value.hint == "about IQ3_XXS of the same model would fit; --noauto tries it all the same"


def test_short_context_is_preferred_to_a_refusal(machines: dict[str, Machine]) -> None:
    """A context that nobody asked for becomes shorter until it fits."""
    machine = machines["no GPU, container of 2 CPUs"]
    profile = chosen(small(), machine, backend="cpu")
    assert profile.value("context") == "16384" and profile.need.total <= profile.memory.both
    profile = chosen(small(), replace(machine, ram=int(6.75 * GIB)), backend="cpu")
    assert (profile.value("context"), profile.value("k cache")) == ("16384", "q4_0")
    assert "65536 would need" in profile.settings[0].why


def test_largest_context_is_the_largest(handheld: Machine) -> None:
    memory = memory_for(handheld, "vulkan")
    shape = Shape(131072, "f16", "f16", 512, 4)
    model = facts("wide", "llama", 10.0, block_count=80, embedding_length=8192, attention__head_count=64)
    largest = largest_context(model, shape, memory)
    assert largest % 1024 == 0
    assert fits(need(model, replace(shape, context=largest)), memory)
    assert not fits(need(model, replace(shape, context=largest + 1024)), memory)


def test_whole_model_is_not_given_to_a_small_card(machines: dict[str, Machine]) -> None:
    laptop = machines["RTX 4060 laptop, 32 GB"]
    profile = chosen(mixture(), laptop, backend="cuda")
    moved = int(profile.value("experts in RAM") or 0)
    per_layer = mixture().expert_bytes / 40
    on_card = profile.need.total - moved * per_layer
    assert on_card <= profile.memory.gpu < on_card + per_layer
    dense = chosen(large(), laptop, backend="cuda")
    assert dense.value("gpu layers") == "17" and dense.value("experts in RAM") is None
    # Who says how many layers go there has experts in mind as well.
    assert "--n-cpu-moe" not in chosen(mixture(), laptop, "-ngl", "10", backend="cuda").flags


@pytest.mark.parametrize(
    ("words", "variables", "name"),
    [
        (("--mmproj", "{file}"), {}, "projector"),
        (("-md", "{file}"), {}, "draft"),
        ((), {"LLAMA_ARG_MMPROJ": "{file}"}, "projector"),
        ((), {"LLAMA_ARG_SPEC_DRAFT_MODEL": "{file}"}, "draft"),
    ],
)
def test_what_is_loaded_beside_the_model_is_counted(
    machines: dict[str, Machine], tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], name: str
) -> None:
    file = tmp_path / "beside.gguf"
    with file.open("wb") as sparse:
        sparse.truncate(GIB)
    extra = [word.format(file=file) for word in words]
    environment = {variable: value.format(file=file) for variable, value in variables.items()}
    laptop = machines["RTX 4060 laptop, 32 GB"]
    alone = chosen(large(), laptop, backend="cuda")
    beside = chosen(large(), laptop, *extra, backend="cuda", **environment)
    assert beside.need.total == alone.need.total + GIB and "1.0 GiB beside it" in str(beside.need)
    assert beside.value(name) == "beside.gguf"
    per_layer = (alone.need.weights + alone.need.cache) / 64
    fewer = int(alone.value("gpu layers") or 0) - int(beside.value("gpu layers") or 0)
    assert GIB / per_layer - 1 < fewer < GIB / per_layer + 1
    assert chosen(small(), laptop, backend="cuda").value("gpu layers") == "all"
    assert chosen(small(), laptop, *extra, backend="cuda", **environment).value("gpu layers") == "13"


@pytest.mark.parametrize(
    ("words", "variables", "n_cards"),
    [
        ((), {}, 2),
        ((), {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        ((), {"CUDA_VISIBLE_DEVICES": "GPU-8932f937,GPU-46a97be5"}, 2),
        ((), {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
        ((), {"CUDA_VISIBLE_DEVICES": ""}, 0),
        ((), {"HIP_VISIBLE_DEVICES": "0"}, 2),
        (("--device", "CUDA0"), {}, 1),
        (("-dev", "none"), {}, 0),
        ((), {"LLAMA_ARG_DEVICE": "CUDA1"}, 1),
        (("--device", "CUDA0"), {"CUDA_VISIBLE_DEVICES": "0,1"}, 1),
    ],
)
def test_only_cards_that_the_server_may_use_are_counted(
    machines: dict[str, Machine], words: tuple[str, ...], variables: dict[str, str], n_cards: int
) -> None:
    laptop = machines["RTX 4060 laptop, 32 GB"]
    card = laptop.gpus[0]
    profile = chosen(small(), replace(laptop, gpus=[card, card]), *words, backend="cuda", **variables)
    assert profile.memory.gpu == n_cards * memory_for(laptop, "cuda").gpu
    assert (profile.value("gpu layers") is None) == (n_cards == 0)
    assert ("on 1 of 2 cards" in profile.memory.text) == (n_cards == 1)
    assert (profile.value("devices") is None) == (n_cards == 2 and "CUDA_VISIBLE_DEVICES" not in variables)


@pytest.mark.parametrize("named", ["CUDA0", "MIG-8932f937", "RPC0,CUDA0"])
def test_cards_that_cannot_be_told_apart_are_left_to_the_server(machines: dict[str, Machine], named: str) -> None:
    laptop = machines["RTX 4060 laptop, 32 GB"]
    card = laptop.gpus[0]
    second = replace(card, vram=2 * (card.vram or 0)) if named == "CUDA0" else card
    profile = chosen(large(), replace(laptop, gpus=[second, card]), backend="cuda", LLAMA_ARG_DEVICE=named)
    layers = next(s for s in profile.settings if s.name == "gpu layers")
    assert layers.value == "auto" and "cannot be told" in layers.why and layers.flags == ()
    assert "--gpu-layers" not in profile.flags and profile.context


def test_gfx1103_gets_no_batch_that_locks_it_up(handheld: Machine) -> None:
    plenty = replace(handheld, tier="unified")
    assert chosen(mixture(), plenty).value("ubatch") == "256"
    assert chosen(mixture(), plenty, backend="cpu").value("ubatch") == "512"


def test_model_is_locked_only_where_that_is_allowed(machines: dict[str, Machine]) -> None:
    server = machines["ARM server, Neoverse N1"]
    assert "mlock" not in " ".join(chosen(small(), server, backend="cpu").flags)
    for limit in (None, small().size):
        profile = chosen(small(), replace(server, memlock=limit), backend="cpu")
        assert profile.flags[:2] == ("--load-mode", "mmap+mlock") or "mmap+mlock" in profile.flags
    less = replace(server, memlock=small().size - 1)
    assert "mmap+mlock" not in chosen(small(), less, backend="cpu").flags


def test_recurrent_state_is_not_shifted(handheld: Machine) -> None:
    mamba = facts(
        "mamba", "mamba2", 5.0, block_count=64, context_length=1 << 20, embedding_length=2560, ssm__conv_kernel=4,
        ssm__inner_size=5120, ssm__state_size=128, ssm__group_count=1, attention__head_count=0,
    )  # fmt: skip
    assert mamba.is_recurrent
    profile = chosen(mamba, handheld)
    assert "--no-context-shift" in profile.flags and profile.value("k cache") is None
    assert "--no-context-shift" in chosen(mixture(), handheld).flags
    assert "--no-context-shift" not in chosen(small(), handheld).flags


def test_head_that_is_no_multiple_of_a_block_is_not_quantised(handheld: Machine) -> None:
    odd = facts("odd", "llama", 16.0, block_count=32, embedding_length=2560, attention__head_count=32)  # 80 values
    assert odd.head_k == 80
    assert chosen(odd, handheld).value("k cache") == "f16"


def test_cache_flag_is_given_only_with_the_cache(handheld: Machine) -> None:
    tight = replace(handheld, ram=25 * GIB)
    assert "--cache-ssd-ram" in choose_profile(mixture(), tight, "vulkan", NOTHING).flags
    profile = choose_profile(mixture(), tight, "vulkan", NOTHING, has_ssd_cache=False)
    assert "--cache-ssd-ram" not in profile.flags


def test_every_flag_is_known_to_the_server() -> None:
    """Every spelling is in the source that is built, where it has been fetched."""
    sources = [
        ROOT / "llama.cpp" / "source" / "common" / "arg.cpp",
        ROOT / "kernels" / "server" / "cache_args.cpp",
    ]
    if not sources[0].exists():
        pytest.skip("llama.cpp is not fetched")
    text = "".join(Path(path).read_text(encoding="utf-8") for path in sources)
    for flags, variable in SPELLINGS.values():
        for word in (*flags, variable):
            assert f'"{word}"' in text, word

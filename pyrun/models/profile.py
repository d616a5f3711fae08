"""Chooses the settings that suit a model on a machine, each with its reason. It is pure, but for a look at the size of
files that the user names.

The user's word comes first everywhere: what stands behind `--`, our own --ctx, and llama-server's own variables are
kept, and the rest is worked out around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyrun.errors import UserError
from pyrun.machine.describe import GIB, Machine
from pyrun.models.devices import VISIBLE, cards_left
from pyrun.models.facts import CACHE_TYPES, ModelFacts
from pyrun.models.fit import (
    LEAST_CONTEXT,
    MIB,
    Memory,
    Need,
    Placement,
    Shape,
    largest_context,
    largest_quantisation,
    memory_for,
    need,
    place,
    with_workers,
)
from pyrun.server.words import spelled

LARGE, MEDIUM = 15 * GIB, 10 * GIB  # dense models above these are large, or of medium size
LONG, SHORT = 65536, 32768
USEFUL_CONTEXT = 16384  # agents begin with that many tokens
SPACING = 8192
DEFAULT_UBATCH, DEFAULT_SLOTS, DEFAULT_CHECKPOINTS = 512, 4, 32  # they are llama-server's own
GFX1103 = "gfx1103"

# llama-server spells a setting so, and has a variable for it. The first spelling is the one we use.
SPELLINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "context": (("--ctx-size", "-c"), "LLAMA_ARG_CTX_SIZE"),
    "k cache": (("--cache-type-k", "-ctk"), "LLAMA_ARG_CACHE_TYPE_K"),
    "v cache": (("--cache-type-v", "-ctv"), "LLAMA_ARG_CACHE_TYPE_V"),
    "batch": (("--batch-size", "-b"), "LLAMA_ARG_BATCH"),
    "ubatch": (("--ubatch-size", "-ub"), "LLAMA_ARG_UBATCH"),
    "gpu layers": (("--gpu-layers", "-ngl", "--n-gpu-layers"), "LLAMA_ARG_N_GPU_LAYERS"),
    "experts in RAM": (
        ("--n-cpu-moe", "-ncmoe", "--cpu-moe", "-cmoe", "--override-tensor", "-ot"),
        "LLAMA_ARG_N_CPU_MOE",
    ),
    "checkpoints": (("--ctx-checkpoints", "-ctxcp", "--swa-checkpoints"), "LLAMA_ARG_CTX_CHECKPOINTS"),
    "spacing": (("--checkpoint-min-step", "-cms"), "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"),
    "context shift": (("--no-context-shift", "--context-shift"), "LLAMA_ARG_CONTEXT_SHIFT"),
    "reasoning": (("--reasoning-format",), "LLAMA_ARG_THINK"),
    "jinja": (("--jinja", "--no-jinja"), "LLAMA_ARG_JINJA"),
    "loading": (("--load-mode", "-lm"), "LLAMA_ARG_LOAD_MODE"),
    "threads": (("--threads", "-t"), "LLAMA_ARG_THREADS"),
    "cache in RAM": (("--cache-ssd-ram",), "LLAMA_ARG_CACHE_SSD_RAM"),
    "slots": (("--parallel", "-np"), "LLAMA_ARG_N_PARALLEL"),
    "devices": (("--device", "-dev"), "LLAMA_ARG_DEVICE"),
    "projector": (("--mmproj", "-mm"), "LLAMA_ARG_MMPROJ"),
    "draft": (("--spec-draft-model", "-md", "--model-draft"), "LLAMA_ARG_SPEC_DRAFT_MODEL"),
}
BESIDE = ("projector", "draft")  # these are files that take memory beside the model


@dataclass(frozen=True)
class Setting:
    name: str
    value: str
    why: str
    flags: tuple[str, ...] = ()  # there are none where llama-server does so anyway, or the user has said it


@dataclass(frozen=True)
class Profile:
    facts: ModelFacts
    backend: str
    settings: tuple[Setting, ...]
    need: Need
    memory: Memory
    cache_ram: int = 0  # what we let the SSD cache keep in RAM beside the model

    @property
    def shared_memory(self) -> int:
        """What models that are loaded together share: the graphics' memory, where there is some. Each was fitted to it
        as if it were alone, and fills it before it takes RAM."""
        return self.memory.gpu or self.memory.both

    @property
    def share(self) -> int:
        """What it takes of that. The cache counts, too, unless graphics have memory of their own."""
        has_card = self.memory.gpu > 0 and self.memory.both >= self.memory.gpu + self.memory.ram
        return self.need.total + (0 if has_card else self.cache_ram)

    @property
    def context(self) -> int | None:
        """It is to be given with --ctx-size, and None where the user has said it."""
        return next((int(s.value) for s in self.settings if s.name == "context" and s.flags), None)

    @property
    def flags(self) -> tuple[str, ...]:
        """They are all but the context, which the launcher has a flag of its own for."""
        return tuple(word for s in self.settings if s.name != "context" for word in s.flags)

    def value(self, name: str) -> str | None:
        return next((s.value for s in self.settings if s.name == name), None)


@dataclass(frozen=True)
class Wishes:
    """The values of those settings that the user has decided."""

    values: Mapping[str, str]
    sources: Mapping[str, str]
    beside: Mapping[str, int] = field(default_factory=dict)  # the bytes of what is loaded beside the model
    visible: Mapping[str, str] = field(default_factory=dict)  # the drivers' variables that choose among cards

    def devices_for(self, backend: str) -> dict[str, str]:
        """What chooses among the cards, by the flag or variable that says so."""
        lists = {self.sources["devices"]: self.values["devices"]} if "devices" in self.values else {}
        return lists | {name: self.visible[name] for name in VISIBLE.get(backend, ()) if name in self.visible}

    def number(self, name: str) -> int | None:
        try:
            return int(self.values[name])
        except (KeyError, ValueError):
            return None


def read_wishes(ctx: int | None, extra: tuple[str, ...], environment: Mapping[str, str]) -> Wishes:
    """The last one counts, as for llama-server; a flag counts more than a variable."""
    values: dict[str, str] = {}
    sources: dict[str, str] = {}
    for name, (flags, variable) in SPELLINGS.items():
        if environment.get(variable):
            values[name], sources[name] = environment[variable], variable
        if name == "context" and ctx is not None:
            values[name], sources[name] = str(ctx), "--ctx"
        for index, word in enumerate(extra):
            if spelled(word) in flags:
                values[name] = extra[index + 1] if index + 1 < len(extra) else ""
                sources[name] = f"{word}, behind --"
    beside = {name: _size(values[name]) for name in BESIDE if name in values}
    visible = {name: environment[name] for names in VISIBLE.values() for name in names if name in environment}
    return Wishes(values, sources, beside, visible)


def _size(path: str) -> int:
    """The server says what is wrong with one that is not there."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def choose_profile(
    facts: ModelFacts,
    machine: Machine,
    backend: str,
    wishes: Wishes,
    *,
    has_ssd_cache: bool = True,
    workers: Sequence[int] = (),
) -> Profile:
    """Chooses all settings, and raises UserError with the numbers where the model cannot fit. `workers` are the bytes
    that other machines' devices have for it."""
    return _Chooser(facts, machine, backend, wishes, workers).choose(has_ssd_cache)


class _Chooser:
    def __init__(
        self, facts: ModelFacts, machine: Machine, backend: str, wishes: Wishes, workers: Sequence[int]
    ) -> None:
        self.facts = facts
        self.machine = machine
        self.backend = backend
        self.wishes = wishes
        self.memory = memory_for(machine, backend)
        self.devices = wishes.devices_for(backend) if self.memory.gpu else {}
        self.are_cards_known = True
        if self.devices:
            cards = cards_left(machine, backend, self.devices.values())
            self.are_cards_known = cards is not None and not (workers and "devices" in wishes.values)
            if self.are_cards_known:
                self.memory = memory_for(machine, backend, cards)
        if workers:
            self.memory = with_workers(self.memory, workers)
        self.slots = max(1, wishes.number("slots") or DEFAULT_SLOTS)
        self.settings: list[Setting] = []

    def choose(self, has_ssd_cache: bool) -> Profile:
        ubatch = self._batches()
        shape = self._context(ubatch)
        wanted = need(self.facts, shape)
        placement = place(self.facts, wanted, self.memory)
        if not self.are_cards_known:
            placement = Placement(None, why="the server's own choice: which cards are used cannot be told from here")
        self._placement(placement)
        self._said()
        left = max(0, min(self.memory.ram, self.memory.both - wanted.total))
        self._checkpoints(shape, left)
        self._template()
        self._loading(placement)
        self._add("threads", str(self.machine.cpu.threads), self.machine.cpu.threads_source)
        cache_ram = self._cache(left) if has_ssd_cache else 0
        return Profile(self.facts, self.backend, tuple(self.settings), wanted, self.memory, cache_ram)

    def _add(self, name: str, value: str, why: str, flags: tuple[str, ...] | None = None) -> None:
        """`flags` are None where the setting's own goes with the value."""
        if name in self.wishes.values:
            self.settings.append(Setting(name, self.wishes.values[name], f"you said so: {self.wishes.sources[name]}"))
        else:
            chosen = (SPELLINGS[name][0][0], value) if flags is None else flags
            self.settings.append(Setting(name, value, why, chosen))

    # These are known to work, by kind of model.

    def _batches(self) -> int:
        """Gives the ubatch that will be used."""
        is_handheld = self.machine.tier == "handheld" and self.backend != "cpu"
        locks_up = self.backend != "cpu" and any(gpu.gfx == GFX1103 for gpu in self.machine.gpus)
        ubatch = DEFAULT_UBATCH
        if self.facts.is_moe:
            self._add("batch", "1024", "mixture of experts")
            if locks_up or is_handheld:
                ubatch = 256
            why = "mixture of experts"
            if ubatch == 256:
                why += f": 512 has locked {GFX1103} up" if locks_up else " on a handheld"
            self._add("ubatch", str(ubatch), why)
        elif "ubatch" in self.wishes.values:
            self._add("ubatch", "", "")
        return self.wishes.number("ubatch") or ubatch

    def _targets(self) -> tuple[int, list[str], str]:
        """Gives the context, cache types from the first choice to the last resort, and the reason."""
        size = self.facts.weights
        handheld = self.machine.tier == "handheld"
        if self.facts.is_recurrent:
            return LONG, ["f16"], "recurrent: context takes no memory"
        if self.facts.is_moe:
            return LONG, ["q8_0", "q4_0"], "mixture of experts"
        if size > LARGE:
            return SHORT, ["q4_0"] if handheld else ["q8_0", "q4_0"], f"dense, over {LARGE // GIB} GiB"
        if size > MEDIUM:
            return SHORT, ["q8_0", "q4_0"], f"dense, over {MEDIUM // GIB} GiB"
        return LONG, ["f16", "q8_0", "q4_0"], "dense and small"

    def _context(self, ubatch: int) -> Shape:
        target, types, why = self._targets()
        if not self.facts.takes_quantised_cache():
            types = ["f16"]
        asked = self.wishes.number("context")
        trained = self.facts.context
        if asked is None and trained is not None and trained <= target:
            target, why = trained, f"all that the model was trained for; {why}"
        if asked == 0:
            asked = trained
        kinds = [(kind, kind) for kind in types]
        given = tuple(self.wishes.values.get(name, "") for name in ("k cache", "v cache"))
        if any(given):
            # The user decides; what is left open is the server's default, so that the two do not surprise each other.
            pair = tuple(kind if kind in CACHE_TYPES else "f16" for kind in given)
            kinds = [(pair[0], pair[1])]
        if self.facts.source != "metadata":
            return self._unknown(ubatch, asked, kinds[0])
        contexts = [asked] if asked else _steps(target)
        for shape, room in self._candidates(contexts, kinds, ubatch):
            if need(self.facts, shape).total <= room:
                return self._chosen(shape, target, why, room)
        raise self._refusal(self._shape(min(contexts), *kinds[-1], ubatch))

    def _candidates(
        self, contexts: list[int], kinds: list[tuple[str, str]], ubatch: int
    ) -> Iterator[tuple[Shape, int]]:
        """The best comes first, each with the memory it has to fit into: all on the card with a context of use, then
        wherever it fits; q4_0, which is seen in the answers, and short contexts only where nothing else does."""
        useful = [context for context in contexts if context >= USEFUL_CONTEXT] or contexts
        fine = [kind for kind in kinds if "q4_0" not in kind] or kinds
        for some_contexts, some_kinds, room in (
            (useful, fine, self.memory.gpu),
            (useful, fine, self.memory.both),
            (contexts, kinds, self.memory.both),
        ):
            for context in some_contexts:
                for type_k, type_v in some_kinds:
                    yield self._shape(context, type_k, type_v, ubatch), room

    def _shape(self, context: int, type_k: str, type_v: str, ubatch: int) -> Shape:
        return Shape(context, type_k, type_v, ubatch, self.slots, sum(self.wishes.beside.values()))

    def _chosen(self, shape: Shape, target: int, why: str, room: int) -> Shape:
        if shape.context < target:
            more = need(self.facts, replace(shape, context=target)).total
            why = f"{target} would need {more / GIB:.1f} GiB, and there are {room / GIB:.1f}"
        self._add("context", str(shape.context), why)
        if not self.facts.is_recurrent:
            per_token = self.facts.kv_per_token(shape.type_k, shape.type_v)
            amount = f"{per_token / 1024:.1f} KiB for each token of context"
            for name, kind in (("k cache", shape.type_k), ("v cache", shape.type_v)):
                self._add(name, kind, amount, () if kind == "f16" else None)
        return shape

    def _unknown(self, ubatch: int, asked: int | None, kinds: tuple[str, str]) -> Shape:
        """Nothing but a name is known: the model's own context is taken, and nothing that could be wrong."""
        if asked:
            self._add("context", str(asked), "")
        return self._shape(asked or LEAST_CONTEXT, *kinds, ubatch)

    def _refusal(self, shape: Shape) -> UserError:
        wanted = need(self.facts, shape)
        message = (
            f"{self.facts.name} does not fit: {shape.context:,} tokens of context need {wanted.total / GIB:.1f} GiB "
            f"({wanted}), and there are {self.memory.both / GIB:.1f} GiB ({self.memory.text})"
        )
        context = largest_context(self.facts, shape, self.memory)
        if context >= 1024:
            return UserError(message, f"the largest context that fits is {context}: --ctx {context}")
        least = replace(shape, context=LEAST_CONTEXT, type_k="q8_0", type_v="q8_0", slots=1)
        smaller = largest_quantisation(self.facts, least, self.memory)
        if smaller:
            return UserError(message, f"about {smaller} of the same model would fit; --noauto tries it all the same")
        return UserError(message, "a smaller model would fit; --noauto tries it all the same")

    def _placement(self, placement: Placement) -> None:
        if placement.gpu_layers is None:
            if "gpu layers" in self.wishes.values or not self.are_cards_known:
                self._add("gpu layers", "auto", placement.why, ())
            return
        self._add("gpu layers", placement.gpu_layers, placement.why)
        if placement.cpu_experts and "gpu layers" not in self.wishes.values:
            self._add("experts in RAM", str(placement.cpu_experts), f"layers; {placement.why}")

    def _said(self) -> None:
        """Shows what the user has said about memory, and was counted."""
        for source, named in self.devices.items():
            self.settings.append(Setting("devices", named or "none", f"you said so: {source}"))
        for name, size in self.wishes.beside.items():
            why = f"{size / GIB:.1f} GiB beside the model; you said so: {self.wishes.sources[name]}"
            self.settings.append(Setting(name, Path(self.wishes.values[name]).name, why))

    def _checkpoints(self, shape: Shape, left: int) -> None:
        one = self.facts.checkpoint_bytes(shape.type_k, shape.type_v)
        if one:
            # They lie in RAM, for every slot, and get a quarter of what the model leaves; the SSD cache has more.
            count = min(DEFAULT_CHECKPOINTS, max(2, left // 4 // (one * self.slots)))
            kind = "recurrent state" if self.facts.recurrent_layers else "window"
            self._add("checkpoints", str(count), f"{one / MIB:.0f} MiB each: the {kind} cannot be cut back")
        if self.facts.is_moe or one:
            self._add("spacing", str(SPACING), "tokens between checkpoints")
        if self.facts.recurrent_layers:
            why = (
                "recurrent state describes one length" if self.facts.is_recurrent else "hybrid: exact checkpoints only"
            )
            self._add("context shift", "off", why, ("--no-context-shift",))

    def _template(self) -> None:
        self._add("jinja", "on", "the model's own chat template", ())  # the launcher says so for every model
        if self.facts.thinks:
            self._add("reasoning", "deepseek", "its template has thoughts: they go to reasoning_content")

    def _loading(self, placement: Placement) -> None:
        """Weights are locked in RAM where that is allowed for all of it; only what stays in RAM gains by it."""
        limit = self.machine.memlock
        if placement.gpu_layers == "all" and not placement.cpu_experts:
            self._add("loading", "mmap", "nothing of it stays in RAM", ())
        elif limit is None or limit >= self.facts.size:
            self._add("loading", "mmap+mlock", "locked: it is never swapped out", ("--load-mode", "mmap+mlock"))
        else:
            why = f"not locked: this user may lock {limit / MIB:.0f} MiB (ulimit -l), the model is larger"
            self._add("loading", "mmap", why, ())

    def _cache(self, left: int) -> int:
        """It gets an eighth of RAM, and less where the model leaves less. Gives the bytes."""
        default = self.machine.ram // 8
        if self.facts.source == "metadata" and left // 2 < default:
            size = max(256, left // 2 // MIB)
            self._add("cache in RAM", f"{size}M", "half of what the model leaves")
            return size * MIB
        self._add("cache in RAM", f"{default // MIB}M", "an eighth of RAM", ())
        return default


def _steps(target: int) -> list[int]:
    """They go down by halves to the least that is of use; a model's odd length is first, where that is the target."""
    powers = [1 << n for n in range(20, 11, -1)]
    return [target, *(power for power in powers if LEAST_CONTEXT <= power < target)]

"""What clients and operators do to a server, drawn at random: pure, so that a seed names a whole round.

A prompt is told by how it came to be, not by its text: the answers inside a conversation are the model's own, and
whoever plays the operations knows them. `draw_setup` chooses how the server is started, `draw_operations` what happens
to it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from benchmarks.text import words
from toys import Memory
from toys.catalogue import WINDOW
from toys.tokenizer import SPECIAL, VOCABULARY_SIZE

USERS = ("", "ann", "ben")  # the first one is anonymous
LONGEST = 700  # tokens of a raw prompt; a conversation of five questions is about as long
CONTEXT = 2048  # of a slot
ANSWER_TOKENS = 8
IDLE_SECONDS = 1  # until a server sleeps, where it does


# Prompts


@dataclass(frozen=True)
class Talk:
    """A conversation that ends with a question."""

    system: str
    questions: tuple[str, ...]
    name: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.name} with {len(self.questions)} questions"


@dataclass(frozen=True)
class Edited:
    """A conversation of which an earlier question was rewritten, or its exchange dropped, and all the rest was kept."""

    talk: Talk
    at: int
    question: str | None

    def __str__(self) -> str:
        return f"{self.talk}, question {self.at} {'dropped' if self.question is None else 'rewritten'}"


@dataclass(frozen=True)
class Raw:
    """Tokens as they are."""

    tokens: tuple[int, ...]
    name: str = field(compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Further:
    """A prompt, its answer token by token, and more: as clients ask that keep the tokens."""

    start: Prompt
    tokens: tuple[int, ...]

    def __str__(self) -> str:
        return f"({self.start}), its answer and {len(self.tokens)} tokens"


@dataclass(frozen=True)
class Parted:
    """The first tokens of another prompt, and then others."""

    start: Prompt
    kept: int
    tokens: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kept} tokens of ({self.start}) and {len(self.tokens)} others"


Prompt: TypeAlias = Talk | Edited | Raw | Further | Parted


# Operations


@dataclass(frozen=True)
class Ask:
    prompt: Prompt
    user: str
    n_predict: int
    slot: int | None = None
    answers: int = 1
    streamed: bool = False
    leaves_after: float | None = None  # seconds after which the client hangs up
    leaves_at: int | None = None  # parts of the answer after which it does

    def __str__(self) -> str:
        notes = [
            f"slot {self.slot}" if self.slot is not None else "",
            f"{self.answers} answers" if self.answers > 1 else "",
            "streamed" if self.streamed else "",
            f"hangs up after {1000 * self.leaves_after:.0f} ms" if self.leaves_after is not None else "",
            f"hangs up after {self.leaves_at} parts" if self.leaves_at is not None else "",
        ]
        return ", ".join(filter(None, [f"{self.user or 'anonymous'} asks {self.prompt}", *notes]))


@dataclass(frozen=True)
class Together:
    asks: tuple[Ask, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.asks))


@dataclass(frozen=True)
class SlotFile:
    action: str  # save, restore or erase
    slot: int
    file: str

    def __str__(self) -> str:
        return f"{self.action} slot {self.slot}" + ("" if self.action == "erase" else f", file {self.file}")


@dataclass(frozen=True)
class RemoveConversations:
    """One by one, by their hashes: all of a user's, or the one at this place of the list."""

    user: str
    place: int | None

    def __str__(self) -> str:
        return f"remove {'all conversations' if self.place is None else 'a conversation'} of {self.user or 'anonymous'}"


@dataclass(frozen=True)
class RemoveUser:
    user: str

    def __str__(self) -> str:
        return f"remove {self.user}"


@dataclass(frozen=True)
class Sleep:
    """Until the server sleeps, or for some seconds: the next request then meets it on its way there or back."""

    seconds: float | None

    def __str__(self) -> str:
        return "wait until it sleeps" if self.seconds is None else f"wait for {self.seconds:.2f} s"


@dataclass(frozen=True)
class Restart:
    kill: bool

    def __str__(self) -> str:
        return "kill -9 and start" if self.kill else "stop and start"


Operation: TypeAlias = Ask | Together | SlotFile | RemoveConversations | RemoveUser | Sleep | Restart


# How the server is started


@dataclass(frozen=True)
class Setup:
    slots: int
    sleeps: bool
    files: bool  # slots can be saved: what they hold then passes between users
    roomy: bool  # everything that was answered is stored, and so listed and removed
    users: tuple[str, ...]
    flags: tuple[str, ...]
    cached: bool = True


def draw_setup(rng: random.Random, memory: Memory, without: Collection[str] = ()) -> Setup:
    slots = rng.choice((1, 1, 2, 3))
    sleeps = rng.random() < 0.25 and "sleep" not in without
    files = rng.random() < 0.4 and "files" not in without
    roomy = rng.random() < 0.75
    users = rng.choice((USERS, USERS[:1]))  # only what one user asks meets in a slot
    users = USERS[:1] if "users" in without else users
    flags = ["--parallel", str(slots), "--ctx-size", str(CONTEXT * slots)]
    # Upstream's sliding windows lose rows when a batch is smaller than the window and slots share the cells.
    smallest = WINDOW if memory in (Memory.SLIDING_WINDOW, Memory.WHOLE) else 16
    batch = str(max(smallest, rng.choice((16, 64, 512))))
    flags += ["-b", batch, "-ub", batch]
    flags += rng.choice(((), ("--kv-unified",), ("--no-kv-unified",)))
    flags += rng.choice(((), (), ("--ctx-checkpoints", "0"), ("--ctx-checkpoints", "2")))
    flags += ["--cache-ssd-page-size", rng.choice(("16", "64", "256"))]
    if not roomy:
        flags += ["--cache-ssd-ram", rng.choice(("256K", "2M")), "--cache-ssd-max-size", rng.choice(("2M", "8M"))]
    if sleeps:
        flags += ["--sleep-idle-seconds", str(IDLE_SECONDS)]
    return Setup(slots, sleeps, files, roomy, users, tuple(flags))


# What happens to it

# How often each is drawn, by the name under which it can be left out.
PROMPTS = {
    "new": 8,
    "continue": 14,
    "branch": 6,
    "edit": 6,
    "shrink": 5,
    "regenerate": 8,
    "stranger": 5,
    "short": 12,
    "shared": 12,
    "parted": 16,
    "further": 7,
}
DEEDS = {"together": 14, "files": 8, "remove": 4, "sleep": 6, "restart": 3, "kill": 2}
NAMES = (*PROMPTS, "cancel", "several", "users", *DEEDS)


def draw_operations(rng: random.Random, setup: Setup, without: Collection[str] = ()) -> Iterator[Operation]:
    """Without end. `without` names operations that are left out, as in `NAMES`."""
    crowd = Crowd(rng, setup, without)
    while True:
        yield crowd.draw()


class Crowd:
    """Clients who remember what was asked, and operators who disturb them."""

    def __init__(self, rng: random.Random, setup: Setup, without: Collection[str]) -> None:
        self.rng = rng
        self.setup = setup
        self.talks: list[Talk] = []
        self.asked: list[Ask] = []
        self.stems = [self._tokens(rng.randint(40, LONGEST // 2)) for _ in range(4)]
        self.guests = 0
        self.without = {*without, *([] if setup.files else ["files"]), *([] if setup.sleeps else ["sleep"])}

    def draw(self) -> Operation:
        deeds = sum(weight for name, weight in DEEDS.items() if name not in self.without)
        if self.rng.randrange(sum(PROMPTS.values()) + deeds) >= deeds:
            return self._ask()
        deed: Operation = self._one_of(DEEDS)
        return deed

    def _one_of(self, weights: dict[str, int]) -> Any:
        """What the method gives that is named so."""
        names = [name for name in weights if name not in self.without]
        name = self.rng.choices(names, [weights[name] for name in names])[0]
        return getattr(self, f"_{name}")()

    # Prompts

    def _ask(self, alone: bool = True) -> Ask:
        rng = self.rng
        ask: Ask = self._one_of(PROMPTS)
        manner = rng.random()
        if manner < 0.06 and "cancel" not in self.without:
            ask = replace(ask, leaves_after=rng.choice((0.002, 0.01, 0.03, 0.1)))
        elif manner < 0.12 and "cancel" not in self.without:
            ask = replace(ask, streamed=True, leaves_at=rng.randint(1, 5), n_predict=200)
        elif manner < 0.2:
            ask = replace(ask, streamed=True)
        elif manner < 0.27 and self.setup.slots > 1 and alone and "several" not in self.without:
            return replace(ask, answers=rng.randint(2, self.setup.slots))
        return replace(ask, slot=rng.randrange(self.setup.slots)) if rng.random() < 0.3 else ask

    def _by(self, prompt: Prompt, user: str | None = None) -> Ask:
        ask = Ask(
            prompt, self.rng.choice(self.setup.users) if user is None else user, self.rng.randint(1, ANSWER_TOKENS)
        )
        self.asked.append(ask)
        return ask

    def _say(self, talk: Talk, user: str | None = None) -> Ask:
        self.talks.append(talk)
        return self._by(talk, user)

    def _words(self, least: int, most: int) -> str:
        return words(self.rng.randint(least, most), self.rng.random())

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(VOCABULARY_SIZE - len(SPECIAL)) for _ in range(count))

    def _new(self) -> Ask:
        shared = [talk.system for talk in self.talks] if self.rng.random() < 0.4 else []
        system = self.rng.choice(shared) if shared else self.rng.choice(("", self._words(5, 80)))
        return self._say(Talk(system, (self._words(2, 40),), f"talk {len(self.talks)}"))

    def _continue(self) -> Ask:
        if not self.talks:
            return self._new()
        talk = self.rng.choice(self.talks[-4:])
        kept = talk.questions if len(talk.questions) < 5 else talk.questions[:1]
        return self._say(replace(talk, questions=(*kept, self._words(1, 40))), self._owner(talk))

    def _owner(self, talk: Talk) -> str:
        return next((ask.user for ask in reversed(self.asked) if ask.prompt == talk), USERS[0])

    def _branch(self) -> Ask:
        if not self.talks:
            return self._new()
        talk = self.rng.choice(self.talks)
        kept = talk.questions[: self.rng.randrange(len(talk.questions))]
        branch = replace(talk, questions=(*kept, self._words(2, 40)), name=f"{talk.name}'")
        return self._say(branch, self._owner(talk))

    def _edit(self) -> Ask:
        long = [talk for talk in self.talks if len(talk.questions) > 1]
        if not long:
            return self._continue()
        talk = self.rng.choice(long)
        question = self._words(2, 40) if self.rng.random() < 0.7 else None
        return self._by(Edited(talk, self.rng.randrange(len(talk.questions) - 1), question), self._owner(talk))

    def _shrink(self) -> Ask:
        long = [talk for talk in self.talks if len(talk.questions) > 1]
        if not long:
            return self._continue()
        talk = self.rng.choice(long)
        questions = talk.questions[: self.rng.randint(1, len(talk.questions) - 1)]
        return self._by(replace(talk, questions=questions), self._owner(talk))

    def _regenerate(self) -> Ask:
        if not self.asked:
            return self._new()
        ask = self.rng.choice(self.asked[-6:])
        return self._by(ask.prompt, ask.user)

    def _stranger(self) -> Ask:
        """Somebody who was never there, with a prompt that is known from somebody else."""
        if not self.asked:
            return self._new()
        self.guests += 1
        return self._by(self.rng.choice(self.asked).prompt, f"guest-{self.guests}")

    def _short(self) -> Ask:
        # State is kept 4 tokens before a prompt's end: of a prompt of 5 that is as short as state can be.
        tokens = self._tokens(self.rng.choice((1, 2, 3, 4, 5, 5, 5, 6, 7, 8)))
        return self._by(Raw(tokens, f"tokens {list(tokens)}"))

    def _shared(self) -> Ask:
        number = self.rng.randrange(len(self.stems))
        stem = self.stems[number]
        kept = min(len(stem), self.rng.choice((len(stem), self.rng.randint(1, 8), self.rng.randint(20, 50))))
        if self.rng.random() < 0.3:
            kept = self.rng.randint(1, len(stem))
        tail = self._tokens(self.rng.choice((0, 1, self.rng.randint(2, 8), self.rng.randint(9, LONGEST // 2))))
        return self._by(Raw((*stem[:kept], *tail), f"stem {number} to {kept} and {len(tail)} tokens"))

    def _further(self) -> Ask:
        # What goes on twice would grow without end.
        starts = [ask for ask in self.asked[-8:] if not isinstance(ask.prompt, Further | Parted)]
        if not starts:
            return self._shared()
        ask = self.rng.choice(starts)
        return self._by(Further(ask.prompt, self._tokens(self.rng.randint(1, 30))), ask.user)

    def _parted(self) -> Ask:
        """What was asked just now is still in its slot, and all that the slot keeps of those before it."""
        starts = [ask for ask in self.asked[-3:] if not isinstance(ask.prompt, Further | Parted)]
        if not starts:
            return self._short()
        ask = starts[-1]
        tail = self._tokens(self.rng.choice((1, self.rng.randint(2, 8), self.rng.randint(9, 60))))
        return self._by(Parted(ask.prompt, self.rng.randint(1, 60), tail), ask.user)

    # Deeds

    def _together(self) -> Operation:
        return Together(tuple(self._ask(alone=False) for _ in range(self.rng.randint(2, 4))))

    def _files(self) -> Operation:
        action = self.rng.choice(("save", "save", "restore", "restore", "erase"))
        return SlotFile(action, self.rng.randrange(self.setup.slots), f"file-{self.rng.randrange(3)}")

    def _remove(self) -> Operation:
        user = self.rng.choice(self.setup.users)
        if user and self.rng.random() < 0.4:
            return RemoveUser(user)
        return RemoveConversations(user, self.rng.randrange(8) if self.rng.random() < 0.5 else None)

    def _sleep(self) -> Operation:
        return Sleep(IDLE_SECONDS + self.rng.uniform(-0.1, 0.2) if self.rng.random() < 0.5 else None)

    def _restart(self) -> Operation:
        return Restart(kill=False)

    def _kill(self) -> Operation:
        return Restart(kill=True)

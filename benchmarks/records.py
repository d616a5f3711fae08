"""Names the shapes of what a run finds out. Its JSON files hold just these, so that writers and readers agree.

A key that is not always there belongs to a class with `total=False`: a run that was interrupted has no medians yet, and
only our own server tells how many bytes it wrote.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from benchmarks.stats import Stat

SpeedName = Literal["copy_bytes_per_s", "prefill_per_s", "decode_per_s"]


class Reading(TypedDict):
    """How fast the cache's disk was read before anything else was measured."""

    bytes: int
    page_cache: str
    sequential_bytes_per_s: Stat
    parallel_bytes_per_s: Stat
    readers: int


class ReadingBeside(Reading, total=False):
    beside_bytes_per_s: Stat  # how fast the disk was beside each restart


class Limits(TypedDict, total=False):
    """What the machine allows."""

    reading: ReadingBeside
    copy_bytes_per_s: Stat
    prefill_per_s: Stat
    decode_per_s: Stat


class Noise(TypedDict):
    load_average: list[float]
    cores: int
    memory_available: int


class NoiseAround(TypedDict, total=False):
    before: Noise
    after: Noise


class _Result(TypedDict):
    scenario: str
    status: str
    settings: dict[str, Any]
    problems: list[str]
    notes: list[str]
    failed: list[str]


class Result(_Result, total=False):
    """What all scenarios fill in. It is valid as long as it has no problems, and complete once it has been played."""

    noise: NoiseAround


class Row(TypedDict):
    """One request of a conversation."""

    n_tokens: int
    new: int | None
    reused: int
    evaluated: int
    source: str
    miss: str | None
    ttft_ms: float


# The scenario `restart`.

Multiple = Literal["times_limit", "times_run_limit"]
MultipleOfPhase = Literal["warm_times_limit", "warm_times_run_limit", "ram_times_limit"]


class _Measured(TypedDict):
    n_tokens: int
    reused: int
    evaluated: int
    source: str
    miss: str | None
    ttft_ms: float
    total_ms: float
    restore_ms: float | None
    prompt_ms: float | None
    prefill_per_s: float | None
    decode_per_s: float | None


class Measured(_Measured, total=False):
    """One answer of one phase, and how far it is from its limit."""

    bytes_read: int
    bytes_from_ram: int
    copy_bytes_per_s: float
    read_bytes_per_s: float
    page_cache: str
    limit_ms: float
    times_limit: float
    run_limit_ms: float
    times_run_limit: float


Round = dict[str, Measured]  # each phase has one


class _RestartPeer(TypedDict):
    rounds: list[Round]


class RestartPeer(_RestartPeer, total=False):
    again_text: str
    ttft_ms: dict[str, Stat]
    warm_times_limit: float
    warm_times_run_limit: float
    ram_times_limit: float
    times_shorter: float


class Case(TypedDict):
    size: str
    peers: dict[str, RestartPeer]


class RestartResult(Result, total=False):
    cases: list[Case]


# The scenario `agent`.


class _AgentTurn(Row):
    what: str
    prefill_per_s: float | None


class AgentTurn(_AgentTurn, total=False):
    cold_ms_estimated: float
    total_ms: float  # from the request to the last byte of its answer; older runs did not tell


class _AgentPeer(TypedDict):
    turns: list[AgentTurn]


class AgentPeer(_AgentPeer, total=False):
    evaluated_per_new: float
    ttft_ms_sum: float
    total_ms_sum: float


class AgentResult(Result, total=False):
    peers: dict[str, AgentPeer]


# The scenario `chat`.


class ChatTurn(Row):
    conversation: int
    turn: int


class TurnOfAll(TypedDict):
    """The turn of one number, over all conversations."""

    turn: int
    ttft_ms: Stat
    p90_ms: float
    n_tokens: float
    evaluated: float


class _ChatPeer(TypedDict):
    turns: list[ChatTurn]


class ChatPeer(_ChatPeer, total=False):
    by_turn: list[TurnOfAll]


class ChatResult(Result, total=False):
    peers: dict[str, ChatPeer]


# The scenario `fleet`.

FleetBytes = Literal["written_bytes", "whole_bytes", "disk_bytes", "whole_disk_bytes"]


class _FleetTurn(ChatTurn):
    answer_tokens: int
    whole_bytes: float


class FleetTurn(_FleetTurn, total=False):
    written_bytes: int
    disk_bytes: int


class _FleetPeer(TypedDict):
    turns: list[FleetTurn]


class FleetPeer(_FleetPeer, total=False):
    ttft_ms: dict[str, Stat]
    written_bytes: int
    whole_bytes: float
    disk_bytes: int
    whole_disk_bytes: float


class FleetResult(Result, total=False):
    per_token_bytes: float
    fixed_bytes: float
    peers: dict[str, FleetPeer]


# The scenarios of many clients at once: `load`, `swarm` and `herd`.


class CrowdAnswer(TypedDict):
    label: str
    n_tokens: int
    reused: int
    evaluated: int
    answer_tokens: int
    source: str
    ttft_ms: float
    total_ms: float


class Rush(TypedDict):
    """What became of all clients' requests, and how long it took until the last one was answered."""

    answers: list[CrowdAnswer]
    errors: list[str]
    seconds: float


class _LoadPeer(TypedDict):
    answers: list[CrowdAnswer]
    errors: list[str]


class LoadPeer(_LoadPeer, total=False):
    seconds: float
    ttft_ms: dict[str, float]
    answers_per_s: float
    tokens_per_s: float


class LoadResult(Result, total=False):
    peers: dict[str, LoadPeer]


class CrowdRound(Rush):
    new: int | None  # tokens of all prompts that no prompt before them had; None where that is not known
    alone: CrowdAnswer | None  # of one that asks while nobody else does


class _CrowdPeer(TypedDict):
    rounds: list[CrowdRound]


class CrowdPeer(_CrowdPeer, total=False):
    seconds: Stat
    p95_ms: Stat  # of whole requests
    evaluated_per_new: Stat
    first_to_alone: Stat  # time to the first token of all, by token of its prompt, as a ratio to that of one alone


class CrowdResult(Result, total=False):
    peers: dict[str, CrowdPeer]

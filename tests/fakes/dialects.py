"""How each service speaks: the events of its stream, and its errors.

Events are made from the packages' own types, so that what a service could not send is not sent here either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import (
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
)
from anthropic.types.shared import ErrorResponse
from openai.types.chat import ChatCompletionChunk
from openai.types.shared import ErrorObject

MODEL = "stand-in"
SIGNED = {"google": {"thought_signature": "signed"}}  # as Gemini has it beside a call

Piece = tuple[str, dict[str, Any]]  # the name of an event, if it has one, and its data


@dataclass
class Reply:
    """What is answered: an error, or a stream that may break."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)  # id, name, arguments
    at_limit: bool = False  # the answer ends at its limit, in the middle of its last call if it has one
    status: int = 200
    error: str = ""
    retry_after: str | None = None
    cut: bool = False  # the connection breaks before the end
    silent_cut: bool = False  # the stream ends in good order, and too early
    malformed: bool = False  # an event that is no JSON
    error_event: bool = False  # an error in the middle of the stream
    delay: float = 0.0  # seconds before the first piece
    pause: float = 0.0  # and before each
    prompt_tokens: int = 100
    cached_tokens: int = 60

    @property
    def written_calls(self) -> list[tuple[str, str, str]]:
        """With their arguments as the model wrote them."""
        written = [(number, name, json.dumps(arguments)) for number, name, arguments in self.calls]
        if self.at_limit and written:
            number, name, arguments = written[-1]
            written[-1] = (number, name, arguments[: len(arguments) // 2])
        return written


@dataclass(frozen=True)
class Dialect:
    events: Callable[[Reply], Iterator[Piece]]
    error: Callable[[int, str], Any]  # the body for a status
    error_event: Callable[[str], Any]  # in the middle of a stream


@dataclass(frozen=True)
class OpenAI:
    """OpenAI's chat API, and what its followers do otherwise."""

    reasoning: str = ""  # the field that has it; OpenAI itself tells none
    whole_calls: bool = False  # in one piece, and not in parts
    call_index: bool = True
    reason_alone: bool = True  # the end has a chunk of its own
    tells_calls: bool = True  # as the reason of the end
    signs_calls: bool = False  # the first of an answer, and wants it back with the signature
    details: bool = True  # of the usage
    more: dict[str, Any] = field(default_factory=dict)  # in every chunk

    def events(self, reply: Reply) -> Iterator[Piece]:
        pieces: list[dict[str, Any]] = []
        if self.reasoning:
            pieces += [{self.reasoning: text} for text in reply.reasoning]
        pieces += [{"content": text} for text in reply.text]
        for index, call in enumerate(reply.written_calls):
            pieces += [{"tool_calls": [part]} for part in self._parts(index, *call)]
        if self.signs_calls and reply.calls:
            first = next(piece for piece in pieces if "tool_calls" in piece)
            first["tool_calls"][0]["extra_content"] = SIGNED
        yield self._chunk({"role": "assistant", "content": ""})
        reason = "length" if reply.at_limit else "tool_calls" if reply.calls and self.tells_calls else "stop"
        for number, delta in enumerate(pieces, 1):
            yield self._chunk(delta, None if self.reason_alone or number < len(pieces) else reason)
        if self.reason_alone or not pieces:
            yield self._chunk({}, reason)
        usage: dict[str, Any] = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": 7}
        usage["total_tokens"] = reply.prompt_tokens + 7
        if self.details:
            usage["prompt_tokens_details"] = {"cached_tokens": reply.cached_tokens}
            usage["completion_tokens_details"] = {"reasoning_tokens": len(reply.reasoning)}
        yield self._chunk(None, usage=usage)

    def _parts(self, index: int, number: str, name: str, whole: str) -> Iterator[dict[str, Any]]:
        start = {"index": index, "id": number, "type": "function", "function": {"name": name, "arguments": ""}}
        if self.whole_calls:
            yield {**start, "function": {"name": name, "arguments": whole}}
            return
        yield start
        for part in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
            yield {"index": index, "function": {"arguments": part}}

    def _chunk(self, delta: dict[str, Any] | None, reason: str | None = None, **more: Any) -> Piece:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
        values = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices}
        made = ChatCompletionChunk.model_validate({**values, **self.more, **more}).model_dump(exclude_unset=True)
        if not self.call_index:
            for call in (delta or {}).get("tool_calls", []):
                made["choices"][0]["delta"]["tool_calls"] = [{k: v for k, v in call.items() if k != "index"}]
        return "", made


def _openai_error(status: int, message: str) -> dict[str, Any]:
    code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": ErrorObject(message=message, type=kind, code=code, param=None).model_dump(exclude={"misalignment"})
    }


def _gemini_error(status: int, message: str) -> list[dict[str, Any]]:
    names = {401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 400: "INVALID_ARGUMENT"}
    return [{"error": {"code": status, "message": message, "status": names.get(status, "UNAVAILABLE")}}]


def _anthropic_error(status: int, message: str) -> dict[str, Any]:
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
    values = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return ErrorResponse.model_validate(values).model_dump(exclude_unset=True)


def _anthropic(reply: Reply) -> Iterator[Piece]:
    def event(kind: Any, **values: Any) -> Piece:
        made = kind.model_validate(values)
        return values["type"], made.model_dump(exclude_unset=True)

    fresh = reply.prompt_tokens - reply.cached_tokens
    usage = {"input_tokens": fresh, "cache_read_input_tokens": reply.cached_tokens, "output_tokens": 1}
    message: dict[str, Any] = {"id": "1", "type": "message", "role": "assistant", "content": [], "model": MODEL}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    yield event(RawMessageStartEvent, type="message_start", message=message)
    yield "ping", {"type": "ping"}
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if reply.reasoning:
        deltas = [{"type": "thinking_delta", "thinking": text} for text in reply.reasoning]
        deltas.append({"type": "signature_delta", "signature": "signed"})
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if reply.text:
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in reply.text]))
    for number, name, whole in reply.written_calls:
        parts = (whole[: len(whole) // 2], whole[len(whole) // 2 :])
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        blocks.append(({"type": "tool_use", "id": number, "name": name, "input": {}}, deltas))
    for index, (block, deltas) in enumerate(blocks):
        yield event(RawContentBlockStartEvent, type="content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield event(RawContentBlockDeltaEvent, type="content_block_delta", index=index, delta=delta)
        yield event(RawContentBlockStopEvent, type="content_block_stop", index=index)
    reason = "max_tokens" if reply.at_limit else "tool_use" if reply.calls else "end_turn"
    stop: dict[str, Any] = {"stop_reason": reason, "stop_sequence": None}
    yield event(RawMessageDeltaEvent, type="message_delta", delta=stop, usage={"output_tokens": 7})
    yield event(RawMessageStopEvent, type="message_stop")


LLAMA_SERVER = Dialect(OpenAI("reasoning_content").events, _openai_error, lambda text: _openai_error(500, text))
ANTHROPIC = Dialect(_anthropic, _anthropic_error, lambda text: _anthropic_error(529, text))
DIALECTS = {
    "openai": Dialect(
        OpenAI(more={"service_tier": "default", "system_fingerprint": "fp_1", "usage": None}).events,
        _openai_error,
        lambda text: _openai_error(500, text),
    ),
    "anthropic": ANTHROPIC,
    "gemini": Dialect(
        OpenAI(
            whole_calls=True,
            call_index=False,
            reason_alone=False,
            tells_calls=False,
            signs_calls=True,
            details=False,
        ).events,
        _gemini_error,
        lambda text: _gemini_error(503, text)[0],
    ),
    "grok": Dialect(
        OpenAI("reasoning_content", whole_calls=True, more={"system_fingerprint": "fp_1"}).events,
        lambda status, text: {"code": f"status {status}", "error": text},
        lambda text: {"code": "unavailable", "error": text},
    ),
    "ollama": Dialect(
        OpenAI("reasoning", whole_calls=True, details=False, more={"system_fingerprint": "fp_ollama"}).events,
        lambda status, text: {"error": {"message": text, "type": "api_error", "param": None, "code": None}},
        lambda text: {"error": {"message": text, "type": "api_error", "param": None, "code": None}},
    ),
}

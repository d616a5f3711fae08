"""Answers of servers that speak OpenAI's chat API: llama-server, OpenAI, Gemini, Grok, Ollama and most others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyrun.providers import events
from pyrun.providers.events import (
    End,
    Event,
    Function,
    Message,
    Progress,
    ProviderError,
    Reasoning,
    Request,
    Text,
    ToolCall,
    Usage,
    sendable_arguments,
)
from pyrun.providers.known import Provider, is_here
from pyrun.providers.trouble import explained, needs

REASONING = ("reasoning_content", "reasoning")  # llama-server and DeepSeek; Ollama and OpenRouter


def stream(provider: Provider, request: Request, timeout: float) -> Iterator[Event]:
    try:
        import openai
    except ImportError as error:
        raise needs(error.name) from error

    with (
        explained(provider, openai),
        openai.OpenAI(
            base_url=provider.base_url,
            api_key=provider.key or "none",
            timeout=timeout,
            max_retries=0,
            # A proxy would look for a server of this machine on its own.
            http_client=openai.DefaultHttpxClient(trust_env=False) if is_here(provider.base_url) else None,
        ) as client,
        client.chat.completions.create(**body(provider, request), extra_body=_more(provider)) as chunks,
    ):
        yield from _events(provider, chunks)


def body(provider: Provider, request: Request) -> dict[str, Any]:
    """What is sent. The messages stand first, and one request's are the beginning of the next one's."""
    sent: dict[str, Any] = {
        "messages": [_message(provider, message) for message in request.messages],
        "model": provider.model,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        sent["tools"] = [_tool(function) for function in request.tools]
    if request.max_tokens:
        # OpenAI's newer models know the second name only, everybody else the first.
        sent["max_completion_tokens" if provider.kind == "openai" else "max_tokens"] = request.max_tokens
    if request.conversation and provider.kind in ("openai", "local"):
        sent["prompt_cache_key"] = request.conversation
    return sent


def _more(provider: Provider) -> dict[str, Any]:
    """What OpenAI's API does not know: how far the prompt is."""
    return {"return_progress": True} if provider.kind == "local" else {}


def _message(provider: Provider, message: Message) -> Message:
    """A model of our own server is shown its reasoning again, if its template wants it; others refuse to be."""
    hidden = ("thinking",) if provider.kind == "local" else ("thinking", "reasoning_content")
    sent = {name: value for name, value in message.items() if name not in hidden}
    if calls := sent.get("tool_calls"):
        sent["tool_calls"] = [_call(provider, call) for call in calls]
    return sent


def _call(provider: Provider, call: dict[str, Any]) -> dict[str, Any]:
    """Gemini refuses a call of its own without what it signed; others are not to see what is none of theirs."""
    function = call["function"]
    sent = {**call, "function": {**function, "arguments": sendable_arguments(function["arguments"])}}
    if provider.kind != "gemini":
        sent.pop("extra_content", None)
    return sent


def _tool(function: Function) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": function.name, "description": function.description, "parameters": function.schema},
    }


def _events(provider: Provider, chunks: Any) -> Iterator[Event]:
    calls: dict[int, _Call] = {}  # by their index
    timings: dict[str, Any] = {}
    reason, usage = "", Usage()
    for chunk in chunks:
        extra = chunk.model_extra or {}
        timings = extra.get("timings") or timings
        if isinstance(told := extra.get("prompt_progress"), dict):
            yield Progress(told["processed"], told["total"])
        if chunk.usage is not None:
            usage = _usage(chunk.usage)
        for choice in chunk.choices or []:
            delta = choice.delta
            more = delta.model_extra or {}
            if thought := next((more[name] for name in REASONING if more.get(name)), None):
                yield Reasoning(str(thought))
            if delta.content:
                yield Text(delta.content)
            for piece in delta.tool_calls or []:
                _collect(calls, piece)
            reason = choice.finish_reason or reason
    if not reason:
        raise ProviderError(events.CUT, f"{provider.name} ({provider.base_url}): the answer broke off")
    yield from (
        ToolCall(call.id or f"call_{index}", call.name, call.arguments or "{}", call.extra_content)
        for index, call in sorted(calls.items())
    )
    if calls and reason != "length":
        reason = "tool_calls"  # Gemini says that it stopped
    yield End(reason, usage, timings if isinstance(timings, dict) else {})


@dataclass
class _Call:
    """What came of a call so far."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    extra_content: Any = None


def _collect(calls: dict[int, _Call], piece: Any) -> None:
    index = piece.index if piece.index is not None else len(calls)  # Gemini leaves it out, and sends whole calls
    call = calls.setdefault(index, _Call())
    call.id = piece.id or call.id
    call.extra_content = (piece.model_extra or {}).get("extra_content") or call.extra_content
    if piece.function is not None:
        call.name += piece.function.name or ""
        call.arguments += piece.function.arguments or ""


def _usage(told: Any) -> Usage:
    of_prompt, of_answer = told.prompt_tokens_details, told.completion_tokens_details
    return Usage(
        told.prompt_tokens or 0,
        (of_prompt.cached_tokens if of_prompt else None) or 0,
        0,
        told.completion_tokens or 0,
        (of_answer.reasoning_tokens if of_answer else None) or 0,
    )

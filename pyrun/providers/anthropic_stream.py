"""Answers of servers that speak Anthropic's Messages API: Anthropic, and llama-server as well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyrun.providers import events
from pyrun.providers.events import (
    End,
    Event,
    Message,
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

MAX_TOKENS = 16_384  # this API wants to be told
REASONS = {"tool_use": "tool_calls", "max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop"}


def stream(provider: Provider, request: Request, timeout: float) -> Iterator[Event]:
    try:
        import anthropic
    except ImportError as error:
        raise needs(error.name) from error

    with (
        explained(provider, anthropic),
        anthropic.Anthropic(
            base_url=provider.base_url.rstrip("/").removesuffix("/v1"),  # the package adds it
            api_key=provider.key or "none",
            timeout=timeout,
            max_retries=0,
            http_client=anthropic.DefaultHttpxClient(trust_env=False) if is_here(provider.base_url) else None,
        ) as client,
        client.messages.create(**body(provider, request)) as parts,
    ):
        yield from _events(provider, parts)


def body(provider: Provider, request: Request) -> dict[str, Any]:
    """What is sent. The server is asked to cache it all, without marks that would move through the messages."""
    system = "\n\n".join(str(m["content"]) for m in request.messages if m["role"] == "system")
    sent: dict[str, Any] = {
        "messages": _messages(provider, request.messages),
        "model": provider.model,
        "max_tokens": request.max_tokens or MAX_TOKENS,
        "stream": True,
    }
    if system:
        sent["system"] = system
    if request.tools:
        sent["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in request.tools
        ]
    if provider.kind == "anthropic":
        sent["cache_control"] = {"type": "ephemeral"}
    return sent


def _messages(provider: Provider, messages: list[Message]) -> list[dict[str, Any]]:
    """This API takes turns: results of calls are the user's, and what follows on the same side is one message."""
    out: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _blocks(provider, message)
        if out and out[-1]["role"] == role:
            out[-1]["content"] += blocks
        elif blocks:
            out.append({"role": role, "content": blocks})
    return out


def _blocks(provider: Provider, message: Message) -> list[dict[str, Any]]:
    text = str(message.get("content") or "")
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}]
    signed = message.get("thinking") if provider.kind == "anthropic" else None
    blocks: list[dict[str, Any]] = list(signed or [])
    if text:
        blocks.append({"type": "text", "text": text})
    for call in message.get("tool_calls") or []:
        function = call["function"]
        arguments = json.loads(sendable_arguments(function["arguments"]))
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return blocks


def _events(provider: Provider, parts: Any) -> Iterator[Event]:
    blocks: dict[int, dict[str, str]] = {}
    timings: dict[str, Any] = {}
    reason, usage, is_whole = "", Usage(), False
    for part in parts:
        if part.type == "message_start":
            usage = _usage(part.message.usage, usage)
        elif part.type == "content_block_start":
            block = part.content_block
            blocks[part.index] = {
                "type": block.type,
                "id": getattr(block, "id", "") or "",
                "name": getattr(block, "name", "") or "",
                "text": "",
                "signature": "",
                "data": getattr(block, "data", "") or "",
            }
        elif part.type == "content_block_delta":
            yield from _delta(blocks[part.index], part.delta)
        elif part.type == "content_block_stop":
            block = blocks[part.index]
            if block["type"] == "tool_use":
                yield ToolCall(block["id"], block["name"], block["text"] or "{}")
        elif part.type == "message_delta":
            reason = part.delta.stop_reason or reason
            usage = _usage(part.usage, usage)
            timings = (part.model_extra or {}).get("timings") or timings
        elif part.type == "message_stop":
            is_whole = True
            timings = (part.model_extra or {}).get("timings") or timings
    if not is_whole:
        raise ProviderError(events.CUT, f"{provider.name} ({provider.base_url}): the answer broke off")
    yield End(REASONS.get(reason, reason), usage, timings, tuple(_signed(blocks)))


def _delta(block: dict[str, str], delta: Any) -> Iterator[Event]:
    if delta.type == "text_delta":
        yield Text(delta.text)
    elif delta.type == "thinking_delta":
        block["text"] += delta.thinking
        yield Reasoning(delta.thinking)
    elif delta.type == "signature_delta":
        block["signature"] += delta.signature
    elif delta.type == "input_json_delta":
        block["text"] += delta.partial_json


def _signed(blocks: dict[int, dict[str, str]]) -> Iterator[dict[str, Any]]:
    for _, block in sorted(blocks.items()):
        if block["type"] == "thinking" and block["signature"]:
            yield {"type": "thinking", "thinking": block["text"], "signature": block["signature"]}
        elif block["type"] == "redacted_thinking":
            yield {"type": "redacted_thinking", "data": block["data"]}


def _usage(told: Any, before: Usage) -> Usage:
    """The end of a stream repeats what counts, and leaves out what was said at its start."""
    new, read, written = (
        getattr(told, name, None) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    fresh = before.prompt_tokens - before.cached_tokens - before.written_tokens if new is None else new
    cached = before.cached_tokens if read is None else read
    stored = before.written_tokens if written is None else written
    return Usage(fresh + cached + stored, cached, stored, told.output_tokens or before.answer_tokens)

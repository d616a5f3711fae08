"""What a chat message says, as plain text: what is searched and shown later."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a message in the shape of OpenAI's chat API, with reasoning and tool calls. Never raises."""
    return "\n".join(part for part in _parts(message) if part)


def _parts(message: Mapping[str, Any]) -> Iterator[str]:
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str):
        yield reasoning
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield _content_part(part)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments")
            shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            yield f"{function.get('name')}({shown})"


def _content_part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = part.get("text")
        return text if isinstance(text, str) else f"[{part.get('type', 'attachment')}]"
    return ""

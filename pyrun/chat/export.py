"""A session for others to read."""

from __future__ import annotations

import json

from pyrun.chat.sessions import Session


def as_json(session: Session) -> str:
    content = {"session": session.name, "title": session.title, "messages": [row.message for row in session.rows]}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def as_markdown(session: Session) -> str:
    parts = [f"# {session.title or session.name}"]
    for row in session.rows:
        message = row.message
        parts.append(f"## {row.role}")
        if message.get("content"):
            parts.append(str(message["content"]))
        for call in message.get("tool_calls") or []:
            function = call["function"]
            parts.append(f"```\n{function['name']}({function['arguments']})\n```")
    return "\n\n".join(parts) + "\n"

"""What begins with a slash. A command says whether a turn follows it."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyrun import console
from pyrun.agents.endpoint import find_endpoint
from pyrun.chat.chain import DEFAULT_CONTEXT, Link
from pyrun.chat.conversation import Chat, read_file
from pyrun.chat.export import as_json, as_markdown
from pyrun.chat.local import counter
from pyrun.chat.mcp_servers import McpServers
from pyrun.chat.sessions import Row
from pyrun.errors import UserError
from pyrun.memory.recall import UserMemory
from pyrun.providers.known import LOCAL, find_provider

COMMAND = re.compile(r"/([A-Za-z]+|[\w.-]+:\S+)")


class LeaveError(Exception):
    """The person wants to go."""


def is_command(line: str) -> bool:
    """A path or a comment begins with a slash as well, and is something to talk about."""
    return bool(COMMAND.fullmatch(line.partition(" ")[0]))


def run(chat: Chat, line: str) -> bool:
    """Whether the model is to answer now."""
    name, _, rest = line.partition(" ")
    server, colon, prompt = name[1:].partition(":")
    if colon and server in chat.servers.names:
        return _server_prompt(chat, server, prompt, rest)
    return bool(COMMANDS[_command(name)][1](chat, rest.strip()))


def _command(word: str) -> str:
    """The command that it is, or the only one that begins so."""
    meant = [name for name in COMMANDS if name.startswith(word.lower())]
    if not meant:
        raise UserError(f"there is no command {word}", "/help lists them")
    if len(meant) > 1:
        raise UserError(f"{word} may be {', '.join(meant)}", "type more of it")
    return meant[0]


def names(servers: McpServers) -> Iterable[str]:
    return [*COMMANDS, *(f"/{prompt}" for prompt in servers.prompts)]


def _help(chat: Chat, _: str) -> None:
    rows = [(name, text) for name, (text, _) in COMMANDS.items()]
    rows += [(f"/{prompt}", "a prompt of an MCP server; arguments as name=value") for prompt in chat.servers.prompts]
    rows += [(f"@{name}:URI", "in a message: attaches a resource") for name in chat.servers.names]
    for line in console.columns(rows):
        chat.say(line, "")


# Who answers


def _model(chat: Chat, name: str) -> None:
    link = chat.link
    if not name:
        chat.say(f"{link.name}: {link.provider.model}, {link.context:,} tokens of context", "")
        return
    if link.provider.kind == LOCAL:
        endpoint = find_endpoint(link.provider.base_url, link.provider.key, name, "name one of them")
        name, link.context = endpoint.model, endpoint.context
        chat.agent.count = counter(endpoint)
    link.provider = replace(link.provider, model=name)
    chat.say(f"{link.name} answers with {name} from now on")


def _provider(chat: Chat, name: str) -> None:
    chain = chat.agent.chain
    if not name:
        for link in chain.links:
            rests = " (rests after an error)" if link.rests_until > time.monotonic() else ""
            chat.say(f"{link.name}: {link.provider.model} at {link.provider.base_url}{rests}", "")
        others = {provider.name for provider in chat.known} - {link.name for link in chain.links}
        chat.say(f"others: {', '.join(sorted(others)) or 'none'}")
        return
    if name not in {link.name for link in chain.links}:
        provider = find_provider(chat.known, name)
        chain.links.insert(0, Link(provider, provider.context or DEFAULT_CONTEXT))
    chain.prefer(name)
    chat.say(f"{name} is asked first from now on")


def _system(chat: Chat, text: str) -> None:
    """What a model was told first stands first in every prompt: another one begins another session."""
    agent = chat.agent
    rows = agent.session.rows
    has_one = bool(rows) and rows[0].role == "system"
    if not text:
        chat.say(str(rows[0].message["content"]) if has_one else "there is no system message", "")
        return
    content = read_file(text) if Path(text).expanduser().is_file() else text
    first = Row({"role": "system", "content": content}, agent.count(content))
    new = agent.sessions.create(agent.session.tools)
    agent.sessions.append(new, [first, *rows[has_one:]])
    agent.session = new
    chat.say(f"session {new.name[:8]} goes on with it")


# Tools


def _tools(chat: Chat, wanted: str) -> None:
    agent = chat.agent
    if wanted:
        agent.toolset.choose(wanted, chat.link.context)
        agent.sessions.set_tools(agent.session, agent.toolset.functions)
        chat.say("the next prompt begins anew: tools stand at its beginning")
    for tool in agent.session.tools:
        chat.say(f"{tool.name}: {tool.description.partition('. ')[0]}", "")
    if not agent.session.tools:
        chat.say("no tools; /tools all, or a list of names or groups, changes that")


def _allow(chat: Chat, rule: str) -> None:
    always = rule.startswith("always ")
    if rule:
        chat.agent.toolset.allow(rule.removeprefix("always ").strip(), always=always)
    for line in chat.agent.toolset.rules:
        chat.say(line, "")
    if not chat.agent.toolset.rules:
        chat.say("nothing is allowed unasked; /allow RULE, or /allow always RULE, such as write_file:notes/*")


# The conversation


def _attach(chat: Chat, path: str) -> None:
    if not path:
        raise UserError("/attach wants a file", "/attach notes.txt")
    text = read_file(path)
    fence = "`" * max(3, _longest_run(text, "`") + 1)
    chat.attachments.append(f"File {path}:\n\n{fence}\n{text}\n{fence}")
    chat.say(f"{path} goes along with your next message ({len(text):,} characters)")


def _longest_run(text: str, sign: str) -> int:
    longest = 0
    while sign * (longest + 1) in text:
        longest += 1
    return longest


def _last_question(chat: Chat) -> int:
    rows = chat.agent.session.rows
    found = [index for index, row in enumerate(rows) if row.role == "user"]
    if not found:
        raise UserError("nothing was said yet", "say something")
    return found[-1]


def _retry(chat: Chat, _: str) -> bool:
    agent = chat.agent
    question = _last_question(chat)
    agent.sessions.truncate(agent.session, question + 1)
    return True


def _edit(chat: Chat, _: str) -> None:
    chat.input = str(_undone(chat)[0].message["content"])


def _undo(chat: Chat, _: str) -> None:
    chat.say(f"taken back: {len(_undone(chat))} messages")


def _undone(chat: Chat) -> list[Row]:
    return chat.agent.sessions.truncate(chat.agent.session, _last_question(chat))


def _branch(chat: Chat, _: str) -> None:
    agent = chat.agent
    before = agent.session.name
    agent.session = agent.sessions.branch(agent.session)
    chat.say(f"session {agent.session.name[:8]} goes on from here; {before[:8]} stays as it is")


# Sessions


def _sessions(chat: Chat, text: str) -> None:
    agent = chat.agent
    chosen = [one for one in agent.sessions.find(limit=1000) if len(text) >= 4 and one.name.startswith(text)]
    if len(chosen) == 1:
        agent.session = agent.sessions.load(chosen[0].name)
        chat.show_end()
        return
    found = agent.sessions.find(text)
    for one in found:
        age = console.duration(max(0.0, time.time() - one.used / 1000))
        here = " (this one)" if one.name == agent.session.name else ""
        chat.say(f"{one.name[:8]}  {one.title}  ({one.n_messages} messages, {age} ago){here}", "")
    chat.say("/sessions ID goes on with one" if found else "no session has these words")


def _save(chat: Chat, title: str) -> None:
    agent = chat.agent
    if title:
        agent.sessions.rename(agent.session, title)
    chat.say(f"session {agent.session.name[:8]} is kept as {agent.session.title or 'nothing yet'}")


def _export(chat: Chat, path: str) -> None:
    if not path:
        raise UserError("/export wants a file", "/export talk.md, or talk.json")
    text = as_json(chat.agent.session) if path.endswith(".json") else as_markdown(chat.agent.session)
    Path(path).expanduser().write_text(text, encoding="utf-8")
    chat.say(f"written to {path}")


# The memory


def _own(chat: Chat) -> UserMemory:
    return UserMemory(chat.agent.sessions.memory, chat.user)


def _memory(chat: Chat, text: str) -> None:
    found = _own(chat).search(text) if text else []
    for one in found:
        chat.say(f"{one.entry.kind}: {' '.join(one.snippet.split())}", "")
    if not found:
        chat.say("nothing was found" if text else "/memory WORDS searches what was said, stored or left out")


def _facts(chat: Chat, text: str) -> None:
    name, _, value = text.partition("=")
    if value.strip():
        _own(chat).set_fact(name.strip(), value.strip(), "you")
    for fact in _own(chat).facts():
        chat.say(f"{fact.text}: {fact.answer}", "")
    if not _own(chat).facts():
        chat.say("no facts are known; /facts NAME = VALUE adds one")


# Numbers


def _stats(chat: Chat, _: str) -> None:
    total = chat.totals
    share = total.reused_tokens / total.prompt_tokens if total.prompt_tokens else 0.0
    chat.say(
        f"{total.answers} answers in {console.duration(total.seconds)}, {total.answer_tokens:,} tokens\n"
        f"prompts: {total.prompt_tokens:,} tokens, {total.reused_tokens:,} of them reused ({share:.0%})\n"
        f"saved: about {console.duration(total.saved_s)} of evaluating",
        "",
    )


def _cost(chat: Chat, _: str) -> None:
    total = chat.totals
    unknown = f"; the prices of {total.unknown_costs} answers are not known" if total.unknown_costs else ""
    chat.say(f"${total.cost:.4f}{unknown}", "")


def _thoughts(chat: Chat, _: str) -> None:
    thoughts = [
        row.message["reasoning_content"] for row in chat.agent.session.rows if "reasoning_content" in row.message
    ]
    chat.say(str(thoughts[-1]) if thoughts else "the model told no reasoning")


def _quit(chat: Chat, _: str) -> None:
    raise LeaveError


def _server_prompt(chat: Chat, server: str, prompt: str, rest: str) -> bool:
    arguments = dict(word.split("=", 1) for word in shlex.split(rest) if "=" in word)
    chat.agent.say(chat.with_attachments("", chat.servers.prompt(server, prompt, arguments)))
    return True


Command = Callable[[Chat, str], Any]
COMMANDS: dict[str, tuple[str, Command]] = {
    "/help": ("this list", _help),
    "/model": ("which model answers, or another one: /model NAME", _model),
    "/provider": ("who is asked, or who is asked first: /provider NAME", _provider),
    "/tools": ("what the model can call, or another choice: /tools files,memory", _tools),
    "/allow": ("what needs no question, or one more rule: /allow write_file:notes/*", _allow),
    "/system": ("the system message, or another one: /system TEXT or FILE", _system),
    "/attach": ("a text file that goes along with your next message", _attach),
    "/retry": ("ask for the last answer again", _retry),
    "/edit": ("take your last message back, and change it", _edit),
    "/undo": ("take your last message and its answer back", _undo),
    "/branch": ("go on in a new session; this one stays as it is", _branch),
    "/sessions": ("list sessions, find them by words, or go on with one: /sessions ID", _sessions),
    "/save": ("give this session a title", _save),
    "/export": ("write it to a file, as markdown or .json", _export),
    "/memory": ("search what was said, stored or left out", _memory),
    "/facts": ("what is known, or one more: /facts NAME = VALUE", _facts),
    "/thoughts": ("the reasoning before the last answer", _thoughts),
    "/stats": ("tokens and time, and what was reused", _stats),
    "/cost": ("what it cost", _cost),
    "/quit": ("leave; the session is kept", _quit),
}

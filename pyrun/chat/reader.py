"""What a person types: lines with editing, history, completion and paste."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.styles import Style

from pyrun.chat.toolset import ALWAYS, NO, ONCE, SESSION
from pyrun.chat.typed_ahead import TypedAhead

FOLDED_LINES = 10  # a longer paste is shown as one word
PASTED = re.compile(r"\[paste (\d+): [\d,]+ lines\]")
WITH_PATHS = ("/attach", "/export", "/system")
STYLE = Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack", "prompt": "bold"})
CHOICES = {"y": ONCE, "o": ONCE, "s": SESSION, "a": ALWAYS, "n": NO}


class ChatCompleter(Completer):
    """Commands at the start of a line, paths behind those that take one, @server: anywhere."""

    def __init__(self, commands: Callable[[], Iterable[str]], servers: Sequence[str]) -> None:
        self._commands = commands
        self._servers = servers
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        command, space, rest = text.partition(" ")
        if text.startswith("/") and not space:
            return [Completion(name, -len(text)) for name in sorted(self._commands()) if name.startswith(text)]
        if command in WITH_PATHS:
            return self._paths.get_completions(Document(rest, len(rest)), event)
        word = text.rpartition(" ")[2]
        if word.startswith("@"):
            return [Completion(f"@{name}:", -len(word)) for name in self._servers if f"@{name}".startswith(word)]
        return []


class Reader:
    def __init__(self, said: Sequence[str], commands: Callable[[], Iterable[str]], servers: Sequence[str]) -> None:
        history = InMemoryHistory()
        for text in said:
            history.append_string(text)
        self._pasted: list[str] = []  # in all lines so far: one that is brought back with Up has its pastes again
        self._status = ""
        # A menu below every letter would be in the way; behind a slash it helps.
        starts_command = Condition(lambda: self._session.default_buffer.text.startswith("/"))
        self._session: PromptSession[str] = PromptSession(
            history=history,
            multiline=True,  # Enter ends it all the same, see below
            completer=ChatCompleter(commands, servers),
            complete_while_typing=starts_command,
            key_bindings=self._keys(),
            prompt_continuation="  ",
            bottom_toolbar=lambda: self._status,
            style=STYLE,
            enable_open_in_editor=True,
        )
        self._choice: PromptSession[str] = PromptSession()
        self.typed_ahead = TypedAhead(self._session.input, self._session.output)

    def read(self, default: str, status: str) -> str:
        """Raises EOFError at the end of the input, KeyboardInterrupt for Ctrl-C on an empty line."""
        self._status = status
        if self.typed_ahead.give_back() and default:
            default += "\n"
        return self._unfolded(self._session.prompt([("class:prompt", "> ")], default=default)).strip()

    def choose(self) -> str:
        """Once, for this session, always, or no. What is unclear is asked again; no answer is a no."""
        with self.typed_ahead.out_of_the_way():
            while True:
                try:
                    said = self._choice.prompt("allow? [y]es, once · this [s]ession · [a]lways · [n]o: ")
                except EOFError:
                    return NO
                if said.strip().lower()[:1] in CHOICES:
                    return CHOICES[said.strip().lower()[:1]]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.document.char_before_cursor == "\\":
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset(append_to_history=True)
            else:
                event.app.exit(exception=KeyboardInterrupt)

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self._folded(event.data.replace("\r\n", "\n").replace("\r", "\n")))

        return keys

    def _folded(self, text: str) -> str:
        n_lines = text.count("\n") + 1
        if n_lines <= FOLDED_LINES:
            return text
        self._pasted.append(text)
        return f"[paste {len(self._pasted)}: {n_lines:,} lines]"

    def _unfolded(self, text: str) -> str:
        def pasted(found: re.Match[str]) -> str:
            number = int(found[1])
            return self._pasted[number - 1] if 0 < number <= len(self._pasted) else found[0]

        return PASTED.sub(pasted, text)

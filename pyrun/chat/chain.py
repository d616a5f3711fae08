"""The providers of a chat, in their order: where one cannot answer now, the next one is asked, and the turn goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pyrun.providers import events
from pyrun.providers.events import End, Event, ProviderError, Request
from pyrun.providers.known import Provider
from pyrun.providers.stream import stream

DEFAULT_CONTEXT = 32_768  # of a provider that says nothing; a longer one can be written down
REST_SECONDS = 60.0  # so long a provider that failed is not asked again, while there is another
MAX_REST_SECONDS = 3600.0
TRIES = 4  # where there is no other provider
MAX_WAIT_SECONDS = 60.0
SHRINK = 0.8  # of the context, for a provider that says that it was too much
SHRINKS = 4


@dataclass
class Link:
    """A provider, and how it is doing."""

    provider: Provider
    context: int
    rests_until: float = 0.0

    @property
    def name(self) -> str:
        return self.provider.name


class Watcher(Protocol):
    """Is told what happens on the way to an answer."""

    def begins(self, link: Link) -> None: ...
    def takes_back(self) -> None:
        """What was shown of this answer so far does not count."""

    def note(self, text: str) -> None: ...


class Chain:
    def __init__(self, links: list[Link], sleep: Callable[[float], None] = time.sleep) -> None:
        self.links = links
        self.current = links[0]
        self._sleep = sleep

    def answer(self, build: Callable[[Link], Request], watcher: Watcher) -> Iterator[Event]:
        """The events of one whole answer. If several providers had to be asked, those of the last one count."""
        left = self._order()
        contexts = [link.context for link in left]  # A shorter one counts only if it was of use.
        tries = shrinks = 0
        while True:
            link = left[0]
            self.current = link
            watcher.begins(link)
            try:
                yield from _whole(stream(link.provider, build(link)))
                return
            except ProviderError as error:
                watcher.takes_back()
                if error.kind == events.TOO_LONG and shrinks < SHRINKS:
                    shrinks += 1
                    link.context = int(link.context * SHRINK)
                    watcher.note(f"{error.message}; leaving out more of the conversation")
                elif len(left) > 1 and error.kind in events.MOVES_ON:
                    link.context = contexts.pop(0)
                    link.rests_until = time.monotonic() + min(error.retry_after or REST_SECONDS, MAX_REST_SECONDS)
                    del left[0]
                    watcher.note(f"{error.message}; asking {left[0].name} instead")
                elif (wait := _wait_for(error, tries)) is not None:
                    tries += 1
                    watcher.note(f"{error.message}; trying again in {wait:.0f} s")
                    self._sleep(wait)
                else:
                    link.context = contexts[0]
                    raise

    def _order(self) -> list[Link]:
        """Those that rest come last: they are asked where all others fail, too."""
        now = time.monotonic()
        return sorted(self.links, key=lambda link: link.rests_until > now)

    def prefer(self, name: str) -> None:
        """Asks this one first from now on."""
        chosen = next(link for link in self.links if link.name == name)
        chosen.rests_until = 0.0
        self.links = [chosen, *(link for link in self.links if link is not chosen)]
        self.current = chosen


def _whole(answer: Iterator[Event]) -> Iterator[Event]:
    """A consumer that goes away closes the connection at once, and not when the garbage is collected."""
    try:
        for event in answer:
            yield event
            if isinstance(event, End):
                return
    finally:
        answer.close()  # type: ignore[attr-defined]


def _wait_for(error: ProviderError, tries: int) -> float | None:
    """How long to wait before the same provider is asked again; None if that is no use."""
    if tries + 1 >= TRIES or error.kind not in (*events.PASSES, events.CUT):
        return None
    wait = error.retry_after if error.retry_after is not None else 2.0**tries
    return wait if wait <= MAX_WAIT_SECONDS else None

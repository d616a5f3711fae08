"""ask_NAME: one tool for each provider that a person has set up."""

from __future__ import annotations

from collections.abc import Sequence

from pyrun.providers.ask import MAX_TOKENS, Spending, ask
from pyrun.providers.known import Provider
from pyrun.tools.tool import Call, Tool, number, text


def ask_tools(providers: Sequence[Provider]) -> list[Tool]:
    spending = Spending()
    return [_tool(provider, spending) for provider in providers]


def _tool(provider: Provider, spending: Spending) -> Tool:
    def run(call: Call) -> str:
        limit = call.number("max_tokens", MAX_TOKENS)
        return ask(provider, call.text("question"), call.text("system"), limit, spending, stopped=call.stopped)

    return Tool(
        f"ask_{provider.name}",
        f"Ask the model {provider.model}. {provider.description}".strip(),
        {
            "question": text("The question, with all that is needed to answer it."),
            "system": text("Instructions for it."),
            "max_tokens": number(f"Length of the answer at most ({MAX_TOKENS} if left out).", 1, 32_768),
        },
        run,
        ("question",),
    )

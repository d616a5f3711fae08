"""A plugin for llm: `llm -m llama-run ...` asks the running server of llama-run, or starts one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import llm
from llm.parts import TextPart
from pydantic import Field

from pyrun import Engine
from pyrun.errors import UserError


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    register(LlamaRun())


class LlamaRun(llm.Model):
    model_id = "llama-run"
    can_stream = True

    class Options(llm.Options):
        url: str | None = Field(default=None, description="The server; else where llama-run.toml says, or port 9090.")
        model: str | None = Field(default=None, description="Of several models: its name, or a part of it.")
        temperature: float | None = Field(default=None, description="How free the answer is; 0 takes the likeliest.")
        max_tokens: int = Field(default=1024, description="How long the answer may get.")

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[str]:
        options: dict[str, Any] = {"max_tokens": prompt.options.max_tokens}
        if prompt.options.temperature is not None:
            options["temperature"] = prompt.options.temperature
        try:
            with Engine(prompt.options.model, url=prompt.options.url, keep=True) as engine:
                answers = engine.chat_stream(_messages(prompt), **options)
                yield from answers
                whole = answers.wait()
        except UserError as error:
            raise llm.ModelError(f"{error.message} ({error.hint})" if error.hint else error.message) from error
        response.response_json = {"timings": dict(whole.timings), "ttft_ms": whole.ttft_ms}
        response.set_usage(
            input=whole.tokens_reused + whole.tokens_evaluated, output=int(whole.timings.get("predicted_n", 0))
        )


def _messages(prompt: llm.Prompt) -> list[dict[str, str]]:
    """The whole conversation, as it was said: what was said before is reused."""
    return [
        {"role": message.role, "content": "".join(part.text for part in message.parts if isinstance(part, TextPart))}
        for message in prompt.messages
    ]

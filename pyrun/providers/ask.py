"""Asking a provider one question, through the package that speaks its language."""

from __future__ import annotations

from pyrun.errors import UserError
from pyrun.providers.known import Provider

TIMEOUT_SECONDS = 600.0  # a cold prompt on a small machine takes minutes
MAX_TOKENS = 4096
INSTALL = "install what the tools need: LLAMA_RUN_EXTRAS=tools ./llama-run --version"


def ask(provider: Provider, question: str, system: str = "", max_tokens: int = MAX_TOKENS) -> str:
    """The answer's text. What goes wrong on the other side is told, without the key."""
    call = _ask_anthropic if provider.protocol == "anthropic" else _ask_openai
    try:
        return call(provider, question, system, max_tokens)
    except ImportError as error:
        raise UserError(f"the package {error.name} is not installed", INSTALL) from error


def _ask_openai(provider: Provider, question: str, system: str, max_tokens: int) -> str:
    import openai

    try:
        with openai.OpenAI(
            base_url=provider.base_url, api_key=provider.key or "none", timeout=TIMEOUT_SECONDS, max_retries=1
        ) as client:
            answer = client.chat.completions.create(
                model=provider.model,
                max_tokens=max_tokens,
                messages=[
                    *([{"role": "system", "content": system}] if system else []),  # type: ignore[list-item]
                    {"role": "user", "content": question},
                ],
            )
    except openai.OpenAIError as error:
        raise _failed(provider, error) from error
    return (answer.choices[0].message.content or "") if answer.choices else ""


def _ask_anthropic(provider: Provider, question: str, system: str, max_tokens: int) -> str:
    import anthropic

    try:
        with anthropic.Anthropic(
            base_url=provider.base_url, api_key=provider.key or "none", timeout=TIMEOUT_SECONDS, max_retries=1
        ) as client:
            answer = client.messages.create(
                model=provider.model,
                max_tokens=max_tokens,
                system=system or anthropic.omit,
                messages=[{"role": "user", "content": question}],
            )
    except anthropic.AnthropicError as error:
        raise _failed(provider, error) from error
    return "".join(block.text for block in answer.content if block.type == "text")


def _failed(provider: Provider, error: Exception) -> UserError:
    told = str(error)[:500]
    if provider.key:
        told = told.replace(provider.key, "***")
    return UserError(
        f"{provider.name} ({provider.base_url}) did not answer: {told}", "check its address, key and model"
    )

"""Knows the agents that can be connected: for each, a function makes the settings that it reads of an endpoint.

docs/agents.md says with which versions the settings were tried, and what each timeout is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyrun.agents.endpoint import Endpoint
from pyrun.agents.setup import ConfigFile, Format, Setup

NAME = "llama-run"
SECONDS = 3600  # a cold prompt may take that long: 60,000 tokens at 20 per second take 50 minutes
MILLISECONDS = SECONDS * 1000


@dataclass(frozen=True)
class User:
    """Where a person's settings are."""

    home: Path
    environment: Mapping[str, str]

    def folder(self, variable: str, default: Path) -> Path:
        """Gives the folder that the variable names, else the usual one."""
        named = self.environment.get(variable)
        return Path(named).expanduser() if named else default

    @property
    def config(self) -> Path:
        return self.folder("XDG_CONFIG_HOME", self.home / ".config")


def claude_code(at: Endpoint, user: User) -> Setup:
    environment = {
        "ANTHROPIC_BASE_URL": at.url,
        "ANTHROPIC_AUTH_TOKEN": at.token,
        "ANTHROPIC_MODEL": at.model,
        # Its helpers ask for models by these names.
        "ANTHROPIC_DEFAULT_OPUS_MODEL": at.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": at.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": at.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(at.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(at.answer),
        # A line that changes with every session would otherwise open the system prompt.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "API_TIMEOUT_MS": str(MILLISECONDS),
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(MILLISECONDS),
    }
    path = user.folder("CLAUDE_CONFIG_DIR", user.home / ".claude") / "settings.json"
    file = ConfigFile(path, Format.JSON, {"env": environment}, secret=bool(at.key))
    return Setup("claude-code", (file,), environment, True)


def codex(at: Endpoint, user: User) -> Setup:
    provider = {
        "name": NAME,
        "base_url": at.openai_url,
        "wire_api": "responses",
        # Pings do not count for Codex: without this it leaves when a prompt takes five minutes.
        "stream_idle_timeout_ms": MILLISECONDS,
    }
    if at.key:
        provider["env_key"] = "LLAMA_API_KEY"
    content = {
        "model": at.model,
        "model_provider": NAME,
        "model_context_window": at.context,
        "model_providers": {NAME: provider},
    }
    path = user.folder("CODEX_HOME", user.home / ".codex") / "config.toml"
    environment = {"LLAMA_API_KEY": at.key} if at.key else {}
    notes = ("Codex reads the key from its environment: LLAMA_API_KEY has to be set where it runs",) if at.key else ()
    return Setup("codex", (ConfigFile(path, Format.TOML, content),), environment, notes=notes)


def aider(at: Endpoint, user: User) -> Setup:
    name = f"openai/{at.model}"
    settings = {
        "model": name,
        "openai-api-base": at.openai_url,
        "openai-api-key": at.token,
        "timeout": SECONDS,
        "show-model-warnings": False,
    }
    limits = {
        name: {
            "max_input_tokens": at.context,
            "max_output_tokens": at.answer,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }
    }
    return Setup(
        "aider",
        (
            ConfigFile(user.home / ".aider.conf.yml", Format.YAML, settings, secret=bool(at.key)),
            ConfigFile(user.home / ".aider.model.metadata.json", Format.JSON, limits),
        ),
        {
            "AIDER_MODEL": name,
            "OPENAI_API_BASE": at.openai_url,
            "OPENAI_API_KEY": at.token,
            "AIDER_TIMEOUT": str(SECONDS),
        },
        environment_suffices=True,
    )


def opencode(at: Endpoint, user: User) -> Setup:
    folder = user.config / "opencode"
    commented = folder / "opencode.jsonc"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": NAME,
        "options": {"baseURL": at.openai_url, "apiKey": at.token, "timeout": MILLISECONDS},
        "models": {at.model: {"name": at.model, "limit": {"context": at.context, "output": at.answer}}},
    }
    content = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"{NAME}/{at.model}",
        "small_model": f"{NAME}/{at.model}",
        "provider": {NAME: provider},
    }
    path = commented if commented.exists() else folder / "opencode.json"
    return Setup("opencode", (ConfigFile(path, Format.JSON, content, secret=bool(at.key)),))


def goose(at: Endpoint, user: User) -> Setup:
    settings: dict[str, str | int] = {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": at.model,
        "GOOSE_CONTEXT_LIMIT": at.context,
        "OPENAI_HOST": at.url,
        "OPENAI_BASE_PATH": "v1/chat/completions",
        "OPENAI_TIMEOUT": SECONDS,
    }
    environment = {name: str(value) for name, value in settings.items()} | {"OPENAI_API_KEY": at.token}
    notes = ("goose keeps keys in the system's keyring: set OPENAI_API_KEY in the environment, or `goose configure`",)
    path = user.config / "goose" / "config.yaml"
    return Setup("goose", (ConfigFile(path, Format.YAML, settings),), environment, True, notes)


def cline(at: Endpoint, user: User) -> Setup:
    modes = ("act", "plan")
    model = {"contextWindow": at.context, "maxTokens": at.answer, "supportsImages": False, "supportsPromptCache": False}
    content: dict[str, object] = {"openAiBaseUrl": at.openai_url}
    for mode in modes:
        content[f"{mode}ModeApiProvider"] = "openai"
        content[f"{mode}ModeOpenAiModelId"] = at.model
        content[f"{mode}ModeOpenAiModelInfo"] = model
    folder = user.home / ".cline" / "data"
    return Setup(
        "cline",
        (
            ConfigFile(folder / "globalState.json", Format.JSON, content),
            ConfigFile(folder / "secrets.json", Format.JSON, {"openAiApiKey": at.token}, secret=bool(at.key)),
        ),
        notes=(_in_editor("Cline", at), "the files are those of Cline's command line"),
    )


def roo(at: Endpoint, user: User) -> Setup:
    return Setup("roo", notes=(_in_editor("Roo Code", at), "VS Code: set roo-cline.apiRequestTimeout to 3600"))


def _in_editor(name: str, at: Endpoint) -> str:
    """Extensions keep their settings in the editor's database, which is not ours to write."""
    return (
        f"in the editor: {name}'s settings, API Provider `OpenAI Compatible`, Base URL `{at.openai_url}`, "
        f"API Key `{at.token}`, Model ID `{at.model}`, Context Window Size `{at.context}`"
    )


def continue_dev(at: Endpoint, user: User) -> Setup:
    model = {
        "name": f"{NAME}: {at.model}",
        "provider": "openai",
        "model": at.model,
        "apiBase": at.openai_url,
        "apiKey": at.token,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": at.context, "maxTokens": at.answer},
        # Its command line takes milliseconds, the editors seconds: a thousand times as many must fit in 31 bits.
        "requestOptions": {"timeout": 2_000_000},
    }
    content = {"name": "Main Config", "version": "1.0.0", "schema": "v1", "models": [model]}
    path = user.folder("CONTINUE_GLOBAL_DIR", user.home / ".continue") / "config.yaml"
    if path.exists():
        del content["name"], content["version"]
    return Setup("continue", (ConfigFile(path, Format.YAML, content, secret=bool(at.key)),))


def zed(at: Endpoint, user: User) -> Setup:
    model = {
        "name": at.model,
        "display_name": at.model,
        "max_tokens": at.context,
        "max_output_tokens": at.answer,
        "capabilities": {"tools": True, "images": False, "parallel_tool_calls": False, "prompt_cache_key": True},
    }
    content = {
        "language_models": {"openai_compatible": {NAME: {"api_url": at.openai_url, "available_models": [model]}}},
        "agent": {"default_model": {"provider": NAME, "model": at.model}},
    }
    notes = ("Zed reads the key from LLAMA_RUN_API_KEY or its keyring: agent panel, settings, llama-run",)
    path = user.config / "zed" / "settings.json"
    return Setup("zed", (ConfigFile(path, Format.JSON, content),), {"LLAMA_RUN_API_KEY": at.token}, notes=notes)


def llm(at: Endpoint, user: User) -> Setup:
    model: dict[str, object] = {
        "model_id": NAME,
        "model_name": at.model,
        "api_base": at.openai_url,
        "can_stream": True,
        "supports_tools": True,
    }
    folder = user.folder("LLM_USER_PATH", user.config / "io.datasette.llm")
    keys: tuple[ConfigFile, ...] = ()
    if at.key:
        model["api_key_name"] = NAME
        keys = (ConfigFile(folder / "keys.json", Format.JSON, {NAME: at.key}, secret=True),)
    models = ConfigFile(folder / "extra-openai-models.yaml", Format.YAML, [model], same="model_id")
    return Setup("llm", (models, *keys), notes=(f"llm -m {NAME} 'Hello!'",))


def open_webui(at: Endpoint, user: User) -> Setup:
    environment = {
        "OPENAI_API_BASE_URL": at.openai_url,
        "OPENAI_API_KEY": at.token,
        "ENABLE_OLLAMA_API": "False",
        "DEFAULT_MODELS": at.model,
        "AIOHTTP_CLIENT_TIMEOUT": str(SECONDS),
    }
    notes = (
        "the variables count when Open WebUI starts for the first time; later: Admin Panel, Settings, Connections",
    )
    return Setup("open-webui", environment=environment, notes=notes)


AGENTS: dict[str, Callable[[Endpoint, User], Setup]] = {
    "aider": aider,
    "claude-code": claude_code,
    "cline": cline,
    "codex": codex,
    "continue": continue_dev,
    "goose": goose,
    "llm": llm,
    "open-webui": open_webui,
    "opencode": opencode,
    "roo": roo,
    "zed": zed,
}

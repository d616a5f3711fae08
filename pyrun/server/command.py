"""Writes the exact llama-server command for a set of settings. It is pure: settings in, arguments out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyrun.server.address import Address
from pyrun.server.router import MEMORY_FLAG, Room
from pyrun.server.words import has_flag, value_of

CACHE_FLAG = "--cache-ssd"
SHARED_FLAG = "--cache-ssd-shared"
METADATA_FLAG = "--metadata-users"
WORKERS_FLAG = "--rpc"
OVERFLOW_FLAG, SPOOL_FLAG, TOOLS_FLAG = "--context-overflow", "--context-spool", "--mcp-servers-config"
# These variables are llama-server's own.
CACHE_VARIABLE, METADATA_VARIABLE, ALIAS_VARIABLE = "LLAMA_ARG_CACHE_SSD", "LLAMA_ARG_METADATA_USERS", "LLAMA_ARG_ALIAS"
SPOOL_VARIABLE = "LLAMA_ARG_CONTEXT_SPOOL"


@dataclass(frozen=True)
class ServerSettings:
    binary: Path
    model: Path  # or, for several, the file of their presets
    address: Address = field(default_factory=Address)
    ctx: int | None = None
    cache: str | None = None  # the folder of the SSD cache; None leaves the flag out
    chat_template: Path | None = None  # it is given where the model's own does not do
    web_page: Path | None = None  # the folder to serve at /, where upstream's page is not built in
    name: str | None = None  # clients know the model by it; None leaves it to llama-server, which takes its path
    users_by_metadata: bool = True  # metadata.user_id of the Anthropic API tells users apart
    sampling: tuple[str, ...] = ()  # flags that the model's makers advise
    shared: Path | None = None  # the folder that servers share
    overflow: str | None = None  # what becomes of a chat that no longer fits; None leaves it to the server
    spool: Path | None = None  # the folder for messages that leave a chat
    tools: Path | None = None  # the file that says how the tool server is started
    profile: tuple[str, ...] = ()  # flags that suit the model and the machine
    workers: tuple[str, ...] = ()  # HOST:PORT of those that hold parts of the model
    devices: tuple[str, ...] = ()  # what the model may lie on beside RAM; none: all that there are
    room: Room | None = None  # for several models; None where there is one
    extra: tuple[str, ...] = ()  # what the user wrote behind `--`, as it is and last, so that it wins

    @property
    def kept_in(self) -> str | None:
        """The folder of the SSD cache, also where the user named it behind `--`."""
        return kept_in(self.cache, self.extra)


def server_command(settings: ServerSettings) -> list[str]:
    if settings.room is None:
        command = [str(settings.binary), "--model", str(settings.model)]
    else:
        command = [str(settings.binary), "--models-preset", str(settings.model)]
        command += ["--models-max", str(settings.room.at_most)]
        command += [] if settings.room.memory is None else [MEMORY_FLAG, str(settings.room.memory)]
    address = {"--host": settings.address.host, "--port": str(settings.address.port)}
    command += [word for flag, value in address.items() if not has_flag(settings.extra, flag) for word in (flag, value)]
    command += words_of_models(settings) if settings.room is None else []
    if settings.ctx is not None:
        command += ["--ctx-size", str(settings.ctx)]
    if settings.workers:
        command += [WORKERS_FLAG, ",".join(settings.workers)]
        # Upstream's own cache of prompts aborts on some workers, also where ours is off or cannot be opened.
        command += [] if has_flag(settings.extra, "--cache-ram", "-cram") else ["--cache-ram", "0"]
    if settings.devices and not has_flag(settings.extra, "--device", "-dev"):
        command += ["--device", ",".join(settings.devices)]
    if settings.cache is not None:
        command += [CACHE_FLAG, settings.cache]
    if settings.chat_template is not None:
        command += ["--chat-template-file", str(settings.chat_template)]
    if settings.tools is not None and not has_flag(settings.extra, TOOLS_FLAG):
        # Its own files of settings could let pages of other sites in; check_local refuses whoever asks for that here.
        command += [TOOLS_FLAG, str(settings.tools), "--cors-origins", "localhost"]
    if settings.web_page is not None:
        command += ["--path", str(settings.web_page)]
    if settings.name is not None and not has_flag(settings.extra, "--alias", "-a"):
        command += ["--alias", settings.name]
    return [*command, *settings.profile, *settings.sampling, *settings.extra]


def words_of_models(settings: ServerSettings) -> list[str]:
    """What every model is served with. On a router's command line it would overrule what the user has set for one."""
    values = {
        SHARED_FLAG: settings.shared,
        OVERFLOW_FLAG: settings.overflow,
        SPOOL_FLAG: settings.spool,
        METADATA_FLAG: None if settings.users_by_metadata else "off",
    }
    given = {flag: value for flag, value in values.items() if value is not None and not has_flag(settings.extra, flag)}
    return ["--jinja", *(word for flag, value in given.items() for word in (flag, str(value)))]


def kept_in(cache: str | None, extra: tuple[str, ...]) -> str | None:
    """The folder that counts: one that stands behind `--`, else the one that was chosen. None where there is none."""
    return (value_of(extra, CACHE_FLAG) if has_flag(extra, CACHE_FLAG) else cache) or None


def choose_cache(
    default: Path, chosen: Path | None, off: bool, extra: tuple[str, ...], environment: Mapping[str, str]
) -> str | None:
    """Gives the folder for --cache-ssd, None to leave the flag out. What stands behind `--` wins, then our flags, then
    the server's own variable."""
    if has_flag(extra, CACHE_FLAG):
        return None
    if chosen is not None:
        return str(chosen.absolute())
    named = environment.get(CACHE_VARIABLE)
    if off:
        return "" if named else None  # the variable would turn it on; an empty folder on the command line overrules it
    if named is not None:
        return named or None
    return str(default)

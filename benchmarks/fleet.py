"""How much do several servers evaluate again, behind which router, and what if one of them dies?

    python -m benchmarks.fleet [MODEL] [--routers haproxy,nginx,sglang-router,round-robin] [--agents 24] [--turns 6]
                               [--pause SECONDS] [--kill] [--shared DIR] [--sglang PYTHON]

Agents with one system prompt talk to three servers, all at once, each turn with the whole history. The routers are
started from what `llama-run fleet config` prints. Counted are prompt tokens that were evaluated for each one that is
new: what a prompt has beyond the agent's last one and the tokens of its answer, and the system prompt once, which
all servers evaluate that are asked at the same moment. (An answer's text may come back as other tokens than those that
were generated, of a toy more often than of a trained model: from there on a prompt is new.) With --pause, an agent
is busy with its tools for so long between two turns. With --kill, the first server is killed when half of the turns
are answered. The round robin is the client's own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import requests

from benchmarks import interrupt
from benchmarks.peers import Server
from benchmarks.text import tool_schemas, words
from pyrun import console
from pyrun.errors import UserError
from pyrun.fleet.config import ROUTERS, Router, parse_fleet, write_config
from pyrun.home import find_home
from pyrun.models.default import CHAT_TEMPLATE

N_SERVERS = 3
SLOTS = 4
ANSWER_TOKENS = 16
TURN_WORDS = 40  # some 90 tokens of a toy
ROUND_ROBIN = "round-robin"
Messages = list[dict[str, str]]
START_SECONDS = 60
SYSTEM = {"role": "system", "content": "You are an agent with tools.\n" + tool_schemas(120, "fleet")}
TRIES = 20  # of a request whose server died: the vendors' clients try again, too


@dataclass
class Turn:
    agent: int
    number: int
    n_new: int
    n_evaluated: int
    failures: int  # requests before the one that was answered


@dataclass
class Outcome:
    router: str
    turns: list[Turn] = field(default_factory=list)
    n_system: int = 0  # tokens
    by_server: list[int] = field(default_factory=list)  # requests
    seconds: float = 0

    @property
    def n_new(self) -> int:
        """What one server that forgets nothing would have to evaluate."""
        return self.n_system + sum(turn.n_new for turn in self.turns)

    @property
    def n_evaluated(self) -> int:
        return sum(turn.n_evaluated for turn in self.turns)

    def line(self) -> str:
        failures = sum(turn.failures for turn in self.turns)
        return (
            f"{self.router}: {len(self.turns)} turns, {self.n_new:,} new tokens, {self.n_evaluated:,} evaluated, "
            f"{self.n_evaluated / self.n_new:.2f} for each new one "
            f"({self.n_evaluated / (self.n_new + (N_SERVERS - 1) * self.n_system):.2f} if the system prompt of "
            f"{self.n_system:,} is new on each server); requests by server {self.by_server}, {failures} sent again, "
            f"{self.seconds:.0f} s"
        )


@dataclass
class Answer:
    text: str
    tokens: list[int]
    n_evaluated: int  # of the prompt
    failures: int


def ask(url: str, agent: int, messages: Messages) -> Answer:
    """Sends it again when its server dies, as clients do."""
    body = {
        "model": "toy",
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "logprobs": True,  # The tokens are named there.
        "prompt_cache_key": f"agent-{agent}",
    }
    for failures in range(TRIES):
        with contextlib.suppress(requests.RequestException, ValueError, KeyError):
            answer = requests.post(f"{url}/v1/chat/completions", json=body, timeout=600)
            if answer.status_code == 200:
                told = answer.json()
                (choice,) = told["choices"]
                tokens = [int(one["id"]) for one in choice["logprobs"]["content"]]
                text = str(choice["message"]["content"] or "")
                return Answer(text, tokens, told["timings"]["prompt_n"], failures)
        time.sleep(0.5)
    raise UserError(f"{url} does not answer any more")


def run_agents(
    outcome: Outcome, url_of: Callable[[], str], counter: Server, half: threading.Event, options: argparse.Namespace
) -> None:
    """The counter says what messages are as tokens."""
    system = system_tokens(counter)
    outcome.n_system = len(system)

    def run(agent: int) -> None:
        messages, known = [SYSTEM], system
        for number in range(options.turns):
            messages.append({"role": "user", "content": words(TURN_WORDS, (agent, number))})
            prompt = prompt_tokens(counter, messages)
            answer = ask(url_of(), agent, messages)
            messages.append({"role": "assistant", "content": answer.text})
            n_new = len(prompt) - n_common(prompt, known)
            known = prompt + answer.tokens
            outcome.turns.append(Turn(agent, number, n_new, answer.n_evaluated, answer.failures))
            if len(outcome.turns) * 2 >= options.agents * options.turns:
                half.set()
            if number + 1 < options.turns:
                time.sleep(options.pause)

    began = time.monotonic()
    with ThreadPoolExecutor(options.agents) as pool:
        for done in [pool.submit(run, agent) for agent in range(options.agents)]:
            done.result()
    outcome.seconds = time.monotonic() - began


def prompt_tokens(server: Server, messages: Messages) -> list[int]:
    prompt = server.post("/apply-template", {"messages": messages})["prompt"]
    return list(server.post("/tokenize", {"content": prompt, "add_special": True})["tokens"])


def n_common(some: list[int], others: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False)))


def system_tokens(server: Server) -> list[int]:
    """What all prompts begin with."""
    one, two = (prompt_tokens(server, [SYSTEM, {"role": "user", "content": word}]) for word in ("one", "two"))
    return one[: n_common(one, two)]


def router_command(router: Router, file: Path, sglang: str) -> list[str]:
    if router == "sglang-router":
        return ["env", f"PATH={Path(sglang).parent}:/usr/bin:/bin", "sh", str(file)]
    program = shutil.which(router) or shutil.which(router, path="/usr/sbin")
    if program is None:
        raise UserError(f"{router} is not installed")
    return [program, "-f", str(file)] if router == "haproxy" else [program, "-c", str(file), "-g", "daemon off;"]


def router_port() -> int:
    """With the next one, where sglang-router tells its figures. Higher ones are given to connections by the system."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as own, socket.socket() as following:
            own.bind(("127.0.0.1", port))
            following.bind(("127.0.0.1", port + 1))
            return port


@contextlib.contextmanager
def routed(
    router: str, servers: Sequence[Server], folder: Path, options: argparse.Namespace
) -> Iterator[Callable[[], str]]:
    """Gives what says where a request goes."""
    if router == ROUND_ROBIN:
        order = itertools.cycle(servers)
        lock = threading.Lock()

        def next_url() -> str:
            with lock:
                return next(server for server in order if server.is_running()).url

        yield next_url
        return
    port = router_port()
    url = f"http://127.0.0.1:{port}"
    file = folder / f"{router}.conf"
    fleet = parse_fleet([s.url for s in servers], f"127.0.0.1:{port}", slots=SLOTS, shared=options.shared)
    known = next(one for one in ROUTERS if one == router)
    file.write_text(write_config(known, fleet))
    with (folder / f"{router}.log").open("wb") as log:
        process = subprocess.Popen(router_command(known, file, options.sglang), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise UserError(f"{router} does not start:\n{(folder / f'{router}.log').read_text()[-2000:]}")
            time.sleep(0.5)
        yield lambda: url
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()


def is_ready(url: str) -> bool:
    with contextlib.suppress(requests.RequestException):
        return requests.get(f"{url}/v1/models", timeout=5).status_code == 200
    return False


def measure(router: str, model: Path, folder: Path, options: argparse.Namespace) -> Outcome:
    outcome = Outcome(router)
    flags = ["-c", str(8192 * SLOTS), "-np", str(SLOTS), "--threads", "1", "--no-warmup"]
    flags += ["--cache-ssd-shared", options.shared] if options.shared else []
    servers = [
        Server(
            f"server {i}", options.server, model, flags, folder / f"{i}.log", cache=folder / f"kv-{i}",
            chat_template=CHAT_TEMPLATE,
        )
        for i in range(N_SERVERS)
    ]  # fmt: skip
    half = threading.Event()

    def kill_one() -> None:
        half.wait()
        servers[0].stop(signal.SIGKILL)

    try:
        for server in servers:
            server.start()
        with routed(router, servers, folder, options) as url_of:
            if options.kill:
                threading.Thread(target=kill_one, daemon=True).start()
            run_agents(outcome, url_of, servers[-1], half, options)
        outcome.by_server = [int(s.get("/cache")["requests"]["finished"]) if s.is_running() else -1 for s in servers]
    finally:
        for server in servers:
            if server.is_running():
                server.stop()
    return outcome


def main() -> None:
    interrupt.heed()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file, such as a toy")
    parser.add_argument("--routers", default=",".join((*ROUTERS, ROUND_ROBIN)))
    parser.add_argument("--agents", type=int, default=24)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between an answer and the next turn")
    parser.add_argument("--kill", action="store_true", help="kill a server in the middle")
    parser.add_argument("--shared", help="the folder of a shared tier")
    parser.add_argument("--sglang", default="python", help="a Python that has sglang-router")
    parser.add_argument("--server", type=Path, default=find_home().server_binary("cpu"), help="the program")
    options = parser.parse_args()
    for router in options.routers.split(","):
        with tempfile.TemporaryDirectory() as name:
            console.out.print(measure(router, options.model, Path(name), options).line())


if __name__ == "__main__":
    main()

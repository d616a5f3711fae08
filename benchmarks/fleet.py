"""How much do several servers evaluate again, behind which router, and what if one of them dies?

    python -m benchmarks.fleet [MODEL] [--routers haproxy,nginx,sglang-router,round-robin] [--agents 24] [--turns 6]
                               [--kill] [--shared DIR] [--sglang PYTHON]

Agents with one system prompt talk to three servers, all at once, each turn with the whole history. The routers are
started from what `llama-run fleet config` prints. Counted are prompt tokens that were evaluated for each one that is
new: what a prompt has beyond the agent's last one and its answer, and the system prompt once, which without a shared
tier each server has to evaluate. With --kill, the first server is killed when half of the turns are answered. The round
robin is the client's own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import requests

from benchmarks.peers import Server, free_port
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
START_SECONDS = 60
SYSTEM = {"role": "system", "content": "You are an agent with tools.\n" + tool_schemas(120, "fleet")}
TRIES = 20  # of a request whose server died: the vendors' clients try again, too


@dataclass
class Turn:
    agent: int
    number: int
    n_prompt: int
    n_evaluated: int
    n_answer: int
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
        total = self.n_system
        before = dict.fromkeys(range(len(self.turns)), self.n_system)
        for turn in sorted(self.turns, key=lambda t: (t.agent, t.number)):
            total += turn.n_prompt - before[turn.agent]
            before[turn.agent] = turn.n_prompt + turn.n_answer
        return total

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


def ask(url: str, agent: int, messages: list[dict[str, str]]) -> tuple[dict[str, int], str, int]:
    """Sends it again when its server dies, as clients do."""
    body = {
        "model": "toy",
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "prompt_cache_key": f"agent-{agent}",
    }
    for failures in range(TRIES):
        with contextlib.suppress(requests.RequestException, ValueError, KeyError):
            answer = requests.post(f"{url}/v1/chat/completions", json=body, timeout=600)
            if answer.status_code == 200:
                told = answer.json()
                return told["timings"], str(told["choices"][0]["message"]["content"] or ""), failures
        time.sleep(0.5)
    raise UserError(f"{url} does not answer any more")


def run_agents(outcome: Outcome, url_of: Callable[[], str], agents: int, turns: int, half: threading.Event) -> None:
    def run(agent: int) -> None:
        messages = [SYSTEM]
        for number in range(turns):
            messages.append({"role": "user", "content": words(TURN_WORDS, (agent, number))})
            timings, text, failures = ask(url_of(), agent, messages)
            messages.append({"role": "assistant", "content": text})
            n_prompt = timings["cache_n"] + timings["prompt_n"]
            outcome.turns.append(Turn(agent, number, n_prompt, timings["prompt_n"], timings["predicted_n"], failures))
            if len(outcome.turns) * 2 >= agents * turns:
                half.set()

    began = time.monotonic()
    with ThreadPoolExecutor(agents) as pool:
        for done in [pool.submit(run, agent) for agent in range(agents)]:
            done.result()
    outcome.seconds = time.monotonic() - began


def count_system(server: Server) -> int:
    """The tokens that all prompts begin with."""
    tokens = []
    for word in ("one", "two"):
        messages = [SYSTEM, {"role": "user", "content": word}]
        prompt = server.post("/apply-template", {"messages": messages})["prompt"]
        tokens.append(server.post("/tokenize", {"content": prompt, "add_special": True})["tokens"])
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*tokens, strict=False)))


def router_command(router: Router, file: Path, sglang: str) -> list[str]:
    if router == "sglang-router":
        return ["env", f"PATH={Path(sglang).parent}:/usr/bin:/bin", "sh", str(file)]
    program = shutil.which(router) or shutil.which(router, path="/usr/sbin")
    if program is None:
        raise UserError(f"{router} is not installed")
    return [program, "-f", str(file)] if router == "haproxy" else [program, "-c", str(file), "-g", "daemon off;"]


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
    port = free_port()
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
        outcome.n_system = count_system(servers[0])
        with routed(router, servers, folder, options) as url_of:
            if options.kill:
                threading.Thread(target=kill_one, daemon=True).start()
            run_agents(outcome, url_of, options.agents, options.turns, half)
        outcome.by_server = [int(s.get("/cache")["requests"]["finished"]) if s.is_running() else -1 for s in servers]
    finally:
        for server in servers:
            if server.is_running():
                server.stop()
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file, such as a toy")
    parser.add_argument("--routers", default=",".join((*ROUTERS, ROUND_ROBIN)))
    parser.add_argument("--agents", type=int, default=24)
    parser.add_argument("--turns", type=int, default=6)
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

"""docs/http-api.md, docs/cache.md and the code must name the same fields, counters, reasons, routes and flags."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from helpers import ROOT

HTTP = (ROOT / "docs" / "http-api.md").read_text()
CACHE = (ROOT / "docs" / "cache.md").read_text()
SERVER = ROOT / "kernels" / "server"
STATUS = (SERVER / "cache" / "cache_admin.cpp").read_text()
REPORT = (SERVER / "cache_report.cpp").read_text()
ROUTES = "".join(path.read_text() for path in SERVER.rglob("*routes.cpp"))
EXPERTS = (SERVER / "experts" / "expert_view.cpp").read_text()
ARGS = (SERVER / "cache_args.cpp").read_text()
OPTIONS = (SERVER / "cache_options.h").read_text()
COUNTERS = (ROOT / "kernels" / "kvtier" / "counters.h").read_text()
STATUSES = (ROOT / "kernels" / "kvtier" / "status.h").read_text()


def table(page: str, heading: str) -> dict[str, str]:
    """The first table below a heading: what stands in its first column -> the rest of the row."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, heading
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", section[1], re.MULTILINE)
    assert len(rows) == len(dict(rows)), f"twice below {heading}"
    return dict(rows)


def body(source: str, function: str) -> str:
    """From a function's name to the brace that ends it."""
    found = re.search(rf"^[^\n]*\b{re.escape(function)}\([^\n]*\{{\n.*?^}}", source, re.MULTILINE | re.DOTALL)
    assert found, function
    return found[0]


def keys(text: str) -> list[str]:
    return re.findall(r'\{ "(\w+)",', text)


def names(function: str) -> list[str]:
    found = re.findall(r'return "(\w+)";', body(REPORT, function))
    assert found.pop() == "unknown"
    return found


DESCRIBED = body(STATUS, "cache_admin::describe")
WHOLE = body((SERVER / "state_cache.cpp").read_text(), "state_cache::describe")
LOGGED = body((SERVER / "cache" / "request_log.cpp").read_text(), "describe_request")
IN_PARTED = {"words", "early", "advice"}
REQUESTS = body(STATUS, "summary_of")
SPEED = DESCRIBED[DESCRIBED.index('"speed"') : DESCRIBED.index('"last_error"')]
NESTED = set(re.findall(r'"(\w+_per_s)"', SPEED))
WAITED = (SERVER / "cache" / "waited.h").read_text()
WAITS = re.findall(r'return "(\w+)";', WAITED)[:-1] + re.findall(r'emplace_back\("(\w+)"', body(STATUS, "waits"))
PLANNER = (SERVER / "plan" / "request_planner.cpp").read_text()
PLANNED = body(PLANNER[PLANNER.index("request_planner::describe() const") - 12 :], "request_planner::describe")
WARMER = (SERVER / "warm" / "warmer.cpp").read_text()
POWER = (SERVER / "power" / "power_state.h").read_text()
EXPERT_FIELDS = keys(body(EXPERTS, "expert_view::describe"))
LIVE = (SERVER / "live" / "live_view.cpp").read_text()
LIVE_FIELDS = {
    *keys(body(LIVE, "describe_slot")),
    *re.findall(r'out\["(\w+)"\]', body(LIVE, "describe_slot")),
    *re.findall(r'\{ "(\w+)", ', body(LIVE, "live_view::describe")),
}
SAVED_FIELDS = {*keys(body(LIVE, "describe_day")), *re.findall(r'"(\w+)"', body(LIVE, "describe_saved"))}
DISK = body((SERVER / "live" / "disk_view.cpp").read_text(), "describe_disk")
FLAGS = re.findall(r'"(--[\w-]+)" \}', ARGS)


@pytest.mark.parametrize(
    ("heading", "in_code"),
    [
        ("GET /cache", {*keys(DESCRIBED), *re.findall(r'(?:out|off)\["(\w+)"\]', DESCRIBED + WHOLE)} - NESTED),
        (
            "GET /cache/requests",
            {*keys(LOGGED), *re.findall(r'(?:entry\[|add_time\(entry, )"(\w+)"', LOGGED)} - IN_PARTED,
        ),
        ("requests", keys(REQUESTS)),
        ("speed", re.findall(r'"(\w+_per_s)"', SPEED)),
        ("shared", keys(body(STATUS, "describe_shared"))),
        ("waited_ms", WAITS),
        ("state", keys(body(STATUS, "measured"))),
        ("counters", re.findall(r"X\((\w+),", COUNTERS)),
        ("damaged", set(re.findall(r'return "(\w+)";', body(STATUSES, "damage_name"))) - {"none", "unknown"}),
        ("Users", keys(body(STATUS, "cache_admin::describe_user"))),
        ("GET /cache/conversations", keys(body(STATUS, "entry_of"))),
        ("GET /expert-stats", EXPERT_FIELDS),
        ("plan", keys(PLANNED)),
        ("memory", keys(body(PLANNER, "request_planner::describe_memory"))),
        ("warm", keys(body(WARMER, "warmer::describe"))),
        ("power", keys(POWER)),
        (
            "written",
            {
                *keys(body((SERVER / "power" / "wear.cpp").read_text(), "cache_core::written")),
                *re.findall(r'written\["(\w+)"\]', POWER),
            },
        ),
        ("POST /cache/warm", keys(body(WARMER, "warm_result::describe"))),
        ("POST /cache/plan", keys(body(PLANNER, "request_planner::describe"))),
        ("GET /cache/slots", LIVE_FIELDS),
        ("GET /cache/events", re.findall(r'\bevent\("(\w+)"', LIVE)),
        ("GET /cache/saved", SAVED_FIELDS),
        ("GET /cache/disk", {*keys(DISK)} - {"file", "problem"}),
        ("GET /metrics", re.findall(r'add_metric\(out, "(\w+)"', STATUS)),
        ("cache_source", names("cache_source_name")),
        ("cache_match", names("cache_match_name")),
        ("cache_miss", names("cache_miss_name")),
        ("In every answer", ["cache_n", "prompt_n", *re.findall(r'timings\["(\w+)"\]', REPORT)]),
    ],
)
def test_page_and_server_name_the_same_things(heading: str, in_code: Iterable[str]) -> None:
    assert in_code, "the code was not understood"
    assert set(table(HTTP, heading)) == set(in_code)


def test_a_counter_means_what_the_page_says() -> None:
    documented = table(HTTP, "counters")
    for name, meaning in re.findall(r'X\((\w+), +"([^"]+)"\)', COUNTERS):
        assert documented[name].startswith(meaning), name


def test_every_reason_has_a_remedy() -> None:
    for reason, row in table(HTTP, "cache_miss").items():
        assert all(cell.strip() for cell in row.split(" | ")) and len(row.split(" | ")) == 2, reason


def test_every_route_is_on_the_page() -> None:
    found = {(method.upper(), path) for method, path in re.findall(r'http\.(get|post|del)\("([^"]+)"', ROUTES)}
    methods = {"GET": "GET", "POST": "POST", "DEL": "DELETE"}
    in_code = {f"{methods[method]} {path}" for method, path in found}
    assert set(table(HTTP, "HTTP API")) == in_code
    assert in_code <= set(re.findall(r"^## (.+)$", HTTP, re.MULTILINE))


def test_every_flag_is_on_the_page() -> None:
    documented = table(CACHE, "Flags")
    assert set(documented) == set(FLAGS) and len(FLAGS) == 32
    variables = dict(zip(FLAGS, re.findall(r'"(LLAMA_ARG_\w+)"', ARGS), strict=True))
    for flag, row in documented.items():
        assert row.split(" | ")[0] == f"`{variables[flag]}`", flag


def test_every_default_is_on_the_page() -> None:
    defaults = dict(re.findall(r"^ +uint32_t +(\w+) += (\d+);", OPTIONS, re.MULTILINE))
    fields = dict(re.findall(r'"(--cache-ssd[\w-]*)" \}.*?params\.cache_ssd\.(\w+) =', ARGS, re.DOTALL))
    documented = table(CACHE, "Flags")
    numbers = {flag: defaults[field] for flag, field in fields.items() if field in defaults}
    assert len(numbers) == 8
    for flag, value in numbers.items():
        assert documented[flag].split(" | ")[1] == value, flag
        assert re.search(rf'"{flag}" \}}.*?\(default: {value}\)', ARGS, re.DOTALL), f"the help text of {flag}"


def test_pages_name_only_what_exists() -> None:
    known = {*FLAGS, "--no-cache-ssd"}
    for page in (HTTP, CACHE):
        assert set(re.findall(r"--(?:no-)?cache-ssd[\w-]*", page)) <= known
        assert set(re.findall(r"LLAMA_ARG_\w+", page)) <= set(re.findall(r"LLAMA_ARG_\w+", ARGS))
        anchors = {
            f"#{re.sub(r'[^a-z0-9_-]', '', h.lower().replace(' ', '-'))}"
            for h in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
        }
        assert set(re.findall(r"\]\((#[^)]+)\)", page)) <= anchors
    counted = table(HTTP, "counters").keys() | table(HTTP, "state").keys() | table(HTTP, "cache_miss").keys()
    for name in re.findall(r"`((?:skipped|evicted|retired|bytes|payload)_\w+)`", CACHE):
        assert name in counted or name == "skipped_", name


def test_agents_page_has_what_is_made_stable() -> None:
    page = (ROOT / "docs" / "agents.md").read_text()
    source = (SERVER / "stable_prompts.cpp").read_text()
    known = re.findall(r'^        \{ "([\w-]+)", "([\w ]+)", "([^"]+)",$', source, re.MULTILINE)
    assert len(known) == 3
    documented = table(page, "What the server makes stable")
    assert set(documented) == {name for name, _, _ in known}
    for name, agent, seen in known:
        assert documented[name].startswith(
            f"{agent} | {seen.replace('--stable', '`-- --stable').replace('tools only', 'tools` only')} |"
        ), name

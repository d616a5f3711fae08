"""Memory as a tool; what it finds is tested with the memory itself."""

from __future__ import annotations

from memories import NASTY
from tool_fixtures import Bench, call


def test_memory_is_stored_searched_and_forgotten_and_each_user_is_alone(bench: Bench) -> None:
    box, other = bench.box(user="alice"), bench.box(user="bob")
    assert call(box, "set_fact", name="bicycle", value="Rosinante") == "it is remembered"
    assert call(box, "store_memory", question="How tall is it?", answer="1 metre") == "it is remembered"
    assert call(box, "store_memory", question="How tall is it?", answer="1 metre") == "it was known already"
    assert call(box, "get_fact", name="bicycle").startswith("Rosinante\n[")
    assert call(box, "get_fact") == "bicycle"
    assert "1 metre" in call(box, "search_memory", query="tall?")
    for name, arguments in (("search_memory", {"query": "bicycle tall"}), ("get_fact", {"name": "bicycle"})):
        assert "Rosinante" not in call(other, name, **arguments)
    assert call(other, "forget_fact", name="bicycle") == "no such fact is known"
    assert call(box, "forget_fact", name="bicycle") == "it is forgotten"
    assert call(box, "search_memory", query="Rosinante") == "nothing was found"
    assert b"osinante" not in b"".join(path.read_bytes() for path in (bench.folder / "memory").glob("memory.db*"))


def test_nasty_queries_are_searched_for_by_the_tool(bench: Bench) -> None:
    box = bench.box()
    call(box, "store_memory", question="How tall is it?", answer="1 metre")
    for text in NASTY:
        assert call(box, "search_memory", query=text)

"""Writes what a person reads of a run: summary.md per model and for all, and the plots beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import plots, tables
from benchmarks.results import SUMMARY, is_valid, model_folders, read_json, read_models, verdict, write_json
from pyrun import console


def write_model_report(folder: Path) -> list[str]:
    """Makes the page and the plots from the folder's summary.json, and gives the names of the plots."""
    summary = read_json(folder / SUMMARY)
    drawn = plots.draw_model(summary, folder)
    (folder / "summary.md").write_text(model_page(summary, drawn), encoding="utf-8")
    return drawn


def write_run_report(run: Path) -> bool:
    """Writes what all models and backends have in common, and says whether everything in it is valid."""
    summaries = read_models(run)
    folders = list(model_folders(run))
    if folders == [run]:
        return all_valid(summaries)
    drawn = plots.draw_run(summaries, run)
    cut = cut_off(run)
    page = [
        "# Benchmark " + run.name,
        "",
        *([f"**{cut}**", ""] if cut else []),
        tables.of_run(summaries).markdown(),
        "",
    ]
    page += [f"![{name}]({name}.png)\n" for name in drawn]
    page += [
        f"- [{f.parent.name}/{f.name}]({f.relative_to(run)}/summary.md): {_verdicts(read_json(f / SUMMARY))}"
        for f in folders
    ]
    (run / "summary.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    write_json(
        run / SUMMARY,
        {
            "valid": all_valid(summaries),
            "models": [
                {
                    "backend": summary["backend"],
                    "model": summary["model"]["name"],
                    "folder": str(folder.relative_to(run)),
                    "scenarios": {name: verdict(result) for name, result in summary["scenarios"].items()},
                }
                for folder, summary in zip(folders, summaries, strict=True)
            ],
        },
    )
    return all_valid(summaries)


def cut_off(run: Path) -> str | None:
    """Says what to know of a run that did not come to its end."""
    about = read_json(run / "run.json") if (run / "run.json").exists() else {}
    return {
        "interrupted": "The run was interrupted: this is what was done by then.",
        "running": "The run did not come to its end, or still goes on: this is what was done by then.",
        "failed": f"The run failed: {about.get('problem', '')}",
    }.get(about.get("status", ""))


def all_valid(summaries: list[dict[str, Any]]) -> bool:
    return all(is_valid(result) for summary in summaries for result in summary["scenarios"].values())


def _verdicts(summary: dict[str, Any]) -> str:
    return ", ".join(f"{name} {verdict(result)}" for name, result in summary["scenarios"].items())


def model_page(summary: dict[str, Any], drawn: list[str]) -> str:
    model, machine = summary["model"], summary["machine"]
    page = [f"# {model['name']} on {summary['backend']}", "", f"`{summary['command']}`", ""]
    for result in summary["scenarios"].values():
        page += [f"## {result['scenario']}: {verdict(result)}", ""]
        page += [f"**Problem:** {problem}\n" for problem in result["problems"]]
        for table in tables.of_result(result):
            page += [table.title[0].upper() + table.title[1:] + ":", "", table.markdown(), ""]
        page += [f"![{name}]({name}.png)\n" for name in drawn if name.startswith(result["scenario"])]
        page += [f"- {note}" for note in dict.fromkeys(result["notes"])]
        before, after = result["noise"]["before"]["load_average"][0], result["noise"]["after"]["load_average"][0]
        page += [f"- load average {before} before, {after} after, on {result['noise']['before']['cores']} cores", ""]
    page += ["## Limits", "", tables.of_limits(summary["limits"]).markdown(), ""]
    page += ["## What was measured on what", ""]
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "none in use"
    digest = model.get("sha256") or f"{model['sha256_of_samples']} (of samples)"
    build = summary["build"]
    ram, size = console.size(machine["ram_bytes"]), console.size(model["bytes"])
    system = machine["distribution"] or machine["system"]
    revision = (build["commit"][:12] or build["llama_run"]) + (" with edits" if build["edited"] else "")
    page += [f"- {machine['cpu']}, {machine['cores']} cores, {ram} RAM; GPU: {gpus}; {system}"]
    page += [f"- {model['file']}: {model['architecture']}, {model['quantisation']}, {size}, sha256 {digest}"]
    page += [f"- llama-run {revision}, llama.cpp {build['pin'][:9]}; `{build['says']}`"]
    page += [f"- {name}: {told}{_program(summary, name)}" for name, told in summary["peers"].items()]
    page += [f"- flags of `{name}`: `{flags}`" for name, flags in summary["flags"].items()]
    return "\n".join(page) + "\n"


def _program(summary: dict[str, Any], peer: str) -> str:
    """Says which program it was, which older results do not tell."""
    program = summary.get("programs", {}).get(peer)
    return f"; `{program['says']}`, sha256 {program['sha256']}" if program else ""


WIDE = 200  # in a file or a pipe there is room for all columns


def print_table(table: tables.Table) -> None:
    screen = console.out if console.out.is_terminal else Console(width=WIDE, highlight=False)
    screen.print(table.rich())


def show(run: Path) -> None:
    """Shows the tables on the terminal."""
    for summary in read_models(run):
        console.out.print(f"\n[bold]{summary['model']['name']}[/bold] on {summary['backend']}")
        for result in summary["scenarios"].values():
            for table in tables.of_result(result):
                print_table(table)
            for note in dict.fromkeys(result["notes"]):
                console.say(f"note: {note}")
            for problem in result["problems"]:
                console.say(f"invalid: {result['scenario']}: {problem}")
        print_table(tables.of_limits(summary["limits"]))

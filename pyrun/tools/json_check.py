"""Checks JSON against a schema, as a program: stdin has both, stdout gets what is wrong. Nothing is fetched."""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from itertools import islice

import jsonschema
import referencing
import referencing.exceptions

MAX_ERRORS = 20
MAX_MEMORY = 512 << 20  # bytes; an error holds a copy of what is wrong, and anyOf keeps those of all its schemas


def main() -> int:
    with suppress(OSError, ValueError):  # not every system has this limit, and a lower one may hold already
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    try:
        return check()
    except MemoryError:
        print(f"it takes more than {MAX_MEMORY >> 20} MiB of memory; simplify it, or check a smaller text")
        return 1


def check() -> int:
    given = json.load(sys.stdin)
    kind = jsonschema.Draft202012Validator
    try:
        kind.check_schema(given["schema"])
        validator = kind(given["schema"], registry=referencing.Registry())
        found = islice(validator.iter_errors(json.loads(given["text"])), MAX_ERRORS + 1)
        errors = sorted(found, key=lambda error: list(map(str, error.path)))
    except jsonschema.SchemaError as error:
        print(error.message[:500])
        return 1
    except referencing.exceptions.Unresolvable as error:
        print(f"it refers to {error.ref[:200]}, which is not in it")
        return 1
    for wrong in errors[:MAX_ERRORS]:
        print(f"{wrong.json_path[:500]}: {wrong.message[:500]}")
    if len(errors) > MAX_ERRORS:
        print("and more")
    if not errors:
        print("valid")
    return 0


if __name__ == "__main__":
    sys.exit(main())

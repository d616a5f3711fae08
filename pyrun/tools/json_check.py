"""Checks JSON against a schema, as a program: stdin has both, stdout gets what is wrong. Nothing is fetched."""

from __future__ import annotations

import json
import sys

import jsonschema
import referencing
import referencing.exceptions

MAX_ERRORS = 20


def main() -> int:
    given = json.load(sys.stdin)
    kind = jsonschema.Draft202012Validator
    try:
        kind.check_schema(given["schema"])
        validator = kind(given["schema"], registry=referencing.Registry())
        errors = sorted(validator.iter_errors(json.loads(given["text"])), key=lambda error: list(map(str, error.path)))
    except jsonschema.SchemaError as error:
        print(error.message[:500])
        return 1
    except referencing.exceptions.Unresolvable as error:
        print(f"it refers to {error.ref[:200]}, which is not in it")
        return 1
    for wrong in errors[:MAX_ERRORS]:
        print(f"{wrong.json_path}: {wrong.message[:500]}")
    if len(errors) > MAX_ERRORS:
        print(f"and {len(errors) - MAX_ERRORS} more")
    if not errors:
        print("valid")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/bin/sh
# Starts llama-run from this bundle, wherever it lies and from any folder, also through a link.
set -eu

self=$0
while [ -h "$self" ]; do
    link=$(readlink "$self")
    case $link in
        /*) self=$link ;;
        *) self=$(dirname "$self")/$link ;;
    esac
done
root=$(CDPATH='' cd -- "$(dirname -- "$self")" && pwd -P)

# start PYTHON ARGUMENT ...: returns where that is too old, or not there.
start() {
    python=$1
    shift
    if command -v "$python" >/dev/null 2>&1 &&
        "$python" -IS -c 'import sys; sys.exit(sys.version_info < (@OLDEST_PYTHON@))' 2>/dev/null; then
        # Hints name commands as they can be typed here.
        [ "$(command -v llama-run || :)" = "$0" ] || export LLAMA_RUN_COMMAND="$0"
        # No other packages are mixed in, neither the system's nor the user's.
        exec "$python" -IS "$root/python" "$@"
    fi
}

if [ -n "${LLAMA_RUN_PYTHON:-}" ]; then
    start "$LLAMA_RUN_PYTHON" "$@"
    echo "error: LLAMA_RUN_PYTHON is $LLAMA_RUN_PYTHON, which is no Python @OLDEST@ or newer" >&2
    echo 'hint: name another one, or unset it: then Python is looked for' >&2
    exit 1
fi
for name in python3 python3.14 python3.13 python3.12 python3.11; do
    start "$name" "$@"
done
echo 'error: Python @OLDEST@ or newer was not found' >&2
echo 'hint: install it: Debian/Ubuntu: python3 · Fedora: python3 · Arch/SteamOS: python' >&2
exit 1

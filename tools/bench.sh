#!/usr/bin/env bash
# Runs benchmark programs one after another: tables, or with --json their rows as one JSON array and nothing else.
#
#   tools/bench.sh [--json] NAME...     each NAME is build/bench/NAME_bench
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" != --json ]; then
  for name in "$@"; do
    "build/bench/${name}_bench"
  done
  exit
fi
shift
for name in "$@"; do
  "build/bench/${name}_bench" --json
done | .venv/bin/python -c '
import json, sys

text, rows, start = sys.stdin.read().strip(), [], 0
while start < len(text):
    array, end = json.JSONDecoder().raw_decode(text, start)
    rows += array
    start = end + len(text[end:]) - len(text[end:].lstrip())
print(json.dumps(rows, indent=1))'

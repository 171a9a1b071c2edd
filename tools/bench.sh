#!/usr/bin/env bash
# Runs benchmark programs one after another: tables, or with --json their rows as one JSON array and nothing else.
#
#   tools/bench.sh [--json] NAME...     each NAME is build/bench/NAME_bench, or mlx: tools/bench_mlx.py
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

run() { # a name, then options
  case $1 in
    mlx)
      if .venv/bin/python -c 'import mlx.core' 2>/dev/null; then
        .venv/bin/python tools/bench_mlx.py "${@:2}"
      else
        echo "mlx: left out, it comes with what \`make test\` installs" >&2
      fi
      ;;
    restart) build/bench/restart_bench --pairs 3 "${@:2}" ;; # cold runs of three models take two minutes
    *) "build/bench/${1}_bench" "${@:2}" ;;
  esac
}

if [ "${1:-}" != --json ]; then
  for name in "$@"; do
    run "$name"
  done
  exit
fi
shift
for name in "$@"; do
  run "$name" --json
done | .venv/bin/python -c '
import json, sys

text, rows, start = sys.stdin.read().strip(), [], 0
while start < len(text):
    array, end = json.JSONDecoder().raw_decode(text, start)
    rows += array
    start = end + len(text[end:]) - len(text[end:].lstrip())
print(json.dumps(rows, indent=1))'

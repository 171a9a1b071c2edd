#!/usr/bin/env bash
# The main job, for a person to watch: one process reads a long text and saves what it remembers, a second one loads the
# file and answers at once, a third one answers without it. Ends with 0 when both answers have the same words.
#
#   tools/demo.sh [PROGRAM]     PROGRAM is build/cairn unless named
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cairn=${1:-build/cairn}
model=smollm2
answer_tokens=48
folder=build/demo
state=$folder/text.cairn

if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'; else bold='' dim='' plain=''; fi

heading() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }

show() { printf '%s  $ %s%s\n' "$dim" "$*" "$plain"; }

# Prints sentences about the answers in the given files; Python's standard library reads the JSON.
tell() { .venv/bin/python tools/demo_report.py "$@"; }

run() {
  local result=$1 started=$EPOCHREALTIME
  shift
  show "cairn run $model" "$@"
  "$cairn" run "$model" "$@" --json >"$result"
  wall_us=$(((${EPOCHREALTIME/[.,]/}) - ${started/[.,]/}))
}

mkdir -p "$folder"
rm -f "$state"
source=/usr/share/common-licenses/GPL-3
[ -r "$source" ] || source=LICENSE
head -c 9000 "$source" | sed '$d' >"$folder/text.txt"
{
  cat "$folder/text.txt"
  printf '\nQuestion: What is the text above about?\nAnswer:'
} >"$folder/question.txt"

printf '%sA language model that remembers across a restart%s\n' "$bold" "$plain"
printf '  model  SmolLM2 135M Instruct, Q4_1, from models/%s.gguf\n' "$model"
printf '  text   the first %s bytes of %s\n' "$(stat -c %s "$folder/text.txt")" "$source"

heading "1. A process reads the text, saves what it remembers, and exits."
run "$folder/read.json" -f "$folder/text.txt" -n 0 --temp 0 --state "$state"
tell read "$folder/read.json" "$wall_us"

heading "2. A new process loads the file and answers a question about the text."
run "$folder/resumed.json" -f "$folder/question.txt" -n $answer_tokens --temp 0 --state "$state"
tell answer "$folder/resumed.json"

heading "3. For comparison: a new process without the file has to read everything again."
run "$folder/cold.json" -f "$folder/question.txt" -n $answer_tokens --temp 0
tell answer "$folder/cold.json"

heading "Result"
status=0
tell compare "$folder/resumed.json" "$folder/cold.json" || status=$?

heading "What the file holds"
show "cairn inspect $state"
"$cairn" inspect "$state" || status=$?
exit $status

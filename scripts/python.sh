#!/bin/sh
# The Python of the tests: a virtual environment with NumPy, PyTorch, JAX and Transformers, made
# once (about 0.8 GB to fetch, 2.2 GB on the disk) and kept in ~/.cache/htransformer/venv. CMake
# finds it there (HT_PYTHON names another). What cannot be had is left out with a word, and the
# tests that need it skip themselves.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/deps.sh

venv=${XDG_CACHE_HOME:-$HOME/.cache}/htransformer/venv
list=tests/python/requirements.txt
python=/usr/bin/python3
[ -x $python ] || python=python3
cmp -s $list "$venv/made-from" && exit 0

if ! [ -x "$venv/bin/pip" ] && ! $python -m venv "$venv" >/dev/null 2>&1; then
    say "Python: no virtual environment can be made (Debian: python3-venv)"
    exit 0
fi
say "Python: fetching what its tests need into $venv"

# fetch WORD...: with the versions of the list; another Python may not have them, so then without
fetch() {
    options=""
    [ "$1" != torch ] || options=--no-deps # which are gigabytes of NVIDIA's; see stubs.py
    pinned=$(for name in "$@"; do grep "^$name==" $list || echo "$name"; done)
    pip="timeout 900 $venv/bin/pip install -q --disable-pip-version-check"
    # shellcheck disable=SC2086 # lists of words
    $pip $options $pinned 2>/dev/null || $pip $options "$@" 2>/dev/null
}

whole=1
fetch numpy pytest scikit-build-core || {
    say "Python: the package index cannot be reached"
    exit 0
}
fetch filelock typing-extensions sympy networkx jinja2 fsspec setuptools && fetch torch &&
    "$venv/bin/python" tests/python/stubs.py || { say "Python: no PyTorch"; whole=0; }
fetch jax || { say "Python: no JAX"; whole=0; }
fetch transformers || { say "Python: no Transformers"; whole=0; }
[ $whole = 0 ] || cp $list "$venv/made-from"

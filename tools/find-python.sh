#!/bin/sh
# Finds a Python that can make Dovetail's virtual environment, and prints "VERSION PATH" ("3.12 /usr/bin/python3.12").
# usage: find-python.sh [NAME]     NAME is a command or a path; without it the usual names are tried in turn.
# Where there is none it says, for each one it tried, what is missing and what to install, and exits 1.
set -eu

# Written so that any Python from 2.7 on can answer: which version, where, and can it make an environment?
question='
import sys
try:
    import ensurepip, venv
    able = "yes"
except ImportError:
    able = "no"
print("%d %d %s %s" % (sys.version_info[0], sys.version_info[1], able, sys.executable))
'
complaints=""

complain() {
    complaints="$complaints
  $1"
}

# Prints the answer and succeeds if this candidate will do; otherwise notes why not.
consider() {
    answer=$("$1" -c "$question" 2>/dev/null) || { complain "$1: not found, or it does not run"; return 1; }
    # The path is the rest of the line: it may hold spaces.
    major=${answer%% *}; rest=${answer#* }
    minor=${rest%% *}; rest=${rest#* }
    able=${rest%% *}; path=${rest#* }
    if [ "$major" -lt 3 ] || { [ "$major" -eq 3 ] && [ "$minor" -lt 11 ]; }; then
        complain "$1: is Python $major.$minor"
        return 1
    fi
    if [ "$able" = no ]; then
        complain "$1: Python $major.$minor without venv or ensurepip (on Debian and Ubuntu: sudo apt install python$major.$minor-venv)"
        return 1
    fi
    echo "$major.$minor $path"
}

# pyenv puts a python3.13 on the PATH that refuses to run until that version is activated: look behind it.
consider_pyenv() {
    case "$1" in */*) return 1 ;; esac
    for candidate in "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/*/bin/"$1"; do
        if [ -x "$candidate" ] && consider "$candidate"; then return 0; fi
    done
    return 1
}

if [ $# -gt 0 ]; then
    names=$1
    set -- "$1"
else
    names=""
    set -- python3 python3.13 python3.12 python3.11 python
fi
for name in "$@"; do if consider "$name"; then exit 0; fi; done
for name in "$@"; do if consider_pyenv "$name"; then exit 0; fi; done

{
    echo "Dovetail needs Python 3.11 or newer with venv and ensurepip; ${names:-what is installed here} will not do:$complaints"
    echo "Install Python 3.11, 3.12 or 3.13, or name one that you have: make venv PYTHON=/path/to/python3.12"
} >&2
exit 1

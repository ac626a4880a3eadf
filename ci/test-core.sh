#!/usr/bin/env bash
# Runs the tests on each Python of a list, without any framework: what needs one skips itself. The tests of the copier run
# once more with the copier in Python, for the C core is used where it was built.
#
# usage: ci/test-core.sh "3.10 3.12 ..." [pytest's arguments]
#
# An interpreter that is not on this machine is skipped with a line that says so, and so is the version that runs the
# whole suite with the frameworks (PYTHON_WITH_FRAMEWORKS). A failure on one does not keep the others from running.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

constraints=ci/constraints.txt
versions=${1:?which Pythons?}
shift

version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Prints an interpreter of a version. A name on PATH may be a shim that refuses to run, so each candidate is asked.
find_python() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if [[ $(version_of "$candidate" || true) == "$1" ]]; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

set_up() { # interpreter, environment
    local stamp=$2/installed newer
    # an editable installation builds the compiled modules once
    newer=$(find pyproject.toml setup.py safepickle/_native/*.[ch] "$constraints" -newer "$stamp" 2>&1 || true)
    if [[ -e $stamp && -z $newer ]]; then
        return
    fi
    rm -rf "$2"
    "$1" -m venv "$2"
    "$2/bin/python" -m pip install -qq --disable-pip-version-check ${PIP_ARGS:-} -c "$constraints" -e '.[test]'
    touch "$stamp"
}

whole=$(version_of "${PYTHON_WITH_FRAMEWORKS:-}" || true)
failed=()
for version in $versions; do
    if [[ $version == "$whole" ]]; then
        continue
    fi
    if ! python=$(find_python "$version"); then
        echo "== Python $version: not found here, skipped"
        continue
    fi
    environment=.venv-$version
    # not in a condition, where bash would ignore what fails inside
    set_up "$python" "$environment"
    echo "== $("$environment/bin/python" --version), without frameworks"
    "$environment/bin/python" -m pytest "$@" || failed+=("$version")
    ci/test-copiers.sh "$environment/bin/python" || failed+=("$version, copier in Python")
done

if ((${#failed[@]})); then
    printf "the core tests failed on Python %s\n" "${failed[@]}" >&2
    exit 1
fi

#!/usr/bin/env bash
# Runs the tests of the copier with the copier in Python, where the tests of everything have run with the C core; then those of the core
# with the code that serves versions of Python whose layout it does not know.
#
# usage: ci/test-copiers.sh python
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=(tests/compliance/test_copy_suite.py)
for more in tests/test_copier*.py tests/test_closures*.py tests/test_deep*.py; do
    if [[ -e $more ]]; then
        tests+=("$more")
    fi
done
echo "== $("$1" --version), the copier in Python"
SAFEPICKLE_PURE=1 "$1" -m pytest -q "${tests[@]}"

if [[ -e tests/test_native.py ]]; then
    echo "== $("$1" --version), the C core without what it knows about this version's memory layout"
    SAFEPICKLE_PORTABLE=1 "$1" -m pytest -q tests/test_native.py tests/compliance/test_copy_suite.py
fi

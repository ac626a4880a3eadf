#!/usr/bin/env bash
# Runs the tests of the copier with the copier in Python, where the tests of everything have run with the C core.
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

#!/usr/bin/env bash
# Builds the compiled modules with the address and undefined behaviour sanitizers, in a copy of the package, and runs their tests there.
#
# usage: ci/sanitize.sh python [pytest's arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$(realpath -s "${1:?which Python?}")
shift
cc=${CC:-gcc}
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT
cp -r safepickle tests pyproject.toml "$where"
rm -f "$where"/safepickle/_native/*.so
cd "$where"

setting() { "$python" -c "import sysconfig; print($1)"; }
for module in _core _pickling; do
    "$cc" -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -Wall -Wextra -Werror \
        -Wno-unused-parameter -Wno-missing-field-initializers -Wno-cast-function-type -shared -fPIC \
        -I"$(setting 'sysconfig.get_paths()["include"]')" "safepickle/_native/$module.c" \
        -o "safepickle/_native/$module$(setting 'sysconfig.get_config_var("EXT_SUFFIX")')"
done

# Without Python's own allocator every object is a block that the sanitizer watches. The interpreter keeps what it has at its end,
# so leaks are left to tests/test_native.py run without: the sanitizer holds back what is freed, and memory grows.
export PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$where
LD_PRELOAD="$("$cc" -print-file-name=libasan.so) $("$cc" -print-file-name=libubsan.so)" \
    "$python" -m pytest -q -p no:cacheprovider tests/test_native.py tests/compliance/test_copy_suite.py \
    tests/test_pickler.py tests/test_plain_instances.py tests/compliance/test_pickle_suite.py \
    --deselect tests/test_native.py::test_the_memory_of_the_process_stays_flat "$@"

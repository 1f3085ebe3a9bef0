#!/bin/bash
# Layers, style, docs, formatting, static analysis. Tools that are not installed are named and skipped.
# usage: lint.sh BUILD
set -u
cd "$(dirname "$0")/.."
build=${1:-build}
bad=0
tools/check_layers.sh || bad=1
tools/check_style.sh "$build" || bad=1
tools/check_docs.sh || bad=1
python3 tools/claims.py --check && echo "claims: ok" || bad=1
python3 tools/tables.py --check && echo "tables: ok" || bad=1
if command -v clang-format > /dev/null; then
    # shellcheck disable=SC2046
    clang-format --dry-run -Werror $(git ls-files '*.c' '*.h' '*.cu' '*.cuh') 2>&1 | grep -E 'error|warning' | head -5
    [ "${PIPESTATUS[0]}" = 0 ] && echo "format: ok" || bad=1
else
    echo "format: skipped, no clang-format"
fi
if command -v cppcheck > /dev/null; then
    cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,portability --inline-suppr -j2 \
        --suppress=missingInclude --suppress=unknownMacro -DAGOQ_VERSION='"0"' -I. -Iinclude \
        common kernels planner proto libagoq agoqd agoqctl trainer && echo "cppcheck: ok" || bad=1
else
    echo "cppcheck: skipped, not installed"
fi
exit $bad

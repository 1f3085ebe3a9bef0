#!/bin/bash
# Every file or folder that README.md and docs/*.md name in `code` exists, and every top-level folder is named in DESIGN.md.
set -u
cd "$(dirname "$0")/.."
bad=0
for doc in README.md docs/*.md; do
    for name in $(grep -oE '`[A-Za-z0-9_.]+/[A-Za-z0-9_./-]*`' "$doc" | tr -d '`' | sort -u); do
        case $name in build/* | STATE_DIR/*) continue ;; esac
        [ -e "$name" ] || { echo "$doc names $name, which does not exist"; bad=1; }
    done
done
for folder in $(git ls-files | grep / | cut -d/ -f1 | sort -u | grep -v '^\.'); do
    grep -q "\`$folder/" docs/DESIGN.md || { echo "docs/DESIGN.md does not name $folder/"; bad=1; }
done
[ $bad = 0 ] && echo "docs: ok"
exit $bad

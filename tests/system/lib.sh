# Sourced by every system test: result lines that tools/run_tests.sh counts, a scratch folder, clean-up, and mpirun
# set up for small machines. The trade-off: MPI is told to yield when idle and not to bind, so that ranks share few
# cores; that is slow for timing, and these scripts time nothing.
#
#     #!/bin/bash
#     . "$(dirname "$0")/lib.sh"
#     check "prints its version" "$BUILD/agoqd" --version
#
# Working folder: the root of the repository. BUILD: absolute path of the build folder. tmp: scratch folder, removed at
# exit together with every background job of the script. Exit status 1 if any case failed.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
BUILD=$(cd "${BUILD:-build}" && pwd) || { echo "not ok lib: no build folder ${BUILD:-build}"; exit 1; }
export BUILD
tmp=$(mktemp -d --suffix=.agoq-test) || exit 1
n_failed=0

ok() { echo "ok $1"; }
not_ok() { # NAME [DETAIL]
    echo "not ok $1${2:+: $2}"
    n_failed=$((n_failed + 1))
}
skip() { echo "skip $1: $2"; } # NAME WHY

# check NAME COMMAND...: ok if it succeeds; else its output, shortened, is the detail.
check() {
    local name=$1 rc=0
    shift
    "$@" > "$tmp/check.out" 2>&1 || rc=$?
    if [ $rc -eq 0 ]; then ok "$name"; else not_ok "$name" "status $rc: $(tail -n 5 "$tmp/check.out" | tr '\n' ' ')"; fi
    return $rc
}

# report NAME COMMAND...: a program that prints result lines itself. Its lines are passed on; that it stops early, fails
# without saying so, or prints none is a failure too.
report() {
    local name=$1 rc=0 bad
    shift
    "$@" > "$tmp/report.out" 2> "$tmp/report.err" || rc=$?
    grep -E '^(ok|not ok) ' "$tmp/report.out" || not_ok "$name" "printed no result"
    bad=$(grep -c '^not ok ' "$tmp/report.out")
    n_failed=$((n_failed + bad))
    [ "$rc" -eq 0 ] || [ "$bad" -gt 0 ] || not_ok "$name" "status $rc: $(tail -n 2 "$tmp/report.err" | tr '\n' ' ')"
    [ ! -s "$tmp/report.err" ] || [ "$bad" -eq 0 ] || not_ok "$name runs to its end" "$(tail -n 2 "$tmp/report.err" | tr '\n' ' ')"
}

# wait_for SECONDS COMMAND...: until it succeeds; fails after that time.
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.05
    done
}

# stop PID...: TERM to each and all below it, KILL after 5 s; reaps. Silent about processes that are already gone.
stop() {
    local pid all
    for pid in "$@"; do
        all=$(tree "$pid")
        # shellcheck disable=SC2086
        kill -TERM $all 2> /dev/null
        wait_for 5 eval "! kill -0 ${all//$'\n'/ }" || kill -KILL $all 2> /dev/null
        wait "$pid" 2> /dev/null
    done
}
tree() { # PID: itself and every process below it
    local child
    echo "$1"
    for child in $(cat "/proc/$1/task/$1/children" 2> /dev/null); do tree "$child"; done
}

cleanup() {
    local rc=$? pid
    trap - EXIT
    for pid in $(jobs -p); do
        kill -CONT "$pid" 2> /dev/null # a stopped process does not see TERM
        stop "$pid"
    done
    rm -rf "$tmp"
    [ $n_failed -eq 0 ] || rc=1
    exit $rc
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run_mpi N PROGRAM ARGS...: N ranks on this machine, however few cores it has. MPI_LIMIT: seconds (default 120), after
# which all ranks are killed and the status is 124. In the background, $! is the process to stop.
run_mpi() {
    local n=$1
    shift
    timeout -k 5 "${MPI_LIMIT:-120}" "${mpi[@]}" -n "$n" "$@"
}
. tools/mpi.sh

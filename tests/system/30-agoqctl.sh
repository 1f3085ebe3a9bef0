#!/bin/bash
# agoqctl as a program: without a daemon, with wrong words, and against a daemon that no rank has met.
. "$(dirname "$0")/lib.sh"
ctl=$BUILD/agoqctl
sock=$tmp/agoqd.sock
unset AGOQ_SOCKET NO_COLOR

# expect NAME CODE PATTERN COMMAND...: exit status, and a pattern somewhere in its output.
expect() {
    local name=$1 want=$2 pattern=$3 rc=0
    shift 3
    timeout 30 "$@" > "$tmp/out" 2> "$tmp/err" < /dev/null || rc=$?
    if [ $rc -eq "$want" ] && grep -qE -- "$pattern" "$tmp/out" "$tmp/err"; then
        ok "$name"
    else
        not_ok "$name" "status $rc, not $want: $(cat "$tmp/out" "$tmp/err" | tr '\n' ' ' | head -c 400)"
    fi
}
is_json() { python3 -m json.tool < "$tmp/out" > /dev/null; }

# ---- no daemon ----
for words in status ranks "top --once" "plan show" "plan diff current 1.0.1" "plan history" "plan explain" "budget get" \
    "budget set --stage 0 1GiB" "budget set gpu 1GiB --wait" "budget reset gpu" "budget watch --once"; do
    # shellcheck disable=SC2086
    expect "no daemon: $words" 3 "$sock" "$ctl" --socket "$sock" $words
done
expect "the socket may come from the environment" 3 "$tmp/other.sock" env AGOQ_SOCKET="$tmp/other.sock" "$ctl" status
expect "the option wins over the environment" 3 "$sock" env AGOQ_SOCKET="$tmp/other.sock" "$ctl" status --socket "$sock"
expect "without either the default is named" 3 /run/agoq/agoqd.sock "$ctl" status
expect "the message says what to do" 3 "Start it .*--socket" "$ctl" status --socket "$sock"
expect "an error in JSON" 3 '"name": "unreachable"' "$ctl" --json status --socket "$sock"
check "is JSON" is_json
expect "version needs no daemon" 0 "not reached" "$ctl" version --socket "$sock"

# ---- usage ----
expect "no command" 2 "agoqctl --help" "$ctl"
expect "unknown command" 2 "did you mean 'status'" "$ctl" stauts
expect "unknown option" 2 "did you mean '--json'" "$ctl" status --jsno
expect "size without unit" 2 "not a size with a unit" "$ctl" budget set gpu 80
expect "size with junk" 2 "not a size with a unit" "$ctl" budget set gpu "80GB "
expect "size with a leading zero" 2 "not a size with a unit" "$ctl" budget set gpu 010GiB
expect "size with a sign" 2 "not a size with a unit" "$ctl" budget set gpu +80GiB
expect "time without sense" 2 "not a time" "$ctl" status --timeout soon
expect "stage without sense" 2 "not a stage" "$ctl" plan explain --stage -1
expect "an option that does nothing" 2 "does nothing with" "$ctl" status --wait
expect "help" 0 "exit codes: 0 ok" "$ctl" --help
for words in "plan --help" "budget set --help" "simulate --help" "-h"; do
    # shellcheck disable=SC2086
    expect "$words" 0 "usage: agoqctl" "$ctl" $words
done
if [ -w /dev/full ]; then
    "$ctl" --help > /dev/full 2> /dev/null && not_ok "a full disk is no success" || ok "a full disk is no success"
fi

# ---- config ----
expect "the default configuration is good" 0 "agoqd.yaml: ok" "$ctl" config check config/agoqd.yaml
expect "the same in JSON" 0 '"ok": true' "$ctl" --json config check config/agoqd.yaml
printf 'margin: 2%%\nbugdets: []\n' > "$tmp/bad.yaml"
expect "a bad one: file, line, column, nearest key" 1 "bad.yaml:2:1: .*did you mean 'budgets'" "$ctl" config check "$tmp/bad.yaml"
expect "the daemon says the same" 42 "bad.yaml:2:1: .*did you mean 'budgets'" "$BUILD/agoqd" --check-config --config "$tmp/bad.yaml"
expect "the same in JSON" 1 "bad.yaml:2:1: " "$ctl" --json config check "$tmp/bad.yaml"
check "is JSON" is_json
expect "missing" 1 "No such file" "$ctl" config check "$tmp/none.yaml"
: > "$tmp/empty.yaml"
expect "empty" 1 "the file is empty" "$ctl" config check "$tmp/empty.yaml"
head -c 2097152 /dev/zero | tr '\0' '#' > "$tmp/large.yaml"
expect "2 MiB" 1 "2097152 bytes, more than" "$ctl" config check "$tmp/large.yaml"
"$ctl" config show > "$tmp/default.yaml"
check "config show is config/agoqd.yaml" cmp "$tmp/default.yaml" config/agoqd.yaml
expect "config show FILE tells the origin" 0 "margin: 2% # file" "$ctl" config show config/agoqd.yaml
expect "--foreground is accepted, long and short" 0 "agoqd.yaml: ok" \
    "$BUILD/agoqd" --foreground -f --check-config --config config/agoqd.yaml
expect "and what it does is said" 0 "--foreground +changes nothing: agoqd always stays" "$BUILD/agoqd" --help

# ---- a daemon without ranks ----
"$BUILD/agoqd" --foreground --socket "$sock" --state-dir "$tmp/state" 2> "$tmp/agoqd.log" &
daemon=$!
if wait_for 20 "$ctl" status --socket "$sock"; then ok "the daemon answers"; else not_ok "the daemon answers" "$(tail -n 3 "$tmp/agoqd.log")"; fi
export AGOQ_SOCKET=$sock
expect "status" 0 "0 live" "$ctl" status
expect "ranks" 0 "no rank has connected" "$ctl" ranks
expect "top, not on a terminal, ends by itself" 0 "0 live" "$ctl" top
expect "budget get" 0 "no device has connected" "$ctl" budget get
expect "plan show" 0 "floor" "$ctl" plan show
expect "plan explain" 1 "no rank has connected" "$ctl" plan explain
expect "version names both" 0 "^agoqd +[0-9]" "$ctl" version
expect "an unknown plan" 1 "plan history" "$ctl" plan show 9.9.9
expect "a budget of a stage that nobody has" 1 "." "$ctl" budget set --stage 7 1GiB
for words in status ranks top "plan show" "plan history" "budget get" "budget watch --once" version; do
    # shellcheck disable=SC2086
    expect "$words in JSON" 0 '"version": 1,' "$ctl" --json $words
    check "is JSON" is_json
done
expect "nothing of colours in a pipe" 0 "live" "$ctl" status
grep -q $'\033' "$tmp/out" && not_ok "no escape sequences" || ok "no escape sequences"
# on_terminal KEYS COMMAND...: its output on a pseudo-terminal; KEYS are typed after a second. Ends after 20 s.
on_terminal() {
    TERM=xterm timeout 20 python3 - "$@" << 'PY' > "$tmp/screen"
import os, pty, select, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
start, keys = time.monotonic(), sys.argv[1].encode()
while True:
    if keys and time.monotonic() > start + 1:
        os.write(fd, keys)
        keys = b""
    if select.select([fd], [], [], 0.1)[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        os.write(1, data)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PY
}
on_terminal q "$ctl" top && grep -q "q quits" "$tmp/screen" && grep -q $'\033\[H' "$tmp/screen" &&
    ok "top redraws a terminal, and q quits" || not_ok "top redraws a terminal, and q quits" "$(head -c 300 "$tmp/screen" | tr '\n\033' '  ')"
on_terminal "" "$ctl" status
grep -q $'\033\[3' "$tmp/screen" && ok "colours on a terminal" || not_ok "colours on a terminal" "none"
NO_COLOR=1 on_terminal "" "$ctl" status
grep -q $'\033\[3' "$tmp/screen" && not_ok "NO_COLOR is honoured" || ok "NO_COLOR is honoured"
kill -STOP "$daemon"
expect "a daemon that hangs" 3 "did not answer within 300 ms" "$ctl" status --timeout 300ms
kill -CONT "$daemon"
kill -KILL "$daemon"
wait "$daemon" 2> /dev/null
expect "a daemon that was killed" 3 "nobody listens" "$ctl" status

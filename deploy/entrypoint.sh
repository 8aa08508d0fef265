#!/bin/sh
# Runs a command and passes SIGTERM and SIGINT on to it. Exit codes 2 (an error that does not heal), 3
# (another server has taken over) and 130 (SIGINT) become 0: Docker's "restart: on-failure" knows no exit
# codes, and these must not be started again. All others, such as 75 (no broker, disk full), stay as they are.
"$@" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null' TERM
trap 'kill -INT "$child" 2>/dev/null' INT
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break # otherwise a signal has interrupted wait
done
case $code in
2 | 3 | 130)
    echo "exit code $code: not started again" >&2
    code=0
    ;;
esac
exit "$code"

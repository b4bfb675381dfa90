#!/usr/bin/env bash
# A worker of waterwheel that serves the kind `thumbnail`. It needs bash 4.3 and head, and runs one job at a time.
#
#   waterwheel worker test -- bash thumbnail.sh     checks that it keeps the protocol
#   waterwheel dev --worker thumbnail.sh            serves it, and starts it anew when this file changes
#
# A handler reads the payload from its standard input, and writes the result to its standard output. It runs in a
# process of its own, which is killed when the job is cancelled. To keep something from job to job, such as a connection,
# take a language that can hold it.

# Does one job.
run() {
  cat
}

# What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it.
conformance() {
  case $task in
    chunks)
      for number in 0 1 2; do output <<<"$number"; done
      echo end
      return ;;
    progress) progress 0.5 "half of it" ;;
    fail) failed NOT_FOUND "no such picture" ;;
    wait) sleep infinity ;;
    print) echo "a line on standard error" >&2 ;;
    crash) kill -KILL 0 ;;
  esac
  cat
}

declare -A kinds=([thumbnail]=run [conformance]=conformance)

# Sends what is on standard input now, as a piece of the result, which a caller of `Stream` gets as a chunk.
output() {
  local piece
  piece=$(mktemp "$files/piece.XXXXXX")
  cat >"$piece"
  send output "\"id\":\"$id\"" "$piece"
  rm "$piece"
}

progress() {
  quote "$2"
  send progress "\"id\":\"$id\",\"fraction\":$1,\"message\":$REPLY"
}

# Ends the job with a gRPC status code. A handler that exits with another code than 0 ends with INTERNAL.
failed() {
  quote "$2"
  printf '"code":"%s","message":%s' "$1" "$REPLY" >"$files/failed"
  exit 1
}

# A text in JSON, at most 2000 characters of it.
quote() {
  REPLY=${1:0:2000}
  REPLY=${REPLY//\\/\\\\}
  REPLY=${REPLY//\"/\\\"}
  REPLY=\"${REPLY//[[:cntrl:]]/ }\"
}

# The protocol: a line of JSON on descriptor 3 or 4, then as many bytes as its `bytes` says.
send() {
  local bytes=0
  [[ -z ${3-} ]] || bytes=$(wc -c <"$3")
  printf '{"%s":{%s},"bytes":%d}\n' "$1" "$2" "$bytes" >&4
  [[ -z ${3-} ]] || cat "$3" >&4
}

# The text or the number of a field.
field() {
  [[ $line =~ \"$1\":\ *(\"(([^\"\\]|\\.)*)\"|([0-9]+)) ]] && REPLY=${BASH_REMATCH[2]}${BASH_REMATCH[4]}
}

unknown() {
  failed UNIMPLEMENTED "no handler for the kind $kind"
}

# Runs the job and says how it ended.
serve() {
  local handler=${kinds[$kind]-unknown} status=0 child=
  trap '[[ -z $child ]] || stop "$child"' TERM
  ("$handler") <"$files/payload" >"$files/result" 3<&- &
  child=$!
  # A cancel may have come before there was a handler.
  [[ ! -s $files/cancelled ]] || stop "$child"
  while wait "$child" || status=$?; kill -0 "$child" 2>/dev/null; do status=0; done
  if [[ -s $files/cancelled ]]; then
    send failed "\"id\":\"$id\",\"code\":\"CANCELLED\",\"message\":\"stopped because of $(<"$files/cancelled")\""
  elif [[ -s $files/failed ]]; then
    send failed "\"id\":\"$id\",$(<"$files/failed")"
  elif ((status != 0)); then
    send failed "\"id\":\"$id\",\"code\":\"INTERNAL\",\"message\":\"the handler exited with $status\""
  else
    send "done" "\"id\":\"$id\",\"content_type\":\"$content_type\"" "$files/result"
  fi
}

# Kills a process and all that it started.
stop() {
  local child
  for child in $(<"/proc/$1/task/$1/children"); do stop "$child"; done
  kill -KILL "$1"
} 2>/dev/null

# A test can source this file.
[[ ${BASH_SOURCE[0]} == "$0" ]] || return 0
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
names=$(printf ',"%s"' "${!kinds[@]}")
send ready "\"protocol\":1,\"kinds\":[${names:1}],\"name\":\"thumbnail\""
server=
while IFS= read -r line <&3; do
  [[ $line =~ ^\{\"([a-z]+)\" ]] || exit 1
  case ${BASH_REMATCH[1]} in
    run)
      # The job before has been answered, and its process is about to end.
      [[ -z $server ]] || wait "$server"
      bytes=0
      field bytes && bytes=$REPLY
      head -c "$bytes" <&3 >"$files/payload"
      rm -f "$files/failed" "$files/cancelled"
      field id && id=$REPLY
      field kind && kind=$REPLY
      field content_type && content_type=$REPLY
      task=
      field task && task=$REPLY
      # Until it has a trap of its own, a cancel must not end it.
      trap '' TERM
      serve &
      server=$!
      trap - TERM ;;
    cancel)
      field id && [[ $REPLY == "$id" ]] && field reason && echo "$REPLY" >"$files/cancelled" && kill "$server" ;;
    leave)
      wait
      exit 0 ;;
  esac
done
# The service is gone.
[[ -z $server ]] || stop "$server"

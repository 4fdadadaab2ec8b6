#!/bin/sh
# Enqueue a job from a shell script, without Python: a file is written, and renamed into the spool's inbox.
#
#     sh produce.sh SPOOL webhooks deliver '"https://example.org/hook"' '{"order": 17}'
#
# SPOOL QUEUE HANDLER, then the handler's arguments, each as JSON. A master that serves the spool takes the file at once
# or within a second. The spool must be there: `batchq spool status` shows where.
set -eu
spool=$1 queue=$2 job=$3
shift 3
args=
for arg; do args="$args${args:+,}$arg"; done
# Unique on this host: time, process, and 32 random bits. It must not begin with a dot.
name=$(date +%s)-$$-$(od -An -N4 -tx4 /dev/urandom | tr -d ' ').1.ndjson
trap 'rm -f "$spool/inbox/tmp/$name"' EXIT
umask 077
printf '{"v":1,"queue":"%s","job":"%s","args":[%s]}\n' "$queue" "$job" "$args" >"$spool/inbox/tmp/$name"
sync "$spool/inbox/tmp/$name"
# The file is whole before anybody sees it.
mv "$spool/inbox/tmp/$name" "$spool/inbox/new/"
sync "$spool/inbox/new"

#!/bin/sh
# Fails where the plan of the model has become more than 1 % slower than the one that is kept here.
# Arguments are further options of `compile`; `sh check.sh --search data_parallel` fails.
set -e
here=$(dirname "$0")
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
shardwright compile mlp:hidden=4096,batch=1024 --devices 8 --out "$new/plan" "$@"
shardwright diff "$here/plan" "$new/plan" --max-slower 1%

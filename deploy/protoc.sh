#!/bin/sh
# Regenerate the committed descriptors and stubs from proto/. Usage: deploy/protoc.sh [OUTPUT_FOLDER]
set -eu
cd "$(dirname "$0")/.."
out="${1:-.}"
python="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
for file in $(cd proto && find . -name '*.proto' | sort); do
    descriptor="$out/${file%.proto}.binpb"
    mkdir -p "$(dirname "$descriptor")"
    "$python" -m grpc_tools.protoc -Iproto --descriptor_set_out="$descriptor" --pyi_out="$out" "proto/${file#./}"
done

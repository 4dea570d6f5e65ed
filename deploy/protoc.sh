#!/bin/sh
# Regenerate the committed protobuf code from proto/. Usage: deploy/protoc.sh [OUTPUT_FOLDER]
set -eu
cd "$(dirname "$0")/.."
out="${1:-.}"
python="${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}"
for file in $(find proto -name '*.proto' | sort); do
    "$python" -m grpc_tools.protoc -Iproto --python_out="$out" --pyi_out="$out" "$file"
done

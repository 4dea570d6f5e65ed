"""Generated protobuf code; `deploy/protoc.sh` writes it from `proto/`."""

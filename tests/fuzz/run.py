"""Coverage-guided fuzzing of every decoder, for `--seconds` each: `python -m tests.fuzz.run [--seconds 60] [NAME ...]`.

Requires atheris (`pip install -e '.[fuzz]'`). Each decoder is fuzzed in its own process, which stops at the first
undocumented error, or if it exceeds `RSS_MB`. The input that caused it is saved in `--keep`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

RSS_MB = 2048
MAX_INPUT_BYTES = 1 << 16


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="decoders to fuzz (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="duration for each decoder (default: 60)")
    parser.add_argument(
        "--keep", type=Path, default=Path(tempfile.gettempdir()) / "fuzz", help="folder for failing inputs"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.one:
        fuzz(options.one, [sys.argv[0], *rest])
    from tests.fuzz.decoders import decoders

    failed = []
    for name in options.names or list(decoders()):
        options.keep.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="corpus") as corpus:
            for i, sample in enumerate(decoders()[name].samples):
                (Path(corpus) / str(i)).write_bytes(sample)
            limits = [f"-max_total_time={options.seconds}", f"-rss_limit_mb={RSS_MB}", f"-max_len={MAX_INPUT_BYTES}"]
            line = [sys.executable, "-m", "tests.fuzz.run", "--one", name, *limits]
            ended = subprocess.run(
                [*line, f"-artifact_prefix={options.keep}/{name.replace(' ', '-')}-", "-print_final_stats=1", corpus],
                capture_output=True,
                text=True,
                check=False,
            )
        statistics = dict(
            part.removeprefix("stat::").split(":", 1) for part in ended.stderr.splitlines() if "stat::" in part
        )
        runs, peak = (statistics.get(key, "?").strip() for key in ("number_of_executed_units", "peak_rss_mb"))
        print(f"{name}: {runs} inputs, {peak} MB, {'FAILED' if ended.returncode else 'passed'}", flush=True)
        if ended.returncode:
            failed.append(name)
            print(ended.stderr[-3000:], flush=True)
    return 1 if failed else 0


def fuzz(name: str, arguments: list[str]) -> None:
    """Fuzz one decoder. Does not return."""
    import atheris

    with atheris.instrument_imports(include=["actors", "learner"]):
        from tests.fuzz.decoders import decoders
    decoder = decoders()[name]

    def once(data: bytes) -> None:
        decoder(data)

    atheris.Setup(arguments, once)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())

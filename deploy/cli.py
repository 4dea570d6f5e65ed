"""The `tamiyo` command line. Arguments are parsed before PyTorch or Ray is imported, so `--help` is fast."""

from __future__ import annotations

import argparse
import errno
import gc
import io
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import learner  # noqa: F401 (before the working directory, which may hold a file of its name, is on the path)
from actors.errors import UserError
from actors.version import installed
from deploy.config.convert import suggest
from deploy.config.flags import ParsedFlags, parse
from deploy.config.parser import CommandParser, require_server
from deploy.config.yaml import summary, to_yaml

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""Errors of a folder that the user has chosen, or of its disk."""
USAGE = """\
usage: tamiyo COMMAND [OPTIONS]

Train a policy that decides when a small neural network should grow, and serve it.

train:
  train                 run a training: Redis, actors, learner, live progress and a report
                        (--address auto --redis URL runs it on a Ray cluster)
  stop RUN              stop a run on a Ray cluster
  learner --redis URL   run only the learner
  actors --redis URL    run only the actors
  status --redis URL    show where a run's episodes are and what limits its throughput
  dead-letters          list or requeue rejected episodes
  episodes              write a run's episodes to files, or import files

evaluate:
  report RUN_DIR        write report.html and its figures into a run folder
  rollout [CHECKPOINT]  play one episode of a policy or a rule and print its timeline
  play RUN              play episodes in the environment of a run: mean return, video
  evaluate              compare policies with rules on held-out tasks
  tasks [NAME ...]      list the task families, and whether growing pays on them

use a policy:
  grow SCRIPT           run your training script with a policy that grows your model
  serve                 serve a policy over gRPC
  export CHECKPOINT OUT export a policy with torch.export, or as an ONNX model

operate:
  doctor                check this machine: packages, GPU, Redis, Ray, memory
  secrets DIR           create passwords, tokens and a TLS certificate
  health ADDRESS ...    check service health over HTTP or gRPC

first steps:
  tamiyo doctor
  tamiyo train --preset quick
  tamiyo train --env CartPole-v1
  tamiyo train --resume runs/NAME

`tamiyo COMMAND --help` lists the options of a command; `tamiyo --version` prints the version.
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns its exit status: 0 for success, 1 for failure, 2 for a usage or configuration error."""
    args = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for symbols of tables in a locale without them
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it remarks on standard error that a process forks
    gc.set_threshold(50_000)  # imports create many objects and little garbage: a sixth of their time
    try:
        return _dispatch(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UserError, OSError) as error:
        advice = " ".join(_advice(error).split())
        if not advice:
            raise
        print(f"tamiyo: error: {advice}", file=sys.stderr)
        return 2
    finally:
        gc.freeze()  # at exit, Python would search all objects of PyTorch and Matplotlib: a second


def _advice(error: UserError | OSError) -> str:
    """Say what was wrong and what to do; nothing if the user can do nothing."""
    if isinstance(error, UserError):
        return str(error)
    from actors.transport.base import Unreachable

    if isinstance(error, Unreachable):  # the Redis server went away during the run
        return f"{error}; restart the server, then continue with --resume"
    if error.errno in UNWRITABLE:
        what = f"write {error.filename}" if error.filename else "write to the disk"
        return f"cannot {what} ({error.strerror}): free some space, or use another folder"
    return ""


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if args else 2
    if args[0] == "--version":
        print(installed())
        return 0
    command, rest = args[0], args[1:]
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}{suggest(command, list(COMMANDS))}")
    try:
        return COMMANDS[command](rest)
    except SystemExit as end:  # the parser printed the help
        if isinstance(end.code, str):
            raise UserError(end.code) from end
        return end.code or 0


def _train(args: list[str]) -> int:
    flags = parse("train", args)
    if _shown(flags):
        return 0
    if flags.in_process:
        from deploy.launch.in_process import train_in_process

        return train_in_process(flags.config, flags.resume)
    from deploy.launch.ray.fork_server import fork_server

    with nullcontext() if flags.config.run.address else fork_server(flags.config):
        from deploy.launch.local import train  # PyTorch and Ray, which the fork server imports meanwhile

        gc.freeze()
        return train(flags.config, flags.resume)


def _stop(args: list[str]) -> int:
    parser = CommandParser("stop", "Stop a run on a Ray cluster after a last checkpoint; it can be resumed.")
    parser.add_argument("name", metavar="RUN", help="name of the run")
    parser.add_argument("--address", default="auto", help="address of the Ray cluster (default: auto)")
    options = parser.parse_args(args)
    from deploy.launch.cluster import stop_run

    return stop_run(options.name, options.address)


def _learner(args: list[str]) -> int:
    flags = parse("learner", args)
    if _shown(flags, "learner"):
        return 0
    from deploy.launch.processes import run_learner

    return run_learner(flags.config, flags.resume)


def _actors(args: list[str]) -> int:
    flags = parse("actors", args)
    if _shown(flags, "actors"):
        return 0
    from deploy.launch.processes import run_actors

    return run_actors(flags.config)


def _status(args: list[str]) -> int:
    parser = CommandParser("status", "Show where the episodes of a run are, and what limits its throughput.")
    parser.add_store()
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(args)
    require_server("status", options.redis)
    from deploy.commands.admin.status import show_status

    return show_status(options.redis, options.run, options.json)


def _dead_letters(args: list[str]) -> int:
    parser = CommandParser("dead-letters", "List or requeue episodes that the learner rejected.")
    parser.add_argument("action", choices=("list", "requeue"), nargs="?", default="list")
    parser.add_argument("ids", nargs="*", metavar="ID", help="with requeue: ids from `list`, or `all`")
    parser.add_store()
    options = parser.parse_args(args)
    require_server("dead-letters", options.redis)
    from deploy.commands.admin.dead_letters import dead_letters

    return dead_letters(options.action, options.redis, options.run, options.ids)


def _episodes(args: list[str]) -> int:
    parser = CommandParser(
        "episodes", "Write the episodes that wait in a run's queue to files, or put files into it, each once."
    )
    add = parser.add_argument
    add("action", choices=("export", "import"), help="an exported episode stays in the queue")
    files_help = "export: name of the run, if the server holds several; import: .episode files, or folders of them"
    add("names", nargs="*", metavar="RUN | FILE", help=files_help)
    add("--out", type=Path, metavar="DIR", help="export: folder for the files, one per episode")
    add("--max", type=int, default=100, metavar="N", help="export: most episodes, oldest first (default: 100)")
    add("--dead-letters", action="store_true", help="export: instead, episodes that the learner rejected")
    wait_help = "import: time to wait for a full queue, in all (default: 60)"
    add("--wait", type=float, default=60.0, metavar="SECONDS", help=wait_help)
    parser.add_store()
    options = parser.parse_args(args)
    exports = options.action == "export"
    if exports and (options.out is None or len(options.names) > 1 or options.max < 1):
        raise UserError("write `tamiyo episodes export [RUN] --out DIR`, with --max N of at least 1")
    if not exports and not options.names:
        raise UserError("give the files: `tamiyo episodes import FILE ... --run RUN`")
    require_server("episodes", options.redis)
    from deploy.commands.admin.episodes import export_episodes, import_episodes

    if exports:
        run = next(iter(options.names), options.run)
        return export_episodes(options.redis, run, options.out, options.max, options.dead_letters)
    return import_episodes(options.redis, options.run, [Path(name) for name in options.names], options.wait)


def _report(args: list[str]) -> int:
    parser = CommandParser("report", "Write RUN_DIR/report.html, and its figures as PNG into RUN_DIR/report/.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="run folder, such as runs/NAME")
    options = parser.parse_args(args)
    from deploy.report.page import write_report

    headline, page = write_report(options.run_dir, pictures=True)
    print(f"{headline}\n{page}")
    return 0


def _tasks(args: list[str]) -> int:
    parser = CommandParser("tasks", "List the task families, their sizes, and whether growing pays on them.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a family, or mypkg:factory (default: all families)")
    parser.add_argument("--data_dir", "--data-dir", help="folder with data sets that are not bundled, such as CIFAR-10")
    options = parser.parse_args(args)
    from deploy.commands.tasks import show_tasks

    return show_tasks(options.names, options.data_dir)


def _rollout(args: list[str]) -> int:
    parser = CommandParser("rollout", "Play one episode of a trained policy or of a rule and print its timeline.")
    add = parser.add_argument
    checkpoint_help = "checkpoint file or run folder (default: trained, the policy in the package)"
    add("checkpoint", metavar="CHECKPOINT", nargs="?", help=checkpoint_help)
    add("--policy", metavar="RULE", help="a rule by name, such as trial:quad@1-2, or trained, instead of a checkpoint")
    add("--task", help="task family, or mypkg:factory (default: one of the run's tasks, drawn by the seed)")
    add("--seed", type=int, default=0, help="seed of the episode (default: 0)")
    add("--slots", type=int, help="slots in the host's stream (default: as in training)")
    add("--width", type=int, help="units or channels of the host (default: drawn by the seed)")
    add("--price", type=float, help="points per doubling of the parameters (default: as in training)")
    add("--compute-price", type=float, help="points per doubling of the training FLOPs (the same)")
    add("--sampled", action="store_true", help="sample actions instead of taking the policy's medians")
    picture_help = "also draw the episode, and the same host without growth, to a .png or .svg file"
    add("--picture", type=Path, metavar="FILE", help=picture_help)
    given = vars(parser.parse_args(args))
    checkpoint, rule = given.pop("checkpoint"), given.pop("policy")
    if checkpoint is not None and rule is not None:
        raise UserError("give either a checkpoint or --policy, not both")
    from actors.policy.saved import TRAINED_NAME
    from actors.rules.names import parse_rule
    from deploy.commands.rollout import show_rollout

    if rule not in (None, TRAINED_NAME):
        parse_rule(rule)
    return show_rollout(checkpoint or rule or TRAINED_NAME, **given)


def _play(args: list[str]) -> int:
    from deploy.commands.play import play

    return play(args)


def _evaluate(args: list[str]) -> int:
    from deploy.commands.evaluation_flags import PRACTICAL, evaluate_options

    options = evaluate_options(args)
    if options.suite == PRACTICAL:
        from deploy.commands.evaluate_practical import evaluate_practical

        return evaluate_practical(options)
    from deploy.commands.evaluate import evaluate

    return evaluate(options)


def _export(args: list[str]) -> int:
    parser = CommandParser("export", "Export a policy as a torch.export program or an ONNX model.")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="checkpoint file or run folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="policy.pt2, or policy.onnx (needs the extra onnx)")
    parser.add_argument("--slots", type=int, help="slots of the host, 1 to 8 (default: as in training)")
    parser.add_latest()
    options = parser.parse_args(args)
    from deploy.commands.export import export_policy

    return export_policy(options.checkpoint, options.out, options.slots, options.latest)


def _serve(args: list[str]) -> int:
    from deploy.commands.serve_flags import serve_flags

    flags = serve_flags(args)
    from deploy.commands.serve import run_server

    return run_server(flags)


def _grow(args: list[str]) -> int:
    parser = CommandParser("grow", "Run a training script that uses tamiyo.GrowthController, and print what it grew.")
    add = parser.add_argument
    add("script", type=Path, metavar="SCRIPT", help="Python script, such as examples/grow_your_model.py")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    policy_help = "checkpoint, rule or address of a server, which decides (default: what the script names)"
    add("--policy", metavar="POLICY", help=policy_help)
    picture_help = "also draw it, and a second run of the script without growth, to a .png or .svg file"
    add("--picture", type=Path, metavar="FILE", help=picture_help)
    options = parser.parse_args(args)
    from deploy.commands.grow import grow

    return grow(options.script, options.arguments, options.policy, options.picture)


def _secrets(args: list[str]) -> int:
    parser = CommandParser(
        "secrets", "Create the passwords, tokens and TLS certificate of a deployment; existing files are kept."
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="folder to write the files to")
    hosts = ["localhost", "127.0.0.1"]
    hosts_help = "names and addresses of the policy server, for its certificate (default: localhost 127.0.0.1)"
    add("--host", nargs="+", default=hosts, metavar="NAME", help=hosts_help)
    run_help = "name of the only run whose keys the users of Redis may access (default: all runs)"
    add("--run", default="*", metavar="NAME", help=run_help)
    services_help = "also copy to DIR/SERVICE the files that each service of docker-compose.yml needs"
    add("--services", type=Path, metavar="DIR", help=services_help)
    options = parser.parse_args(args)
    from deploy.commands.admin.secrets import share_secrets, write_secrets

    made = write_secrets(options.folder, options.host, options.run)
    print(f"{options.folder}: " + (f"created {', '.join(made)}" if made else "all files exist"))
    if options.services is not None:
        changed = share_secrets(options.folder, options.services)
        print(f"{options.services}: " + (f"updated {', '.join(changed)}" if changed else "up to date"))
    return 0


def _health(args: list[str]) -> int:
    from deploy.commands.admin.health import main as health

    return health(args)


def _doctor(args: list[str]) -> int:
    CommandParser("doctor", "Check this machine for a run; the exit status is 1 if a check fails.").parse_args(args)
    from deploy.commands.admin.doctor import doctor

    return doctor()


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "stop": _stop,
    "learner": _learner,
    "actors": _actors,
    "status": _status,
    "dead-letters": _dead_letters,
    "episodes": _episodes,
    "report": _report,
    "rollout": _rollout,
    "play": _play,
    "evaluate": _evaluate,
    "export": _export,
    "grow": _grow,
    "serve": _serve,
    "tasks": _tasks,
    "secrets": _secrets,
    "health": _health,
    "doctor": _doctor,
}


def _shown(flags: ParsedFlags, command: str = "") -> bool:
    """Print the settings, all of them if that is wanted. Returns whether nothing else is. `command` needs a server."""
    if flags.show:
        print(to_yaml(flags.config), end="")
        return True
    if command:
        require_server(command, flags.config.run.redis)
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(summary(flags.config))
    return False


if __name__ == "__main__":
    sys.exit(main())

"""The `tamiyo` command. Parses first; torch and Ray are imported only by what a command then runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from actors.errors import UserError
from deploy.commands.parser import CommandParser
from deploy.config.flags import parse
from deploy.config.yaml import suggest, summary

USAGE = """\
usage: tamiyo COMMAND [FLAGS]

Tamiyo learns when to grow a small network while it trains.

commands:
  train                 a whole run on this machine: server, actors, learner, progress and report
  train --address auto --redis URL   the same on a Ray cluster, where it needs nobody to watch it
  stop RUN              end a run on a cluster
  learner --redis URL   the learner alone, for runs over several processes
  actors --redis URL    the actors alone; they meet the learner through the server
  status --redis URL    where every episode of a run is now, how old, and who is waited for
  dead-letters ACTION   episodes that were set aside: list, show, requeue
  report RUN_DIR        write report.html and its pictures from the folder of a run
  rollout [CHECKPOINT]  one episode of a trained policy, as a timeline in the terminal
  evaluate --checkpoint P   trained policies against tuned schedules on held-out tasks
  study FILE            a list of trainings and evaluations, one after the other, each once
  grow SCRIPT           a training script of yours with a policy at its side
  serve --checkpoint P  a policy as a gRPC service; --redis URL follows a run
  export CHECKPOINT OUT a trained policy as a torch.export program
  tasks [NAME ...]      the task families, their sizes, and whether growing pays on them
  secrets DIR           passwords, tokens and a certificate for a deployment, as files, each made once
  health ADDRESS ...    whether services answer, for health checks
  dashboards FOLDER     Grafana dashboards of all metrics, as JSON
  doctor                versions, CUDA, server, Ray, memory: what would be used and what is missing

first steps:
  tamiyo doctor
  tamiyo train --preset quick
  tamiyo train --env CartPole-v1
  tamiyo train --resume runs/NAME

`tamiyo COMMAND --help` lists the flags of a command; `tamiyo --version` tells the version.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 done, 1 failed, 2 the user has to change something."""
    args = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(args)
    except UserError as error:
        message = " ".join(str(error).split())
        print(f"tamiyo: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ConnectionError as error:  # the server went away in mid-run
        message = " ".join(str(error).split())
        print(f"tamiyo: error: {message}; bring the server back, then go on with --resume", file=sys.stderr)
        return 2


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if args else 2
    if args[0] == "--version":
        print(f"tamiyo {_version()}")
        return 0
    command, rest = args[0], args[1:]
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}{suggest(command, list(COMMANDS))}")
    try:
        return COMMANDS[command](rest)
    except SystemExit as end:  # tyro printed the help
        return int(end.code or 0)


def _train(args: list[str]) -> int:
    config, resume, attach = parse("train", args, resumable=True)
    _print(summary(config))
    from deploy.launch.local import train

    return train(config, resume, attach)


def _stop(args: list[str]) -> int:
    parser = CommandParser("stop", "Ends a run on a cluster; it can be resumed.")
    parser.add_argument("name", metavar="RUN", help="the run's name")
    parser.add_argument("--address", default="auto", help="Ray cluster that it runs on (default: auto)")
    options = parser.parse_args(args)
    from deploy.launch.cluster import stop_run

    return stop_run(options.name, options.address)


def _learner(args: list[str]) -> int:
    config, resume, _ = parse("learner", args, resumable=True)
    _need_server("learner", config.run.redis)
    _print(summary(config))
    from deploy.launch.processes import run_learner

    return run_learner(config, resume)


def _actors(args: list[str]) -> int:
    config, _, _ = parse("actors", args, resumable=False)
    _need_server("actors", config.run.redis)
    _print(summary(config))
    from deploy.launch.processes import run_actors

    return run_actors(config)


def _status(args: list[str]) -> int:
    parser = CommandParser("status", "Where every episode of a run is now.")
    parser.add_store()
    parser.add_argument("--watch", action="store_true", help="go on looking, every second")
    parser.add_argument("--json", action="store_true", help="all that is known, as JSON")
    options = parser.parse_args(args)
    _need_server("status", options.redis)
    from deploy.commands.status import show_status

    return show_status(options.redis, options.run, options.watch, options.json)


def _dead_letters(args: list[str]) -> int:
    parser = CommandParser("dead-letters", "Episodes that were set aside.")
    parser.add_argument("action", choices=("list", "show", "requeue"), nargs="?", default="list")
    parser.add_argument("ids", nargs="*", metavar="ID", help="of letters, from the list; `all` for requeue")
    parser.add_argument("--save", type=Path, metavar="FILE", help="with show: write the payload here")
    parser.add_store()
    options = parser.parse_args(args)
    _need_server("dead-letters", options.redis)
    from deploy.commands.dead_letters import dead_letters

    return dead_letters(options.action, options.redis, options.run, options.ids, options.save)


def _report(args: list[str]) -> int:
    if args in (["-h"], ["--help"]):
        print("usage: tamiyo report RUN_DIR\n\nWrites RUN_DIR/report.html and the pictures in RUN_DIR/report/.")
        return 0
    if len(args) != 1 or args[0].startswith("-"):
        raise UserError("give the folder of one run: tamiyo report runs/NAME")
    from deploy.report.page import headline, write_report

    page = write_report(Path(args[0]))
    print(headline(Path(args[0])))
    print(page)
    return 0


def _tasks(args: list[str]) -> int:
    parser = CommandParser("tasks", "Lists the task families, or those named.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a family, or mypkg:factory")
    parser.add_argument("--json", action="store_true", help="all that is known, as JSON")
    parser.add_argument("--data_dir", "--data-dir", help="folder of data sets that are not bundled, such as CIFAR-10")
    options = parser.parse_args(args)
    from deploy.commands.tasks import show_tasks

    return show_tasks(options.names, options.data_dir, options.json)


def _rollout(args: list[str]) -> int:
    parser = CommandParser("rollout", "One episode of a trained policy, as a timeline.")
    played = "a checkpoint file or a run folder; without it, the policy in the package"
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", nargs="?", help=played)
    parser.add_argument("--task", help="a task family, or mypkg:factory; else one of the run's, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0, help="of the episode")
    parser.add_argument("--slots", type=int, help="slots of the host, 1 to 8; else as many as in training")
    parser.add_argument("--sampled", action="store_true", help="draw actions, instead of taking the likeliest")
    picture = "also draw the episode, beside the same host without growth: a .png or .svg file"
    parser.add_argument("--picture", type=Path, metavar="FILE", help=picture)
    options = parser.parse_args(args)
    from actors.policy.saved import SHIPPED
    from deploy.commands.rollout import show_rollout

    return show_rollout(
        options.checkpoint or SHIPPED,
        options.task,
        options.seed,
        options.slots,
        options.sampled,
        picture=options.picture,
    )


def _evaluate(args: list[str]) -> int:
    from deploy.commands.evaluation_flags import evaluation_flags

    given = vars(evaluation_flags(args)).items()
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given}
    from deploy.commands.evaluate import Request, evaluate

    return evaluate(Request(**options))


def _study(args: list[str]) -> int:
    from deploy.commands.evaluation_flags import study_flags

    options = study_flags(args)
    from deploy.evaluation.study import read_study, run_study

    if options.tables:
        from deploy.evaluation.tables import write_tables

        print(f"{options.tables}: {write_tables(read_study(options.file), options.tables)} made anew")
        return 0
    return run_study(options.file, options.only, options.list)


def _export(args: list[str]) -> int:
    parser = CommandParser("export", "Writes a policy as a torch.export program.")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint file, or a run folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write, NAME.pt2")
    parser.add_argument("--slots", type=int, help="slots of the host, 1 to 8; else as many as in training")
    options = parser.parse_args(args)
    from deploy.commands.export import export_policy

    return export_policy(options.checkpoint, options.out, options.slots)


def _serve(args: list[str]) -> int:
    from deploy.commands.serve_flags import serve_flags

    flags = serve_flags(args)
    from deploy.commands.serve import run_server

    return run_server(flags)


def _grow(args: list[str]) -> int:
    parser = CommandParser(
        "grow", "Runs a script that makes a tamiyo.GrowthController, with a policy served beside it."
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="such as examples/grow_your_model.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="for the script")
    parser.add_argument("--policy", type=Path, metavar="CHECKPOINT", help="else the one that comes with tamiyo")
    options = parser.parse_args(args)
    from deploy.commands.grow import grow

    return grow(options.script, options.arguments, options.policy)


def _secrets(args: list[str]) -> int:
    parser = CommandParser(
        "secrets", "Passwords, tokens and a certificate for a deployment, each made once; what is there is kept."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files are")
    hosts = ["localhost", "127.0.0.1"]
    also = "names and addresses at which clients reach the policy server, for its certificate (default: localhost)"
    parser.add_argument("--host", nargs="+", default=hosts, metavar="NAME", help=also)
    apart = "copy to a folder of each service of docker-compose.yml what that service reads"
    parser.add_argument("--services", type=Path, metavar="DIR", help=apart)
    options = parser.parse_args(args)
    from deploy.commands.secrets import share_secrets, write_secrets

    made = write_secrets(options.folder, options.host)
    print(f"{options.folder}: made {', '.join(made)}" if made else f"{options.folder}: all there")
    if options.services is not None:
        changed = share_secrets(options.folder, options.services)
        print(f"{options.services}: {'changed ' + ', '.join(changed) if changed else 'all there'}")
    return 0


def _health(args: list[str]) -> int:
    from deploy.commands.health import main as health

    return health(args)


def _dashboards(args: list[str]) -> int:
    parser = CommandParser(
        "dashboards", "Writes Grafana dashboards of all metrics: training, service, endpoint, environment."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where Grafana's provisioning looks for them")
    parser.add_argument(
        "--alerts", type=Path, metavar="FOLDER", help="also write alert rules, for Grafana's provisioning/alerting"
    )
    options = parser.parse_args(args)
    from deploy.commands.dashboards import write_dashboards

    return write_dashboards(options.folder, options.alerts)


def _doctor(args: list[str]) -> int:
    if args in (["-h"], ["--help"]):
        print("usage: tamiyo doctor\n\nShows what a run would use here and what is missing; exits 1 if it cannot run.")
        return 0
    if args:
        raise UserError(f"tamiyo doctor takes no arguments, got {args[0]!r}")
    from deploy.commands.doctor import doctor

    return doctor()


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "stop": _stop,
    "learner": _learner,
    "actors": _actors,
    "status": _status,
    "dead-letters": _dead_letters,
    "report": _report,
    "rollout": _rollout,
    "evaluate": _evaluate,
    "study": _study,
    "export": _export,
    "grow": _grow,
    "serve": _serve,
    "tasks": _tasks,
    "secrets": _secrets,
    "health": _health,
    "dashboards": _dashboards,
    "doctor": _doctor,
}


def _need_server(command: str, url: str) -> None:
    if not url:
        raise UserError(
            f"tamiyo {command} meets the others through a server: give --redis redis://HOST:6379/0 "
            "(`tamiyo train` starts a server of its own)"
        )


def _print(renderable: object) -> None:
    from rich.console import Console

    Console(highlight=False).print(renderable)


def _version() -> str:
    try:
        return version("tamiyo")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())

"""The `tamiyo` command. Parses first; torch and Ray are imported only by what a command then runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

from actors.errors import UserError
from deploy.flags import parse
from deploy.settings import suggest, summary

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
  rollout CHECKPOINT    one episode of a trained policy, as a timeline in the terminal
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
    from deploy.local import train

    return train(config, resume, attach)


def _stop(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo stop", description="Ends a run on a cluster; it can be resumed.", exit_on_error=False
    )
    parser.add_argument("name", metavar="RUN", help="the run's name")
    parser.add_argument("--address", default="auto", help="Ray cluster that it runs on (default: auto)")
    options = _options(parser, args)
    from deploy.cluster import stop_run

    return stop_run(options.name, options.address)


def _learner(args: list[str]) -> int:
    config, resume, _ = parse("learner", args, resumable=True)
    _need_server("learner", config.run.redis)
    _print(summary(config))
    from deploy.processes import run_learner

    return run_learner(config, resume)


def _actors(args: list[str]) -> int:
    config, _, _ = parse("actors", args, resumable=False)
    _need_server("actors", config.run.redis)
    _print(summary(config))
    from deploy.processes import run_actors

    return run_actors(config)


def _status(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo status", description="Where every episode of a run is now.", exit_on_error=False
    )
    _add_store(parser)
    parser.add_argument("--watch", action="store_true", help="go on looking, every second")
    parser.add_argument("--json", action="store_true", help="all that is known, as JSON")
    options = _options(parser, args)
    _need_server("status", options.redis)
    from deploy.status import show_status

    return show_status(options.redis, options.run, options.watch, options.json)


def _dead_letters(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo dead-letters", description="Episodes that were set aside.", exit_on_error=False
    )
    parser.add_argument("action", choices=("list", "show", "requeue"), nargs="?", default="list")
    parser.add_argument("ids", nargs="*", metavar="ID", help="of letters, from the list; `all` for requeue")
    parser.add_argument("--save", type=Path, metavar="FILE", help="with show: write the payload here")
    _add_store(parser)
    options = _options(parser, args)
    _need_server("dead-letters", options.redis)
    from deploy.dead_letters import dead_letters

    return dead_letters(options.action, options.redis, options.run, options.ids, options.save)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--redis", default="", metavar="URL", help="the run's server; TAMIYO_REDIS_PASSWORD is heeded")
    parser.add_argument("--run", metavar="NAME", help="the run's name, where the server holds several")


def _report(args: list[str]) -> int:
    if args in (["-h"], ["--help"]):
        print("usage: tamiyo report RUN_DIR\n\nWrites RUN_DIR/report.html and the pictures in RUN_DIR/report/.")
        return 0
    if len(args) != 1 or args[0].startswith("-"):
        raise UserError("give the folder of one run: tamiyo report runs/NAME")
    from deploy.report import headline, write_report

    page = write_report(Path(args[0]))
    print(headline(Path(args[0])))
    print(page)
    return 0


def _tasks(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo tasks", description="Lists the task families, or those named.", exit_on_error=False
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a family, or mypkg:factory")
    parser.add_argument("--json", action="store_true", help="all that is known, as JSON")
    parser.add_argument("--data_dir", "--data-dir", help="folder of data sets that are not bundled, such as CIFAR-10")
    try:
        options, unknown = parser.parse_known_args(args)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    if unknown:
        raise UserError(f"unknown flag {unknown[0]}; `tamiyo tasks --help` lists all flags")
    from deploy.tasks import show_tasks

    return show_tasks(options.names, options.data_dir, options.json)


def _rollout(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo rollout", description="One episode of a trained policy, as a timeline.", exit_on_error=False
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint file, or a run folder")
    parser.add_argument("--task", help="a task family, or mypkg:factory; else one of the run's, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0, help="of the episode")
    parser.add_argument("--slots", type=int, help="slots of the host, 1 to 8; else as many as in training")
    parser.add_argument("--sampled", action="store_true", help="draw actions, instead of taking the likeliest")
    options = _options(parser, args)
    from deploy.rollout_command import show_rollout

    return show_rollout(options.checkpoint, options.task, options.seed, options.slots, options.sampled)


def _evaluate(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo evaluate",
        description="Trained policies against tuned schedules on held-out tasks (docs/evaluation.md).",
        exit_on_error=False,
    )
    many = {"type": Path, "nargs": "+", "default": [], "metavar": "PATH"}
    parser.add_argument("--checkpoint", **many, help="run folders or checkpoint files")  # type: ignore[arg-type]
    parser.add_argument("--blind", **many, help="policies trained with policy.blind")  # type: ignore[arg-type]
    also = "further lines of the table, such as ablations; a name may come more than once"
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME=PATH", help=also)
    parser.add_argument("--suite", choices=("heldout", "train"), default="heldout", help="families that are played")
    parser.add_argument("--families", nargs="+", default=[], metavar="NAME", help="these of the suite alone")
    parser.add_argument("--rent-weight", "--rent_weight", type=float, default=5.0, help="of J (default: 5)")
    parser.add_argument("--policies", type=int, default=5, help="as many of the checkpoints at most (default: 5)")
    parser.add_argument("--seeds", type=int, default=20, help="paired episodes of each family (default: 20)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: evaluation/ in the first policy's run folder")
    parser.add_argument("--tune", action="store_true", help="first choose the schedules anew; alone it needs no policy")
    parser.add_argument("--configurations", type=int, default=64, help="schedules of each kind to tune (default: 64)")
    parser.add_argument("--rungs", type=int, default=4, help="rounds of halving, 1 to 4 (default: 4)")
    default = Path("results/schedules.json")
    parser.add_argument("--schedules", type=Path, default=default, metavar="FILE", help=f"default: {default}")
    parser.add_argument("--horizon", type=int, help="epochs of an episode, for a quick look; else as in training")
    parser.add_argument("--inner-steps", "--inner_steps", type=int, help="minibatches of an epoch, likewise")
    options = _options(parser, args)
    from deploy.evaluation.command import Request, evaluate

    return evaluate(
        Request(
            checkpoints=tuple(options.checkpoint),
            blind=tuple(options.blind),
            also=tuple(options.also),
            suite=options.suite,
            families=tuple(options.families),
            rent_weight=options.rent_weight,
            policies=options.policies,
            seeds=options.seeds,
            jobs=options.jobs,
            out=options.out,
            tune=options.tune,
            configurations=options.configurations,
            rungs=options.rungs,
            schedules=options.schedules,
            horizon_epochs=options.horizon,
            inner_steps=options.inner_steps,
        )
    )


def _study(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo study",
        description="Runs a list of trainings and evaluations; what is finished is not repeated.",
        exit_on_error=False,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="such as results/study.yaml")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these entries alone")
    parser.add_argument("--list", action="store_true", help="show what is done and what is left, and run nothing")
    options = _options(parser, args)
    from deploy.evaluation.study import run_study

    return run_study(options.file, options.only, options.list)


def _export(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo export", description="Writes a policy as a torch.export program.", exit_on_error=False
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint file, or a run folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write, NAME.pt2")
    parser.add_argument("--slots", type=int, help="slots of the host, 1 to 8; else as many as in training")
    options = _options(parser, args)
    from deploy.export_command import export_policy

    return export_policy(options.checkpoint, options.out, options.slots)


def _serve(args: list[str]) -> int:
    from deploy.serve_flags import serve_flags

    flags = serve_flags(args)
    from deploy.serve_command import run_server

    return run_server(flags)


def _grow(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo grow",
        description="Runs a script that makes a tamiyo.GrowthController, with a policy served beside it.",
        exit_on_error=False,
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="such as examples/grow_your_model.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="for the script")
    parser.add_argument("--policy", type=Path, metavar="CHECKPOINT", help="else the one that comes with tamiyo")
    options = _options(parser, args)
    from deploy.grow_command import grow

    return grow(options.script, options.arguments, options.policy)


def _secrets(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo secrets",
        description="Passwords, tokens and a certificate for a deployment, each made once; what is there is kept.",
        exit_on_error=False,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files are")
    hosts = ["localhost", "127.0.0.1"]
    also = "names and addresses at which clients reach the policy server, for its certificate (default: localhost)"
    parser.add_argument("--host", nargs="+", default=hosts, metavar="NAME", help=also)
    options = _options(parser, args)
    from deploy.secret_files import write_secrets

    made = write_secrets(options.folder, options.host)
    print(f"{options.folder}: made {', '.join(made)}" if made else f"{options.folder}: all there")
    return 0


def _health(args: list[str]) -> int:
    from deploy.health import main as health

    return health(args)


def _dashboards(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tamiyo dashboards",
        description="Writes Grafana dashboards of all metrics: training, service, endpoint, environment.",
        exit_on_error=False,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where Grafana's provisioning looks for them")
    options = _options(parser, args)
    from deploy.dashboards.command import write_dashboards

    return write_dashboards(options.folder)


def _options(parser: argparse.ArgumentParser, args: list[str]) -> argparse.Namespace:
    """Parsed, every complaint as a `UserError`."""

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}; see `{parser.prog} --help`")

    parser.error = refuse  # type: ignore[method-assign]
    try:
        return parser.parse_args(args)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error


def _doctor(args: list[str]) -> int:
    if args in (["-h"], ["--help"]):
        print("usage: tamiyo doctor\n\nShows what a run would use here and what is missing; exits 1 if it cannot run.")
        return 0
    if args:
        raise UserError(f"tamiyo doctor takes no arguments, got {args[0]!r}")
    from deploy.doctor import doctor

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

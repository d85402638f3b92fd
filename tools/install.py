"""Installs Dovetail, editable, into the environment whose Python runs this file.

`make venv` and `make quickstart` call it. It prints a summary of pip's
progress: large downloads, the number of packages and the time. The full output is in `install.log`
inside the environment; if pip fails, the end of it is printed. It uses only the standard library,
since it runs before anything is installed, and syntax of older Pythons, so that an environment made
with one gets a message and not a traceback.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGE = re.compile(r"Downloading (?:\S*/)?([A-Za-z0-9_.]+?)-\d\S* \((\d{2,}[\d.]* MB)\)")
INSTALLING = re.compile(r"Installing collected packages: (.*)")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extras", default="", help="extras to install, such as dev or dev,serve")
    parser.add_argument("--constraint", type=Path, help="a lock file whose versions must be used")
    options = parser.parse_args(arguments)
    if too_old := describe_old_python(sys.version_info[:2], Path(sys.prefix)):
        print(too_old, file=sys.stderr)
        return 2
    if options.constraint and not (ROOT / options.constraint).is_file():
        print(
            f"There is no lock file {options.constraint} for this Python. `make lock` writes one"
            " from the environment as it is; without LOCKED=1 the newest versions are used.",
            file=sys.stderr,
        )
        return 2
    return install(options.extras, options.constraint)


def describe_old_python(version: tuple[int, int], environment: Path) -> str:
    """Says what to do about an environment whose Python is too old, or nothing where it is not."""
    if version >= (3, 11):
        return ""
    return (
        f"{environment} was made with Python {version[0]}.{version[1]}; Dovetail needs 3.11 or"
        " newer. Move or delete that folder and run the same command again."
    )


def install(extras: str, constraint: Path | None) -> int:
    """Runs pip for the package with these extras, printing what matters as it goes."""
    environment = Path(sys.prefix)
    print(f"Installing Dovetail into {environment.name} (a minute or two at first)", flush=True)
    start = time.monotonic()
    if not has_pip():
        subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
    log = environment / "install.log"
    if run_pip(pip_arguments(extras, constraint), log) != 0:
        report_failure(log)
        return 1
    cache_keys()
    print(f"  done in {time.monotonic() - start:.0f} s", flush=True)
    return 0


def cache_keys() -> None:
    """Caches the key paths of tiny-lm, so that its first mistyped key is reported at once, too.

    Without it, the first use of an experiment caches them; so a failure is none of the install.
    """
    command = [sys.executable, "-m", "dovetail", "config", "show", "tiny-lm"]
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=ROOT, stdout=quiet, stderr=quiet, check=False)


def has_pip() -> bool:
    """Says whether this environment has pip: those that uv makes have none."""
    check = [sys.executable, "-c", "import pip"]
    return subprocess.run(check, stderr=subprocess.DEVNULL, check=False).returncode == 0


def pip_arguments(extras: str, constraint: Path | None) -> list[str]:
    """Returns pip's arguments for an editable install of the package."""
    arguments = ["install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    if constraint:
        arguments += ["--constraint", str(constraint)]
    return [*arguments, "--editable", f".[{extras}]" if extras else "."]


def run_pip(arguments: list[str], log: Path) -> int:
    """Runs pip, writes its output to `log`, prints the readable lines; returns its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pip", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with process, log.open("w", encoding="utf-8") as file:
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if shown := readable(line):
                print(f"  {shown}", flush=True)
    return process.returncode


def readable(line: str) -> str:
    """Returns a progress message for a line of pip's output; empty for most lines."""
    if large := LARGE.search(line):
        return f"downloading {large[1]} ({large[2]})"
    if installing := INSTALLING.search(line):
        count = len(installing[1].split(","))
        return f"installing {count} package{'s' if count > 1 else ''}"
    return ""


def report_failure(log: Path) -> None:
    """Prints the end of pip's log, the path of the log, and the usual reason."""
    lines = log.read_text(encoding="utf-8").splitlines()
    print("pip failed. The end of its output:", *lines[-20:], sep="\n    ", file=sys.stderr)
    print(
        f"All of it is in {log}. If it could not reach the package index, check the network or"
        " pip's index settings, then run the same command again: what is installed is kept.",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())

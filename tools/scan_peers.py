"""Writes the tables of docs/modularity-peers.md from archives of the peers' packages.

    python tools/scan_peers.py ARCHIVES --write docs/modularity-peers.md

ARCHIVES is a folder of wheels and source archives from `pip download --no-deps`; the page lists
them. They are unpacked into a temporary folder and parsed, never imported. Only the standard
library is needed, so a newer Python works, and it parses more of them.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dovetail.modularity.scan import FeatureScan, ScanReport, builtin_words, feature_words, scan

ROOT = Path(__file__).resolve().parent.parent
DETAILED = ("rope", "moe")
KINDS = ("definitions", "constructor_parameters", "config_keys", "conditionals", "constructions")
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
_FOLDERS = {"megatron_core": "megatron"}  # where the package has another name than its archive
_READ = (".py", ".yaml", ".yml", ".toml", ".gin")


def main() -> None:
    """Scans the archives and our own package, and prints or writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archives", type=Path, help="the folder of wheels and source archives")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write them into this page")
    arguments = parser.parse_args()
    tables = "\n".join(all_tables(scan_all(arguments.archives)))
    if arguments.write:
        arguments.write.write_text(put_between(arguments.write.read_text(), tables))
    else:
        print(tables)


def scan_all(archives: Path) -> list[tuple[str, str, ScanReport]]:
    """Returns the name, the version and the report of our own package and of every archive."""
    ours = ("**Dovetail**", _our_version(), _scan(ROOT / "dovetail"))
    reports = [ours]
    for archive in sorted(archives.iterdir()):
        name, version = archive.name.removesuffix(".tar.gz").split("-")[:2]
        _print_progress(f"{name} {version}")
        with tempfile.TemporaryDirectory() as folder:
            _unpack(archive, Path(folder))
            reports.append((name.replace("_", "-"), version, _scan(_package(Path(folder), name))))
    return reports


def all_tables(reports: Sequence[tuple[str, str, ScanReport]]) -> Iterator[str]:
    """Yields the lines of all tables, in Markdown."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    yield f"Made on {datetime.date.today()}, parsed as Python {version}."
    yield from ("", "### The code bases", "")
    yield from _code_bases(reports)
    for feature in DETAILED:
        yield from ("", f"### {feature}", "")
        yield from _feature_table(feature, reports)
    yield from ("", "### Every built-in feature: files not its own / conditionals in them", "")
    yield from _matrix(reports)


def put_between(page: str, tables: str) -> str:
    """Returns the page with the tables between its two markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page needs the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def _code_bases(reports: Sequence[tuple[str, str, ScanReport]]) -> Iterator[str]:
    yield from _head(
        ["code base", "version", "largest config", "largest constructor", "worst pair of models"],
        ["files", "lines", "unparsable", "fields", "parameters", "model files", "repeated"],
        [0, 1, 5, 6, 7, 2, 8, 3, 9, 10, 11, 4],
    )
    for name, version, report in reports:
        config, constructor = report.largest_config, report.largest_constructor
        found = report.repetition
        cells = [name, version, f"{report.num_files:,}", f"{report.num_lines:,}"]
        cells += [str(len(report.unparsable))]
        cells += [f"`{config.name}`" if config else "", str(config.count) if config else "0"]
        cells += [f"`{constructor.name}`" if constructor else ""]
        cells += [str(constructor.count) if constructor else "0", str(report.num_model_files)]
        cells += [f"{found.median:.0%}" if found else "–"]
        worst = found.pairs[0] if found else None
        cells += [f"{worst.share:.0%} `{worst.file}` in `{worst.other}`" if worst else ""]
        yield _row(cells)


def _feature_table(feature: str, reports: Sequence[tuple[str, str, ScanReport]]) -> Iterator[str]:
    titles = ["files that name it", "of all", "not its own", "wired into", "model files wired"]
    titles += ["lines", *(kind.replace("_", " ") for kind in KINDS), "copies", "the most copied"]
    yield from _head(["code base"], titles, range(len(titles) + 1))
    for name, _, report in reports:
        summary = _of(report, feature).summary()
        share = f"{summary['files'] / report.num_files:.0%}"
        models = f"{summary['wired_into_model_files']} of {report.num_model_files}"
        cells = [name, summary["files"], share, summary["other_files"]]
        cells += [summary["wired_into_files"], models if report.num_model_files else "–"]
        cells += [f"{summary[kind]} / {summary[f'{kind}_elsewhere']}" for kind in ("lines", *KINDS)]
        yield _row([*map(str, cells), str(summary["copies"]), str(summary["most_copied_files"])])


def _matrix(reports: Sequence[tuple[str, str, ScanReport]]) -> Iterator[str]:
    features = list(builtin_words())
    yield from _head(["code base"], features, range(len(features) + 1))
    for name, _, report in reports:
        summaries = [_of(report, feature).summary() for feature in features]
        yield _row(
            [
                name,
                *(
                    f"{each['other_files']} / {each['conditionals_elsewhere']}"
                    for each in summaries
                ),
            ]
        )


def _head(words: Sequence[str], numbers: Sequence[str], order: Sequence[int]) -> Iterator[str]:
    """Yields the header of a table; columns of numbers are right-aligned."""
    columns = [(title, "---") for title in words] + [(title, "---:") for title in numbers]
    yield _row([columns[place][0] for place in order])
    yield "|" + "|".join(columns[place][1] for place in order) + "|"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _of(report: ScanReport, feature: str) -> FeatureScan:
    return next(each for each in report.features if each.name == feature)


def _scan(folder: Path) -> ScanReport:
    return scan(folder, [feature_words(name) for name in builtin_words()], progress=_print_progress)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacks the sources; a path outside of the folder is an error."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(_READ)])
    else:
        with tarfile.open(archive) as source:
            for member in source:
                if member.isfile() and member.name.endswith(_READ):
                    _write(folder, member.name, source)


def _write(folder: Path, name: str, source: tarfile.TarFile) -> None:
    """Writes a file of an archive safely; `tarfile` has filters only from Python 3.11.4 on."""
    path = (folder / name).resolve()
    content = source.extractfile(name)
    if content is None or not path.is_relative_to(folder.resolve()):
        raise SystemExit(f"{name} in the archive is not a file that may be unpacked")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.read())


def _package(folder: Path, name: str) -> Path:
    package = _FOLDERS.get(name, name)
    return next(path for path in (folder / package, *folder.glob(f"*/{package}")) if path.is_dir())


def _our_version() -> str:
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

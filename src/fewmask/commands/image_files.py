"""Which images `predict` was asked for, and where their masks go."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import abspath, lexists
from pathlib import Path

from fewmask.data.imagefile import IMAGE_SUFFIXES
from fewmask.errors import ConfigError
from fewmask.report.pictures import is_own_png


@dataclass(frozen=True)
class Job:
    """One image and the files that will be written for it."""

    source: Path
    mask: Path
    confidence: Path | None

    def files(self) -> list[Path]:
        return [path for path in (self.mask, self.confidence) if path is not None]


def find_images(words: Sequence[str], out: Path, *, confidence: bool) -> list[Job]:
    """Every image of folders, files and globs, once; below a folder its relative path is kept, the suffix is .png."""
    found: dict[str, tuple[Path, Path]] = {}  # by absolute path: an image file, and its name below the folder or glob
    for word in words:
        for source, name in _found(word, out):
            found.setdefault(abspath(source), (source, name))
    taken = {path: source for path, (source, _) in found.items()}  # what no mask may overwrite
    jobs = []
    for source, name in found.values():
        job = _free_job(source, out / name, confidence, taken)
        jobs.append(job)
        taken |= {abspath(path): source for path in job.files()}
    return jobs


def require_own(jobs: Sequence[Job]) -> None:
    """Earlier predictions may be replaced; a mask that someone drew or corrected by hand may not."""
    foreign = [path for job in jobs for path in job.files() if lexists(path) and not is_own_png(path)]
    if foreign:
        files, them = ("file", "it") if len(foreign) == 1 else ("files", "them")
        what = f"{len(foreign)} {files} would be overwritten, and fewmask predict did not write {them}"
        raise ConfigError(what, where=str(foreign[0]), fix="another --out, e.g. --out predictions")


def earlier_maps(jobs: Sequence[Job]) -> list[Path]:
    """Confidence maps of earlier predictions that stay beside new masks."""
    written = {abspath(path) for job in jobs for path in job.files()}
    maps = [_map_of(job.mask) for job in jobs if job.confidence is None]
    return [path for path in maps if abspath(path) not in written and is_own_png(path)]


def _map_of(mask: Path) -> Path:
    return mask.with_name(f"{mask.stem}_confidence.png")


def _free_job(source: Path, name: Path, confidence: bool, taken: dict[str, Path]) -> Job:
    for stem in (name.stem, f"{name.stem}_{name.suffix[1:]}"):  # the second for a.jpg beside a.png
        mask = name.with_name(f"{stem}.png")
        job = Job(source, mask, _map_of(mask) if confidence else None)
        clashes = [path for path in job.files() if abspath(path) in taken]
        if not clashes:
            return job
    fix = "another --out, or the folder that holds both: below it relative paths are kept"
    other = taken[abspath(clashes[0])]
    raise ConfigError(f"two images would write {clashes[0]}", where=f"{other} and {source}", fix=fix)


def _found(word: str, out: Path) -> list[tuple[Path, Path]]:
    path = Path(word)
    if path.is_dir():
        if path.resolve() == out.resolve():
            raise ConfigError("the masks would lie among the images", where=str(out), fix="another folder for --out")
        images = [each for each in sorted(path.rglob("*")) if _is_image(each, path)]
        below = out.resolve()  # masks of an earlier call are no images
        if below.is_relative_to(path.resolve()):
            images = [each for each in images if not each.resolve().is_relative_to(below)]
        found = [(each, each.relative_to(path)) for each in images]
    elif path.is_file():
        found = [(path, Path(path.name))]
    else:
        found = list(_matches(word))
    if not found:
        kinds = ", ".join(IMAGE_SUFFIXES)
        raise ConfigError("no images found", where=word, fix=f"a folder, files, or a quoted glob, of {kinds}")
    return found


def _matches(pattern: str) -> Iterator[tuple[Path, Path]]:
    parts = Path(pattern).parts
    fixed = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    root = Path(*parts[:fixed])
    for match in sorted(glob.glob(pattern, recursive=True)):
        if _is_image(Path(match), root):
            yield Path(match), Path(match).relative_to(root)


def _is_image(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() and not hidden

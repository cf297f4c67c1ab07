"""The store of compiled kernels: one folder a digest, complete or not there.

An object is written beside its place and then renamed, so that builds may share a store; one that was cut off or
changed since is not found, and the next build replaces it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa3gen.digest import sha256

META = "meta.json"
_TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class StoredObject:
    """An object of the store: its files and what ``meta.json`` says of it."""

    digest: str
    path: Path
    meta: Mapping[str, Any]

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


class Store:
    """Objects under ``root``, by digest."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, digest: str) -> StoredObject | None:
        """The object, if it is there and as it was written."""
        path = self.root / digest
        try:
            meta = json.loads((path / META).read_text(encoding="utf-8"))
            files: Mapping[str, str] = meta["files"]
            intact = all(sha256((path / name).read_bytes()) == expected for name, expected in files.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return StoredObject(digest, path, meta) if intact else None

    def put(self, digest: str, files: Mapping[str, bytes], meta: Mapping[str, Any]) -> StoredObject:
        """Writes an object, unless another process was faster; replaces a damaged one."""
        self.root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
        try:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            complete = {**meta, "files": {name: sha256(data) for name, data in sorted(files.items())}}
            text = json.dumps(complete, indent=1, sort_keys=True) + "\n"
            (folder / META).write_text(text, encoding="utf-8")
            folder.chmod(0o755)
            self._place(folder, digest)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        stored = self.get(digest)
        if stored is None:
            raise OSError(f"{self.root / digest} changed while it was written")
        return stored

    def discard(self, digest: str) -> None:
        """Removes an object."""
        trash = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            (self.root / digest).rename(trash / digest)
        shutil.rmtree(trash, ignore_errors=True)

    def objects(self) -> Iterator[StoredObject]:
        """Every object that is intact, by digest."""
        for path in sorted(self.root.glob("*/" + META)):
            stored = None if path.parent.name.startswith(_TEMPORARY) else self.get(path.parent.name)
            if stored is not None:
                yield stored

    def _place(self, folder: Path, digest: str) -> None:
        """Renames ``folder`` to its place; leaves an intact object alone."""
        while self.get(digest) is None:
            if _rename_to_new(folder, self.root / digest):
                return
            if self.get(digest) is None:
                self.discard(digest)


def _rename_to_new(folder: Path, target: Path) -> bool:
    """Renames ``folder``, unless ``target`` is there: damaged, or just written by another process."""
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True

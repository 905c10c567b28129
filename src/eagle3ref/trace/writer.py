"""Writing a trace so that a capture killed at any moment resumes: nothing lost, nothing doubled."""

from __future__ import annotations

import hashlib
from collections.abc import KeysView
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from eagle3ref.durable import LOCK_FILE, PARTIAL, lock_folder, replace_file, write_line
from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.access import writing
from eagle3ref.trace.format import HEADER_FILE, MANIFEST_FILE, file_size, read_index
from eagle3ref.trace.header import TraceHeader
from eagle3ref.trace.manifest import SEQUENCE_FILE, ManifestEntry, file_name, manifest_line
from eagle3ref.trace.sequence import RecordedSequence
from eagle3ref.trace.storage import encode_sequence


class TraceWriter:
    """Adds sequences to one trace folder; ``TraceWriter.open`` makes it.

    A sequence is in the trace when its manifest line is, and that is written last: file under a temporary name,
    flush to disk, rename, line, flush to disk.
    """

    def __init__(
        self,
        folder: Path,
        lock: BinaryIO,
        header: TraceHeader,
        entries: tuple[ManifestEntry, ...],
        dropped: frozenset[str],
    ) -> None:
        self._folder, self._lock = folder, lock
        self._entries = {entry.id: entry for entry in entries}
        self._manifest_bytes = sum(len(manifest_line(entry)) for entry in entries)
        self.header = header
        self.dropped = dropped

    @classmethod
    def open(cls, path: str | Path, header: TraceHeader) -> TraceWriter:
        """Begin a trace, or go on with the one that is there.

        Going on drops sequences whose file is missing or of the wrong size (``dropped`` has their ids), and
        removes what a killed writer left behind. The header on disk stays, provenance included.

        Raises:
            Eagle3RefError: the path is something else than a trace or an empty folder (nothing is touched), the
                trace there has another header (the fields are told), its index is damaged, another writer has
                it open, or the operating system refuses (rights, disk full).
        """
        folder = Path(path)
        with writing(folder), ExitStack() as on_error:
            _refuse_foreign(folder)
            folder.mkdir(parents=True, exist_ok=True)
            lock = on_error.enter_context(_lock(folder))
            if not (folder / HEADER_FILE).exists():
                # The header comes last: with it the folder is a trace, and a trace has a manifest.
                replace_file(folder / MANIFEST_FILE, b"")
                replace_file(folder / HEADER_FILE, header.to_json().encode())
            recorded, entries = read_index(folder)
            _refuse_other_header(folder, recorded, header)
            kept = tuple(entry for entry in entries if file_size(folder / entry.file) == entry.bytes)
            _repair(folder, kept)
            dropped = frozenset(entry.id for entry in set(entries) - set(kept))
            on_error.pop_all()
        return cls(folder, lock, recorded, kept, dropped)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the next writer in. Every sequence added is on disk already."""
        self._lock.close()

    @property
    def done(self) -> KeysView[str]:
        """Ids of the sequences that are in the trace; it grows with them."""
        return self._entries.keys()

    def add(self, sequence: RecordedSequence) -> None:
        """Write one sequence; when this returns it survives a kill and a power cut.

        Raises:
            Eagle3RefError: an id that is in the trace already, contents that the header does not describe, states
                that are not finite, a writer that was closed, or a refusal of the operating system, say a full disk;
                the writer can be used on.
        """
        self._check(sequence)
        index = self._entries[next(reversed(self._entries))].index + 1 if self._entries else 0
        data = encode_sequence(sequence, self.header)
        entry = ManifestEntry(
            id=sequence.id,
            file=file_name(index, sequence.id),
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            prompt_length=sequence.prompt_length,
            num_tokens=len(sequence.tokens),
        )
        with writing(self._folder):
            # No file is left to the writer of safetensors: it would be for the owner's eyes only, and a kill would
            # leave a temporary file of a name that nobody can tell from somebody else's.
            replace_file(self._folder / entry.file, data)
            self._append(entry)

    def _check(self, sequence: RecordedSequence) -> None:
        doing = f"adding sequence {sequence.id!r} to the trace {self._folder}"
        if self._lock.closed:
            raise Eagle3RefError(
                doing, found="a closed writer", expected="an open one", action="Open the trace again with TraceWriter."
            )
        if sequence.id in self.done:
            raise Eagle3RefError(
                doing,
                found="that id in the trace already",
                expected="a new id",
                action="Skip the ids in writer.done, or give every prompt an id of its own.",
            )
        sequence.check_against(self.header)
        sequence.check_finite()

    def _append(self, entry: ManifestEntry) -> None:
        manifest = self._folder / MANIFEST_FILE
        self._manifest_bytes = write_line(manifest, self._manifest_bytes, manifest_line(entry))
        self._entries[entry.id] = entry


def _refuse_foreign(folder: Path) -> None:
    """A writer killed before its header leaves the lock and an empty manifest; any other content is someone else's."""
    if folder.is_dir():
        ours = {LOCK_FILE, HEADER_FILE + PARTIAL, MANIFEST_FILE + PARTIAL}
        if not file_size(folder / MANIFEST_FILE):
            ours.add(MANIFEST_FILE)
        if (folder / HEADER_FILE).is_file() or {path.name for path in folder.iterdir()} <= ours:
            return
    elif not folder.exists():
        return
    raise Eagle3RefError(
        f"writing a trace to {folder}",
        found="a folder that is not empty and not a trace" if folder.is_dir() else "a file",
        expected="a new path, an empty folder or a trace to go on with",
        action="Choose another path; nothing was touched.",
    )


def _refuse_other_header(folder: Path, recorded: TraceHeader, header: TraceHeader) -> None:
    differences = recorded.differences(header)
    if differences:
        raise Eagle3RefError(
            f"resuming the trace {folder}",
            found="another header: " + "; ".join(differences),
            expected="the header that the trace was begun with (provenance may differ)",
            action="Capture with the same settings, or into a new folder.",
        )


def _lock(folder: Path) -> BinaryIO:
    refusal = Eagle3RefError(
        f"writing a trace to {folder}",
        found="another writer at work in that folder",
        expected="one writer at a time",
        action="Wait until it ends, or choose another folder.",
    )
    return lock_folder(folder, refusal)


def _repair(folder: Path, entries: tuple[ManifestEntry, ...]) -> None:
    """Make the folder what an undisturbed writer of ``entries`` would have left."""
    manifest = b"".join(manifest_line(entry) for entry in entries)
    if (folder / MANIFEST_FILE).read_bytes() != manifest:
        replace_file(folder / MANIFEST_FILE, manifest)
    named = {entry.file for entry in entries}
    for path in folder.iterdir():
        name = path.name.removesuffix(PARTIAL)
        leftover = path.name.endswith(PARTIAL) and name in (HEADER_FILE, MANIFEST_FILE)
        if leftover or (SEQUENCE_FILE.fullmatch(name) and path.name not in named):
            path.unlink()

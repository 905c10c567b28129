"""Reading a trace: a folder of recorded sequences (docs/trace-format.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from eagle3ref.errors import Eagle3RefError
from eagle3ref.trace.access import reading
from eagle3ref.trace.header import TraceHeader
from eagle3ref.trace.manifest import ManifestEntry, manifest_line, parse_manifest
from eagle3ref.trace.sequence import RecordedSequence
from eagle3ref.trace.storage import load_sequence

HEADER_FILE = "trace.json"
MANIFEST_FILE = "manifest.jsonl"
_RESUME = "Run the capture again: it resumes, and records what is missing."


@dataclass(frozen=True)
class Trace:
    """What a target did on some prompts; nothing of a sequence is read until it is asked for.

    Args:
        path: the folder.
        header: what all sequences have in common.
        entries: one for each sequence, in the order of recording.
    """

    path: Path
    header: TraceHeader
    entries: tuple[ManifestEntry, ...]

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Open a trace folder and hold the size of every file against the manifest.

        A trace that is still being written opens too, with the sequences complete so far.

        Raises:
            Eagle3RefError: no such folder, not a trace, another schema version, a damaged manifest, or a
                sequence file that is missing or of another size than recorded.
        """
        folder = Path(path)
        header, entries = read_index(folder)
        for entry in entries:
            with reading(folder):
                size = file_size(folder / entry.file)
            if size != entry.bytes:
                raise Eagle3RefError(
                    f"opening the trace {folder}",
                    found=f"no file {entry.file}" if size is None else f"{size} bytes in {entry.file}",
                    expected=f"{entry.bytes} bytes, as {MANIFEST_FILE} says of sequence {entry.id!r}",
                    action=_RESUME,
                )
        return cls(folder, header, entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> RecordedSequence:
        return self._load(self.entries[index])

    def __iter__(self) -> Iterator[RecordedSequence]:
        return map(self._load, self.entries)

    @cached_property
    def _by_id(self) -> dict[str, ManifestEntry]:
        return {entry.id: entry for entry in self.entries}

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the sequences, in the order of recording."""
        return tuple(entry.id for entry in self.entries)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences, prompts included."""
        return sum(entry.num_tokens for entry in self.entries)

    def sequence(self, sequence_id: str) -> RecordedSequence:
        """The sequence of that id, its states mapped into memory.

        Raises:
            Eagle3RefError: no such sequence, or a file that does not hold what header and manifest say.
        """
        entry = self._by_id.get(sequence_id)
        if entry is not None:
            return self._load(entry)
        raise Eagle3RefError(
            f"reading the trace {self.path}",
            found=f"no sequence {sequence_id!r} among {len(self)}",
            expected=f"an id such as {', '.join(map(repr, self.ids[:3]))}" if self.ids else "a trace that is not empty",
            action="Trace.ids lists them all.",
        )

    def sha256(self) -> str:
        """A name for exactly this trace: header and manifest, and through the manifest's checksums every sequence."""
        # Not of the files: a capture that is still at work may have added to them since.
        manifest = b"".join(map(manifest_line, self.entries))
        return hashlib.sha256(self.header.to_json().encode() + manifest).hexdigest()

    def check(self) -> None:
        """Read every byte: checksums, shapes, token ids, and that all states are finite.

        Raises:
            Eagle3RefError: naming the first file or sequence that is wrong.
        """
        for entry in self.entries:
            with reading(self.path):
                found = file_sha256(self.path / entry.file)
            if found != entry.sha256:
                raise Eagle3RefError(
                    f"checking the trace {self.path}",
                    found=f"sha256 {found} of {entry.file}",
                    expected=f"{entry.sha256}, as {MANIFEST_FILE} says of sequence {entry.id!r}",
                    action=f"Delete {entry.file}. {_RESUME}",
                )
            self._load(entry).check_finite()

    def _load(self, entry: ManifestEntry) -> RecordedSequence:
        sequence = load_sequence(self.path / entry.file, self.header)
        found = (sequence.id, sequence.prompt_length, len(sequence.tokens))
        expected = (entry.id, entry.prompt_length, entry.num_tokens)
        if found != expected:
            raise Eagle3RefError(
                f"reading {self.path / entry.file}",
                found=f"(id, prompt_length, num_tokens) = {found}",
                expected=f"{expected}, as {MANIFEST_FILE} says",
                action="Files were exchanged: restore the folder from a copy, or record the trace again.",
            )
        return sequence


def read_index(folder: Path) -> tuple[TraceHeader, tuple[ManifestEntry, ...]]:
    """Header and manifest of a trace folder.

    Raises:
        Eagle3RefError: no such folder, not a trace, another schema version, a damaged header or manifest, or files
            that may not be read.
    """
    doing = f"opening the trace {folder}"
    with reading(folder):
        if not folder.is_dir():
            raise Eagle3RefError(
                doing,
                found="a file" if folder.exists() else "nothing there",
                expected=f"a folder with {HEADER_FILE}",
                action="Check the path.",
            )
        for name in (HEADER_FILE, MANIFEST_FILE):
            if not (folder / name).is_file():
                raise Eagle3RefError(
                    doing,
                    found=f"a folder without {name}",
                    expected=f"{HEADER_FILE}, {MANIFEST_FILE} and one safetensors file for each sequence",
                    action="Check the path; dumps of other tools have to be imported first.",
                )
        header = TraceHeader.from_json((folder / HEADER_FILE).read_bytes(), doing)
        return header, parse_manifest((folder / MANIFEST_FILE).read_bytes(), str(folder / MANIFEST_FILE))


def file_size(path: Path) -> int | None:
    """Bytes of a file; None when there is no such file."""
    return path.stat().st_size if path.is_file() else None


def file_sha256(path: Path) -> str:
    """Checksum of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
